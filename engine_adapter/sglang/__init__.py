"""SGLang's HiCache with Mooncask behind it, for `--hicache-storage-backend dynamic`; docs/ENGINES.md has the command line.

The class is in `backend.py`, which needs sglang and torch; keys, families and hits are decided without either.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`MooncaskHiCache`, so that SGLang's "module_path" can be this package and no other module needs SGLang."""
    if name != "MooncaskHiCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mooncask.engine_adapter.sglang.backend import MooncaskHiCache

    return MooncaskHiCache
