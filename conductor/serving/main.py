"""The life of a Conductor: its parts are made, its doors opened, and closed again in the other order."""

import asyncio
import contextlib
import importlib.metadata
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.scheduling.pause import PauseSettings
from mooncask.conductor.serving.billing.cache_rows import cache_rows
from mooncask.conductor.serving.billing.pages import BillPage
from mooncask.conductor.serving.caching.serving import ContextCaching
from mooncask.conductor.serving.caching.starting import caching, metering, remembering
from mooncask.conductor.serving.config import Config, secret_of, split_listen, told_or_read
from mooncask.conductor.serving.dispatch.dispatcher import Limits, LiveDispatcher
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.door.door import Door
from mooncask.conductor.serving.indexer.opening import indexing
from mooncask.conductor.serving.node_access import node_tokens
from mooncask.conductor.serving.pages.access import PageAccess
from mooncask.conductor.serving.pages.metrics import ConductorMetrics
from mooncask.conductor.serving.pages.pages import Pages, Told
from mooncask.conductor.serving.pages.rows import hot_rows
from mooncask.conductor.serving.planning.planner import Planner, planning
from mooncask.conductor.serving.tenants.gate import TenantGate, limits_of, make_gate
from mooncask.conductor.serving.tenants.public_prompts import read_public_prompts
from mooncask.conductor.serving.tenants.shared_quotas import SharedQuotas
from mooncask.conductor.serving.text.texts import Texts
from mooncask.conductor.serving.vllm_pool import vllm_pool, vllm_speech
from mooncask.conductor.serving.workers_door import WorkersDoor
from mooncask.errors import AddressInUse

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
CLOSING_SECONDS = 1.0
"""For handlers that still run when a listener closes: draining is over by then."""


@contextlib.asynccontextmanager
async def listening(app: web.Application, listen: str, key: str) -> AsyncIterator[str]:
    """The address of an application while it is served: HOST:PORT. Raises AddressInUse."""
    host, port = split_listen(listen, key)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=CLOSING_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as exc:
            raise AddressInUse(key, listen) from exc
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def dispatching(config: Config, name: str = "") -> AsyncIterator[LiveDispatcher]:
    """The part that knows workers and no clients. `name`: what it calls itself to them."""
    client = WorkerClient(secret_of(config.server), others=vllm_speech(config), conductor=name)
    pools = Pools()
    prefixes = Prefixes(config.limits.prefix_seconds, node_tokens(config.nodes))
    limits = Limits(
        config.limits.running_max,
        config.limits.waiting_max,
        config.limits.inline_tokens,
        config.limits.inline_prefill_tokens,
        config.limits.hot_copies_max,
        config.limits.hot_busy_share,
    )
    dispatcher = LiveDispatcher(pools, client, prefixes, PolicyTable(_policy_settings(config)), limits)
    sweeping = asyncio.create_task(_sweep(pools))
    try:
        async with vllm_pool(config, dispatcher, prefixes.engines):
            yield dispatcher
    finally:
        sweeping.cancel()
        await dispatcher.pausing.close()
        await dispatcher.hot.close()
        await prefixes.close()
        await client.close()


async def _sweep(pools: Pools) -> None:
    before = time.monotonic()
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        now = time.monotonic()
        if (late := now - before - SWEEP_SECONDS) > SWEEP_SECONDS:
            pools.stood_still(late)
        pools.sweep(now)
        before = now


def _policy_settings(config: Config) -> PolicySettings:
    classes = config.classes_or_default()
    return PolicySettings(
        placement=config.policy.placement,
        admission=config.policy.admission,
        threshold=config.policy.threshold,
        balancing_threshold=config.policy.balancing_threshold,
        classes={name: Slo(section.ttft_seconds, section.tbt_seconds) for name, section in classes.items()},
        default_class=next(iter(classes)),
        nodes_share=config.policy.nodes_share,
        fetch_bytes_per_second=config.policy.fetch_bytes_per_second,
        pause=PauseSettings(config.policy.pause_decode, config.policy.pause_slowdown, config.policy.pause_seconds_max),
    )


def pages_of(
    config: Config,
    dispatcher: LiveDispatcher,
    gate: TenantGate,
    door: Door,
    planner: Planner,
    caches: ContextCaching | None,
) -> Pages:
    """The pages under /-/ over what is there."""
    told = Told(
        version=importlib.metadata.version("mooncask"),
        draining=lambda: door.draining,
        hot=lambda: hot_rows(dispatcher),
        quotas=lambda: gate.quotas.used(time.time()),
        currency=config.billing.currency,
        plan=planner.page,
        caches=lambda: cache_rows(caches.keeper.seen if caches is not None else [], config.prices, time.time()),
    )
    metrics = ConductorMetrics(dispatcher, told.quotas, gate.refusals)
    access = PageAccess(told_or_read(config.admin.token, config.admin.token_file, "admin.token_file"))
    return Pages(dispatcher, _policy_settings(config), metrics, access, told)


async def run(config: Config) -> None:
    """Serves until SIGTERM or SIGINT."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        name = secrets.token_hex(8)
        dispatcher = await stack.enter_async_context(dispatching(config, name))
        workers = WorkersDoor(dispatcher.pools, secret_of(config.server), dispatcher.costs, name).application()
        address = await stack.enter_async_context(
            listening(workers, config.server.workers_listen, "server.workers_listen")
        )
        log.info("workers register at http://%s", address)
        folders = {name: Path(section.tokenizer) for name, section in config.models.items()}
        texts = Texts(folders, config.server.tokenizer_processes)
        stack.callback(texts.close)
        public = await read_public_prompts(config.public, texts)
        state = await stack.enter_async_context(remembering(config.state))
        quotas = SharedQuotas(limits_of(config.tenants), state)
        await stack.enter_async_context(quotas.kept())
        gate = make_gate(config, public, dispatcher.pools.public_block_tokens, quotas)
        metered = await stack.enter_async_context(metering(config, gate, state))
        caches = await stack.enter_async_context(caching(config.caching, dispatcher, texts, metered))
        door = Door(
            dispatcher, texts, metered, config.server.body_bytes_max, config.server.client_seconds, caching=caches
        )
        application = door.application()
        planner = await stack.enter_async_context(planning(dispatcher, config.plan))
        pages = pages_of(config, dispatcher, gate, door, planner, caches)
        pages.add_to(application)
        BillPage(metered.meter, config.prices, config.billing.currency, pages.access.check).add_to(application)
        address = await stack.enter_async_context(listening(application, config.server.listen, "server.listen"))
        if config.indexer.listen:
            index = await stack.enter_async_context(indexing(config.indexer))
            where = await stack.enter_async_context(listening(index, config.indexer.listen, "indexer.listen"))
            log.info("routers ask the index at http://%s", where)
        log.info("clients are served at http://%s/v1", address)
        await stop.wait()
        await door.drain(config.server.drain_seconds)
