"""Eviction policies by name. The interface is `policy.py`; each policy has a module of its own."""

from collections.abc import Callable
from difflib import get_close_matches

from mooncask.errors import ConfigError
from mooncask.tiers.policies.arc import ARC
from mooncask.tiers.policies.fifo import FIFO
from mooncask.tiers.policies.foresight import Foresight
from mooncask.tiers.policies.lfu import LFU
from mooncask.tiers.policies.lru import LRU
from mooncask.tiers.policies.policy import EvictionPolicy
from mooncask.tiers.policies.s3fifo import S3FIFO
from mooncask.tiers.policies.sieve import Sieve
from mooncask.tiers.policies.twoq import TwoQ

_MAKERS: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": lambda capacity: LRU(),
    "fifo": lambda capacity: FIFO(),
    "lfu": lambda capacity: LFU(),
    "s3fifo": S3FIFO,
    "2q": TwoQ,
    "arc": ARC,
    "sieve": lambda capacity: Sieve(),
    "foresight": lambda capacity: Foresight(),
}

POLICY_NAMES = tuple(_MAKERS)
"""The names that `make_policy` knows."""


def make_policy(name: str, capacity: int) -> EvictionPolicy:
    """A new policy for a cache of `capacity`, in the unit of `Access.size_bytes` (bytes; blocks where every size is 1).

    Raises ConfigError for an unknown name or a capacity below 1.
    """
    if name not in _MAKERS:
        close = get_close_matches(name, POLICY_NAMES, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise ConfigError("policy", name, f"{meant}allowed: {', '.join(POLICY_NAMES)}")
    if capacity < 1:
        raise ConfigError("capacity", str(capacity), "at least 1")
    return _MAKERS[name](capacity)
