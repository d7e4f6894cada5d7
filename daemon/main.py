"""The daemon from start to stop: puts the parts together, tells when it is ready, and flushes before it goes.

config -> socket file bound (or refused) -> store opened -> HTTP and socket listen -> ready line
SIGHUP -> configuration read again, see `reload.py`
SIGTERM or SIGINT -> listeners closed, clients cut -> store flushed within shutdown.flush_seconds -> exit 0

A service manager is told of each of these (`notify.py`). The command line is `command.py`'s.
"""

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mooncask.daemon import notify
from mooncask.daemon.config import Config
from mooncask.daemon.http_doors import HttpDoors
from mooncask.daemon.local_socket import LocalSocket
from mooncask.daemon.notify import Notifier
from mooncask.daemon.recorder import Recorder
from mooncask.daemon.reload import Reloader, live_parts
from mooncask.daemon.service import Service
from mooncask.daemon.socket_file import SocketFile, default_path
from mooncask.daemon.status import version
from mooncask.errors import MooncaskError
from mooncask.tiers.nvme.config import NvmeConfig
from mooncask.tiers.requests import StoreConfig
from mooncask.tiers.store import Store

log = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""What a stop may take beside the flush: requests, clients and loads under way get a few seconds each to end."""


async def run(config: Config, load: Callable[[], Config], file: str = "") -> None:
    """The daemon's life; `load` reads the configuration again, from `file`, which may be none.

    Raises the start errors of mooncask.errors.
    """
    notifier = notify.from_process()
    stop, reload = asyncio.Event(), asyncio.Event()
    _on_signals(stop.set, signal.SIGTERM, signal.SIGINT)
    _on_signals(reload.set, signal.SIGHUP)  # from the first moment: its default would end the process
    async with AsyncExitStack() as stack:
        _in_background(stack, notifier.beat())  # the last to end: the flush is watched as well
        path = Path(config.socket.path) if config.socket.path else default_path(os.environ, os.getuid())
        socket_file = SocketFile.bind(path, int(config.socket.mode, 8))
        stack.callback(socket_file.close)
        store = await Store.open(store_config(config))
        service = Service(store, config)
        stack.push_async_callback(_close_store, service)
        stack.push_async_callback(service.close)
        await _start_recorder(service, stack)
        await _join_cluster(service, stack)
        _open_cold(service, stack)
        await _publish_events(service, stack)
        local = LocalSocket(service, socket_file)
        local.plane.insight.config_file = file
        stack.push_async_callback(local.close)
        doors = await HttpDoors.open(config, local.plane, path)
        stack.push_async_callback(doors.close)
        local.start()
        service.ready = True
        print(f"mooncask ready socket={path} http={doors.address or 'off'}", flush=True)
        log.info("mooncask %s is ready: socket %s, http %s and %s", version(), path, doors.address or "off", doors.path)
        notifier.ready(f"serving on {path} and {doors.address or doors.path}")
        reloader = Reloader(config, load, [doors.prepare, *live_parts(local.plane)])
        _in_background(stack, _reload_when(reload, reloader, notifier, service.counters))
        await stop.wait()
        service.ready = False
        notifier.stopping(service.config.shutdown.flush_seconds + STOP_SECONDS)
        log.info("stopping")


async def _join_cluster(service: Service, stack: AsyncExitStack) -> None:
    """Raises ConfigError and AddressInUse."""
    if service.config.cluster.listen:
        from mooncask.daemon.peers.cluster import Cluster

        service.cluster = cluster = await Cluster.open(service, service.config)
        stack.push_async_callback(cluster.close)


async def _publish_events(service: Service, stack: AsyncExitStack) -> None:
    """Raises ConfigError and AddressInUse."""
    if service.config.kv_events.endpoint:
        from mooncask.daemon.kv_events.feed import KvEvents

        events = await KvEvents.open(service, service.config)
        stack.push_async_callback(events.close)


def _open_cold(service: Service, stack: AsyncExitStack) -> None:
    """After the cluster, whose incarnation it has. Raises ConfigError."""
    if service.config.cold.bucket:
        from mooncask.daemon.cold.cold import Cold

        service.cold = cold = Cold.open(service, service.config)
        stack.push_async_callback(cold.close)


async def _start_recorder(service: Service, stack: AsyncExitStack) -> None:
    """Raises ConfigError. It ends after the doors are closed, so that the last look-ups are in the file."""
    if not service.config.recorder.path:
        return
    recorder = await Recorder.open(service.config.recorder, service.counters)
    stack.push_async_callback(recorder.close)
    stack.callback(service.lookups.flush)
    service.lookups.add(recorder.looked)


async def _reload_when(asked: asyncio.Event, reloader: Reloader, notifier: Notifier, counters: Counter[str]) -> None:
    """For ever: one reload at a time; what is asked for during one is one more."""
    while True:
        await asked.wait()
        asked.clear()
        notifier.reloading()
        try:
            outcome = f"reloaded: {await reloader.reload()}"
            counters["reloads"] += 1
            log.info("%s", outcome)
        except MooncaskError as error:
            outcome = f"reload refused, nothing has changed: {error.message}"
            counters["reloads_refused"] += 1
            log.error("%s", outcome)
        except Exception:
            outcome = "reload failed by a fault of this daemon; its log says where"
            counters["reloads_refused"] += 1
            log.exception("%s", outcome)
        notifier.ready(outcome)


def store_config(config: Config) -> StoreConfig:
    """What the storage engine is told. Raises ConfigError."""
    nvme = _nvme_config(config)
    block_bytes_max = min(config.limits.block_max, int(config.dram.capacity * config.limits.pin_share))
    if nvme is not None:
        block_bytes_max = min(block_bytes_max, nvme.layout().block_bytes_max)
    return StoreConfig(
        dram_bytes=config.dram.capacity,
        dram_policy=config.dram.policy,
        huge_pages=config.dram.huge_pages,
        trusted_writers=bool(config.socket.trusted_writers),
        hbm_bytes=config.hbm.capacity,
        hbm_device=config.hbm.device,
        nvme=nvme,
        nvme_policy=config.nvme.policy,
        dirty_bytes_max=config.nvme.dirty_max,
        promote_after=config.promotion.promote_after,
        promote_window=config.promotion.window,
        block_bytes_max=block_bytes_max,
        held_share=config.limits.pin_share,
        scrub_bytes_per_second=float(config.nvme.scrub_rate),
    )


def _nvme_config(config: Config) -> NvmeConfig | None:
    section = config.nvme
    if not section.path:
        return None
    return NvmeConfig(Path(section.path), section.capacity, section.segment, section.direct, section.io_threads)


async def _close_store(service: Service) -> None:
    await service.store.close(service.config.shutdown.flush_seconds)
    log.info("stopped")


def _on_signals(call: Callable[[], None], *numbers: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, call)


def _in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until `stack` unwinds to here."""
    task = asyncio.get_running_loop().create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
