"""The vLLM servers of the configuration, [workers.NAME], as members of the pools for as long as the Conductor runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from mooncask.client.worker_api import Node, WorkerKind
from mooncask.conductor.serving.config import Config, WorkerSection, told_or_read
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.engine_events import EngineEvents
from mooncask.conductor.serving.dispatch.speech import Speech
from mooncask.conductor.serving.dispatch.vllm_client import VllmSpeech
from mooncask.conductor.serving.dispatch.vllm_members import VllmMember, VllmSettings

SILENCE_SECONDS = 300.0
"""Of an answer's stream. vLLM says nothing while a request waits for its turn; a server that is dead is noticed by its polls."""


def vllm_speech(config: Config) -> Mapping[WorkerKind, Speech]:
    """How they are spoken to. Raises ConfigError for a key's file that can't be read."""
    keys = {name: _key(name, section) for name, section in config.workers.items()}
    return {WorkerKind.VLLM: VllmSpeech(SILENCE_SECONDS, keys)}


@contextlib.asynccontextmanager
async def vllm_pool(config: Config, dispatcher: LiveDispatcher, engines: EngineEvents) -> AsyncIterator[None]:
    """Polls them, and follows the KV events of those that publish some. Raises ConfigError."""
    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for name, section in config.workers.items():
            if section.kv_events:
                await stack.enter_async_context(engines.following(name, section.kv_events))
            member = VllmMember(_settings(name, section), dispatcher.pools, dispatcher.books.ours_on, engines.described)
            tasks.append(asyncio.create_task(member.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _settings(name: str, section: WorkerSection) -> VllmSettings:
    return VllmSettings(
        name=name,
        address=section.address.rstrip("/"),
        role=section.role,
        model=section.model,
        node=Node(name=section.node, pages=section.node_pages),
        slots=section.slots,
        api_key=_key(name, section),
        gone_seconds=section.gone_seconds,
        may_change_role=section.may_change_role,
    )


def _key(name: str, section: WorkerSection) -> str:
    return told_or_read(section.api_key, section.api_key_file, f"workers.{name}.api_key_file")
