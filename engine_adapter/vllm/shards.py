"""Which part of a model's KV one worker has, and where in the store that part is. Pure.

An engine without parallelism has one shard, the empty name. The keys of a block are equal in all shards of a family, so
a prefix is usable as far as every shard has it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's part. With MLA every tensor-parallel rank has the same KV: it is one shard, which rank 0 writes."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    same_on_all_tp: bool = False

    @property
    def name(self) -> str:
        """As `open_namespace` wants it: empty, or "tp r/n, pp r/n"."""
        if self.tp_size == self.pp_size == 1:
            return ""
        tp = "tp any" if self.same_on_all_tp else f"tp {self.tp_rank}/{self.tp_size}"
        return f"{tp}, pp {self.pp_rank}/{self.pp_size}"

    @property
    def writes(self) -> bool:
        return self.tp_rank == 0 or not self.same_on_all_tp

    def namespace(self, given: str) -> str:
        """The namespace's name when the operator gave one: each shard has its own."""
        if not given or not self.name:
            return given
        return f"{given}-{self.name.replace(', ', '-').replace(' ', '').replace('/', 'of')}"
