"""KV in CPU memory: straight between the engine's cache and the store's arena. The engine has computed when it calls."""

from collections.abc import Sequence

from mooncask.engine_adapter.vllm.device.copies import BlockCopy, Mark, check_all


class HostCopies:
    """Implements `BlockCopies`. Copies of different blocks may run in several threads."""

    blocks_at_once = 1

    def mark(self) -> Mark:
        return None

    def load(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        check_all(copies)
        for copy in copies:
            start = 0
            for piece in copy.pieces:
                piece.copy_(copy.payload[start : start + piece.numel()])
                start += piece.numel()

    def save(self, copies: Sequence[BlockCopy], after: Mark) -> None:
        check_all(copies)
        for copy in copies:
            start = 0
            for piece in copy.pieces:
                copy.payload[start : start + piece.numel()].copy_(piece)
                start += piece.numel()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
