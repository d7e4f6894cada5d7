"""A link's end, where something reads leased memory without asking: it is stopped first, whatever that takes."""

import asyncio

from child_processes import until
from peer_world import NS, World, key_of, soon

from mooncask.daemon.transport.tcp.served_link import ServedLink


class Revocation:
    """Stands for a queue pair whose destruction takes a while."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def arrange(self, link: ServedLink, payload: bytes) -> bytes:
        link.revoke_with(self.revoke)
        return payload

    async def revoke(self) -> None:
        self.began.set()
        await self.may_end.wait()


async def test_leases_end_when_the_revocation_is_over_and_not_before() -> None:
    world, revocation = World(None), Revocation()
    server = world.serve()
    server.handle_link("arrange", revocation.arrange)
    link = await world.link(server)
    assert await link.ask("arrange", b"a payload", soon()) == b"a payload"
    await link.lease(NS, [key_of(1, 5000)], soon())
    await link.close()
    await asyncio.wait_for(revocation.began.wait(), 20)
    assert world.provider.holding == 1
    revocation.may_end.set()
    await until(lambda: world.provider.holding == 0)
    await world.close()


async def test_a_server_that_closes_waits_for_the_revocation() -> None:
    world, revocation = World(None), Revocation()
    server = world.serve()
    server.handle_link("arrange", revocation.arrange)
    link = await world.link(server)
    await link.ask("arrange", b"", soon())
    await link.lease(NS, [key_of(1, 5000)], soon())
    closing = asyncio.create_task(server.close())
    await asyncio.wait_for(revocation.began.wait(), 20)
    await asyncio.sleep(0)
    assert not closing.done() and world.provider.holding == 1
    revocation.may_end.set()
    await closing
    assert world.provider.holding == 0
    await world.close()
