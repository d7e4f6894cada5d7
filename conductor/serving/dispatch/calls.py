"""What a prefill and a decode worker are asked, of a run as it stands. Pure but for the clock."""

from mooncask.client.hold import HAND_OVER_SECONDS
from mooncask.client.worker_api import DecodeCall, PrefillCall
from mooncask.conductor.serving.dispatch.placing import Placement
from mooncask.conductor.serving.dispatch.run import Run

PATIENCE_SECONDS = 5.0
"""Decode waits at least so long for the next blocks of a prefill that runs."""


def prefill_call(run: Run) -> PrefillCall:
    job = run.job
    return PrefillCall(
        id=job.id,
        tokens=run.tokens,
        cache_salt=job.cache_salt,
        public_tokens=job.public_tokens,
        priority=job.priority,
        deadline_seconds=run.left_seconds,
        hold_seconds=HAND_OVER_SECONDS,
    )


def decode_call(run: Run, placement: Placement, keys: list[bytes], inline_tokens: int) -> DecodeCall:
    """`keys` of the full blocks of its tokens; `inline_tokens`: as many missing ones decode computes where a prefill was to bring
    them."""
    job, prefilled = run.job, placement.prefill is not None
    return DecodeCall(
        id=job.id,
        tokens=run.tokens,
        max_tokens=job.max_tokens - len(run.committed),
        sampling=job.sampling,
        cache_salt=job.cache_salt,
        public_tokens=job.public_tokens,
        first_position=len(run.committed),
        wait_seconds=max(PATIENCE_SECONDS, 2 * placement.prefill_seconds) if prefilled else 0.0,
        keys_digest=keys[-1].hex() if prefilled and keys else "",
        inline_prefill_tokens=inline_tokens if prefilled else 1 << 30,
        priority=job.priority,
        deadline_seconds=run.left_seconds,
    )
