"""Mooncask as a secondary tier of vLLM's own offloading (TieringOffloadingSpec); docs/ENGINES.md has the configuration.

The class is in `tier.py`, which needs vLLM; keys, families and the queue of transfers need none.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`MooncaskTier`, so that vLLM's "module_path" can be this package."""
    if name != "MooncaskTier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mooncask.engine_adapter.vllm_tier.tier import MooncaskTier

    return MooncaskTier
