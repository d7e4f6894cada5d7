"""Sessions that overlap in time, merged into one trace in order of arrival; and the distributions they draw from."""

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, merge
from random import Random

from mooncask.conductor.traces.prompt import Numbers, Prompt
from mooncask.conductor.traces.request import Request

Session = Iterator[Request]
"""The requests of one session in order of time."""

StartSession = Callable[[float, Random], Session]
"""Begins a session at a time in seconds with a random source of its own."""


def overlap(starts_per_second: float, seconds: float, chance: Random, start: StartSession) -> Iterator[Request]:
    """Sessions that begin as a Poisson process for `seconds`, each request at its time. Memory: the open sessions.

    Requests after `seconds` are left out: a trace is cut at its end as a recording is.
    """
    open_sessions: list[tuple[int, int, Request, Session]] = []
    end_ms, begin, number = round(seconds * 1000), chance.expovariate(starts_per_second), 0
    while begin < seconds or open_sessions:
        if begin < seconds and (not open_sessions or begin * 1000 <= open_sessions[0][0]):
            number += 1
            _advance(open_sessions, number, start(begin, Random(chance.getrandbits(64))), end_ms)
            begin += chance.expovariate(starts_per_second)
        else:
            _, same, request, session = heappop(open_sessions)
            yield request
            _advance(open_sessions, same, session, end_ms)


def mix(*workloads: Iterable[Request]) -> Iterator[Request]:
    """Several workloads as one trace. They must draw their ids from the same `Numbers`."""
    return merge(*workloads, key=lambda request: request.timestamp_ms)


def lognormal(chance: Random, median: float, sigma: float, most: float) -> float:
    """A positive number around `median` with a long tail, at most `most`."""
    return min(most, chance.lognormvariate(math.log(median), sigma))


def zipf(chance: Random, choices: int, exponent: float = 1.0) -> int:
    """An index below `choices`; index k is about (k + 1) ** -exponent as likely as index 0."""
    return chance.choices(range(choices), [(rank + 1) ** -exponent for rank in range(choices)])[0]


def make_request(seconds: float, prompt: Prompt, output_tokens: int, conversation: int, turn: int) -> Request:
    """The prompt as it is now, arriving at `seconds`."""
    return Request(round(seconds * 1000), prompt.tokens, output_tokens, prompt.hash_ids(), conversation, turn)


def shared_prompts(numbers: Numbers, block_tokens: int, count: int, tokens: int) -> list[Prompt]:
    """`count` different beginnings, such as system prompts, of `tokens` each."""
    return [Prompt(numbers, block_tokens, tokens) for _ in range(count)]


def _advance(waiting: list[tuple[int, int, Request, Session]], number: int, session: Session, end_ms: int) -> None:
    request = next(session, None)
    if request is not None and request.timestamp_ms < end_ms:
        heappush(waiting, (request.timestamp_ms, number, request, session))
