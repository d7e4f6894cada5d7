"""What one engine holds, by prefixes: from its events to how much of a prompt is there, and where. Pure; bounded.

An engine names blocks by hashes of its own; here they stand by the rolling hash of the tokens up to their end, so that
engines with different hashes, or none that can be made elsewhere, are asked in one way. Equal tokens that an engine holds
under two names count once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncask.conductor.serving.indexer.events import Cleared, Event, Removed, Stored
from mooncask.conductor.serving.indexer.hashes import sequence_hashes
from mooncask.errors import BadField


@dataclass(slots=True)
class Matched:
    """Of one prompt, in blocks: the longest prefix, and how many of its blocks are in which medium."""

    blocks: int = 0
    media: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Block:
    sequence: int
    media: set[str]


@dataclass(slots=True)
class PrefixTable:
    """Of one engine rank and one LoRA adapter. At most `blocks_max` blocks: those told of longest ago are forgotten first."""

    block_tokens: int
    seed: int
    blocks_max: int
    passed_over: int = 0
    """Blocks that could not be placed: behind one that is not known, of another size, or of more than tokens."""
    _blocks: "OrderedDict[int, _Block]" = field(default_factory=OrderedDict)
    """By the engine's own hash."""
    _names: dict[int, set[int]] = field(default_factory=dict)
    """The engine's hashes by the rolling one."""

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
        found = Matched()
        for sequence in sequences:
            names = self._names.get(sequence)
            if not names:
                break
            found.blocks += 1
            for medium in set().union(*(self._blocks[name].media for name in names)):
                found.media[medium] = found.media.get(medium, 0) + 1
        return found

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
        block = self._blocks.get(name)
        if block is not None and block.sequence == sequence:
            block.media.add(medium)
            self._blocks.move_to_end(name)
            return
        if block is not None:
            self._forget(name)
        self._blocks[name] = _Block(sequence, {medium})
        self._names.setdefault(sequence, set()).add(name)
        while len(self._blocks) > self.blocks_max:
            self._forget(next(iter(self._blocks)))

    def _remove(self, name: int, medium: str) -> None:
        block = self._blocks.get(name)
        if block is not None:
            block.media.discard(medium)
            if not block.media:
                self._forget(name)

    def _forget(self, name: int) -> None:
        block = self._blocks.pop(name)
        names = self._names[block.sequence]
        names.discard(name)
        if not names:
            del self._names[block.sequence]
