"""An engine's KV cache groups, and what each keeps of a request. Pure; knows vLLM's rules, not its classes.

Each group has a block table of its own. A group of full attention keeps all blocks of a request. One with a sliding window
keeps those that the next token's window begins in or after; vLLM puts its null block in place of the others:

    window 5, blocks of 4 tokens, 14 tokens computed      | 0..3 | 4..7 | 8..11 | 12..15 |
    the next token, 14, attends to 10..14                  null   null    kept     kept

A block of the store carries every layer, so it can be saved only while all groups have their part of it. Which layers are
in which group: `kv_planes.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NULL_BLOCK = 0
"""The id of vLLM's block that stands for none."""

BlockTable = Sequence[Sequence[int]]
"""The engine's blocks of one request, a list a group."""


@dataclass(frozen=True, slots=True)
class KvGroups:
    """Of one engine, in vLLM's order. `block_tokens` is the same in all of them."""

    block_tokens: int
    windows: tuple[int, ...] = (0,)
    """How many tokens, itself included, a token attends to, by group; 0: all before it."""

    @property
    def slide(self) -> bool:
        """Whether any group drops KV of a request that goes on."""
        return any(self.windows)

    @property
    def fail_by_block(self) -> bool:
        """Whether a load may bring a part. Otherwise vLLM can be told only that a request's load failed: block ids of several
        groups can't be told apart, and KV that was to be loaded up to a boundary is no prefix for a sliding window."""
        return len(self.windows) == 1 and not self.slide

    def loadable(self, tokens: int) -> int:
        """How many blocks to load at most, of a prompt of `tokens` tokens.

        vLLM computes the last token of a prompt that was loaded entirely once more. A sliding window of that token begins
        before the KV that vLLM made places for, so such a prompt's last block is computed.
        """
        return (tokens - 1 if self.slide else tokens) // self.block_tokens

    def kept_from(self, computed: int) -> int:
        """The first block that every group keeps, once `computed` tokens of a request have KV."""
        dropped = (max(0, computed - window + 1) // self.block_tokens for window in self.windows if window)
        return max(dropped, default=0)

    def whole_from(self, table: BlockTable, computed: int) -> int:
        """The first block of which every group has its part: kept, and not null from the start (a request whose beginning came
        from a cache has places for the window's blocks only)."""
        first = self.kept_from(computed)
        for ids, window in zip(table, self.windows, strict=True):
            while window and first < len(ids) and ids[first] == NULL_BLOCK:
                first += 1
        return first

    def places(self, table: BlockTable, block: int) -> tuple[int | None, ...]:
        """Where a block is in each group; None where the group has no place for it."""
        return tuple(
            None if window and (block >= len(ids) or ids[block] == NULL_BLOCK) else ids[block]
            for ids, window in zip(table, self.windows, strict=True)
        )
