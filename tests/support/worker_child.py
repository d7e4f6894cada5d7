"""A worker as a process of its own: does one thing at a daemon, says so on stdout, and lives until its stdin closes.

    python worker_child.py SOCKET TOKEN_HEX UID ACTION NAMESPACE KEY...

It becomes UID first. Actions: `acquire` (leases the keys), `reserve` (reserves and writes, commits nothing), `expect` (announces the keys),
`commit_and_leave` (sends a commit and exits without reading the answer), `put` (puts and reads back), `look` (says what
the daemon gives it). What it prints is JSON, {"refused": CLASS} for an error of the daemon's.
"""

import asyncio
import json
import os
import sys

from raw_client import RawClient, key, payload

from mooncask.client import wire
from mooncask.errors import MooncaskError


async def main(path: str, token: str, action: str, namespace_name: str, numbers: list[int]) -> None:
    client = await RawClient.connect(path, bytes.fromhex(token))
    try:
        said = await act(client, action, namespace_name, numbers)
    except MooncaskError as error:
        said = {"refused": type(error).__name__}
    if action == "commit_and_leave":
        return
    print(json.dumps(said), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def act(client: RawClient, action: str, namespace_name: str, numbers: list[int]) -> dict[str, object]:
    namespace = await client.open(namespace_name)
    keys, blocks = [key(number) for number in numbers], {key(number): payload(number) for number in numbers}
    match action:
        case "acquire":
            got = await client.acquire(namespace, keys)
            return {"offsets": [got.places[i] for i in range(len(keys))]}
        case "expect":
            return {"count": (await client.ask(wire.Done, wire.Expect, namespace, keys, 60_000)).count}
        case "put":
            await client.put(namespace, blocks)
            got = await client.acquire(namespace, keys)
            return {"right": list(got.payloads.values()) == list(blocks.values())}
        case "look":
            refused = await client.refused(wire.Acquire, namespace, keys, 0)
            return {"descriptors": client.welcome.descriptors, "refused": type(refused).__name__}
    reserved = await client.reserve(namespace, blocks, layers=4)
    if action == "commit_and_leave":
        client.send(wire.Commit, reserved.reservations, reserved.generations, 1000)
    return {"reservations": reserved.reservations, "offsets": reserved.offsets}


if __name__ == "__main__":
    path, token, uid, action, namespace_name, *numbers = sys.argv[1:]
    if int(uid) != os.getuid():
        os.setuid(int(uid))
    asyncio.run(main(path, token, action, namespace_name, [int(number) for number in numbers]))
