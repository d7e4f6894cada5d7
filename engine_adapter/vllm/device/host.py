"""KV in CPU memory: straight between the engine's cache and the store's arena. The engine has computed when it calls."""

from collections.abc import Sequence

from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Mark, check_whole


class HostCopies:
    """Implements `BlockCopies`. Copies of different blocks may run in several threads."""

    blocks_at_once = 1

    def mark(self) -> Mark:
        return None

    def load(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        for copy in copies:
            for piece in copy.pieces:
                piece.data.copy_(piece.part_of(copy.payload))

    def save(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        check_whole(copies)
        for copy in copies:
            for piece in copy.pieces:
                piece.part_of(copy.payload).copy_(piece.data)

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
