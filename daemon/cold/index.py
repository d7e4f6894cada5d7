"""Which blocks are in the bucket, in memory: a dictionary entry and one integer a block. Pure; of one daemon.

The same block in two packs is known in one of them only; the other pack remembers that it has some that count as not there, so
that they are looked at again when the first pack goes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mooncask.daemon.cold.names import Run
from mooncask.daemon.cold.pack import PACK_MAGIC, identity_of

_OFFSET_BITS = 32
_LENGTH_BITS = 32
_MASK = (1 << 32) - 1


class PackName(NamedTuple):
    """Which pack. Older ones, by incarnation and number, are the smaller ones."""

    incarnation: bytes
    number: int


class Block(NamedTuple):
    """One block of a pack, as it is added."""

    ns_id: bytes
    key: bytes
    offset: int
    length: int


@dataclass(slots=True, eq=False)
class Pack:
    """A pack of which blocks are known."""

    name: PackName
    node: str
    size: int
    created: int
    key_id: bytes
    used_seconds: float = 0.0
    """When a block of it was read here last; wall clock."""
    blocks: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Namespace -> keys that are found here."""
    live: int = 0
    live_bytes: int = 0
    shadowed: int = 0
    """Blocks of it that another pack has too, and which are found there."""
    left_out: int = 0
    """Blocks of it for which there was no room in the index."""

    @property
    def run(self) -> Run:
        return Run(self.node, self.name.incarnation[8:].hex())

    @property
    def identity(self) -> bytes:
        return identity_of(PACK_MAGIC, self.name.incarnation, self.name.number)


class Place(NamedTuple):
    """Where a block's record is."""

    pack: Pack
    offset: int
    length: int


class ColdIndex:
    """Belongs to the event loop's thread. `blocks_max`: further ones are not remembered, and counted."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._places: dict[bytes, dict[bytes, int]] = {}
        self._packs: list[Pack | None] = []
        self._numbers: dict[PackName, int] = {}
        self._free: list[int] = []
        self.blocks = 0
        self.left_out = 0
        """Blocks that found no room, ever since the start."""

    @property
    def packs(self) -> Iterator[Pack]:
        return (pack for pack in self._packs if pack is not None)

    @property
    def pack_count(self) -> int:
        return len(self._numbers)

    def pack(self, name: PackName) -> Pack | None:
        number = self._numbers.get(name)
        return None if number is None else self._packs[number]

    def has(self, ns_id: bytes, key: bytes) -> bool:
        places = self._places.get(ns_id)
        return places is not None and key in places

    def find(self, ns_id: bytes, key: bytes) -> Place | None:
        packed = self._places.get(ns_id, {}).get(key)
        if packed is None:
            return None
        pack = self._packs[packed >> (_OFFSET_BITS + _LENGTH_BITS)]
        assert pack is not None
        return Place(pack, (packed >> _LENGTH_BITS) & _MASK, packed & _MASK)

    def length(self, ns_id: bytes, key: bytes) -> int:
        """Bytes to read for a block; 0 when it is not there."""
        return self._places.get(ns_id, {}).get(key, 0) & _MASK

    def add(self, pack: Pack, blocks: Iterable[Block]) -> Sequence[Block]:
        """A pack and what is in it. Returns the blocks that are found in an older pack, of which there is one more copy now; of two
        packs the smaller name is the older. Of a pack that is known already, what is found nowhere now is added."""
        self.begin(pack)
        return self.extend(pack.name, blocks)

    def begin(self, pack: Pack) -> None:
        """As `add`, for a pack whose blocks come some at a time: `extend`."""
        number = self._numbers.get(pack.name)
        if number is None:
            number = self._free.pop() if self._free else len(self._packs)
            self._packs[number : number + 1] = [pack]
            self._numbers[pack.name] = number
        known = self._packs[number]
        assert known is not None
        known.shadowed = known.left_out = 0

    def extend(self, name: PackName, blocks: Iterable[Block]) -> Sequence[Block]:
        """More blocks of a pack, as from `add`. Without effect when it was dropped meanwhile."""
        number = self._numbers.get(name)
        known = None if number is None else self._packs[number]
        if number is None or known is None:
            return []
        return [block for block in blocks if self._add_block(known, number, block)]

    def _add_block(self, pack: Pack, number: int, block: Block) -> bool:
        """Whether it is a copy of one that stays."""
        places = self._places.setdefault(block.ns_id, {})
        old = places.get(block.key)
        if old is None and self.blocks >= self._blocks_max:
            self.left_out += 1
            pack.left_out += 1
            return False
        if old is not None:
            other = self._packs[old >> (_OFFSET_BITS + _LENGTH_BITS)]
            assert other is not None
            if other is pack:
                return False
            if other.name < pack.name:
                pack.shadowed += 1
                return True
            self._take(other, block.ns_id, block.key, old & _MASK)
            other.shadowed += 1
        places[block.key] = number << (_OFFSET_BITS + _LENGTH_BITS) | block.offset << _LENGTH_BITS | block.length
        pack.blocks.setdefault(block.ns_id, []).append(block.key)
        pack.live += 1
        pack.live_bytes += block.length
        self.blocks += 1
        return False

    def _take(self, pack: Pack, ns_id: bytes, key: bytes, length: int) -> None:
        """Of a pack's sums; its list of keys may name it still."""
        pack.live -= 1
        pack.live_bytes -= length
        self.blocks -= 1
        del self._places[ns_id][key]

    def forget(self, ns_id: bytes, key: bytes) -> Pack | None:
        """This block is not there any more; the pack that had it."""
        place = self.find(ns_id, key)
        if place is None:
            return None
        self._take(place.pack, ns_id, key, place.length)
        return place.pack

    def drop(self, name: PackName) -> bool:
        """The pack is gone, with all its blocks. Whether other packs have copies of some, which are to be looked at again."""
        number = self._numbers.pop(name, None)
        if number is None:
            return False
        pack = self._packs[number]
        assert pack is not None
        for ns_id, keys in pack.blocks.items():
            places = self._places.get(ns_id, {})
            for key in keys:
                packed = places.get(key)
                if packed is not None and packed >> (_OFFSET_BITS + _LENGTH_BITS) == number:
                    del places[key]
                    self.blocks -= 1
        self._packs[number] = None
        self._free.append(number)
        return any(other.shadowed for other in self.packs)

    def entries(self, pack: Pack) -> list[Block]:
        """What is found in this pack, in the order of its bytes."""
        number = self._numbers[pack.name]
        found = []
        for ns_id, keys in pack.blocks.items():
            places = self._places.get(ns_id, {})
            for key in dict.fromkeys(keys):
                packed = places.get(key)
                if packed is not None and packed >> (_OFFSET_BITS + _LENGTH_BITS) == number:
                    found.append(Block(ns_id, key, (packed >> _LENGTH_BITS) & _MASK, packed & _MASK))
        return sorted(found, key=lambda block: block.offset)
