"""Which nodes have which blocks, this one included: the answer of the page `where`."""

from collections.abc import Iterator, Sequence

from mooncask.client.where import Holding, Where, WhereBlock
from mooncask.daemon.insight.blocks import key_text, tiers_of
from mooncask.daemon.service import Service
from mooncask.tiers.namespace import Namespace


async def where(service: Service, namespace: Namespace, keys: Sequence[bytes], deadline: float) -> Where:
    """Other nodes are asked until `deadline`, those of a node that is alone not at all."""
    cluster, node = service.cluster, service.config.node.name
    others = await cluster.whereabouts.ask(namespace, keys, deadline) if cluster is not None else []

    def holders(index: int, key: bytes) -> Iterator[Holding]:
        if service.store.has(namespace, key):
            yield Holding(node=node, tiers=tiers_of(service.store.catalogue, namespace.index[key]))
        for other in others:
            if other.told is not None and other.told[index].tiers:
                yield Holding(node=other.name, tiers=other.told[index].tiers)

    return Where(
        namespace=namespace.spec.name,
        node=node,
        blocks=[
            WhereBlock(key=key_text(namespace, key), holders=list(holders(index, key)))
            for index, key in enumerate(keys)
        ],
        silent=[other.name for other in others if other.told is None],
    )
