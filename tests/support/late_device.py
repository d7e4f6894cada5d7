"""A stand-in for a GPU's streams and events in ordinary memory: everything happens late, and streams overtake each other.

What is launched is only noted down. It is done when somebody waits, a little of any stream at a time: a stream keeps its own
order, and nothing else is ordered but by events. Copies are done in two halves, so that a torn one is seen. It fails (in
`faults_seen`) when host memory is used for a copy while an earlier copy still has to do with it, and when what an upload
reads is not any more what was there at its launch. What a download is to fill holds rubbish until then.
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from mooncask.engine_adapter.vllm.device.accelerator import Event, Pair
from mooncask.errors import DeviceFault

RUBBISH = 0xEE


@dataclass
class LateEvent:
    device: "LateDevice"
    done: bool = False

    def synchronize(self) -> None:
        self.device.call("wait for an event")
        self.device.run_until(lambda: self.done)


@dataclass
class _Step:
    """One thing that a stream will do."""

    act: Callable[[], None]
    after: LateEvent | None = None
    """Not before this."""
    host: torch.Tensor | None = None
    """The pinned memory that it has to do with."""


@dataclass(eq=False)
class LateStream:
    device: "LateDevice"
    steps: deque[_Step] = field(default_factory=deque)

    def wait(self, event: Event) -> None:
        self.device.call("order of two streams")
        assert isinstance(event, LateEvent)
        with self.device.lock:
            self.steps.append(_Step(lambda: None, after=event))

    def copy(self, pairs: Sequence[Pair]) -> LateEvent:
        """A fault that is planned comes with half of the copies launched."""
        with self.device.lock:
            launched = len(pairs) if not self.device.plans("copy") else len(pairs) // 2
            for pair in pairs[:launched]:
                self._copy(pair)
            self.device.call("copy")
            return self.record()

    def _copy(self, pair: Pair) -> None:
        host = pair.target if self.device.is_pinned(pair.target) else pair.source
        other = pair.source if host is pair.target else pair.target
        self.device.check_memory(host, other)
        if host is pair.target:
            host.fill_(RUBBISH)
        before = host.clone()
        middle = host.numel() // 2
        for part in (slice(0, middle), slice(middle, None)):

            def act(part: slice = part) -> None:
                if host is pair.source and not torch.equal(host[part], before[part]):
                    self.device.faults_seen.append(
                        "pinned memory was filled anew before its copy to the device was done"
                    )
                pair.target[part] = pair.source[part]

            self.steps.append(_Step(act, host=host))

    def launch(self, kernel: Callable[[], None]) -> None:
        with self.device.lock:
            self.steps.append(_Step(kernel))

    def record(self) -> LateEvent:
        event = LateEvent(self.device)

        def act() -> None:
            event.done = True

        with self.device.lock:
            self.steps.append(_Step(act))
        return event

    def synchronize(self) -> None:
        self.device.call("wait for a stream")
        event = self.record()
        self.device.run_until(lambda: event.done)

    @property
    def can_run(self) -> bool:
        return bool(self.steps) and (self.steps[0].after is None or self.steps[0].after.done)


class LateDevice:
    """Implements `Accelerator`. Any thread may call it."""

    name = "late:0"

    def __init__(self, seed: int = 0) -> None:
        self.lock = threading.RLock()
        self.faults_seen: list[str] = []
        """What was done wrongly with it; to be empty at the end."""
        self.runs = threading.Event()
        """While it is not set, nothing is done, and who waits for the device goes on waiting."""
        self.runs.set()
        self.copied_bytes = 0
        self._chance = random.Random(seed)
        self._pinned: list[torch.Tensor] = []
        self._planned: list[str] = []
        self._streams: list[LateStream] = []
        self.compute = self.stream()
        """What the engine computes on."""

    # --- as `Accelerator` ---

    def pinned(self, size: int) -> torch.Tensor:
        self._pinned.append(torch.full((size,), RUBBISH, dtype=torch.uint8))
        return self._pinned[-1]

    def stream(self) -> LateStream:
        self._streams.append(LateStream(self))
        return self._streams[-1]

    def mark(self) -> LateEvent:
        self.call("mark")
        return self.compute.record()

    # --- what a test does with it ---

    def fail(self, *calls: str) -> None:
        """The next of each of these calls raises DeviceFault: "copy", "wait for an event", "wait for a stream", "mark"."""
        self._planned += calls

    def run_until(self, true: Callable[[], bool]) -> None:
        """Does steps of any streams until it is true."""
        while True:
            self.runs.wait()
            with self.lock:
                if true():
                    return
                self.advance()

    def advance(self) -> None:
        """One step of one stream."""
        with self.lock:
            ready = [stream for stream in self._streams if stream.can_run]
            assert ready, "what is waited for was never launched"
            self._chance.choice(ready).steps.popleft().act()

    def pass_time(self, steps: int) -> None:
        """At most so many."""
        for _ in range(steps):
            with self.lock:
                if any(stream.can_run for stream in self._streams):
                    self.advance()

    def finish(self) -> None:
        """Everything that was launched is done."""
        self.run_until(lambda: not any(stream.steps for stream in self._streams))

    @property
    def waiting(self) -> int:
        """Steps of the streams that copy which are not done yet."""
        return sum(len(stream.steps) for stream in self._streams if stream is not self.compute)

    # --- for its streams ---

    def plans(self, call: str) -> bool:
        return call in self._planned

    def call(self, what: str) -> None:
        with self.lock:
            if what in self._planned:
                self._planned.remove(what)
                raise DeviceFault(self.name, what, "as planned by the test")

    def is_pinned(self, memory: torch.Tensor) -> bool:
        return any(_overlap(memory, one) for one in self._pinned)

    def check_memory(self, host: torch.Tensor, other: torch.Tensor) -> None:
        """At the launch of a copy between the two."""
        self.copied_bytes += host.numel()
        if not self.is_pinned(host) or self.is_pinned(other) or host.numel() != other.numel():
            self.faults_seen.append("a copy is between pinned memory and the device, and both are equally long")
        steps = [step for stream in self._streams for step in stream.steps if step.host is not None]
        if any(_overlap(step.host, host) for step in steps if step.host is not None):
            self.faults_seen.append("pinned memory was used again before its copy was done")


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    start, begin = one.data_ptr(), other.data_ptr()
    return start < begin + other.nbytes and begin < start + one.nbytes
