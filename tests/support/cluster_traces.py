"""Small traces for the simulator, and the public conversation trace where this machine has it."""

import os
import random
from pathlib import Path

import pytest

from mooncask.conductor.traces.jsonl import read_trace
from mooncask.conductor.traces.request import Request


def poisson(rate: float, count: int, tokens: int, output: int, seed: int) -> list[Request]:
    """Unrelated requests of equal length that arrive at random."""
    source, time, requests = random.Random(seed), 0.0, []
    blocks = -(-tokens // 512)
    for number in range(count):
        time += source.expovariate(rate)
        keys = tuple(range(number * blocks, (number + 1) * blocks))
        requests.append(Request(round(time * 1000), tokens, output, keys))
    return requests


def chats(conversations: int, seed: int, mean_output: int = 60) -> list[Request]:
    """Conversations of growing prompts: one shared first block, 1 to 6 turns, every 5 to 60 s a turn."""
    source, requests, fresh = random.Random(seed), [], iter(range(1, 10**9))
    for _ in range(conversations):
        time, keys = source.uniform(0, 120), [0]
        for _ in range(source.randint(1, 6)):
            keys += [next(fresh) for _ in range(source.randint(1, 12))]
            tokens = len(keys) * 512 - source.randrange(512)
            requests.append(Request(round(time * 1000), tokens, source.randint(1, 2 * mean_output), tuple(keys)))
            time += source.uniform(5, 60)
    return sorted(requests, key=lambda request: request.timestamp_ms)


def conversation_trace() -> list[Request]:
    """The public trace; skips the test when it is not here."""
    beside = Path(__file__).parents[2] / ".." / "shared" / "traces" / "conversation_trace.jsonl"
    path = Path(os.environ.get("MOONCASK_CONVERSATION_TRACE", beside))
    if not path.is_file():
        pytest.skip(f"no conversation trace at {path}; set MOONCASK_CONVERSATION_TRACE")
    return list(read_trace(path))
