"""What the lines of one call may be, in which order: a worker that says anything else is not believed. Pure.

A token too many, too few or behind the end would be a wrong answer, and nobody behind this place could tell.
"""

from dataclasses import dataclass, field

from mooncask.client.worker_api import (
    Admitted,
    DecodeCall,
    DecodeDone,
    Failure,
    PrefillDone,
    Started,
    StreamLine,
    Tokens,
)


class WrongLine(Exception):
    """This line may not stand here; the text says why. Never leaves `worker_client.py`."""


@dataclass(slots=True)
class PrefillLines:
    """Admitted, Started, PrefillDone."""

    _next: list[type[StreamLine]] = field(default_factory=lambda: [PrefillDone, Started, Admitted])

    def check(self, line: StreamLine) -> None:
        """Raises WrongLine."""
        if isinstance(line, Failure):
            return
        wanted = self._next.pop()
        if not isinstance(line, wanted):
            raise WrongLine(f"{_name(line)} came instead of {wanted.__name__}")


@dataclass(slots=True)
class DecodeLines:
    """Admitted, Tokens as often as there are some, DecodeDone: as many tokens as were made, at most as many as were asked for."""

    call: DecodeCall
    _admitted: bool = False
    _tokens: int = 0
    _stopped: bool = False

    def check(self, line: StreamLine) -> None:
        """Raises WrongLine."""
        if isinstance(line, Failure):
            return
        if not self._admitted:
            if not isinstance(line, Admitted):
                raise WrongLine(f"{_name(line)} came before Admitted")
            self._admitted = True
        elif isinstance(line, Tokens):
            self._check_tokens(line)
        elif isinstance(line, DecodeDone):
            self._check_done(line)
        else:
            raise WrongLine(f"{_name(line)} came in the middle of an answer")

    def _check_tokens(self, line: Tokens) -> None:
        stops = set(self.call.sampling.stop_tokens)
        if self._stopped or any(token in stops for token in line.tokens[:-1]):
            raise WrongLine("tokens came behind a stop token")
        if line.logprobs is not None and len(line.logprobs) != len(line.tokens):
            raise WrongLine(f"{len(line.tokens)} tokens came with {len(line.logprobs)} logprobs")
        self._tokens += len(line.tokens)
        if self._tokens > self.call.max_tokens:
            raise WrongLine(f"{self._tokens} tokens came where {self.call.max_tokens} were asked for")
        self._stopped = bool(line.tokens) and line.tokens[-1] in stops

    def _check_done(self, line: DecodeDone) -> None:
        if line.output_tokens != self._tokens:
            raise WrongLine(f"it made {line.output_tokens} tokens and sent {self._tokens}")
        if line.reason not in ("stop", "length"):
            raise WrongLine(f"it ended for the reason {line.reason!r}")
        if line.reason == "length" and self._tokens < self.call.max_tokens:
            raise WrongLine(f"it ended by length after {self._tokens} of {self.call.max_tokens} tokens")


def _name(line: StreamLine) -> str:
    return type(line).__name__
