"""What the Conductor believes about its nodes: queues of prefills, requests that decode or will. Pure bookkeeping.

The caller reports events with their time; nothing here reads a clock. Not safe for concurrent use.
"""

from dataclasses import dataclass, field

from mooncask.conductor.scheduling.facts import DecodeFacts, Decoding

DECODE_MEMORY = 200
"""Requests over which the mean decode time is taken: enough to be steady, few enough to follow the load."""


@dataclass(slots=True)
class _Queue:
    waiting: dict[int, float] = field(default_factory=dict)
    waiting_seconds: float = 0.0
    running: dict[int, float] = field(default_factory=dict)
    """Request: when it should be done."""


class PrefillBoard:
    """Estimates how long each prefill node is busy with what was placed on it."""

    def __init__(self, nodes: int) -> None:
        self._queues = [_Queue() for _ in range(nodes)]

    def placed(self, node: int, request: int, seconds: float) -> None:
        queue = self._queues[node]
        queue.waiting[request] = seconds
        queue.waiting_seconds += seconds

    def started(self, node: int, request: int, now: float) -> None:
        queue = self._queues[node]
        seconds = queue.waiting.pop(request)
        queue.waiting_seconds = queue.waiting_seconds - seconds if queue.waiting else 0.0
        queue.running[request] = now + seconds

    def finished(self, node: int, request: int) -> None:
        del self._queues[node].running[request]

    def queue_seconds(self, node: int, now: float) -> float:
        """Predicted seconds until `node` has done everything placed on it."""
        queue = self._queues[node]
        busy_until = max(queue.running.values(), default=now)
        return queue.waiting_seconds + max(0.0, busy_until - now)

    def waiting(self, node: int) -> int:
        return len(self._queues[node].waiting) + len(self._queues[node].running)


class DecodeBoard:
    """Who decodes where, who is promised to whom, and the running mean of output lengths."""

    def __init__(self, capacity_tokens: list[int], expected_output: float = 256.0) -> None:
        self._capacity = capacity_tokens
        self._coming: list[dict[int, Decoding]] = [{} for _ in capacity_tokens]
        self._decoding: list[dict[int, Decoding]] = [{} for _ in capacity_tokens]
        self._coming_tokens = [0] * len(capacity_tokens)
        self._context_tokens = [0] * len(capacity_tokens)
        self._outputs, self._output_sum = 1, expected_output
        self._decode_seconds: float | None = None

    @property
    def expected_output(self) -> int:
        """Mean output of the requests that ended; the start value counts as one of them."""
        return round(self._output_sum / self._outputs)

    @property
    def decode_seconds(self) -> float | None:
        """How long requests decode, a mean in which the last DECODE_MEMORY or so weigh; None until one has ended."""
        return self._decode_seconds

    def promised(self, node: int, request: int, eta_seconds: float, context_tokens: int) -> None:
        self._coming[node][request] = Decoding(eta_seconds, context_tokens)
        self._coming_tokens[node] += context_tokens

    def withdrawn(self, node: int, request: int) -> None:
        """A promised request will not come: it was rejected after its prefill, or needs no decoding."""
        self._coming_tokens[node] -= self._coming[node].pop(request).context_tokens

    def joined(self, node: int, request: int, now: float) -> None:
        context = self._coming[node].pop(request).context_tokens
        self._coming_tokens[node] -= context
        self._decoding[node][request] = Decoding(now, context)
        self._context_tokens[node] += context

    def finished(self, node: int, request: int, output_tokens: int, now: float) -> None:
        done = self._decoding[node].pop(request)
        self._context_tokens[node] -= done.context_tokens
        seconds, before = now - done.start_seconds, self._decode_seconds
        weight = min(self._outputs, DECODE_MEMORY)  # so many have ended, this one included
        self._decode_seconds = seconds if before is None else before + (seconds - before) / weight
        self._outputs += 1
        self._output_sum += output_tokens

    def facts(self) -> list[DecodeFacts]:
        """Every node; contexts as they were at the start plus half the expected output each."""
        grown = self.expected_output // 2
        return [
            DecodeFacts(
                requests=len(decoding),
                context_tokens=context + grown * len(decoding),
                capacity_tokens=capacity,
                coming_requests=len(coming),
                coming_tokens=coming_tokens,
            )
            for decoding, context, capacity, coming, coming_tokens in zip(
                self._decoding, self._context_tokens, self._capacity, self._coming, self._coming_tokens, strict=True
            )
        ]

    def decoding(self) -> list[Decoding]:
        return [request for node in self._decoding for request in node.values()]

    def coming(self) -> list[Decoding]:
        return [request for node in self._coming for request in node.values()]
