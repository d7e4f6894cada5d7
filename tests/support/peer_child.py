"""A serving node as a process of its own: prints its address and lives until its stdin closes.

    python peer_child.py LISTEN FOLDER EPOCH

FOLDER has the cluster's certificates; empty: no TLS. It has every block of `peer_world.key_of`.
"""

import asyncio
import sys
from pathlib import Path

from peer_world import World


async def main(listen: str, folder: str, epoch: int) -> None:
    world = World(Path(folder) if folder else None)
    server = world.serve("child", listen, epoch=epoch)
    print(server.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await world.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
