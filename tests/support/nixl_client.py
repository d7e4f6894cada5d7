"""NIXL's OBJ plugin: puts one block from memory and gets it back into other memory. Runs under the interpreter that has NIXL.

Run as `nixl_client.py ENDPOINT BUCKET BYTES`; keys, region and trust come from the environment. Exit status 0: byte-equal.
"""

import os
import sys
import time

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]  # lives in an environment of its own

SECONDS_MAX = 60.0


def move(agent: object, operation: str, local: np.ndarray, key: str) -> None:
    """One transfer of all of `local` from or to the object `key`."""
    size = local.nbytes
    memory = agent.register_memory([(local.ctypes.data, size, 0, "")], "DRAM", backends=["OBJ"])  # type: ignore[attr-defined]
    stored = agent.register_memory([(0, size, 0, key)], "OBJ", backends=["OBJ"])  # type: ignore[attr-defined]
    handle = agent.initialize_xfer(operation, memory.trim(), stored.trim(), agent.name)  # type: ignore[attr-defined]
    state, end = agent.transfer(handle), time.monotonic() + SECONDS_MAX  # type: ignore[attr-defined]
    while state not in ("DONE", "ERR") and time.monotonic() < end:
        time.sleep(0.001)
        state = agent.check_xfer_state(handle)  # type: ignore[attr-defined]
    if state != "DONE":
        raise SystemExit(f"{operation} of {key} ended as {state}")
    agent.release_xfer_handle(handle)  # type: ignore[attr-defined]
    agent.deregister_memory(memory)  # type: ignore[attr-defined]
    agent.deregister_memory(stored)  # type: ignore[attr-defined]


def main() -> None:
    endpoint, bucket, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    agent = nixl_agent("mooncask-test", nixl_agent_config(backends=[]))
    options = {
        "endpoint_override": endpoint,
        "bucket": bucket,
        "scheme": endpoint.partition(":")[0],
        "access_key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "region": os.environ["AWS_REGION"],
        "use_virtual_addressing": "false",
    }
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["ca_bundle"] = bundle
    agent.create_backend("OBJ", options)
    source = np.frombuffer(os.urandom(size), np.uint8).copy()
    target = np.zeros(size, np.uint8)
    move(agent, "WRITE", source, "kv/block")
    move(agent, "READ", target, "kv/block")
    if not np.array_equal(source, target):
        raise SystemExit("other bytes came back")


if __name__ == "__main__":
    main()
