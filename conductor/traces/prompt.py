"""Made-up prompts without content: what a generator needs of the way prompts share blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class Numbers:
    """Fresh block ids and conversation numbers, shared by all workloads of one trace."""

    blocks: Iterator[int] = field(default_factory=count)
    conversations: Iterator[int] = field(default_factory=lambda: count(1))


class Prompt:
    """A text that grows, as the ids of its blocks. Full blocks keep their ids for good; a partial last one never
    matches that of another version, since what follows differs."""

    __slots__ = ("_block_tokens", "_full", "_numbers", "tokens")

    def __init__(self, numbers: Numbers, block_tokens: int, tokens: int) -> None:
        self._numbers, self._block_tokens = numbers, block_tokens
        self._full: list[int] = []
        self.tokens = 0
        self.append(tokens)

    def append(self, tokens: int) -> None:
        """Let the text grow by `tokens` that no other text has."""
        self.tokens += tokens
        while len(self._full) < self.tokens // self._block_tokens:
            self._full.append(next(self._numbers.blocks))

    def fork(self) -> "Prompt":
        """Another text that begins with this one and shares its full blocks."""
        other = Prompt(self._numbers, self._block_tokens, 0)
        other._full, other.tokens = self._full.copy(), self.tokens
        return other

    def hash_ids(self) -> tuple[int, ...]:
        """The block ids of the text as a prompt now."""
        partial = (next(self._numbers.blocks),) if self.tokens % self._block_tokens else ()
        return (*self._full, *partial)
