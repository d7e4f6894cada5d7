"""The description of a simulated cluster: TOML in, one frozen, validated object out.

Wrong values are refused with their name, their value and what is allowed. Units stand in the names; a giga is 1e9.
"""

import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mooncask.conductor.models.analytical import (
    analytical_decode,
    analytical_prefill,
    find_gpu,
    find_model,
    kv_capacity_tokens,
)
from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.conductor.models.fitted import FITTED_DECODE, FITTED_PREFILL
from mooncask.conductor.models.pipeline import Pipeline
from mooncask.conductor.scheduling.admission import ADMISSIONS, Threshold
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.scheduling.placement import PLACEMENTS
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument
from mooncask.tiers.policies import POLICY_NAMES

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(gt=0)]
Coefficient = Annotated[float, Meta(ge=0)]


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model.costs = "measured"`: the coefficients of a model and its hardware, as a Conductor learned them. Seconds."""

    kv_bytes_per_token: Positive
    layers: Positive
    prefill_linear: Rate
    prefill_quadratic: Coefficient = 0.0
    prefill_fixed: Coefficient = 0.0
    step_fixed: Rate
    step_per_request: Coefficient = 0.0
    step_per_token: Rate
    """Above 0: a step is never independent of what it reads."""
    tail_linear: Coefficient = 0.0
    """What decode itself computes of a prompt: the tokens that fill no block. With `first_token = "decode"`; all 0: nothing."""
    tail_quadratic: Coefficient = 0.0
    tail_fixed: Coefficient = 0.0


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which model runs on what, and which costs are the simulated truth; `predictor` is what the Conductor knows."""

    name: str = "llama3-70b"
    gpu: str = "a800-80g"
    gpus_per_node: Positive = 8
    costs: Literal["fitted", "analytical", "measured"] = "fitted"
    measured: Measured | None = None
    """With `costs = "measured"`, and then instead of `name` and `gpu`."""
    predictor: Literal["exact", "learned"] = "exact"
    mfu: Annotated[float, Meta(gt=0, le=1)] = 0.5


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Effective speeds a node: 87 GB/s is measured on 4 x 200 Gbps RDMA, 89 GB/s from host to GPUs (FAST'25)."""

    gigabytes_per_second: Rate = 87.0
    host_to_device_gigabytes_per_second: Rate = 89.0
    hop_seconds: Annotated[float, Meta(ge=0)] = 0.001
    """Activations of one chunk from one pipeline stage to the next."""


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each prefill (or coupled) node keeps. `dram_tokens = 0` keeps nothing; `unlimited` ignores both sizes."""

    dram_tokens: NotNegative = 3_000_000
    ssd_tokens: NotNegative = 0
    ssd_gigabytes_per_second: Rate = 6.0
    policy: str = "lru"
    unlimited: bool = False
    replicate_hot: bool = False
    """Copy hot prefixes ahead of need; without it a copy is made only where a request fetches one."""
    shared: bool = False
    """A node gets what another one holds when a request's turn comes, whatever its placement counted on: Mooncask's daemons
    do that by themselves. Without it only what placement decided is fetched."""
    swap_cold: bool = False
    """Move idle blocks from DRAM to SSD before room is needed."""


class Scheduling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    placement: str = "kvcache-centric"
    balancing_threshold: Annotated[float, Meta(ge=1)] = 1.5
    admission: str = "none"
    threshold: Annotated[float, Meta(gt=0)] = 1.0
    priority_classes: Positive = 1
    """Each request gets a class at random, since traces carry none; the highest is rejected last."""
    priority_reserve: Annotated[float, Meta(ge=0, le=1)] = 0.1
    decode_recheck: bool = True
    """Whether the decode node may still reject after the prefill (always so under `baseline`)."""
    decode_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """t_d of predicted rejection; 0 takes the mean of the requests that ended lately."""


class Prefill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    chunk_tokens: NotNegative = 8192
    """0 chooses the chunk with the earliest first token for each request."""
    stages: Positive = 1
    """Nodes of one pipelined group; `prefill_nodes` counts groups."""


class Coupled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a coupled node mixes prefill into decoding: whole prompts first (vLLM), or chunks beside each decode step."""

    batching: Literal["whole", "chunked"] = "whole"
    token_budget: Positive = 2048
    prefix_caching: bool = False


class Objectives(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ttft_seconds: Seconds = 30.0
    tbt_seconds: Seconds = 0.1
    tbt_metric: Literal["longest-tenth", "p90"] = "longest-tenth"


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Disaggregated `[xP+yD]` when `prefill_nodes` and `decode_nodes` are given, coupled `[xM]` when `coupled_nodes` is."""

    prefill_nodes: NotNegative = 0
    decode_nodes: NotNegative = 0
    coupled_nodes: NotNegative = 0
    block_tokens: Positive = 512
    vram_tokens: NotNegative = 0
    """KV tokens that fit on a node's GPUs; 0 computes them from model and GPU."""
    first_token: Literal["prefill", "decode"] = "prefill"
    """Who delivers the first token: the papers' prefill, or the first decode step as in the live hand-over."""
    seed: int = 0
    model: Model = Model()
    network: Network = Network()
    cache: Cache = Cache()
    scheduling: Scheduling = Scheduling()
    prefill: Prefill = Prefill()
    coupled: Coupled = Coupled()
    slo: Objectives = Objectives()

    def __post_init__(self) -> None:
        check_nodes(self)
        if self.coupled_nodes and self.scheduling.admission != "none":
            raise BadArgument("scheduling.admission", repr(self.scheduling.admission), "'none' on a coupled cluster")
        if self.coupled_nodes and self.first_token == "decode":
            raise BadArgument("first_token", "'decode'", "'prefill' on a coupled cluster: nothing is handed over")
        check_name("scheduling.placement", self.scheduling.placement, PLACEMENTS)
        check_name("scheduling.admission", self.scheduling.admission, ADMISSIONS)
        check_name("cache.policy", self.cache.policy, POLICY_NAMES)
        find_model(self.model.name)
        find_gpu(self.model.gpu)
        if (self.model.costs == "measured") is (self.model.measured is None):
            raise BadArgument(
                "model.measured",
                "missing" if self.model.measured is None else "given",
                'with costs = "measured", and only then',
            )
        if self.model.measured is not None and not self.vram_tokens:
            raise BadArgument("vram_tokens", "0", "at least 1 where costs are measured: no GPU is known then")
        if self.kv_capacity_tokens < self.block_tokens:
            raise BadArgument("vram_tokens", str(self.kv_capacity_tokens), "the weights leave no room for one block")

    @property
    def kv_bytes_per_token(self) -> int:
        measured = self.model.measured
        return measured.kv_bytes_per_token if measured else find_model(self.model.name).kv_bytes_per_token

    @property
    def layers(self) -> int:
        return self.model.measured.layers if self.model.measured else find_model(self.model.name).layers

    @property
    def kv_capacity_tokens(self) -> int:
        shape, gpu = find_model(self.model.name), find_gpu(self.model.gpu)
        return self.vram_tokens or kv_capacity_tokens(shape, gpu, self.model.gpus_per_node)

    @property
    def slo_seconds(self) -> Slo:
        return Slo(self.slo.ttft_seconds, self.slo.tbt_seconds)

    @property
    def threshold(self) -> Threshold:
        s = self.scheduling
        return Threshold(s.threshold, s.priority_classes, s.priority_reserve)

    def prefill_costs(self) -> PolynomialPrefill:
        if (told := self.model.measured) is not None:
            return PolynomialPrefill(told.prefill_linear, told.prefill_quadratic, told.prefill_fixed)
        if self.model.costs == "fitted":
            return FITTED_PREFILL
        shape, gpu = find_model(self.model.name), find_gpu(self.model.gpu)
        return analytical_prefill(shape, gpu, self.model.gpus_per_node, self.model.mfu)

    def decode_costs(self) -> LinearStep:
        if (told := self.model.measured) is not None:
            return LinearStep(told.step_fixed, told.step_per_request, told.step_per_token)
        if self.model.costs == "fitted":
            return FITTED_DECODE
        return analytical_decode(find_model(self.model.name), find_gpu(self.model.gpu), self.model.gpus_per_node)

    def tail_costs(self) -> PolynomialPrefill | None:
        """Of the end of a prompt that decode computes; None where prefill does all of it."""
        told = self.model.measured
        if told is None or self.first_token != "decode":
            return None
        costs = PolynomialPrefill(told.tail_linear, told.tail_quadratic, told.tail_fixed)
        return costs if costs != PolynomialPrefill(0.0, 0.0) else None

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.prefill.stages, self.prefill.chunk_tokens, self.network.hop_seconds)

    @property
    def notation(self) -> str:
        if self.coupled_nodes:
            return f"[{self.coupled_nodes}M]"
        return f"[{self.prefill_nodes}P+{self.decode_nodes}D]"


def check_nodes(cluster: Cluster) -> None:
    """Either both pools or the coupled one; raises BadArgument."""
    pools = (cluster.prefill_nodes > 0) + (cluster.decode_nodes > 0)
    if cluster.coupled_nodes == 0 and pools < 2:
        name = "decode_nodes" if cluster.prefill_nodes else "prefill_nodes"
        raise BadArgument(name, "0", "at least 1, or set coupled_nodes instead of both pools")
    if cluster.coupled_nodes and pools:
        raise BadArgument("coupled_nodes", str(cluster.coupled_nodes), "0 where prefill_nodes or decode_nodes are set")


def check_name(key: str, value: str, known: tuple[str, ...]) -> None:
    """Raises BadArgument, with the nearest known name, when `value` is none of `known`."""
    if value not in known:
        raise BadArgument(key, repr(value), unknown_name(value, known))


def unknown_name(value: str, known: tuple[str, ...]) -> str:
    """The end of a message about an unknown name: did you mean, and what there is."""
    near = get_close_matches(value, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"one of {', '.join(known)}"


def parse_cluster(text: str, source: str) -> Cluster:
    """A cluster from TOML text; raises BadArgument naming `source` and the field."""
    try:
        return msgspec.convert(tomllib.loads(text), Cluster)
    except tomllib.TOMLDecodeError as exc:
        raise BadArgument(source, "not TOML", str(exc)) from exc
    except msgspec.ValidationError as exc:
        if isinstance(exc.__cause__, BadArgument):
            raise exc.__cause__ from None
        raise BadArgument(source, "refused", str(exc)) from exc


def load_cluster(path: Path) -> Cluster:
    """A cluster from a file; raises BadArgument."""
    try:
        return parse_cluster(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as exc:
        raise BadArgument("cluster", str(path), f"cannot be read: {exc}") from exc


def check_fits(cluster: Cluster, requests: Sequence[Request]) -> None:
    """Raises BadArgument when some request alone is larger than a node's KV memory."""
    longest = max(requests, key=lambda r: r.input_length + r.output_length, default=None)
    if longest is None:
        raise BadArgument("trace", "empty", "at least one request")
    tokens = longest.input_length + longest.output_length
    if tokens > cluster.kv_capacity_tokens:
        raise BadArgument(
            "vram_tokens",
            str(cluster.kv_capacity_tokens),
            f"the request at {longest.timestamp_ms} ms has {tokens} tokens; use more or larger GPUs a node",
        )
