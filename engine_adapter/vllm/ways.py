"""What every load and save of a worker needs: the store on one side, the engine's KV on the other."""

from dataclasses import dataclass

from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.counters import Counters
from mooncask.engine_adapter.vllm.device.copies import BlockCopies
from mooncask.engine_adapter.vllm.kv_planes import KvPlanes


@dataclass(frozen=True, slots=True)
class Ways:
    """Of one worker; threads share it. `copies` go between a stored block and where `planes` says that it is in the engine."""

    connection: StoreConnection
    planes: KvPlanes
    counters: Counters
    copies: BlockCopies
