"""The stage processes of a pipeline: started, asked, killed and started again. Used by one thread at a time.

    head <-> stage 0, stage 1, ...  control, a socket pair each
    stage 0 -> stage 1 -> ...       hidden states, a socket pair between neighbours

Stages are one thing: when one dies or is stuck, all are killed and started anew, since what is under way between them is of no use.
"""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mooncask.engine_adapter.transformers.model import Model
from mooncask.engine_adapter.transformers.pipeline.channel import Channel, head_channel, receive_any
from mooncask.engine_adapter.transformers.pipeline.messages import Refused, Setup, ToHead, ToStage, Up
from mooncask.engine_adapter.transformers.pipeline.split import layer_ranges
from mooncask.engine_adapter.transformers.store_link import StoreAddress
from mooncask.errors import DeadlineExceeded, MooncaskError, WorkerUnavailable, error_classes, revive

log = logging.getLogger(__name__)

START_SECONDS_MAX = 300.0
SILENT_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What every stage is told: which model, where the store is. `threads`: of one stage; 0 shares the cores out.

    A pipeline of which no stage says anything for `silent_seconds` is stuck: one chunk takes seconds.
    Raises ConfigError for more stages than layers.
    """

    folder: Path
    model: Model
    stages: int
    store: StoreAddress
    name: str
    threads: int = 0
    silent_seconds: float = SILENT_SECONDS_MAX

    def __post_init__(self) -> None:
        layer_ranges(self.model.layout.layers, self.stages)

    @property
    def ranges(self) -> list[range]:
        return layer_ranges(self.model.layout.layers, self.stages)

    def setup(self, stage: int) -> Setup:
        layers, layout, store = self.ranges[stage], self.model.layout, self.store
        return Setup(
            name=f"{self.name}, stage {stage}",
            folder=str(self.folder),
            dtype=layout.dtype,
            first=layers.start,
            stop=layers.stop,
            layers=layout.layers,
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            block_tokens=layout.block_tokens,
            windows=layout.windows,
            family=self.model.family,
            socket=store.socket,
            namespace=store.namespace,
            mode=store.mode,
            deadline_seconds=store.deadline_seconds,
        )

    def environment(self) -> dict[str, str]:
        each = self.threads or max(1, len(os.sched_getaffinity(0)) // self.stages)
        own = {} if "OMP_NUM_THREADS" in os.environ and not self.threads else {"OMP_NUM_THREADS": str(each)}
        return {**os.environ, **own, "HF_HUB_OFFLINE": "1"}


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    channel: "Channel[ToHead]"


class Stages:
    """All stages of one pipeline. Leaving it by `close` ends them."""

    def __init__(self, plan: StagePlan) -> None:
        """Begins to start them; `ready` waits."""
        self.plan = plan
        self.up: list[Up] = []
        """What each said when it was ready; as long as they are."""
        self._children: list[_Child] = []
        self._start()

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    @property
    def last(self) -> int:
        return self.plan.stages - 1

    def ready(self) -> list[Up]:
        """Waits until all have loaded their layers; starts them again first where one has ended meanwhile.

        Raises WorkerUnavailable, UnsupportedModel and whatever else a stage gave as the reason why it cannot be.
        """
        if self.up and any(child.process.poll() is not None for child in self._children):
            log.warning("a stage has ended while nothing was to be done")
            self.restart()
        if not self.up:
            try:
                self.up = self._wait_until_up()
            except MooncaskError:
                self.restart()
                raise
        return self.up

    def send(self, stage: int, message: ToStage) -> None:
        """Raises WorkerUnavailable."""
        self._children[stage].channel.send(message)

    def send_all(self, message: ToStage) -> None:
        for stage in range(self.plan.stages):
            self.send(stage, message)

    def receive(self, more_seconds: float = 0.0) -> tuple[int, ToHead]:
        """The next word of any stage, with its number; `more_seconds`: how much longer than usual it may take.

        Raises WorkerUnavailable, also for a pipeline that is stuck.
        """
        seconds = self.plan.silent_seconds + more_seconds
        try:
            return receive_any({number: child.channel for number, child in enumerate(self._children)}, seconds)
        except DeadlineExceeded as exc:
            raise WorkerUnavailable("pipeline", f"its stages said nothing for {seconds:g} s") from exc

    def restart(self) -> None:
        """Kills all, and begins to start them anew. None of the old ones can write anything when this returns."""
        self._kill(self._children)
        self._start()

    def close(self) -> None:
        """Ends them, by force: they have nothing to put in order, and a library of torch's size takes seconds to be taken down."""
        self._kill(self._children)

    # --- parts ---

    def _start(self) -> None:
        self.up, self._children = [], []
        try:
            self._start_children()
        except BaseException:
            self._kill(self._children)
            raise

    def _start_children(self) -> None:
        neighbours = [socket.socketpair() for _ in range(self.last)]
        try:
            for stage in range(self.plan.stages):
                before = neighbours[stage - 1][1] if stage else None
                after = neighbours[stage][0] if stage < self.last else None
                self._children.append(self._child(stage, before, after))
        finally:  # the children have them; open here too, a dead neighbour would not be noticed
            for pair in neighbours:
                for end in pair:
                    end.close()
        for stage in range(self.plan.stages):
            self.send(stage, self.plan.setup(stage))

    def _child(self, stage: int, before: socket.socket | None, after: socket.socket | None) -> _Child:
        ours, theirs = socket.socketpair()
        ends = [theirs.fileno(), *(-1 if end is None else end.fileno() for end in (before, after))]
        options = zip(("--control", "--before", "--after"), map(str, ends), strict=True)
        command = [sys.executable, "-m", "mooncask.engine_adapter.transformers.pipeline"]
        with theirs:
            process = subprocess.Popen(
                [*command, *(word for pair in options for word in pair)],
                stdin=subprocess.DEVNULL,
                pass_fds=[end for end in ends if end >= 0],
                env=self.plan.environment(),
                start_new_session=True,  # Ctrl-C reaches the head, which then ends them
            )
        return _Child(process, head_channel(ours, f"stage {stage} of the pipeline"))

    def _wait_until_up(self) -> list[Up]:
        found: dict[int, Up] = {}
        while len(found) < self.plan.stages:
            stage, message = self.receive(START_SECONDS_MAX)
            if isinstance(message, Refused):
                known = message.error in error_classes()
                raise (
                    revive(message.error, message.message, {})
                    if known
                    else WorkerUnavailable(f"stage {stage}", message.message)
                )
            if not isinstance(message, Up):
                raise WorkerUnavailable(f"stage {stage}", f"its first word is {type(message).__name__}")
            found[stage] = message
            layers = self.plan.ranges[stage]
            log.info(
                "stage %d has layers %d to %d: process %d, weights %.1f MiB, its own memory %.1f MiB",
                *(stage, layers.start, layers.stop - 1, message.pid),
                *(message.weight_bytes / 2**20, message.own_bytes / 2**20),
            )
        return [found[stage] for stage in range(self.plan.stages)]

    def _kill(self, children: Iterable[_Child]) -> None:
        for child in children:
            child.process.kill()
            child.channel.close()
        for child in children:
            child.process.wait()
