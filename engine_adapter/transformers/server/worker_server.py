"""Puts a worker server together and runs it until it is told to stop."""

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from transformers.utils import logging as transformers_logging

from mooncask.client.worker_api import GONE_SECONDS, Hashing, Node, Registration, Role
from mooncask.engine_adapter.handover_hold import HandOverHold
from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.pipeline.head import PipelineHead
from mooncask.engine_adapter.transformers.pipeline.split import described
from mooncask.engine_adapter.transformers.pipeline.stages import StagePlan
from mooncask.engine_adapter.transformers.prefill import WholeModel
from mooncask.engine_adapter.transformers.server.callers import Callers
from mooncask.engine_adapter.transformers.server.decode_engine import DecodeEngine
from mooncask.engine_adapter.transformers.server.http_server import WorkerDoor
from mooncask.engine_adapter.transformers.server.kv_slots import KvSlots
from mooncask.engine_adapter.transformers.server.links import LinkPool
from mooncask.engine_adapter.transformers.server.prefill_engine import PrefillEngine
from mooncask.engine_adapter.transformers.server.reporting import Reporter
from mooncask.engine_adapter.transformers.server.roles import Roles
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink
from mooncask.errors import BadRequest, ConfigError, MooncaskError

log = logging.getLogger(__name__)

DRAIN_POLL_SECONDS = 0.05
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`slots` answers at a time, each of at most `slot_tokens` tokens with its prompt. `node`: the daemon beside it."""

    name: str
    role: Role
    listen: str
    secret: str
    conductors: Sequence[str]
    node: Node
    slots: int = 8
    slot_tokens: int = 4096
    model_name: str = ""
    gone_seconds: float = GONE_SECONDS
    pipeline: int = 1
    """Processes that have a part of the layers each, for prefill; 1: this one has the model."""


class WorkerServer:
    """One worker. Loading the model happens when it is made. Raises ConfigError, UnsupportedModel."""

    def __init__(
        self,
        settings: ServerSettings,
        folder: Path,
        dtype: str,
        block_tokens: int,
        store: StoreAddress,
        options: Options,
    ) -> None:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
        self.settings, self._store, self._options = settings, store, options
        if settings.pipeline != 1 and settings.role is not Role.PREFILL:
            raise ConfigError("--pipeline", str(settings.pipeline), "is for the prefill role; one process decodes")
        self._links = LinkPool(self._link)
        self._holds = HandOverHold(store.socket, store.deadline_seconds)
        self.model, self._engine = self._loaded(folder, dtype, block_tokens)
        try:
            self._engine.warm_up()
        except BaseException:
            self._engine.close()
            raise
        self._incarnation = secrets.token_hex(8)
        self._address = ""
        self.roles = Roles(settings.role, self._prefill_engine, self._decode_engine)

    def registration(self) -> Registration:
        """As of now: the namespace is known once a daemon has been there, which this asks for and may wait for."""
        settings, model = self.settings, self.model
        return Registration(
            name=settings.name,
            incarnation=self._incarnation,
            address=self._address,
            role=self.roles.role,
            model=settings.model_name or model.name,
            family=model.family,
            hashing=self._hashing(),
            node=settings.node,
            positions_max=min(model.positions_max, settings.slot_tokens),
            slots=settings.slots,
            kv_tokens=settings.slots * settings.slot_tokens,
            gone_seconds=settings.gone_seconds,
            prefill_tokens_per_second=self._engine.speeds.prefill_tokens or 0.0,
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its address, while it serves and reports. Raises ConfigError when it can't listen there."""
        host, port = _listen_address(self.settings)
        settings, callers = self.settings, Callers(self.settings.gone_seconds)
        door = WorkerDoor(self.roles, self.registration, self.model.vocabulary, settings.secret, callers)
        runner = web.AppRunner(door.application(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as exc:
                raise ConfigError("--listen", settings.listen, f"cannot listen there: {exc}") from exc
            self._address = f"http://{host}:{runner.addresses[0][1]}"
            beside = [asyncio.create_task(callers.watch())]
            beside += [
                asyncio.create_task(Reporter(url, settings.secret, self.roles, self.registration, callers.heard).run())
                for url in settings.conductors
            ]
            try:
                yield self._address
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)
        finally:
            await runner.cleanup()

    def close(self) -> None:
        self.roles.close()
        self._links.close()
        self._holds.close()
        self._engine.close()

    # --- parts ---

    def _loaded(self, folder: Path, dtype: str, block_tokens: int) -> tuple[Model, Engine | PipelineHead]:
        settings, options = self.settings, self._options
        if settings.pipeline == 1:
            model = load_model(folder, dtype, block_tokens)
            return model, Engine(model, self._link_for(model), options)
        model = described(folder, dtype, block_tokens)
        plan = StagePlan(folder, model, settings.pipeline, self._store, f"prefill {settings.name}")
        return model, PipelineHead(plan, options)

    def _prefill_engine(self) -> PrefillEngine:
        whole = WholeModel(self._engine) if isinstance(self._engine, Engine) else self._engine
        return PrefillEngine(whole, self._holds)

    def _link(self) -> StoreLink:
        return self._link_for(self.model)

    def _link_for(self, model: Model) -> StoreLink:
        return StoreLink(self._store, f"{self.settings.role} {self.settings.name}", model.family, model.layout)

    def _decode_engine(self) -> DecodeEngine:
        if self.settings.pipeline != 1:
            raise BadRequest("the stages of a pipeline have what prefill needs only; this worker keeps that role")
        slots = KvSlots(
            self.model.layout, self.settings.slots, self.settings.slot_tokens, str(self.model.module.device)
        )
        return DecodeEngine(self.model, self._links, slots, self._options.prefill_chunk, self._holds)

    def _hashing(self) -> Hashing | None:
        try:
            with self._links.link() as link:
                namespace = link.connect()[1]
        except MooncaskError as exc:
            log.info("no store: %s", exc)
            return None
        layout = self.model.layout
        return Hashing(
            namespace=namespace.name,
            fingerprint=namespace.fingerprint.hex(),
            tenant_salt=namespace.opened.salt.hex(),
            hash=namespace.hash,
            block_tokens=layout.block_tokens,
            block_bytes=layout.block_bytes,
        )


def _listen_address(settings: ServerSettings) -> tuple[str, int]:
    host, _, port = settings.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError("--listen", settings.listen, "must be HOST:PORT")
    if not settings.secret and host not in LOOPBACK:
        raise ConfigError("--listen", settings.listen, "another address than loopback needs MOONCASK_WORKER_SECRET")
    return host, int(port)


async def run(server: WorkerServer, drain_seconds: float) -> None:
    """Serves until SIGTERM or SIGINT; what runs then may end within `drain_seconds`, or until the second signal."""
    loop, stop, hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    try:
        async with server.serving() as address:
            log.info("%s %s serves %s at %s", server.settings.role, server.settings.name, server.model.name, address)
            await stop.wait()
            await _drained(server.roles, hurry, drain_seconds)
            await asyncio.to_thread(server.close)
    finally:
        await asyncio.to_thread(server.close)  # its threads would keep a process that could not listen


async def _drained(roles: Roles, hurry: asyncio.Event, seconds: float) -> None:
    """Takes nothing new; returns when nothing runs any more, or the time is over."""
    roles.draining = True
    until = time.monotonic() + seconds
    while roles.busy and not hurry.is_set() and time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_POLL_SECONDS):
                await hurry.wait()
