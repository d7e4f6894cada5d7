"""KV events as vLLM itself reads them: its own classes decode what the daemon publishes."""

import json
import subprocess

import pytest
from engines_environment import vllm_python

from mooncask.daemon.kv_events.messages import AllBlocksCleared, BlockRemoved, BlockStored, encode

DECODE = """
import json, sys
import msgspec
from vllm.distributed.kv_events import KVEventBatch

batch = msgspec.msgpack.decode(bytes.fromhex(sys.argv[1]), type=KVEventBatch)
events = [[type(event).__name__, msgspec.to_builtins(event)] for event in batch.events]
print("decoded", json.dumps([batch.ts, batch.data_parallel_rank, events]))
"""
SECONDS = 120.0


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.timeout(180)
def test_vllms_classes_decode_every_event() -> None:
    python = vllm_python()
    if python is None:
        pytest.skip('build/engines/vllm is not there: "make engines" makes it')
    high = (1 << 64) - 1
    events = [AllBlocksCleared(), BlockStored([7, high], None, [1, 2, 3, 4], 2), BlockRemoved([high])]
    sent = encode(12.5, events, arrays=False).hex()
    done = subprocess.run([python, "-c", DECODE, sent], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("decoded ")]
    seconds, rank, found = json.loads(line.removeprefix("decoded "))
    assert (seconds, rank) == (12.5, 0)
    assert [name for name, _ in found] == ["AllBlocksCleared", "BlockStored", "BlockRemoved"]
    stored, removed = found[1][1], found[2][1]
    assert stored["block_hashes"] == [7, high] and stored["parent_block_hash"] is None
    assert stored["token_ids"] == [1, 2, 3, 4] and stored["block_size"] == 2 and stored["medium"] == "CPU"
    assert removed["block_hashes"] == [high] and removed["medium"] == "CPU"
