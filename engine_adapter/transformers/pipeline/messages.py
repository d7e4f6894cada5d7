"""What the head and its stages say to each other over their sockets: msgpack, one message a frame.

    head  -> stage   Setup, then for every job one Begin and its Computes
    stage -> head    Up, then one Loaded a Begin and one Computed a Compute, in order

Hidden states go from stage to stage beside this, as raw bytes (`channel.py`). A stage that cannot go on ends; the head sees that.
"""

import msgspec


class Message(msgspec.Struct, frozen=True, tag_field="kind"):
    pass


class Setup(Message, frozen=True, tag="setup"):
    """Who this stage is: layers [first, stop) of the model in `folder`."""

    name: str
    folder: str
    dtype: str
    first: int
    stop: int
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    windows: tuple[int, ...]
    family: dict[str, str]
    socket: str
    namespace: str
    mode: str
    deadline_seconds: float


class Begin(Message, frozen=True, tag="begin"):
    """A new job: makes room for `tokens` tokens and loads blocks `keys`, from the first on, within `load_seconds`."""

    job: int
    tokens: int
    keys: list[bytes]
    load_seconds: float


class Compute(Message, frozen=True, tag="compute"):
    """Tokens [start, stop). `ids` are for the first stage; `blocks` are those to store, in the order of the places behind `token`."""

    job: int
    start: int
    stop: int
    ids: list[int]
    blocks: list[int]
    token: bytes


class Up(Message, frozen=True, tag="up"):
    """Its layers are loaded."""

    pid: int
    weight_bytes: int
    own_bytes: int


class Loaded(Message, frozen=True, tag="loaded"):
    """How many of the blocks are in the stage's buffer. `bytes_by_tier` are of whole blocks, of which it copied its layers."""

    job: int
    blocks: int
    seconds: float
    bytes_by_tier: dict[int, int]
    faults: dict[str, int]


class Computed(Message, frozen=True, tag="computed"):
    """That chunk went through its layers, and their K and V are in the places, which it writes no more; unless there are faults."""

    job: int
    start: int
    cpu_seconds: float
    """Of the process, for computing and writing: on a busy machine the clock says little."""
    own_bytes: int
    faults: dict[str, int]


class Refused(Message, frozen=True, tag="refused"):
    """The last word of a stage that cannot begin: a class of mooncask.errors and its text."""

    error: str
    message: str


ToStage = Setup | Begin | Compute
ToHead = Up | Loaded | Computed | Refused
