"""Where the public conversation trace is; it is not part of the repository."""

import os
from pathlib import Path

import pytest

VARIABLE = "MOONCASK_CONVERSATION_TRACE"
ROOT = Path(__file__).resolve().parents[2]


def conversation_trace() -> Path:
    """The trace's path; the calling test is skipped when it is not here."""
    path = Path(os.environ.get(VARIABLE) or ROOT.parent / "shared" / "traces" / "conversation_trace.jsonl")
    if not path.is_file():
        pytest.skip(f"the public conversation trace (Mooncake, FAST'25) is not at {path}; set {VARIABLE} to its path")
    return path
