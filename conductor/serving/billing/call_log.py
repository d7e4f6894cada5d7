"""Which prefixes a day's calls share: from a call log, or from a trace of the daemon's recorder. Pure but for reading the file.

A call log has a JSON object a line: {"at": seconds, "prefix": "name", "prefix_tokens": 98304}. A trace has one of `hash_ids`
(docs of `conductor/traces/jsonl.py`); there the prefixes that pay are looked for.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from mooncask.conductor.serving.billing.advice import Advice, advise
from mooncask.conductor.serving.billing.prices import Prices
from mooncask.conductor.traces.jsonl import read_trace
from mooncask.errors import BadTrace

CALLS_MIN = 3
"""A prefix of fewer calls is not looked at."""
PREFIXES_MAX = 200
"""The most promising ones are looked at closely."""


class CallLine(msgspec.Struct, frozen=True):
    at: Annotated[float, msgspec.Meta(ge=0)]
    prefix: str
    prefix_tokens: Annotated[int, msgspec.Meta(ge=1)]


@dataclass(slots=True)
class Prefix:
    """A beginning of prompts: how long it is, and when it was asked for."""

    name: str
    tokens: int
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PrefixAdvice:
    name: str
    advice: Advice


def read_prefixes(path: Path) -> tuple[list[Prefix], bool]:
    """The prefixes of a file, and whether they are nested (as those of a trace are). Raises BadTrace."""
    if _is_trace(path):
        return trace_prefixes(path), True
    found: dict[str, Prefix] = {}
    for number, line in _lines(path):
        try:
            call = msgspec.json.decode(line, type=CallLine)
        except msgspec.DecodeError as exc:
            raise BadTrace(str(path), number, "", f"no line of a call log: {exc}") from exc
        prefix = found.setdefault(call.prefix, Prefix(call.prefix, call.prefix_tokens))
        prefix.tokens = min(prefix.tokens, call.prefix_tokens)
        prefix.seconds.append(call.at)
    if not found:
        raise BadTrace(str(path), 1, "", "the log holds no call")
    return list(found.values()), False


def trace_prefixes(path: Path) -> list[Prefix]:
    """Of each chain of blocks the places where fewer requests go on: nothing between two of them could pay more."""
    requests = list(read_trace(path))
    block_tokens = max(-(-request.input_length // len(request.hash_ids)) for request in requests)
    counts: dict[int, int] = defaultdict(int)
    for request in requests:
        for id in request.hash_ids:
            counts[id] += 1
    found: dict[int, Prefix] = {}
    for request in requests:
        ids = request.hash_ids
        for depth, (id, following) in enumerate(zip(ids, (*ids[1:], None), strict=True)):
            if counts[id] < CALLS_MIN:
                break
            if following is None or counts[following] < counts[id]:
                tokens = min((depth + 1) * block_tokens, request.input_length)
                found.setdefault(id, Prefix(f"{id:x}", tokens))
    for request in requests:
        for id in request.hash_ids:
            if id in found:
                found[id].seconds.append(request.seconds)
    return list(found.values())


def best_advice(prefixes: Sequence[Prefix], nested: bool, prices: Prices) -> list[PrefixAdvice]:
    """What pays, most first. Of nested prefixes, which share calls, a call is counted for one: the one that saves most."""
    promising = sorted(prefixes, key=lambda prefix: -prefix.tokens * len(prefix.seconds))[:PREFIXES_MAX]
    rated = [PrefixAdvice(prefix.name, advise(prefix.seconds, prefix.tokens, prices)) for prefix in promising]
    rated = [one for one in rated if one.advice.periods]
    rated.sort(key=lambda one: one.advice.cost - one.advice.without)
    if not nested:
        return rated
    times = {prefix.name: frozenset(prefix.seconds) for prefix in promising}
    chosen: list[PrefixAdvice] = []
    for one in rated:
        if all(times[one.name].isdisjoint(times[other.name]) for other in chosen):
            chosen.append(one)
    return chosen


def _is_trace(path: Path) -> bool:
    return any(b'"hash_ids"' in line for _, line in _first(path))


def _first(path: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in _lines(path):
        yield number, line
        return


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as exc:
        raise BadTrace(str(path), 0, "", f"cannot be read: {exc.strerror}") from exc
