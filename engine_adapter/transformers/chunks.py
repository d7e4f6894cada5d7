"""Where a prompt is cut for computing, and which blocks each cut completes. Pure arithmetic.

Chunks end at absolute multiples of `prefill_chunk`, so that two workers that compute the same tokens cut them at the
same places wherever each began:

    chunk size 256, hit of 208 tokens, prompt of 700:   [208, 256) [256, 512) [512, 700)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens [start, stop) of a prompt, computed in one forward pass."""

    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start


def chunks(start: int, stop: int, prefill_chunk: int) -> list[Chunk]:
    """[start, stop) cut at absolute multiples of `prefill_chunk`; none when there is nothing to compute."""
    inner = range((start // prefill_chunk + 1) * prefill_chunk, stop, prefill_chunk)
    edges = [start, *inner, stop] if start < stop else []
    return [Chunk(edges[i], edges[i + 1]) for i in range(len(edges) - 1)]


def completed_blocks(chunk: Chunk, block_tokens: int) -> range:
    """The blocks whose last token lies in the chunk; the first of them may have begun in the chunk before."""
    return range(chunk.start // block_tokens, chunk.stop // block_tokens)


def loadable_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """Full blocks that leave at least one token to compute: the one whose logits choose the first answer token."""
    return max(0, prompt_tokens - 1) // block_tokens
