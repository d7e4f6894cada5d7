"""The cluster demo's session: prefill on node 1, the answers from nodes 2 and 3, node 1 killed half-way."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.client.control import Peers
from mooncask.engine_adapter.transformers.chat import Chat
from mooncask.engine_adapter.transformers.messages import DecodeResult
from mooncask.errors import WorkerUnavailable
from mooncask.tools.demo.cluster_stage import ClusterStage
from mooncask.tools.demo.cluster_verdict import Phase, Row
from mooncask.tools.demo.prompts import Prompt, first_turns
from mooncask.tools.demo.session import Reference, Tell
from mooncask.tools.demo.verdict import compare

ANSWER_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Script:
    """Which of the questions is asked when."""

    all_up: tuple[int, ...]
    while_killed: int
    after_kill: int


FULL = Script((0, 1), 2, 3)
SHORT = Script((0,), 1, 1)


@dataclass(frozen=True, slots=True)
class Played:
    rows: list[Row]
    cold_s: list[float]
    bytes_by_transport: dict[str, int]
    bytes_by_node: dict[str, int]
    """What each node that lived to the end received."""


def play(stage: ClusterStage, chat: Chat, script: Script, tell: Tell) -> Played:
    """Raises what workers and daemons raise."""
    asked = _references(stage, first_turns(chat)[: script.after_kill + 1], tell)
    rows: list[Row] = []
    for number in script.all_up:
        rows += _all_up(stage, asked[number], tell)
    before = stage.peers()  # what n1 received is gone with it
    rows += _while_killed(stage, asked[script.while_killed], tell)
    last = asked[script.after_kill]
    for node in ("n2", "n3"):
        tell(f"{Phase.AFTER_KILL}: {last.prompt.name} on {node}")
        rows.append(_row(Phase.AFTER_KILL, last, node, _decode(stage, node, last)))
    after = {**before, **stage.peers()}
    return Played(rows, [reference.answer.ttft_s for reference in asked], _by_transport(after), _by_node(after))


def _references(stage: ClusterStage, prompts: Sequence[Prompt], tell: Tell) -> list[Reference]:
    found = []
    for prompt in prompts:
        tell(f"without a store: {prompt.name} of {len(prompts)}, {len(prompt.tokens)} tokens")
        answer = stage.workers["n2"].decode(prompt.request(use_store=False), ANSWER_SECONDS_MAX)
        found.append(Reference(prompt, answer))
    return found


def _all_up(stage: ClusterStage, reference: Reference, tell: Tell) -> list[Row]:
    name = reference.prompt.name
    tell(f"{Phase.ALL_UP}: {name}, prefill on n1")
    stage.workers["n1"].prefill(reference.prompt.request(), ANSWER_SECONDS_MAX)
    rows = []
    for node in ("n2", "n2", "n3"):  # the second time from its own memory
        tell(f"{Phase.ALL_UP}: {name}, answered on {node}")
        rows.append(_row(Phase.ALL_UP, reference, node, _decode(stage, node, reference)))
    return rows


def _while_killed(stage: ClusterStage, reference: Reference, tell: Tell) -> list[Row]:
    """Both nodes have begun to answer when the node that has the blocks goes."""
    request = reference.prompt.request()
    tell(f"{Phase.WHILE_KILLED}: {reference.prompt.name}, prefill on n1")
    stage.workers["n1"].prefill(request, ANSWER_SECONDS_MAX)
    for node in ("n2", "n3"):
        stage.workers[node].send(request)
    tell("kill -9 to node n1, daemon and worker, while n2 and n3 are asked")
    stage.kill("n1")
    rows = []
    for node in ("n2", "n3"):
        answer = stage.workers[node].receive(ANSWER_SECONDS_MAX)
        if not isinstance(answer, DecodeResult):
            raise WorkerUnavailable("decode", f"node {node} refused: {answer}")
        rows.append(_row(Phase.WHILE_KILLED, reference, node, answer))
    return rows


def _decode(stage: ClusterStage, node: str, reference: Reference) -> DecodeResult:
    return stage.workers[node].decode(reference.prompt.request(), ANSWER_SECONDS_MAX)


def _row(phase: Phase, reference: Reference, node: str, answer: DecodeResult) -> Row:
    return Row(
        phase=phase,
        name=reference.prompt.name,
        node=node,
        prompt_tokens=answer.prompt_tokens,
        local=answer.loaded.total - answer.loaded.peer,
        remote=answer.loaded.peer,
        computed=answer.computed,
        ttft_cold_s=reference.answer.ttft_s,
        ttft_s=answer.ttft_s,
        comparison=compare(reference.answer.tokens, reference.answer.top2_gap, answer.tokens),
        faults=sum(answer.faults.values()),
    )


def _by_transport(pages: dict[str, Peers]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for page in pages.values():
        for peer in page.peers:
            if peer.transport:
                found[peer.transport] += peer.bytes_received
    return dict(found)


def _by_node(pages: dict[str, Peers]) -> dict[str, int]:
    return {name: sum(peer.bytes_received for peer in page.peers) for name, page in pages.items()}
