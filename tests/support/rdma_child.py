"""A node with RDMA as a process of its own: prints its address and lives until its stdin closes.

python rdma_child.py LISTEN
"""

import asyncio
import sys

from rdma_world import open_node


async def main(listen: str) -> None:
    node = await open_node("child", listen)
    print(node.server.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
