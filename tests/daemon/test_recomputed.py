"""Blocks that engines compute although they are here: what they tell, what is remembered, what is refused."""

import pytest
from local_daemon import running_daemon
from raw_client import key, payload

from mooncask.client import wire
from mooncask.daemon.insight.recomputed import Recomputations, recomputed_text
from mooncask.errors import BadRequest, NoSuchNamespace


async def test_what_an_engine_tells_is_kept_by_block_and_counted_by_tier() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        await client.put(namespace, {key(1): payload(1)})
        for blocks in (3, 2):
            await client.ask(wire.Done, wire.Recomputed, namespace, key(1), blocks, int(wire.Tier.NVME), 0.5, 0.25)
        told = daemon.plane.insight.recomputed
        (found,) = daemon.store.namespaces()
        latest = told.of(found.id, key(1))
        assert latest is not None and (latest.blocks, latest.tier) == (2, "nvme")
        assert told.blocks == {"nvme": 5} and told.of(found.id, key(2)) is None
        assert recomputed_text(4, latest).startswith("blocks 4 to 5: computed at ")
        await client.close()


@pytest.mark.parametrize(("blocks", "tier"), [(0, 2), (1 << 21, 2), (1, 0), (1, 99)])
async def test_nonsense_is_refused(blocks: int, tier: int) -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        namespace = await client.open()
        refused = await client.refused(wire.Recomputed, namespace, key(1), blocks, tier, 1.0, 1.0)
        assert isinstance(refused, BadRequest)
        assert isinstance(await client.refused(wire.Recomputed, 77, key(1), 1, 2, 1.0, 1.0), NoSuchNamespace)
        await client.close()


def test_only_the_latest_chains_are_remembered() -> None:
    told = Recomputations(most=2)
    for number in range(3):
        told.note(1, key(number), 1, "dram", 1.0, 0.5)
    assert told.of(1, key(0)) is None and told.of(1, key(2)) is not None and told.blocks["dram"] == 3
