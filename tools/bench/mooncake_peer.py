"""Mooncake Store as a peer: its master, one storage process, TCP, registered buffers.

From the package mooncake-transfer-engine-non-cuda, installed beside Mooncask. Run as `python -m
mooncask.tools.bench.mooncake_peer PORT METADATA RPC BYTES`, this module is the storage process.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mooncask.tools.bench.memory_limits import Bytes
from mooncask.tools.bench.peers import NotInstalled, free_port
from mooncask.tools.bench.plan import Plan

LOCAL_BUFFER_BYTES = 64 << 20
START_SECONDS_MAX = 20.0


class MooncakePeer:
    """One client of a running store. Not thread-safe."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._registered: list[int] = []

    def use(self, memory: Sequence[Bytes]) -> None:
        for address in self._registered:
            self._store.unregister_buffer(address)
        self._registered = [part.ctypes.data for part in memory]
        for part in memory:
            _check(self._store.register_buffer(part.ctypes.data, part.nbytes), "register_buffer")

    def put(self, keys: Sequence[str], blocks: Sequence[Bytes]) -> None:
        codes = self._store.batch_put_from(list(keys), [b.ctypes.data for b in blocks], [b.nbytes for b in blocks])
        _check(max(codes, key=abs), "batch_put_from")

    def get_into(self, keys: Sequence[str], targets: Sequence[Bytes]) -> None:
        sizes = [target.nbytes for target in targets]
        got = self._store.batch_get_into(list(keys), [target.ctypes.data for target in targets], sizes)
        if got != sizes:
            raise RuntimeError(f"batch_get_into answered {got}")

    def clear(self) -> None:
        """Waits until leases have run out: the store refuses to remove a block that was read a moment ago."""
        end = time.monotonic() + START_SECONDS_MAX
        while self._store.remove_all(True) < 0 and time.monotonic() < end:
            time.sleep(0.1)


@contextmanager
def start_mooncake(folder: Path, plan: Plan) -> Iterator[MooncakePeer]:
    """Master and storage process with the arena's memory. Raises NotInstalled."""
    program, kind = _installed()
    metadata, rpc, metrics = free_port(), free_port(), free_port()
    log = (folder / "mooncake.log").open("wb")
    master_options = {
        "enable_http_metadata_server": "true",
        "http_metadata_server_host": "127.0.0.1",
        "http_metadata_server_port": str(metadata),
        "rpc_port": str(rpc),
        "metrics_port": str(metrics),
    }
    master = subprocess.Popen([program, *(f"--{k}={v}" for k, v in master_options.items())], stdout=log, stderr=log)
    numbers = (free_port(), metadata, rpc, plan.dram_bytes)
    storage = subprocess.Popen(
        [sys.executable, "-m", "mooncask.tools.bench.mooncake_peer", *map(str, numbers)],
        stdout=subprocess.PIPE,
        stderr=log,
    )
    try:
        assert storage.stdout is not None
        if storage.stdout.readline().strip() != b"ready":
            raise NotInstalled("its storage process did not start; it has said why in its log")
        store = kind()
        _setup(store, free_port(), metadata, rpc, segment_bytes=0)
        yield MooncakePeer(store)
        store.close()
    finally:
        for process in (storage, master):
            process.kill()
            process.wait()
        log.close()


def _installed() -> tuple[str, Any]:
    program = shutil.which("mooncake_master") or shutil.which("mooncake_master", path=str(Path(sys.executable).parent))
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        raise NotInstalled(f"{error}; pip install mooncake-transfer-engine-non-cuda and libibverbs1") from error
    if program is None:
        raise NotInstalled("mooncake_master is not in PATH")
    return program, MooncakeDistributedStore


def _setup(store: Any, port: int, metadata: int, rpc: int, segment_bytes: int) -> None:
    """Connects to the master, which may still be starting."""
    where = (f"127.0.0.1:{port}", f"http://127.0.0.1:{metadata}/metadata")
    end = time.monotonic() + START_SECONDS_MAX
    while store.setup(*where, segment_bytes, LOCAL_BUFFER_BYTES, "tcp", "", f"127.0.0.1:{rpc}") != 0:
        if time.monotonic() > end:
            raise NotInstalled("its master does not answer")
        time.sleep(0.2)


def _check(code: int, what: str) -> None:
    if code != 0:
        raise RuntimeError(f"{what} answered {code}")


def main() -> None:
    port, metadata, rpc, size_bytes = (int(word) for word in sys.argv[1:5])
    _, kind = _installed()
    store = kind()
    _setup(store, port, metadata, rpc, size_bytes)
    print("ready", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
