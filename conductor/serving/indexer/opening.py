"""Opens the index as it is configured. pyzmq is wanted here and nowhere else before something is registered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from mooncask.conductor.serving.config import IndexerSection, told_or_read
from mooncask.conductor.serving.indexer.door import IndexDoor
from mooncask.conductor.serving.indexer.index import Index
from mooncask.errors import ConfigError


@contextlib.asynccontextmanager
async def indexing(section: IndexerSection) -> AsyncIterator[web.Application]:
    """What answers routers while it is open. Raises ConfigError where pyzmq is not installed."""
    try:
        from zmq.asyncio import Context
    except ImportError as exc:
        needed = 'needs the package pyzmq (pip install "mooncask[events]")'
        raise ConfigError("indexer.listen", section.listen, needed) from exc
    context = Context()
    index = Index(context, section.hash_seed, section.blocks_max)
    try:
        yield IndexDoor(index, told_or_read(section.token, section.token_file, "indexer.token_file")).application()
    finally:
        await index.close()
        await asyncio.to_thread(context.term)
