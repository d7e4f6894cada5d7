"""The head of a pipeline: it knows the model's shape and has none of its weights; it owns the reservations and starts the stages."""

from collections.abc import Callable

from mooncask.engine_adapter.transformers.engine import WARM_UP_TOKENS_MAX, Options
from mooncask.engine_adapter.transformers.kv_layout import KvLayout
from mooncask.engine_adapter.transformers.loading import Speeds
from mooncask.engine_adapter.transformers.pipeline.job import PipelineJob
from mooncask.engine_adapter.transformers.pipeline.stages import StagePlan, Stages
from mooncask.engine_adapter.transformers.store_link import StoreLink, StoreSession

WARM_UP_CHUNKS = 3
"""More than one, so that the speed is that of stages which work at the same time."""


class PipelineHead:
    """One prefill at a time."""

    def __init__(
        self,
        plan: StagePlan,
        options: Options,
    ) -> None:
        """Begins to start the stages. Raises ConfigError for more stages than layers."""
        self.model, self.options = plan.model, options
        self.speeds = Speeds()
        self.link = StoreLink(plan.store, plan.name, plan.model.family, plan.model.layout)
        self.stages = Stages(plan)

    @property
    def layout(self) -> KvLayout:
        return self.model.layout

    def warm_up(self) -> None:
        """Waits for the stages, and learns the speed by the second of two runs. Raises WorkerUnavailable, UnsupportedModel."""
        chunk = min(self.options.prefill_chunk, WARM_UP_TOKENS_MAX)
        tokens = min(WARM_UP_CHUNKS * chunk, self.model.positions_max)
        for _ in range(2):
            self.speeds = Speeds()
            self.job(self.link.session(wanted=False), [], []).run_without_store([0] * tokens)

    def job(
        self,
        session: StoreSession,
        tokens: list[int],
        keys: list[bytes],
        wanted: Callable[[], bool] = lambda: True,
    ) -> PipelineJob:
        return PipelineJob(self.stages, self.options, self.speeds, session, tokens, keys, wanted)

    def close(self) -> None:
        self.stages.close()
        self.link.close()
