"""Links that carry KV: seconds for bytes, with a queue at each end. A plain object; the caller tells the time."""

from dataclasses import dataclass


@dataclass(slots=True)
class Port:
    """One direction of a node's network: transfers go through it one after the other, in the order they were asked for.

    First come, first served has the same throughput as sharing the port, and the same last completion. Each port of a
    transfer has a queue of its own: one that waits at its sender does not hold up others at its receiver.
    """

    bytes_per_second: float
    free_at: float = 0.0

    def backlog_seconds(self, now: float) -> float:
        """How long a transfer that is asked for now would wait."""
        return max(0.0, self.free_at - now)


def transfer_seconds(size_bytes: float, sender: Port, receiver: Port, now: float) -> float:
    """Estimate from `now` to the last byte, waiting included. Does not modify."""
    return max(port.backlog_seconds(now) + size_bytes / port.bytes_per_second for port in (sender, receiver))


def transfer(size_bytes: float, sender: Port, receiver: Port, now: float) -> float:
    """Occupy both ports; returns the time of the last byte."""
    for port in (sender, receiver):
        port.free_at = max(port.free_at, now) + size_bytes / port.bytes_per_second
    return max(sender.free_at, receiver.free_at)
