"""What the Conductor itself costs a request, in front of scripted workers: from token ids that are parsed to a placement that
is sent. Real HTTP, the Conductor's own dispatcher in this process.

Latency ends when the worker has the head of the call. Placements a second are counted in CPU seconds of this process, so
the load of the machine does not enter. Not here: the table (`conductor_command.py`).
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import aiohttp
import msgspec
import uvloop

from mooncask.client.hashing import chain
from mooncask.client.worker_api import PrefillCall, Sampling
from mooncask.conductor.serving.config import Config, LimitsSection, PolicySection, ServerSection
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.door.requests import TextAsked, read_body
from mooncask.conductor.serving.job import Ended, Job
from mooncask.conductor.serving.main import dispatching, listening
from mooncask.conductor.serving.text.model_text import ModelText
from mooncask.conductor.serving.workers_door import WorkersDoor
from mooncask.engine_adapter.transformers.model_files import cache_folder
from mooncask.errors import WorkerUnavailable
from mooncask.tools.bench.process import sigterm_waits
from mooncask.tools.bench.scripted_workers import BLOCK_TOKENS, MODEL
from mooncask.tools.demo.serving.chats import documents

Progress = Callable[[str], None]

WORKERS = 8
LENGTHS = (8192, 131072)
VOCABULARY = 49152
START_SECONDS_MAX = 30.0
ANSWER_TOKENS = 4
AT_ONCE = 8
SECRET = "bench"


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` requests a second for `seconds`; then for `pressed_seconds` as many as go, to see what they cost."""

    rate: float
    seconds: float
    pressed_seconds: float
    lengths: Sequence[int] = LENGTHS


FULL, QUICK = Load(50.0, 10.0, 5.0), Load(20.0, 1.0, 0.5)


@dataclass(frozen=True, slots=True)
class Point:
    """Of one prompt length: milliseconds, and placements a second of CPU time."""

    tokens: int
    requests: int
    p50_ms: float
    p90_ms: float
    cpu_ms: float
    """Of the Conductor for all of one request, its answer included, while it is pressed."""
    placements_per_cpu_second: float
    hash_ms: float
    encode_ms: float
    parse_ms: float
    """A body of /v1/completions with that many ids, which is not in the latency."""
    tokenise_ms: float | None
    """A text of about so many tokens, new from its first character; None where the demo's model was never fetched."""


def measure(load: Load, progress: Progress) -> list[Point]:
    """Raises WorkerUnavailable when the scripted workers do not start."""
    return uvloop.run(_measure(load, progress))


async def _measure(load: Load, progress: Progress) -> list[Point]:
    config = Config(
        server=ServerSection(worker_secret=SECRET),
        policy=PolicySection(placement="kvcache-centric", admission="none"),
        limits=LimitsSection(prefix_seconds=1.0),
    )
    async with dispatching(config) as dispatcher:
        doors = WorkersDoor(dispatcher.pools, SECRET).application()
        async with listening(doors, "127.0.0.1:0", "bench") as address:
            with _workers(f"http://{address}") as seen_url:
                await _all_there(dispatcher)
                async with aiohttp.ClientSession() as session:
                    return [await _point(dispatcher, session, seen_url, load, n, progress) for n in load.lengths]


async def _point(
    dispatcher: LiveDispatcher, session: aiohttp.ClientSession, seen: str, load: Load, tokens: int, progress: Progress
) -> Point:
    prompt = random.Random(tokens).choices(range(VOCABULARY), k=tokens)
    progress(f"prompts of {tokens} tokens, {load.rate:g} a second")
    await _run_one(dispatcher, prompt, "warm", {})
    sent: dict[str, float] = {}
    count = round(load.rate * load.seconds)
    began = time.monotonic()
    tasks = []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / load.rate - time.monotonic()))
        tasks.append(asyncio.create_task(_run_one(dispatcher, prompt, f"r{tokens}-{number}", sent)))
    await asyncio.gather(*tasks)
    async with session.get(f"{seen}/seen") as response:
        came = msgspec.json.decode(await response.read(), type=dict[str, float])
    latencies = sorted((came[name] - at) * 1e3 for name, at in sent.items())
    progress(f"prompts of {tokens} tokens, as many as go")
    done, cpu = await _press(dispatcher, prompt, load.pressed_seconds)
    call = PrefillCall(id="x", tokens=prompt)
    body = msgspec.json.encode({"model": MODEL, "prompt": prompt, "max_tokens": 4})
    return Point(
        tokens=tokens,
        requests=count,
        p50_ms=median(latencies),
        p90_ms=latencies[int(0.9 * len(latencies))],
        cpu_ms=cpu / done * 1e3,
        placements_per_cpu_second=done / cpu,
        hash_ms=_timed(lambda: chain(bytes(32), prompt, BLOCK_TOKENS)),
        encode_ms=_timed(lambda: msgspec.json.encode(call)),
        parse_ms=_timed(lambda: read_body(body, TextAsked).one_prompt()),
        tokenise_ms=_tokenise_ms(tokens),
    )


async def _run_one(dispatcher: LiveDispatcher, prompt: list[int], name: str, sent: dict[str, float]) -> None:
    received = sent[name] = time.monotonic()
    job = Job(name, MODEL, prompt, ANSWER_TOKENS, Sampling(), received_seconds=received)
    async with contextlib.aclosing(dispatcher.run(job)) as events:
        last = [event async for event in events][-1]
    assert isinstance(last, Ended)


async def _press(dispatcher: LiveDispatcher, prompt: list[int], seconds: float) -> tuple[int, float]:
    """How many were served, and the CPU seconds of this process meanwhile."""
    done, sent = 0, dict[str, float]()
    began, cpu = time.monotonic(), time.process_time()

    async def work(worker: int) -> None:
        nonlocal done
        while time.monotonic() - began < seconds:
            await _run_one(dispatcher, prompt, f"p{worker}-{len(prompt)}-{done}-{len(sent)}", sent)
            done += 1

    await asyncio.gather(*(work(number) for number in range(AT_ONCE)))
    return done, time.process_time() - cpu


def _timed(work: Callable[[], object], times: int = 15) -> float:
    """Milliseconds of CPU time, the median."""
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append((time.process_time() - began) * 1e3)
    return median(found)


def _tokenise_ms(tokens: int) -> float | None:
    found = next(cache_folder().glob("smollm2-*/tokenizer.json"), None)
    if found is None:
        return None
    source, words = random.Random(tokens), " ".join(documents()).split()
    text = ModelText(found.parent)
    prose = " ".join(source.choices(words, k=tokens * 2 // 3))
    return _timed(lambda: text.tokens(prose), 3)


async def _all_there(dispatcher: LiveDispatcher) -> None:
    async with asyncio.timeout(START_SECONDS_MAX):
        heard = asyncio.Event()
        before = dispatcher.pools.on_report

        def reported(worker: Worker) -> None:
            before(worker)
            if len(dispatcher.pools.all()) == WORKERS:
                heard.set()

        dispatcher.pools.on_report = reported
        await heard.wait()


@contextlib.contextmanager
def _workers(conductor: str) -> Iterator[str]:
    """The scripted workers as a process of their own; where the first of them is."""
    command = [sys.executable, "-m", "mooncask.tools.bench.scripted_workers", conductor, str(WORKERS)]
    with sigterm_waits():
        environment = {**os.environ, "MOONCASK_WORKER_SECRET": SECRET}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " at http://" not in line:
            raise WorkerUnavailable("scripted workers", "they did not start; their last words are above")
        yield line.split(" at ")[1].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def load_average() -> float:
    return os.getloadavg()[0]
