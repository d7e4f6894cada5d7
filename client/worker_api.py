"""What the Conductor and its workers say to each other: JSON bodies over HTTP, between processes that share one secret.

A worker serves POST /v1/prefill, /v1/decode, /v1/pause and /v1/role, and GET /v1/state; the Conductor serves POST
/internal/v1/register, /report and /leave. Every request carries `Authorization: Bearer SECRET`. The answers of prefill and
decode are streams: one JSON object a line, the last of which is a PrefillDone, a DecodeDone or a Failure; a line that is empty
says that the worker is alive. A connection that is closed cancels its request, and the worker stops within a step. A call says
in CONDUCTOR_HEADER whose it is; when that Conductor has answered no report for `gone_seconds`, the worker ends the call as if
its connection were closed.

Durations are seconds; token ids are those of the model. Nothing here does I/O.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

LINE_BYTES_MAX = 16 << 20
"""A longer line or body is refused unread."""

REPORT_SECONDS = 0.25
"""Workers report at least this often; who is silent for GONE_SECONDS is taken to be gone."""
GONE_SECONDS = 2.0
ALIVE_SECONDS = 5.0
"""A worker that has nothing to say in a stream for so long sends an empty line."""

PAUSE_SECONDS_MAX = 1.0
"""No decode worker stands still for longer between two steps, whoever asks."""

CONDUCTOR_HEADER = "X-Mooncask-Conductor"
"""Of calls: what the Conductor calls itself, another name each start."""

TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
"""What others divide by and reckon with."""


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class WorkerKind(StrEnum):
    """How a worker is spoken to: this module's own calls, or a vLLM API server with Mooncask's connector."""

    MOONCASK = "mooncask"
    VLLM = "vllm"


class Message(msgspec.Struct, frozen=True):
    """Fields may be added; readers ignore what they do not know."""


# --- worker to Conductor ---------------------------------------------------------------------------------------------


class Node(Message, frozen=True, kw_only=True):
    """The daemon beside a worker: its name, and where its JSON pages are (`http://host:port` or `unix:PATH`; empty: none)."""

    name: str = ""
    pages: str = ""


class Hashing(Message, frozen=True, kw_only=True):
    """All that is needed to make the keys of this worker's blocks (docs/HASHING.md): bytes as hex."""

    namespace: str
    fingerprint: str
    tenant_salt: str
    hash: str
    block_tokens: Positive
    block_bytes: Positive


class Registration(Message, frozen=True, kw_only=True):
    """POST /internal/v1/register. A worker that registers again under its name replaces what was known of it."""

    name: str
    incarnation: str
    """Another one each start."""
    address: str
    """`http://host:port`, where the worker serves."""
    role: Role
    kind: WorkerKind = WorkerKind.MOONCASK
    model: str
    served_as: str = ""
    """What the worker itself calls the model; empty: the same."""
    family: dict[str, str]
    shard: str = ""
    hashing: Hashing | None = None
    """None while no daemon is there: nothing matches then."""
    node: Node = Node()
    positions_max: Positive
    """Tokens of prompt and answer together."""
    slots: Positive = 1
    """Requests at a time."""
    kv_tokens: Natural = 0
    """Tokens of KV that fit; 0: positions_max for each slot."""
    prefill_tokens_per_second: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Measured in the warm-up."""
    gone_seconds: Annotated[float, msgspec.Meta(gt=0)] = GONE_SECONDS
    """After so long without a report it is taken to be gone."""
    may_change_role: bool = True
    """False: only by being started anew, by whoever runs it."""


class Step(Message, frozen=True, array_like=True):
    """Decode steps that took about equally long: with `batch` requests of `context_tokens` together, `seconds` each."""

    batch: int
    context_tokens: int
    seconds: float


class Report(Message, frozen=True, kw_only=True):
    """POST /internal/v1/report, every REPORT_SECONDS and when something changed. The answer's `known` False: register again."""

    name: str
    incarnation: str
    role: Role
    waiting: int = 0
    running: int = 0
    queued_tokens: int = 0
    """Prefill: tokens still to be computed, of what waits and what runs."""
    context_tokens: int = 0
    """Decode: tokens of KV in the batch."""
    free_slots: int = 0
    free_tokens: int = 0
    requests: list[str] = []
    """Ids of what runs or waits here, from whichever Conductor."""
    steps: list[Step] = []
    """A sample of the decode steps since the last report."""
    draining: bool = False


class Reported(Message, frozen=True, kw_only=True):
    known: bool
    role: Role | None = None
    """The role that the Conductor wants this worker to have."""
    cancel: list[str] = []
    conductor: str = ""
    """As in CONDUCTOR_HEADER."""


class Leave(Message, frozen=True, kw_only=True):
    """POST /internal/v1/leave: this worker takes nothing any more, and will not be back under this incarnation."""

    name: str
    incarnation: str


# --- Conductor to worker ---------------------------------------------------------------------------------------------


class Sampling(Message, frozen=True, kw_only=True):
    """How answer tokens are chosen. The random number of a position depends on (seed, position) alone."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    seeded: bool = False
    """The draws are to be those of `seed` alone: the client gave it, or this is one of several answers to one prompt."""
    logprobs: Annotated[int, msgspec.Meta(ge=-1, le=20)] = -1
    """-1: none; 0: of the chosen token; n: also of the n most likely ones."""
    stop_tokens: list[TokenId] = []


class PrefillCall(Message, frozen=True, kw_only=True):
    """POST /v1/prefill: bring the KV of the full blocks of `tokens` into the store."""

    id: str
    tokens: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    cache_salt: str = ""
    public_tokens: int = 0
    """The first so many tokens are hashed without the salt, as a prefix that all tenants share; a multiple of block_tokens."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 128
    deadline_seconds: float = 600.0
    hold_seconds: float = 0.0
    """The blocks are for a decode: the node's daemon holds them so long after the prefill, or until a decode of the same id at
    the node has loaded them. 0: nobody holds them."""


class DecodeCall(Message, frozen=True, kw_only=True):
    """POST /v1/decode: answer `tokens`. Sent when the prefill starts; `wait_seconds` is how long KV may still be coming."""

    id: str
    tokens: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    sampling: Sampling = Sampling()
    cache_salt: str = ""
    public_tokens: int = 0
    first_position: int = 0
    """Output position of the first token to make: larger than 0 when an answer is continued whose tokens so far end `tokens`."""
    wait_seconds: float = 0.0
    """Blocks that a prefill is writing are waited for so long, without a progress; 0: what is not there is missed."""
    keys_digest: str = ""
    """Of a prefill that is to bring all full blocks of `tokens`, the last one's key in hex; empty: there is none, or no store."""
    inline_prefill_tokens: int = 1 << 30
    """More missing tokens than this are not computed here: the call fails with kv_lost."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 128
    deadline_seconds: float = 600.0
    write_back: bool = True


class RoleCall(Message, frozen=True, kw_only=True):
    """POST /v1/role: what runs ends in the old role; nothing new of it is taken. The answer is an empty object."""

    role: Role


class PauseCall(Message, frozen=True, kw_only=True):
    """POST /v1/pause: decode stands still for so long from now; 0: it goes on at once. Later calls replace earlier ones.

    No token is lost or made twice: answers wait between two steps. The answer is a Paused.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0, le=PAUSE_SECONDS_MAX)]


class Paused(Message, frozen=True, kw_only=True):
    """What of it the worker does: less where it has stood still already, 0 where nothing decodes."""

    seconds: float


class Loaded(Message, frozen=True, array_like=True):
    """KV that was brought from one tier: hbm, dram, nvme, peer (another node's store) or cold (the bucket)."""

    tier: str
    size_bytes: int


class Line(Message, frozen=True, kw_only=True, tag_field="event"):
    """One line of an answer's stream."""


class Admitted(Line, frozen=True, kw_only=True, tag="admitted"):
    """First line: the request has its place. Decode: it is in the batch, or will be as soon as its KV is there."""

    waiting: int = 0


class Started(Line, frozen=True, kw_only=True, tag="started"):
    """Prefill: the prompt's turn has come, with this much of it found in the store."""

    cached_tokens: int = 0


class Logprob(Message, frozen=True, array_like=True):
    token: int
    logprob: float


class TokenLogprobs(Message, frozen=True, kw_only=True):
    """Of one position: the chosen token's, and the most likely ones in falling order."""

    chosen: float
    top: list[Logprob] = []


class Tokens(Line, frozen=True, kw_only=True, tag="tokens"):
    """Decode: the next tokens of the answer."""

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None


class PrefillDone(Line, frozen=True, kw_only=True, tag="prefilled"):
    """Last line of a prefill. Seconds from its turn to the last commit."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    stored_blocks: int
    queue_seconds: float
    seconds: float
    load_seconds: float = 0.0
    """Of these, for bringing `loaded`."""
    loaded: list[Loaded] = []
    faults: dict[str, int] = {}


class DecodeDone(Line, frozen=True, kw_only=True, tag="decoded"):
    """Last line of an answer. `reason`: stop (a stop token, which is the last one sent), or length."""

    reason: str
    output_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was loaded and not computed here."""
    computed_tokens: int
    load_seconds: float = 0.0
    """For bringing `loaded`, and for waiting for what a prefill was still storing."""
    loaded: list[Loaded] = []
    prompt_seconds: float = 0.0
    """From the KV's being there to the first token: computing the rest, and the steps of others between its chunks."""
    stored_blocks: int = 0
    faults: dict[str, int] = {}


class FailureKind(StrEnum):
    BUSY = "busy"
    """No slot or no room for KV: placed somewhere else it may go. Comes before Admitted or not at all."""
    KV_LOST = "kv_lost"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """The caller's fault: longer than the model allows, an unknown token."""
    INTERNAL = "internal"


class Failure(Line, frozen=True, kw_only=True, tag="failed"):
    """Last line of what could not be done. `error` is a class of mooncask.errors, or empty."""

    kind: FailureKind
    message: str
    error: str = ""


StreamLine = Admitted | Started | Tokens | PrefillDone | DecodeDone | Failure


class State(Message, frozen=True, kw_only=True):
    """GET /v1/state: how the worker is registered, and its report of now."""

    registration: Registration
    report: Report
