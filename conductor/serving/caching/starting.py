"""Context caching and metering of one Conductor, put together and run."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from mooncask.conductor.serving.billing.meter import Meter, MeteredGate
from mooncask.conductor.serving.caching.api import add_routes
from mooncask.conductor.serving.caching.building import CacheBuilder
from mooncask.conductor.serving.caching.holding import NodeHolds
from mooncask.conductor.serving.caching.keeper import Keeper
from mooncask.conductor.serving.caching.serving import CachingLimits, ContextCaching
from mooncask.conductor.serving.caching.shelf import Shelf
from mooncask.conductor.serving.config import CachingSection, Config, StateSection, told_or_read
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.door.gate import Gate
from mooncask.conductor.serving.state.opening import opened_state
from mooncask.conductor.serving.state.state import State
from mooncask.conductor.serving.text.texts import Texts


@contextlib.asynccontextmanager
async def remembering(section: StateSection) -> AsyncIterator[State]:
    """The configured state. Raises ConfigError, StateUnavailable."""
    async with opened_state(section.url, section.prefix, _password(section)) as state:
        yield state


@contextlib.asynccontextmanager
async def metering(config: Config, gate: Gate, state: State) -> AsyncIterator[MeteredGate]:
    """The gate with a meter behind it."""
    meter = Meter(state, Shelf(state), config.billing.keep_days)
    async with meter.writing():
        yield MeteredGate(gate, meter)


@contextlib.asynccontextmanager
async def caching(
    section: CachingSection, dispatcher: LiveDispatcher, texts: Texts, gate: MeteredGate
) -> AsyncIterator[ContextCaching | None]:
    """None where it is switched off. Its keeper runs until the end."""
    if not section.enabled:
        yield None
        return
    meter, shelf, holds = gate.meter, gate.meter.shelf, NodeHolds(section.pin_share, dispatcher.node_tokens)
    builder = CacheBuilder(secrets.token_hex(8), shelf, dispatcher.builder(), holds, meter)
    keeper = Keeper(shelf, builder, holds, meter, section.check_seconds, section.lost_seconds)
    limits = CachingLimits(section.cache_tokens, section.tenant_tokens)
    pools = dispatcher.pools
    served = ContextCaching(shelf, keeper, holds, gate, texts, dispatcher, pools.block_tokens, limits, add_routes)
    keeping = asyncio.create_task(keeper.run())
    try:
        yield served
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await holds.close()


def _password(section: StateSection) -> str:
    return told_or_read(section.password, section.password_file, "state.password_file")
