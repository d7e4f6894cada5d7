"""What every transport does, whatever carries the bytes."""

import pytest
from peer_world import World, block_bytes, fetch, key_of


@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 65_537, 1 << 20, (2 << 20) + 1, 16 << 20])
async def test_a_block_of_any_size_arrives_byte_for_byte(world: World, size: int) -> None:
    link = await world.link()
    assert await fetch(link, [key_of(7, size)]) == [block_bytes(7, size)]
