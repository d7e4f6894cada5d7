"""One request of a trace, as every reader, generator, replay and simulation sees it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt that arrived, without its content.

    `hash_ids` names the prompt's blocks in order; equal ids mean equal whole prefixes up to there. The last id may stand
    for a partial block. `conversation` (0 = unknown) and `turn` (from 0) are known to generators and to engines that send
    hints; the public traces do not have them.
    """

    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    conversation: int = 0
    turn: int = 0

    @property
    def seconds(self) -> float:
        """Arrival in seconds from the trace's beginning."""
        return self.timestamp_ms / 1000
