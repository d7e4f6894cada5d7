"""Lines of the metering log: what was used, each once, under an id of its own. Pure."""

from typing import Any

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """`model` is whose prices count."""

    model: str


class CallLine(Line, frozen=True, kw_only=True, tag="call"):
    """One answer, however it ended. `cache_tokens`: of the prompt, what a named cache that was ready covers."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: str
    seconds: float = 0.0
    cache_id: str = ""
    cache_tokens: int = 0

    @property
    def saved_tokens(self) -> int:
        """Not computed, thanks to the named cache."""
        return min(self.cached_tokens, self.cache_tokens) if self.cache_id else 0


class CreationLine(Line, frozen=True, kw_only=True, tag="creation"):
    cache_id: str
    tokens: int


class StorageLine(Line, frozen=True, kw_only=True, tag="storage"):
    cache_id: str
    tokens: int
    minutes: int


AnyLine = CallLine | CreationLine | StorageLine
_decoder: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(AnyLine)


def encode_line(line: AnyLine) -> bytes:
    return msgspec.json.encode(line)


def decode_line(data: bytes) -> AnyLine:
    line: AnyLine = _decoder.decode(data)
    return line
