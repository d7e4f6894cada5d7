"""A client that is not trusted with the arena: it writes into a staging area of its own, and nobody need notice."""

from pathlib import Path

import numpy as np
from daemon_process import DaemonProcess

from mooncask.client.local import LocalClient
from mooncask.client.wire import CommitState

MIB = 1 << 20


def test_an_untrusted_writer_puts_more_than_its_staging_area_holds(tmp_path: Path) -> None:
    settings = {"socket.trusted_writers": [], "socket.staging": "4 MiB", "http.enabled": False}
    keys = [number.to_bytes(16, "big") for number in range(20)]
    payloads = [np.full(MIB, number, np.uint8) for number in range(20)]
    with (
        DaemonProcess.start(tmp_path, {**settings, "dram.capacity": "64 MiB"}) as daemon,
        LocalClient.connect(daemon.socket_path, populate=False) as client,
    ):
        assert client.welcome.descriptors == ["arena", "staging"]
        namespace = client.open_namespace("kv-staged", family={"model": "none"}, mode="memory")
        assert set(client.put(namespace, keys, payloads)) == {CommitState.PUBLISHED}
        with client.acquire(namespace, keys, verify=True) as blocks:
            for number, block in enumerate(blocks):
                assert block is not None and np.array_equal(np.asarray(block.memory), payloads[number])
            del block
        assert client.status().tiers[0].reserved_bytes == 0
