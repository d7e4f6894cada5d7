"""What the daemon's page POST /-/v1/coming takes and says: whether anybody has a block, or is about to. Nothing here does I/O."""

from enum import StrEnum

from mooncask.client.control import Answer


class ComingState(StrEnum):
    """Of one block at one node."""

    NOBODY = "nobody"
    EXPECTED = "expected"
    """Announced, without a place for it."""
    WRITING = "writing"
    HERE = "here"


class ComingRequest(Answer, frozen=True, kw_only=True):
    """POST /-/v1/coming takes this: answered as soon as the block is here or under way, or when `seconds` are over."""

    namespace: str
    key: str
    seconds: float = 0.0


class ComingAnswer(Answer, frozen=True, kw_only=True):
    """POST /-/v1/coming answers this."""

    state: ComingState
