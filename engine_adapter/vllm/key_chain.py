"""One request's block keys, grown as its tokens become known. Pure; docs/HASHING.md says what a key is.

What changes a block's KV beside its tokens is in `BlockExtras`: LoRA, multimodal items with their offsets, prompt
embeddings. It never depends on Python's hash seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncask.client.hashing import chain, encode_extra


@dataclass(frozen=True, slots=True)
class Item:
    """A multimodal item: what it is, and the tokens [offset, offset + length) that stand for it."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockExtras:
    """What else changes the KV of a request's blocks."""

    lora: bytes = b""
    """A digest of the adapter's weights; empty for none."""
    items: tuple[Item, ...] = ()
    """In order of their offsets."""
    embeds: Callable[[int, int], bytes] | None = None
    """Digest of the prompt embeddings of tokens [start, stop); empty where there are none."""

    def of_block(self, start: int, stop: int) -> bytes:
        """Canonical bytes for the block of tokens [start, stop); empty for plain text."""
        parts: dict[str, bytes] = {"lora": self.lora} if self.lora else {}
        if self.embeds is not None and (digest := self.embeds(start, stop)):
            parts["embeds"] = digest
        for index, item in enumerate(item for item in self.items if _overlap(item, start, stop)):
            place = (item.offset - start).to_bytes(8, "little", signed=True) + item.length.to_bytes(8, "little")
            parts[f"mm{index:04}"] = place + item.identifier.encode()
        return encode_extra(parts)

    @property
    def plain(self) -> bool:
        return not self.lora and not self.items and self.embeds is None


def _overlap(item: Item, start: int, stop: int) -> bool:
    return item.offset < stop and start < item.offset + item.length


@dataclass(slots=True)
class KeyChain:
    """Keys of the full blocks of one request's tokens, block 0 first."""

    root: bytes
    block_tokens: int
    hash: str = "sha256"
    extras: BlockExtras = field(default_factory=BlockExtras)
    keys: list[bytes] = field(default_factory=list)

    def extend(self, tokens: Sequence[int], length: int) -> list[bytes]:
        """All keys of the full blocks of the first `length` tokens, of which only those that are new are computed."""
        blocks, known, step = length // self.block_tokens, len(self.keys), self.block_tokens
        if blocks > known:
            before = self.keys[-1] if self.keys else self.root
            new = list(tokens[known * step : blocks * step])
            extras = None
            if not self.extras.plain:
                extras = [self.extras.of_block(i * step, (i + 1) * step) for i in range(known, blocks)]
            self.keys += chain(before, new, step, extras, self.hash)
        return self.keys[:blocks]

    def parents(self, start: int, stop: int) -> list[bytes]:
        """The key before each of the blocks [start, stop); empty bytes for block 0."""
        return [self.keys[i - 1] if i else b"" for i in range(start, stop)]
