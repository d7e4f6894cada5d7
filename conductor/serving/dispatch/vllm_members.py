"""vLLM servers as members of the pools. They know of no Conductor: it asks them how they are, in place of reports.

A server is registered when it answers /health, /v1/models and /metrics, and then says, by the connector in it, how the keys
of its blocks are made. Without that nothing of it matches, and it is placed by load alone. Not here: requests
(`vllm_client.py`), the engine's own prefix cache (`engine_caches.py`).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from mooncask.client.worker_api import Hashing, Leave, Node, Registration, Report, Role, WorkerKind
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.vllm_metrics import EngineMetrics, read_metrics
from mooncask.errors import MooncaskError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
DESCRIBE_SECONDS = 30.0
"""For the one token that brings the description: an engine's very first step may be slow."""
AGAIN_SECONDS = 5.0
"""Between two questions to a server that had no description to give."""
ANSWER_BYTES_MAX = 8 << 20
DESCRIBE = {"prompt": [1], "max_tokens": 1, "kv_transfer_params": {"mooncask": {"describe": True}}}
"""One token, of which nothing is stored: a block that is not full has no key."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """One server. `slots`: its --max-num-seqs; `gone_seconds`: silent for so long, it is taken to be gone; `may_change_role`:
    its connector loads and saves, so that either role will do."""

    name: str
    address: str
    role: Role
    model: str
    node: Node
    slots: int
    api_key: str
    gone_seconds: float
    may_change_role: bool


class NotReady(Exception):
    """The server answers, and not yet what is needed. Never leaves this module."""


class VllmMember:
    """Registers one server, and reports for it until it is cancelled. `ours_on(worker)`: requests that this Conductor has there.
    `on_hashing(name, hashing)` hears how its keys are made, each time that this is learned."""

    def __init__(
        self,
        settings: VllmSettings,
        pools: Pools,
        ours_on: Callable[[Worker], set[str]],
        on_hashing: Callable[[str, Hashing], None],
    ) -> None:
        self._settings, self._pools, self._ours_on, self._on_hashing = settings, pools, ours_on, on_hashing
        self._role = settings.role
        self._registration: Registration | None = None
        self._metrics = EngineMetrics()
        self._again_at = 0.0
        """Not registered, or without a description, on the monotonic clock: when to try next."""
        self._asking: asyncio.Task[None] | None = None
        self._said = ""

    async def run(self) -> None:
        told = self._settings
        headers = {"Authorization": f"Bearer {told.api_key}"} if told.api_key else {}
        timeout = aiohttp.ClientTimeout(total=told.gone_seconds)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            try:
                while True:
                    try:
                        await self._poll_once(session)
                    except Exception:  # the top of this task: the next look may go well
                        log.exception("worker %s could not be looked after, by a fault of this Conductor", told.name)
                        self._leave()
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                if self._asking is not None:
                    self._asking.cancel()
                    await asyncio.gather(self._asking, return_exceptions=True)

    async def _poll_once(self, session: aiohttp.ClientSession) -> None:
        try:
            await self._poll(session)
            self._say("")
        except (aiohttp.ClientConnectorError, aiohttp.ClientResponseError) as exc:
            self._leave()  # nobody listens there any more, or the engine behind it is dead
            self._say(str(exc))
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, NotReady) as exc:
            self._say(f"{type(exc).__name__} {exc}")
        except MooncaskError as exc:
            self._again_at = time.monotonic() + AGAIN_SECONDS
            self._say(exc.message)

    async def _poll(self, session: aiohttp.ClientSession) -> None:
        await self._get(session, "/health")
        metrics = read_metrics((await self._get(session, "/metrics")).decode())
        incarnation = metrics.started or "1"
        known = self._registration
        if known is not None and known.incarnation != incarnation:
            known = self._registration = None
            self._again_at = 0.0
        now = time.monotonic()
        if known is None:
            if now < self._again_at:
                raise NotReady(self._said)
            known, self._metrics = await self._register(session, incarnation, metrics), metrics
        elif known.hashing is None and now >= self._again_at and self._asking is None:
            self._asking = asyncio.create_task(self._ask_again(session, known))
        self._report(known, metrics)
        self._metrics = metrics

    # --- registration ---

    async def _register(self, session: aiohttp.ClientSession, incarnation: str, metrics: EngineMetrics) -> Registration:
        """Raises BadRequest when it does not go with the model's other workers."""
        models = msgspec.json.decode(await self._get(session, "/v1/models"), type=_Models).data
        if not models:
            raise NotReady("it serves no model")
        told, served = self._settings, next((m for m in models if m.id == self._settings.model), models[0])
        described = await self._described(session, served.id)
        registration = Registration(
            name=told.name,
            incarnation=incarnation,
            address=told.address,
            role=self._role,
            kind=WorkerKind.VLLM,
            model=told.model,
            served_as=served.id,
            family=described.family if described is not None else {},
            hashing=described.hashing() if described is not None else None,
            node=told.node,
            positions_max=served.max_model_len,
            slots=told.slots,
            kv_tokens=metrics.kv_tokens,
            gone_seconds=told.gone_seconds,
            may_change_role=told.may_change_role,
        )
        self._pools.register(registration, time.monotonic())
        self._registration, self._again_at = registration, time.monotonic() + AGAIN_SECONDS
        if registration.hashing is None:
            log.warning("worker %s has no store (yet): requests go there by load alone", told.name)
        else:
            log.info("worker %s keeps its KV in %s", told.name, registration.hashing.namespace)
            self._on_hashing(told.name, registration.hashing)
        return registration

    async def _ask_again(self, session: aiohttp.ClientSession, known: Registration) -> None:
        """Beside the polls. Its daemon may be there by now: then it is registered anew."""
        try:
            if await self._described(session, known.served_as) is not None and self._registration is known:
                self._registration = None
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as exc:
            log.info("worker %s did not say how its keys are made: %s %s", known.name, type(exc).__name__, exc)
        finally:
            self._again_at = 0.0 if self._registration is None else time.monotonic() + AGAIN_SECONDS
            self._asking = None

    async def _described(self, session: aiohttp.ClientSession, model: str) -> "_Description | None":
        """None from a server without the connector, or whose connector has not reached its daemon."""
        body = msgspec.json.encode({**DESCRIBE, "model": model})
        headers = {"Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=DESCRIBE_SECONDS)
        url = self._settings.address + "/v1/completions"
        async with session.post(url, data=body, headers=headers, timeout=timeout) as response:
            response.raise_for_status()
            params = msgspec.json.decode(await response.read(), type=_Described).kv_transfer_params
        told = params.get("mooncask") if params is not None else None
        if not isinstance(told, dict) or "hashing" not in told:
            return None
        return msgspec.convert(told["hashing"], _Description)

    # --- reports ---

    def _report(self, known: Registration, metrics: EngineMetrics) -> None:
        told = self._settings
        report = Report(
            name=known.name,
            incarnation=known.incarnation,
            role=self._role,
            waiting=metrics.waiting,
            running=metrics.running,
            context_tokens=metrics.context_tokens,
            free_slots=max(0, told.slots - metrics.running - metrics.waiting),
            free_tokens=max(0, metrics.kv_tokens - metrics.context_tokens),
            requests=self._requests(known.name, metrics.running + metrics.waiting),
            steps=metrics.step_since(self._metrics) if self._role is Role.DECODE else [],
        )
        answer = self._pools.report(report, time.monotonic())
        if not answer.known:
            self._registration = None  # it was taken to be gone: registered anew with the next poll
        elif answer.role is not None:
            log.info("worker %s is %s from now on", known.name, answer.role)
            self._role = answer.role

    def _requests(self, name: str, there: int) -> list[str]:
        """vLLM tells how many; those beyond our own are others', by names that nobody has."""
        worker = next((worker for worker in self._pools.all() if worker.name == name), None)
        ours = sorted(self._ours_on(worker)) if worker is not None else []
        return ours + [f"another's {number}" for number in range(there - len(ours))]

    def _leave(self) -> None:
        known, self._registration = self._registration, None
        if known is not None:
            self._pools.leave(Leave(name=known.name, incarnation=known.incarnation))

    def _say(self, why: str) -> None:
        """Once when it goes and once when it comes."""
        if why and not self._said:
            log.warning("worker %s at %s does not answer: %s", self._settings.name, self._settings.address, why)
        elif self._said and not why:
            log.info("worker %s at %s answers", self._settings.name, self._settings.address)
        self._said = why

    async def _get(self, session: aiohttp.ClientSession, path: str) -> bytes:
        async with session.get(self._settings.address + path) as response:
            response.raise_for_status()
            body = await response.content.read(ANSWER_BYTES_MAX)
            while not response.content.at_eof() and len(body) < ANSWER_BYTES_MAX:
                body += await response.content.read(ANSWER_BYTES_MAX - len(body))
            return body


class _Description(msgspec.Struct, frozen=True):
    """As the connector tells it."""

    namespace: str
    fingerprint: str
    tenant_salt: str
    hash: str
    block_tokens: int
    block_bytes: int
    family: dict[str, str]

    def hashing(self) -> Hashing:
        return Hashing(
            namespace=self.namespace,
            fingerprint=self.fingerprint,
            tenant_salt=self.tenant_salt,
            hash=self.hash,
            block_tokens=self.block_tokens,
            block_bytes=self.block_bytes,
        )


class _Described(msgspec.Struct, frozen=True):
    kv_transfer_params: dict[str, Any] | None = None


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]
