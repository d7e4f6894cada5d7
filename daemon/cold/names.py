"""What objects in the bucket are called. Pure.

    v1/packs/<node>/<epoch>/<number>     payloads, written once
    v1/index/<node>/<epoch>/<number>     what is in packs; never changed, replaced by one of a higher number
    v1/alive/<node>/<epoch>              rewritten now and then while that run of the node lives
    v1/claims/<node>                     who looks after the packs of a node that is dead

<node>: the node's name, as far as it may stand in a key, a dash and 16 hex digits of its digest. <epoch>: 16 hex digits, when
that run of the node began. <number>: 8 hex digits that grow within a run.
"""

import re
from dataclasses import dataclass

PACKS = "v1/packs/"
INDEX = "v1/index/"
ALIVE = "v1/alive/"
CLAIMS = "v1/claims/"
_UNSAFE = re.compile(r"[^A-Za-z0-9._]")
_NUMBERED = re.compile(
    r"(?P<node>[A-Za-z0-9._]*-(?P<hash>[0-9a-f]{16}))/(?P<epoch>[0-9a-f]{16})/(?P<number>[0-9a-f]{8})"
)
_RUN = re.compile(r"(?P<node>[A-Za-z0-9._]*-(?P<hash>[0-9a-f]{16}))/(?P<epoch>[0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one node. `epoch` 16 hex digits."""

    node: str
    epoch: str

    @property
    def incarnation(self) -> bytes:
        return bytes.fromhex(self.node[-16:] + self.epoch)

    @property
    def folder(self) -> str:
        return f"{self.node}/{self.epoch}"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A pack or an index object of a run."""

    run: Run
    number: int


def run_of(name: str, incarnation: bytes) -> Run:
    """The run of the node called `name` that has this incarnation of 16 bytes."""
    return Run(f"{_UNSAFE.sub('_', name)[:40]}-{incarnation[:8].hex()}", incarnation[8:].hex())


def pack_path(run: Run, number: int) -> str:
    return f"{PACKS}{run.folder}/{number:08x}"


def index_path(run: Run, number: int) -> str:
    return f"{INDEX}{run.folder}/{number:08x}"


def parse_numbered(path: str, beginning: str) -> Numbered | None:
    """What a path below PACKS or INDEX names; None for what nobody of us has put there."""
    match = _NUMBERED.fullmatch(path.removeprefix(beginning)) if path.startswith(beginning) else None
    return None if match is None else Numbered(Run(match["node"], match["epoch"]), int(match["number"], 16))


def parse_run(path: str, beginning: str) -> Run | None:
    match = _RUN.fullmatch(path.removeprefix(beginning)) if path.startswith(beginning) else None
    return None if match is None else Run(match["node"], match["epoch"])
