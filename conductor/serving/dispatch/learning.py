"""What workers tell of their work teaches the models of cost; what none can mean teaches nothing. Not here: the models
(`costs.py`, `rates.py`)."""

from dataclasses import dataclass, field

from mooncask.client.worker_api import DecodeCall, DecodeDone, PrefillDone
from mooncask.conductor.serving.dispatch.books import Books
from mooncask.conductor.serving.dispatch.costs import FETCH_BYTES_PER_SECOND, PoolCosts
from mooncask.conductor.serving.dispatch.history import History
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.rates import SECONDS_MAX, SIZE_MAX


@dataclass(slots=True)
class Learning:
    """Of one Conductor. `costs` is by model. Belongs to the event loop's thread."""

    pools: Pools
    books: Books
    history: History
    fetch_bytes_per_second: float = FETCH_BYTES_PER_SECOND
    costs: dict[str, PoolCosts] = field(default_factory=dict)

    def costs_of(self, model: str) -> PoolCosts:
        """What the model costs here, as learned so far. Raises NoSuchModel."""
        told, costs = self.pools.any_of(model), self.costs.get(model)
        hashing = told.hashing
        block_bytes, block_tokens = (hashing.block_bytes, hashing.block_tokens) if hashing is not None else (0, 1)
        if costs is None:
            paces = (
                w.registration.prefill_tokens_per_second for w in self.pools.all() if w.registration.model == model
            )
            costs = self.costs[model] = PoolCosts.starting(
                max(paces), block_bytes, block_tokens, self.fetch_bytes_per_second
            )
        elif not costs.token_bytes:  # no daemon was there before
            costs.token_bytes, costs.block_tokens = block_bytes / block_tokens, block_tokens
        return costs

    def prefilled(self, worker: Worker, line: PrefillDone) -> None:
        """What came from other nodes has a price of its own."""
        if not _possible(line.seconds, line.cached_tokens, line.computed_tokens):
            return
        costs, tokens = self.costs_of(worker.registration.model), line.cached_tokens + line.computed_tokens
        seconds = max(0.0, line.seconds - costs.rates.observe(worker.name, line.loaded, line.load_seconds))
        self.books.observe_prefill(worker.name, costs.prefill.seconds(tokens, line.cached_tokens), seconds)
        costs.prefill.observe(tokens, line.cached_tokens, seconds)

    def decoded(self, worker: Worker, call: DecodeCall, line: DecodeDone) -> None:
        """A load that waited for a prefill says nothing of how fast bytes come."""
        costs = self.costs_of(worker.registration.model)
        if not call.wait_seconds:
            costs.rates.observe(worker.name, line.loaded, line.load_seconds)
        if line.prompt_seconds > 0 and _possible(line.prompt_seconds, line.cached_tokens, line.computed_tokens):
            tokens = line.cached_tokens + line.computed_tokens
            costs.tail.observe(tokens, line.cached_tokens, line.prompt_seconds)

    def reported(self, worker: Worker) -> None:
        """The steps of its last report."""
        if not worker.report.steps:
            return
        model = self.costs_of(worker.registration.model).decode
        for step in worker.report.steps:
            if not _possible(step.seconds, step.batch, step.context_tokens):
                continue
            self.history.step_calibration.append((model.seconds(step.batch, step.context_tokens), step.seconds))
            model.observe(step.batch, step.context_tokens, step.seconds)

    def gone(self, worker: Worker) -> None:
        """Nothing is kept by the name of a worker that is not there."""
        self.books.slowness.pop(worker.name, None)
        for costs in self.costs.values():
            costs.rates.forget(worker.name)


def _possible(seconds: float, *tokens: int) -> bool:
    return 0 <= seconds <= SECONDS_MAX and all(0 <= some <= SIZE_MAX for some in tokens)
