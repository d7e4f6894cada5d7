"""Adopted leases carry the keys of their blocks, in whatever order the blocks arrived."""

import asyncio

from local_daemon import running_daemon

from mooncask.client.aio import AsyncLocalClient

SIZE = 4096
KEYS = [bytes([i]) * 16 for i in range(6)]


async def test_blocks_that_arrive_together_in_another_order_are_adopted_under_their_own_keys() -> None:
    async with (
        running_daemon() as daemon,
        await AsyncLocalClient.connect(daemon.path) as writer,
        await AsyncLocalClient.connect(daemon.path) as reader,
    ):
        for turn, order in enumerate((KEYS[::-1], KEYS[3:] + KEYS[:3])):
            namespace = await writer.open_namespace(f"kv-{turn}")
            same = await reader.open_namespace(f"kv-{turn}")
            reserved = await writer.reserve(namespace, order, [SIZE] * len(order))
            for key, slot in zip(order, reserved, strict=True):
                assert slot is not None
                slot.memory[:] = key[:1] * SIZE
                slot.memory.release()
            waiting = asyncio.create_task(reader.acquire(same, KEYS, 10.0, wait=True, want_token=True))
            async with asyncio.timeout(10):
                while daemon.service.arrivals.waiting < len(KEYS):  # noqa: ASYNC110  # it has no event to wait for
                    await asyncio.sleep(0.001)
            await reserved.commit()
            offered = await waiting
            with await reader.adopt(offered.hand_over()) as adopted:
                found = {block.key: bytes(block.memory[:1]) for block in adopted if block is not None}
            assert found == {key: key[:1] for key in KEYS}
