"""What one engine holds, by prefixes: from its events to how much of a prompt is there, and where. Pure; bounded.

An engine names blocks by hashes of its own; here they stand by the rolling hash of the tokens up to their end, so that
engines with different hashes, or none that can be made elsewhere, are asked in one way. Equal tokens that an engine holds
under two names count once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mooncask.conductor.serving.indexer.hashes import sequence_hashes
from mooncask.conductor.serving.kv_events.events import Cleared, Event, Removed, Stored
from mooncask.errors import BadField

MEDIA_MAX = 8


@dataclass(slots=True)
class Matched:
    """Of one prompt, in blocks: the longest prefix, and how many of its blocks are in which medium."""

    blocks: int = 0
    media: dict[str, int] = field(default_factory=dict)


class _Block(NamedTuple):
    sequence: int
    media: int
    """A bit for each medium, in the order in which the table heard of them."""


@dataclass(slots=True)
class PrefixTable:
    """Of one engine rank and one LoRA adapter. At most `blocks_max` blocks: those told of longest ago are forgotten first.

    A block takes some 300 bytes.
    """

    block_tokens: int
    seed: int
    blocks_max: int
    passed_over: int = 0
    """Blocks that could not be placed: behind one that is not known, of another size, or of more than tokens."""
    _blocks: "OrderedDict[int, _Block]" = field(default_factory=OrderedDict)
    """By the engine's own hash."""
    _names: dict[int, int | frozenset[int]] = field(default_factory=dict)
    """The engine's hash by the rolling one; several where it has the same tokens under several."""
    _media: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, event: Event) -> None:
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            for name in event.hashes:
                self._remove(name, event.medium)
        elif isinstance(event, Cleared):
            self.clear()

    def clear(self) -> None:
        self._blocks.clear()
        self._names.clear()

    def match(self, sequences: Sequence[int]) -> Matched:
        """`sequences`: the prompt's rolling hashes. Ends at the first block that is nowhere."""
        found, counts = Matched(), [0] * len(self._media)
        for sequence in sequences:
            media = self._where(sequence)
            if not media:
                break
            found.blocks += 1
            for bit in range(len(counts)):
                counts[bit] += media >> bit & 1
        found.media = {medium: count for medium, count in zip(self._media, counts, strict=True) if count}
        return found

    def _where(self, sequence: int) -> int:
        """The media of all blocks that end so; 0: nowhere."""
        names = self._names.get(sequence)
        if names is None:
            return 0
        if isinstance(names, int):
            return self._blocks[names].media
        media = 0
        for name in names:
            media |= self._blocks[name].media
        return media

    def _store(self, event: Stored) -> None:
        parent = None
        if event.parent is not None:
            known = self._blocks.get(event.parent)
            parent = known.sequence if known is not None else None
        lost = event.parent is not None and parent is None
        if lost or event.apart or event.block_tokens != self.block_tokens:
            self.passed_over += len(event.hashes)
            return
        try:
            sequences = sequence_hashes(event.tokens, self.block_tokens, self.seed, parent)
        except BadField:
            self.passed_over += len(event.hashes)
            return
        for name, sequence in zip(event.hashes, sequences, strict=False):
            self._add(name, sequence, event.medium)

    def _add(self, name: int, sequence: int, medium: str) -> None:
        block, bit = self._blocks.get(name), self._bit(medium)
        if block is not None and block.sequence == sequence:
            self._blocks[name] = _Block(sequence, block.media | bit)
            self._blocks.move_to_end(name)
            return
        if block is not None:
            self._forget(name)
        self._blocks[name] = _Block(sequence, bit)
        known = self._names.get(sequence)
        self._names[sequence] = name if known is None else _all(known) | {name}
        while len(self._blocks) > self.blocks_max:
            self._forget(next(iter(self._blocks)))

    def _remove(self, name: int, medium: str) -> None:
        block = self._blocks.get(name)
        if block is None:
            return
        media = block.media & ~self._bit(medium)
        if media:
            self._blocks[name] = _Block(block.sequence, media)
        else:
            self._forget(name)

    def _forget(self, name: int) -> None:
        block = self._blocks.pop(name)
        names = _all(self._names.pop(block.sequence)) - {name}
        if names:
            self._names[block.sequence] = names if len(names) > 1 else next(iter(names))

    def _bit(self, medium: str) -> int:
        if medium not in self._media:
            if len(self._media) >= MEDIA_MAX:
                medium = self._media[-1]
            else:
                self._media.append(medium)
        return 1 << self._media.index(medium)


def _all(names: int | frozenset[int]) -> frozenset[int]:
    return frozenset((names,)) if isinstance(names, int) else names
