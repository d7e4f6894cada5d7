"""What a prefill engine tells a decode engine, in `kv_transfer_params`, and how the latter checks it. Pure.

    {"mooncask": {"family": <hex>, "keys_digest": <hex of the last block's key>, "n_blocks": 12,
                  "node": "gpu-7", "handover_id": <hex>}}

The last key commits to the whole prefix (tokens, salt, images), so one comparison checks all keys. A router that knows how keys
are made may tell the same while the prefill still runs, with `wait_seconds` beside it; it says to prefill then, in
`{"mooncask": {"handover_id": <hex>}}`, what the hand-over is called.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

FIELD = "mooncask"
WAIT_SECONDS_MAX = 600.0
BLOCKS_MAX = 1 << 32
NAME = re.compile("[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class HandOver:
    """A prefilled prefix: `n_blocks` blocks that end with the key `keys_digest`, of the family `family`."""

    family: str
    keys_digest: str
    n_blocks: int
    node: str
    handover_id: str
    wait_seconds: float = 0.0
    """Above 0: it is still being computed, and its next blocks are worth waiting for for so long."""

    @classmethod
    def read(cls, params: Mapping[str, Any] | None) -> Self | None:
        """None when there is none, or nothing that this version understands."""
        found = (params or {}).get(FIELD)
        if not isinstance(found, Mapping):
            return None
        texts = [found.get(name) for name in ("family", "keys_digest", "node", "handover_id")]
        blocks = found.get("n_blocks")
        if not all(isinstance(text, str) for text in texts) or type(blocks) is not int or not 0 <= blocks <= BLOCKS_MAX:
            return None
        family, keys_digest, node, handover_id = map(str, texts)
        return cls(family, keys_digest, blocks, node, handover_id, _seconds(found.get("wait_seconds")))

    def params(self, remote_decode: bool) -> dict[str, Any]:
        """For the reply. `remote_decode`: the proxy asked for it the way it asks other connectors, so it is answered alike."""
        told = {name: getattr(self, name) for name in ("family", "keys_digest", "n_blocks", "node", "handover_id")}
        asked = {"do_remote_prefill": True, "do_remote_decode": False} if remote_decode else {}
        return {**asked, FIELD: told}

    def refusal(self, family: str, keys: list[bytes]) -> str:
        """Why this engine can't use it; empty when it can. `keys` are the request's own."""
        if self.family != family:
            return (
                f"family mismatch: prefill computed with {self.family}, this engine has {family}; both need the same "
                "model, dtype, block size, version and parallelism"
            )
        if self.n_blocks > len(keys):
            return f"prompt mismatch: prefill computed {self.n_blocks} blocks, this request has {len(keys)}"
        if self.n_blocks and keys[self.n_blocks - 1].hex() != self.keys_digest:
            return "prompt mismatch: prefill computed other tokens, or under another cache_salt or tenant"
        return ""


def _seconds(told: object) -> float:
    return float(min(told, WAIT_SECONDS_MAX)) if isinstance(told, int | float) and told > 0 else 0.0


def named_by_caller(params: Mapping[str, Any] | None) -> str:
    """The name that a router gives to the hand-over of a request which it sends to prefill; empty for none."""
    found = (params or {}).get(FIELD)
    name = found.get("handover_id") if isinstance(found, Mapping) else None
    return name if isinstance(name, str) and NAME.fullmatch(name) else ""


def wants_description(params: Mapping[str, Any] | None) -> bool:
    """A router asks how this engine's keys are made: `{"mooncask": {"describe": true}}`."""
    found = (params or {}).get(FIELD)
    return isinstance(found, Mapping) and found.get("describe") is True


def wants_remote_decode(params: Mapping[str, Any] | None) -> bool:
    return bool((params or {}).get("do_remote_decode"))
