"""The daemon from start to stop: puts the parts together, tells when it is ready, and flushes before it goes.

config -> socket file bound (or refused) -> store opened -> HTTP and socket listen -> ready line
SIGTERM or SIGINT -> listeners closed, clients cut -> store flushed within shutdown.flush_seconds -> exit 0
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import load_config
from mooncask.daemon.http_doors import HttpDoors
from mooncask.daemon.local_socket import LocalSocket
from mooncask.daemon.logs import set_up_logging
from mooncask.daemon.service import Service
from mooncask.daemon.socket_file import SocketFile, default_path
from mooncask.daemon.status import version
from mooncask.errors import MooncaskError
from mooncask.tiers.nvme.config import NvmeConfig
from mooncask.tiers.requests import StoreConfig
from mooncask.tiers.store import Store

log = logging.getLogger(__name__)

SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread that computes under the GIL may keep the event loop waiting; Python's default is ten times that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal; returns the exit status. A start that fails is one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        path = options.config or os.environ.get("MOONCASK_CONFIG")
        config = load_config(Path(path) if path else None, os.environ)
        set_up_logging(config.log)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        uvloop.run(run(config))
    except MooncaskError as error:
        print(f"mooncask: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


async def run(config: Config) -> None:
    """The daemon's life. Raises the start errors of mooncask.errors."""
    stop = asyncio.Event()
    _stop_on_signals(stop)
    async with AsyncExitStack() as stack:
        path = Path(config.socket.path) if config.socket.path else default_path(os.environ, os.getuid())
        file = SocketFile.bind(path, int(config.socket.mode, 8))
        stack.callback(file.close)
        store = await Store.open(store_config(config))
        stack.push_async_callback(_close_store, store, config.shutdown.flush_seconds)
        service = Service(store, config)
        stack.push_async_callback(service.close)
        local = LocalSocket(service, file)
        stack.push_async_callback(local.close)
        doors = await HttpDoors.open(config, local.plane, path)
        stack.push_async_callback(doors.close)
        local.start()
        service.ready = True
        print(f"mooncask ready socket={path} http={doors.address or 'off'}", flush=True)
        log.info("mooncask %s is ready: socket %s, http %s and %s", version(), path, doors.address or "off", doors.path)
        await stop.wait()
        service.ready = False
        log.info("stopping")


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


async def _close_store(store: Store, flush_seconds: float) -> None:
    await store.close(flush_seconds)
    log.info("stopped")


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mooncask.daemon", description="The Mooncask daemon of one node.")
    parser.add_argument("--config", metavar="FILE", help="TOML file; MOONCASK_<SECTION>_<KEY> variables win over it")
    parser.add_argument("--version", action="version", version=f"mooncask {version()}")
    return parser
