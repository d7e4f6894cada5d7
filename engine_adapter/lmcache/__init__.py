"""LMCache with Mooncask as a remote storage plugin; docs/ENGINES.md has the configuration.

The classes are in `connector.py`, which needs LMCache; families and keys are decided without it.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`MooncaskConnectorAdapter`, so that LMCache's "module_path" can be this package."""
    if name != "MooncaskConnectorAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mooncask.engine_adapter.lmcache.connector import MooncaskConnectorAdapter

    return MooncaskConnectorAdapter
