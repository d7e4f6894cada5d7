"""One session of the demo: every request without the store, then through it, then again after the daemon was killed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.engine_adapter.transformers.chat import Chat
from mooncask.engine_adapter.transformers.messages import DecodeResult, PrefillResult, Ready
from mooncask.errors import DeadlineExceeded, NoSuchBlock
from mooncask.tools.block_walk import all_blocks
from mooncask.tools.demo.prompts import Prompt, first_turns, second_turn
from mooncask.tools.demo.stage import Stage
from mooncask.tools.demo.verdict import Comparison, Control, Phase, Row, compare

Tell = Callable[[str], None]
"""Called with what is done now."""

DURABLE_SECONDS_MAX = 120.0
FLIPPED_BLOCK = 0
"""The first block: every token attends to the first tokens strongly."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt and its answer by a worker that does not use the store."""

    prompt: Prompt
    answer: DecodeResult


def references(stage: Stage, chat: Chat, tell: Tell) -> list[Reference]:
    """Cold runs of all prompts, the conversation's second turn last."""
    found: list[Reference] = []
    turns = first_turns(chat)
    for prompt in turns:
        tell(f"without the store: {prompt.name} of {len(turns)}, {len(prompt.tokens)} tokens")
        found.append(_cold(stage, prompt))
    follow_up = second_turn(chat, turns[-1], found[-1].answer.tokens)
    tell(f"without the store: {follow_up.name}, {len(follow_up.tokens)} tokens")
    return [*found, _cold(stage, follow_up)]


def ask_all(stage: Stage, phase: Phase, asked: list[Reference], tell: Tell) -> list[Row]:
    """Every prompt through the store: prefill in one process, the answer from one of two others."""
    rows = []
    for number, reference in enumerate(asked):
        tell(f"{phase}: {reference.prompt.name}")
        rows.append(_ask(stage, phase, reference, number))
    return rows


def kill_and_restart(stage: Stage, ready: Ready, tell: Tell) -> None:
    """Waits until the store has everything on disk, kills it and starts it again on the same folder."""
    tell("waiting until all blocks are on disk")
    client, namespace = stage.client(ready)
    with client:
        _wait_until_durable(client, namespace)
    tell("kill -9 to the daemon, and a new one on its folder")
    stage.kill_daemon()
    stage.start_daemon()


def negative_control(stage: Stage, ready: Ready, reference: Reference, tell: Tell) -> Control:
    """Do the tokens depend on the bytes that are loaded?

    The prompt's blocks are stored once more under the keys of another cache_salt, with one block's bits flipped before
    they are written. Checksums hold for what was written, so nothing between here and the attention layers can notice:
    if the flipped block's bytes are really what the model attends to, its tokens must change. To be sure that nothing
    else about the detour changes them, the same is done with unchanged copies, which must give the same tokens.
    """
    tell("negative control: unchanged copies of the blocks")
    copied = _ask_copies(stage, ready, reference, "control: copied", flipped=False)
    tell("negative control: the sign bits of one block flipped")
    flipped = _ask_copies(stage, ready, reference, "control: flipped", flipped=True)
    return Control(
        copied=_compared(reference, copied),
        flipped=_compared(reference, flipped),
        copied_loaded=copied.loaded.total,
        flipped_loaded=flipped.loaded.total,
    )


def _cold(stage: Stage, prompt: Prompt) -> Reference:
    return Reference(prompt, stage.decode[0].decode(prompt.request(use_store=False)))


def _ask(stage: Stage, phase: Phase, reference: Reference, number: int) -> Row:
    request = reference.prompt.request()
    started = time.perf_counter()
    prefilled = stage.prefill.prefill(request)
    prefill_s = time.perf_counter() - started
    answer = stage.decode[number % len(stage.decode)].decode(request)
    return _row(phase, reference, prefilled, prefill_s, answer)


def _row(phase: Phase, reference: Reference, prefilled: PrefillResult, prefill_s: float, answer: DecodeResult) -> Row:
    return Row(
        phase=phase,
        name=reference.prompt.name,
        prompt_tokens=answer.prompt_tokens,
        loaded_dram=answer.loaded.dram,
        loaded_nvme=answer.loaded.nvme,
        computed_by_prefill=prefilled.computed,
        computed_by_decode=answer.computed,
        ttft_cold_s=reference.answer.ttft_s,
        ttft_s=prefill_s + answer.ttft_s,
        comparison=_compared(reference, answer),
        reason=answer.decision.reason,
        faults=sum(prefilled.faults.values()) + sum(answer.faults.values()),
    )


def _compared(reference: Reference, answer: DecodeResult) -> Comparison:
    return compare(reference.answer.tokens, reference.answer.top2_gap, answer.tokens)


def _wait_until_durable(client: LocalClient, namespace: NamespaceHandle) -> None:
    deadline = time.monotonic() + DURABLE_SECONDS_MAX
    while not all(block.durable for block in all_blocks(client, namespace)):
        if time.monotonic() > deadline:
            raise DeadlineExceeded("writing all blocks to disk", DURABLE_SECONDS_MAX)
        time.sleep(0.05)


def _ask_copies(stage: Stage, ready: Ready, reference: Reference, salt: str, flipped: bool) -> DecodeResult:
    client, namespace = stage.client(ready)
    tokens = reference.prompt.tokens
    with client:
        source = chain(namespace.root(), tokens, ready.block_tokens, hash=namespace.hash)
        target = chain(namespace.root(salt), tokens, ready.block_tokens, hash=namespace.hash)
        client.put(namespace, target, _payloads(client, namespace, source, flipped), parents=[b"", *target[:-1]])
    return stage.decode[0].decode(reference.prompt.request(cache_salt=salt))


def _payloads(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes], flipped: bool) -> list[bytearray]:
    """Copies of the blocks; with `flipped`, the sign of every number in one of them is the other."""
    with client.acquire(namespace, keys) as blocks:
        if blocks.prefix < len(keys):
            raise NoSuchBlock(namespace.name, keys[blocks.prefix].hex())
        payloads = [bytearray(block.memory) for block in blocks if block is not None]
    if flipped:
        signs = np.frombuffer(payloads[FLIPPED_BLOCK], np.uint32)
        signs ^= np.uint32(0x8000_0000)
    return payloads
