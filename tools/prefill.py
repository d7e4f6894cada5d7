"""`mooncask prefill`: brings a prompt's KV into the store, by one process or by several that share the model's layers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.errors import BadRequest
from mooncask.tools.connection import Json, Socket, socket_of
from mooncask.tools.keys import format_size
from mooncask.tools.output import Column, counted, print_json, print_table, stages
from mooncask.tools.prompt import Special, Text, TextFile, Tokens, prompt_tokens

if TYPE_CHECKING:
    from mooncask.engine_adapter.transformers.engine import Options
    from mooncask.engine_adapter.transformers.pipeline.head import PipelineHead
    from mooncask.engine_adapter.transformers.store_link import StoreAddress


@dataclass(frozen=True, slots=True)
class _Model:
    folder: Path
    dtype: str
    block_tokens: int
    pipeline: int


def prefill(
    model: Annotated[Path, typer.Option(help="Folder with config.json and safetensors files.", metavar="DIR")],
    tokens: Tokens = None,
    text: Text = None,
    file: TextFile = None,
    special: Special = True,
    pipeline: Annotated[int, typer.Option(min=1, help="So many processes, each with a part of the layers.")] = 1,
    cache_salt: Annotated[str, typer.Option(help="The request's cache_salt.")] = "",
    namespace: Annotated[str, typer.Option(help="Empty: named by the model's family.")] = "",
    mode: Annotated[str, typer.Option(help="write_through, write_back or memory; empty: the daemon's default.")] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    block_tokens: Annotated[int, typer.Option(help="Tokens a block; equal for all workers of a model.")] = 16,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Tokens computed at a time.")] = 256,
    load: Annotated[LoadPolicy, typer.Option(help="Load cached blocks when that is faster, always, or never.")] = (
        LoadPolicy.AUTO
    ),
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Compute a prompt's KV and store it, so that workers of this model find it. Text is cut by the model's tokenizer.

    With --pipeline, processes hold a part of the layers each and work on one chunk after the other, at the same time. It is
    faster where each has a core. The stored blocks are those of one process.
    """
    from mooncask.engine_adapter.transformers.engine import Options
    from mooncask.engine_adapter.transformers.store_link import StoreAddress

    prompt = prompt_tokens(tokens, text, file, model, special)
    if not prompt:
        raise BadRequest("prefill: give a prompt with --tokens, --text or --file")
    store = StoreAddress(socket_of(socket), namespace, mode)
    with stages() as progress:
        progress(f"loading {model.name}")
        loaded = _loaded(_Model(model, dtype, block_tokens, pipeline), store, Options(prefill_chunk, load))
        try:
            progress(f"prefill of {counted(len(prompt), 'token')}")
            figures = _run(loaded, prompt, cache_salt)
        finally:
            loaded.close()
    if as_json:
        print_json(figures)
    else:
        say(figures)


def _loaded(model: _Model, store: "StoreAddress", options: "Options") -> "PipelineHead":
    """Every number of processes goes the same way, so that figures of one and of several can be compared."""
    from mooncask.client.local import LocalClient
    from mooncask.engine_adapter.transformers.pipeline.head import PipelineHead
    from mooncask.engine_adapter.transformers.pipeline.split import described
    from mooncask.engine_adapter.transformers.pipeline.stages import StagePlan

    shape = described(model.folder, model.dtype, model.block_tokens)
    plan = StagePlan(model.folder, shape, model.pipeline, store, "mooncask prefill")
    with LocalClient.connect(store.socket, populate=False):
        pass  # without a daemon there is nothing to do, and no reason to start anything
    head = PipelineHead(plan, options)
    try:
        head.warm_up()
    except BaseException:
        head.close()
        raise
    return head


def _run(head: "PipelineHead", prompt: list[int], cache_salt: str) -> dict[str, object]:
    import time

    if len(prompt) > head.model.positions_max:
        raise BadRequest(f"{len(prompt)} tokens; {head.model.name} has {head.model.positions_max} positions")
    if max(prompt) >= head.model.vocabulary:
        raise BadRequest(f"token {max(prompt)}; the vocabulary of {head.model.name} has {head.model.vocabulary}")
    started = time.perf_counter()
    session = head.link.session()
    keys = session.keys(prompt, cache_salt)
    job = head.job(session, prompt, keys)
    hit = session.match(keys)
    prefix = job.run(hit)
    seconds = time.perf_counter() - started
    cached = len(hit) if len(hit) == len(keys) else prefix.outcome.blocks
    return {
        "prompt_tokens": len(prompt),
        "cached_tokens": cached * head.layout.block_tokens,
        "computed_tokens": job.computed,
        "stored_blocks": job.stored,
        "seconds": seconds,
        "faults": dict(session.faults),
        "processes": [
            {
                "layers": [layers.start, layers.stop - 1],
                "weight_bytes": up.weight_bytes,
                "own_bytes": max(own, up.own_bytes),
                "cpu_seconds": sum(cpu),
            }
            for layers, up, own, cpu in zip(
                head.stages.plan.ranges, head.stages.up, job.times.own_bytes, job.times.cpu_seconds, strict=True
            )
        ],
    }


def say(figures: dict[str, object]) -> None:
    """For people: one line, and a table of the processes."""
    said = "{prompt_tokens:,} tokens: {cached_tokens:,} cached, {computed_tokens:,} computed, {stored_blocks:,} blocks stored"
    typer.echo(f"{said.format(**figures)} in {figures['seconds']:.2f} s")
    faults, processes = figures["faults"], figures["processes"]
    assert isinstance(faults, dict) and isinstance(processes, list)
    if faults:
        typer.echo("the store failed: " + ", ".join(f"{name} {count}" for name, count in faults.items()))
    columns = [Column("layers"), Column("CPU s", True), Column("weights", True), Column("own memory", True)]
    rows = [
        [
            f"{each['layers'][0]} to {each['layers'][1]}",
            f"{each['cpu_seconds']:.2f}",
            format_size(each["weight_bytes"]),
            format_size(each["own_bytes"]),
        ]
        for each in processes
    ]
    print_table(columns, rows)
