"""A worker as a process of its own: does one thing at a daemon, says so on stdout, and lives until its stdin closes.

    python worker_child.py SOCKET TOKEN_HEX ACTION NAMESPACE KEY...

Actions: `acquire` (leases the keys), `reserve` (reserves and writes, commits nothing), `expect` (announces the keys),
`commit_and_leave` (sends a commit and exits without reading the answer). What it prints is JSON.
"""

import asyncio
import json
import sys

from raw_client import RawClient, key, payload

from mooncask.client import wire


async def main(path: str, token: str, action: str, namespace_name: str, numbers: list[int]) -> None:
    client = await RawClient.connect(path, bytes.fromhex(token))
    namespace = await client.open(namespace_name)
    keys = [key(number) for number in numbers]
    said: dict[str, object] = {}
    if action == "acquire":
        got = await client.acquire(namespace, keys)
        said = {"offsets": [got.places[i] for i in range(len(keys))]}
    elif action == "expect":
        said = {"count": (await client.ask(wire.Done, wire.Expect, namespace, keys, 60_000)).count}
    else:
        blocks = {key(number): payload(number) for number in numbers}
        reserved = await client.reserve(namespace, blocks, layers=4)
        said = {"reservations": reserved.reservations, "offsets": reserved.offsets}
        if action == "commit_and_leave":
            client.send(wire.Commit, reserved.reservations, reserved.generations, 1000)
            return
    print(json.dumps(said), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], [int(number) for number in sys.argv[5:]]))
