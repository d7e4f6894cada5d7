"""Tokens to text as they come, and where a stop string ends it. Pure; one object an answer."""

from collections.abc import Sequence
from typing import Any


class Detokenizer:
    """Text as soon as it is certain: a character of several tokens comes with its last one. Special tokens are left out."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str:
        return self._stream.step(self._tokenizer, token) or ""


class StopStrings:
    """Passes text on up to the first stop string; what may be the beginning of one is held back until it is known."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def step(self, text: str) -> str:
        """What can be passed on now. When a stop string has come, `stopped` is set and nothing follows."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        at = min((i for i in (self._held.find(stop) for stop in self._stops) if i >= 0), default=-1)
        if at >= 0:
            self.stopped = True
            passed, self._held = self._held[:at], ""
            return passed
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        passed, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return passed

    def rest(self) -> str:
        """The answer has ended otherwise: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, and not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
