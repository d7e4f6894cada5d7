"""An answer's KV between the store and its slot. What the store can't do is a fault in the answer's figures, and computed."""

from mooncask.client.wire import Tier
from mooncask.client.worker_api import Loaded
from mooncask.engine_adapter.transformers.chunks import chunks, loadable_blocks
from mooncask.engine_adapter.transformers.server.answer import Answer
from mooncask.engine_adapter.transformers.store_link import LoadOutcome, StoreSession

LOAD_SECONDS_MAX = 10.0
"""For a prompt of which nothing is expected to come any more."""


def fill(answer: Answer, session: StoreSession, prefill_chunk: int) -> None:
    """Loads what there is of the prompt, waiting for what a prefill is storing, and lays out what is left to compute."""
    call, step = answer.call, session.layout.block_tokens
    keys = session.keys(call.tokens, call.cache_salt, call.public_tokens)[: loadable_blocks(len(call.tokens), step)]
    outcome = _bring(answer, session, keys)
    answer.loaded_tokens = answer.length = outcome.blocks * step
    answer.load_seconds, answer.loaded = outcome.seconds, loaded(outcome)
    answer.tail.extend(chunks(answer.length, len(call.tokens), prefill_chunk))
    answer.faults = dict(session.faults)


def loaded(outcome: LoadOutcome) -> list[Loaded]:
    """As it is told: bytes by the name of the tier they came from."""
    return [Loaded(Tier(tier).name.lower(), size) for tier, size in sorted(outcome.bytes_by_tier.items()) if size]


def write_back(answer: Answer, session: StoreSession) -> int:
    """Stores the full blocks that were computed here: how many. The last token was never fed, so it has no KV."""
    call, step = answer.call, session.layout.block_tokens
    keys = session.keys(answer.all_tokens[: answer.length], call.cache_salt, call.public_tokens)
    stored = session.store(keys, range(answer.loaded_tokens // step, len(keys)), answer.buffer)
    answer.faults = {**answer.faults, **session.faults}
    return stored


def _bring(answer: Answer, session: StoreSession, keys: list[bytes]) -> LoadOutcome:
    if answer.call.wait_seconds:
        return session.load_arriving(keys, answer.buffer, answer.call.wait_seconds, lambda: not answer.cancelled)
    hit = session.match(keys)
    return session.load(keys[: len(hit)], answer.buffer, LOAD_SECONDS_MAX)
