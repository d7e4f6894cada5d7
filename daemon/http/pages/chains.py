"""Pages of chains: what continues a block, the way to one, where chains end, and which prefix of a prompt is here."""

from collections.abc import Awaitable, Callable

from mooncask.client import control
from mooncask.daemon.http.pages.page_request import PageRequest
from mooncask.daemon.insight.blocks import tier_texts
from mooncask.daemon.insight.chains import NODES_MAX
from mooncask.daemon.insight.prompts import asked_chain
from mooncask.daemon.session import LocalPlane
from mooncask.tiers.namespace import Namespace

NODES_DEFAULT = 100

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class ChainPages:
    """/-/v1/chains/NS, /-/v1/chains/NS/KEY, /-/v1/tips/NS, /-/v1/match, /-/v1/why."""

    def __init__(self, plane: LocalPlane) -> None:
        self._door = plane.service.door
        self._service = plane.service
        self._insight = plane.insight
        self._chains = plane.insight.chains

    def pages(self) -> dict[tuple[str, str], Page]:
        return {
            ("GET", "chains"): self._show,
            ("GET", "tips"): self._tips,
            ("POST", "match"): self._match,
            ("POST", "why"): self._why,
        }

    async def _show(self, asked: PageRequest) -> control.Answer:
        namespace = self._namespace(asked)
        if asked.key:
            return await self._chains.path(namespace, asked.key)
        limit = asked.limit(NODES_DEFAULT, NODES_MAX)
        return await self._chains.children(
            namespace, asked.query.get("parent", ""), asked.query.get("after", ""), limit
        )

    async def _tips(self, asked: PageRequest) -> control.Answer:
        limit = asked.limit(NODES_DEFAULT, NODES_MAX)
        return await self._chains.tips(self._namespace(asked), asked.query.get("after", ""), limit)

    async def _match(self, asked: PageRequest) -> control.Answer:
        request = await asked.form(control.WhyRequest, self._service.config.http)
        namespace = self._door.find(asked.caller.tenant, request.namespace)
        chain = await asked_chain(namespace, request)
        found = self._service.match(namespace, chain.keys)
        return control.Matched(
            namespace=namespace.spec.name,
            blocks=len(chain.keys),
            block_tokens=chain.block_tokens,
            hit_blocks=len(found),
            hit_tokens=len(found) * chain.block_tokens,
            tiers=tier_texts(found.tiers),
            seconds=found.seconds,
        )

    async def _why(self, asked: PageRequest) -> control.Answer:
        request = await asked.form(control.WhyRequest, self._service.config.http)
        namespace = self._door.find(asked.caller.tenant, request.namespace)
        return await self._insight.why(namespace, request)

    def _namespace(self, asked: PageRequest) -> Namespace:
        return self._door.find(asked.caller.tenant, asked.namespace)
