"""What workers are asked and what they answer: one JSON object a line, on their stdin and stdout.

The first line of a worker is its Ready. Then every request line gets one answer line with the request's `id`: a result,
or a Refusal. Durations are seconds, sizes bytes; "tokens by tier" counts what was really loaded.
"""

from typing import Annotated

import msgspec

LINE_BYTES_MAX = 16 << 20
"""A longer line is refused unread."""

TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt. A prefill worker brings its KV into the store; a decode worker answers it with `max_tokens` tokens."""

    id: str
    tokens: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    stop_tokens: list[TokenId] = []
    """The answer ends after one of these, which is its last token."""
    cache_salt: str = ""
    """Requests with different salts share no KV."""
    use_store: bool = True
    write_back: bool = True
    """Decode: store the full blocks of the answer, so that the conversation's next turn finds them."""


class Loaded(msgspec.Struct, frozen=True):
    """Tokens by tier whose KV was loaded."""

    hbm: int = 0
    dram: int = 0
    nvme: int = 0
    peer: int = 0
    """From another node."""
    cold: int = 0
    """From the bucket."""

    @property
    def total(self) -> int:
        return self.hbm + self.dram + self.nvme + self.peer + self.cold


class Decision(msgspec.Struct, frozen=True):
    """Load or recompute, and the numbers it rests on: `loading.LoadDecision` with the blocks that were there."""

    hit_blocks: int
    load_blocks: int
    load_s: float
    compute_s: float
    recompute_s: float
    reason: str


class Answer(msgspec.Struct, frozen=True, tag_field="kind"):
    id: str


class PrefillResult(Answer, frozen=True, tag="prefill"):
    prompt_tokens: int
    loaded: Loaded
    computed: int
    """Tokens computed."""
    stored_blocks: int
    """Published by this request; those that somebody else had published meanwhile are not counted."""
    decision: Decision
    load_s: float
    total_s: float
    faults: dict[str, int]
    """What the store could not do, by error class: the request went on without it."""


class DecodeResult(Answer, frozen=True, tag="decode"):
    prompt_tokens: int
    tokens: list[int]
    top2_gap: list[float]
    """By answer token: the largest logit less the second largest."""
    loaded: Loaded
    computed: int
    """Prompt tokens computed."""
    stored_blocks: int
    decision: Decision
    load_s: float
    ttft_s: float
    """From the request's arrival to the first answer token."""
    total_s: float
    """To the last answer token; writing back comes after it."""
    faults: dict[str, int]


class Refusal(Answer, frozen=True, tag="refusal"):
    """The request was not done. `error` is a class of mooncask.errors; `id` is empty where the line could not be read."""

    error: str
    message: str


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="kind"):
    role: str
    model: str
    pid: int
    dtype: str
    block_tokens: int
    block_bytes: int
    namespace: str
    """Empty while no daemon is there."""
    family: dict[str, str]
    prefill_tokens_per_s: float
    """Measured in the warm-up."""


Line = Ready | PrefillResult | DecodeResult | Refusal
