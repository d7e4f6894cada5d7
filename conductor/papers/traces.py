"""Where the public traces are looked for."""

import os
from collections.abc import Sequence
from pathlib import Path

from mooncask.conductor.traces.jsonl import read_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

VARIABLE = "MOONCASK_CONVERSATION_TRACE"
SYNTHETIC_VARIABLE = "MOONCASK_SYNTHETIC_TRACE"
BESIDE = Path("..") / "shared" / "traces" / "conversation_trace.jsonl"


class LocalTraces:
    """Reads each trace once. The conversation trace comes from `path`, $MOONCASK_CONVERSATION_TRACE or beside the project."""

    def __init__(self, path: Path | None = None, root: Path | None = None) -> None:
        self._path = path or Path(os.environ.get(VARIABLE) or (root or Path.cwd()) / BESIDE)
        self._conversation: list[Request] | None = None
        self._synthetic: list[Request] | None = None

    def conversation(self) -> Sequence[Request]:
        if self._conversation is None:
            if not self._path.is_file():
                raise BadArgument(VARIABLE, str(self._path), "the file conversation_trace.jsonl of the FAST'25 release")
            self._conversation = list(read_trace(self._path))
        return self._conversation

    def synthetic(self) -> Sequence[Request] | None:
        """The trace that $MOONCASK_SYNTHETIC_TRACE names; None when it names none."""
        path = os.environ.get(SYNTHETIC_VARIABLE)
        if path and self._synthetic is None:
            self._synthetic = list(read_trace(Path(path)))
        return self._synthetic
