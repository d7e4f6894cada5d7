"""vLLM servers as members of the pools: a scripted one over real HTTP, in the words of vLLM 0.32."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_pages import PagesOf, open_kv, running_pages
from scripted_answers import right_answer
from scripted_vllm import BLOCK_TOKENS, FAMILY, FINGERPRINT, HASHING, SALT, ScriptedVllm
from scripted_world import until

from mooncask.client import wire
from mooncask.client.hashing import chain, root
from mooncask.client.worker_api import Hashing, Node, Role, Sampling, TokenLogprobs, WorkerKind
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.serving.config import Config, load_config
from mooncask.conductor.serving.dispatch.dispatcher import Limits, LiveDispatcher
from mooncask.conductor.serving.dispatch.engine_events import EngineEvents
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.conductor.serving.dispatch.vllm_client import VllmSpeech
from mooncask.conductor.serving.dispatch.vllm_members import VllmMember, VllmSettings
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.job import Begun, Ended, Event, Job, Piece
from mooncask.conductor.serving.kv_events.events import Stored
from mooncask.errors import AnswerBroken, BadRequest, ConfigError, NoWorkers

KEY = "vllm-key"
PAUSES = (0.0, 0.01, 0.02, 0.04)
TOLD = msgspec.convert(HASHING, Hashing)


@dataclass
class World:
    dispatcher: LiveDispatcher
    engines: EngineEvents
    servers: dict[str, ScriptedVllm]

    @property
    def decodes(self) -> list[dict[str, Any]]:
        return [body for name in ("d0", "d1") for body in self.servers[name].decodes]

    async def joined(self) -> None:
        there = len([server for server in self.servers.values() if server.healthy])
        await until(lambda: len(self.dispatcher.pools.all()) == there, "servers did not join")


@contextlib.asynccontextmanager
async def world(node: Node | None = None, **changes: ScriptedVllm) -> AsyncIterator[World]:
    """One server to prefill and two to decode, all at one node; `changes` by name."""
    made = {name: changes.get(name, ScriptedVllm(name, KEY)) for name in ("p0", "d0", "d1")}
    pools, prefixes = Pools(), Prefixes(0.5)
    client = WorkerClient("ours", others={WorkerKind.VLLM: VllmSpeech(5.0, dict.fromkeys((*made, "p1"), KEY))})
    table = PolicyTable(PolicySettings("kvcache-centric", "none", 1.0, 1.5, {"low": Slo(5.0, 1.0)}, "low"))
    dispatcher = LiveDispatcher(pools, client, prefixes, table, Limits(inline_tokens=0, pauses_seconds=PAUSES))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        stack.push_async_callback(prefixes.close)
        tasks = []
        for name, server in made.items():
            await stack.enter_async_context(server.serving())
            role = Role.PREFILL if name.startswith("p") else Role.DECODE
            settings = VllmSettings(name, server.address, role, "model", node or Node(), 4, KEY, 2.0, True)
            member = VllmMember(settings, pools, dispatcher.books.ours_on, prefixes.engines.described)
            tasks.append(asyncio.create_task(member.run()))
        there = World(dispatcher, prefixes.engines, made)
        try:
            await there.joined()
            yield there
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def job(max_tokens: int = 8, sampling: Sampling | None = None, **more: object) -> Job:
    tokens = [3 + i * 7 % 200 for i in range(10)]
    return Job("r1", "model", tokens, max_tokens, sampling or Sampling(), received_seconds=time.monotonic(), **more)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def daemon_beside() -> AsyncIterator[tuple[PagesOf, int, Node]]:
    """A real daemon with the servers' namespace, its number, and the node as a worker names it."""
    async with running_pages() as pages:
        assert pages.daemon.http is not None
        namespace = await open_kv(pages.client, TOLD.namespace)
        yield pages, namespace, Node(name="n1", pages=f"http://{pages.daemon.http.address}")


async def run(there: World, one: Job) -> list[Event]:
    return [event async for event in there.dispatcher.run(one)]


def said(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Piece) for token in event.tokens]


async def test_a_server_joins_with_its_name_for_the_model_its_room_and_how_its_keys_are_made() -> None:
    async with world() as there:
        by_name = {worker.name: worker for worker in there.dispatcher.pools.all()}
        told = by_name["p0"].registration
        assert (told.kind, told.role, told.served_as) == (WorkerKind.VLLM, Role.PREFILL, "m")
        assert (told.positions_max, told.kv_tokens) == (4096, 23296)
        assert told.hashing == TOLD
        report = by_name["d0"].report
        assert (report.free_slots, report.context_tokens) == (4, 5824)


async def test_a_prompt_is_prefilled_by_one_server_and_answered_by_another() -> None:
    async with world() as there:
        one = job(sampling=Sampling(temperature=0.5, top_p=0.9, stop_tokens=[2]), cache_salt="s")
        events = await run(there, one)
        assert isinstance(events[0], Begun) and isinstance(events[-1], Ended)
        assert said(events) == right_answer(one.tokens, 8)
        (prefill,), (decode,) = there.servers["p0"].prefills, there.decodes
        assert (prefill["max_tokens"], prefill["prompt"], prefill["cache_salt"]) == (1, one.tokens, "s")
        assert decode["kv_transfer_params"]["mooncask"]["n_blocks"] == 2
        assert decode["kv_transfer_params"]["do_remote_prefill"] is True
        wanted = {"temperature": 0.5, "top_p": 0.9, "stop_token_ids": [2], "ignore_eos": True, "max_tokens": 8}
        # What a model's generation_config.json would put in is said, so that it does not.
        wanted |= {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "cache_salt": "s", "model": "m"}
        assert wanted.items() <= decode.items()
        assert "seed" not in decode and "logprobs" not in decode


async def test_decode_is_sent_when_the_store_has_seen_the_prefill_begin_and_else_when_it_has_ended() -> None:
    one = job()
    keys = chain(root(FINGERPRINT, SALT), one.tokens, BLOCK_TOKENS)
    async with daemon_beside() as (pages, namespace, node):
        for announced in (True, False):
            first = ScriptedVllm("p0", KEY, go=asyncio.Event())
            assert first.go is not None
            async with world(node, p0=first) as there:
                running = asyncio.create_task(run(there, one))
                await until(lambda: first.prefills, "the prefill was not sent")  # noqa: B023
                assert not there.decodes
                if announced:
                    await pages.client.ask(wire.Done, wire.Expect, namespace, keys, 5_000)
                    await until(lambda: there.decodes, "the decode was not sent while the prefill ran")
                    assert said(await running) == right_answer(one.tokens, 8)
                    told = there.decodes[0]["kv_transfer_params"]["mooncask"]
                    assert (told["family"], told["n_blocks"]) == (FINGERPRINT.hex(), 2)
                    assert told["keys_digest"] == keys[-1].hex() and told["wait_seconds"] >= 5.0
                    assert told["handover_id"] == first.prefills[0]["kv_transfer_params"]["mooncask"]["handover_id"]
                    await pages.client.ask(wire.Done, wire.Expect, namespace, keys, 1)
                    await until(lambda: not pages.daemon.service.arrivals.promised, "the promise stays")
                else:
                    first.go.set()
                    assert said(await running) == right_answer(one.tokens, 8)
                    assert "wait_seconds" not in there.decodes[0]["kv_transfer_params"]["mooncask"]


async def test_a_prefill_that_fails_when_its_decode_waits_already_is_done_again_and_the_answer_is_whole() -> None:
    one = job()
    keys = chain(root(FINGERPRINT, SALT), one.tokens, BLOCK_TOKENS)
    async with daemon_beside() as (pages, namespace, node):
        first = ScriptedVllm("p0", KEY, go=asyncio.Event())
        assert first.go is not None
        slow = {name: ScriptedVllm(name, KEY, answers=asyncio.Event()) for name in ("d0", "d1")}
        async with world(node, p0=first, **slow) as there:
            running = asyncio.create_task(run(there, one))
            await until(lambda: first.prefills, "the prefill was not sent")
            await pages.client.ask(wire.Done, wire.Expect, namespace, keys, 60_000)
            await until(lambda: there.decodes, "the decode was not sent while the prefill ran")
            first.status = 500
            first.go.set()
            await until(lambda: len(first.asked) > 1, "the prefill was not done again")
            first.status = 200
            for server in slow.values():
                assert server.answers is not None
                server.answers.set()
            assert said(await running) == right_answer(one.tokens, 8)


async def test_a_stop_token_is_the_last_one_and_logprobs_are_of_tokens() -> None:
    async with world() as there:
        made = right_answer(job().tokens, 8)
        events = await run(there, job(sampling=Sampling(logprobs=2, stop_tokens=[made[3]])))
        assert said(events) == made[:4]
        assert isinstance(events[-1], Ended) and events[-1].reason == "stop"
        logprobs = [one for event in events if isinstance(event, Piece) for one in event.logprobs or []]
        top = [(made[0] + 1000, -1.0), (made[0] + 1001, -2.0)]
        assert isinstance(logprobs[0], TokenLogprobs) and len(logprobs) == 4
        assert logprobs[0].chosen == -4.5
        assert [(one.token, one.logprob) for one in logprobs[0].top] == top


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5), Sampling(seed=5, seeded=True)])
async def test_an_answer_that_was_not_drawn_from_a_seed_goes_on_elsewhere(sampling: Sampling) -> None:
    async with world() as there:
        for name in ("d0", "d1"):
            there.servers[name].break_after = 3
        events = await run(there, job(sampling=sampling))
        assert said(events) == right_answer(job().tokens, 8)
        continued = [body["max_tokens"] for body in there.decodes if len(body["prompt"]) > len(job().tokens)]
        assert sorted(continued, reverse=True) == [5, 2]


async def test_an_answer_drawn_from_a_seed_ends_in_one_error_when_its_server_breaks_off() -> None:
    async with world() as there:
        for name in ("d0", "d1"):
            there.servers[name].break_after = 3
        events: list[Event] = []
        with pytest.raises(AnswerBroken, match="seed"):
            async for event in there.dispatcher.run(job(sampling=Sampling(temperature=1.0, seed=5, seeded=True))):
                events.append(event)
        assert said(events) == right_answer(job().tokens, 3)
        assert [body["seed"] for body in there.decodes] == [5]


async def test_one_that_breaks_off_before_its_first_token_is_asked_for_elsewhere_seed_or_not() -> None:
    async with world() as there:
        for name in ("d0", "d1"):
            there.servers[name].break_after = 0
        events = await run(there, job(sampling=Sampling(temperature=1.0, seed=5, seeded=True)))
        assert said(events) == right_answer(job().tokens, 8)


async def test_errors_in_a_stream_and_by_status_are_the_caller_s_or_the_server_s() -> None:
    async with world() as there:
        for name in ("d0", "d1"):
            error = {
                "message": "Token id 9 is out of vocabulary",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
            there.servers[name].error = error
        with pytest.raises(BadRequest, match="out of vocabulary"):
            await run(there, job())
        for name in ("d0", "d1"):
            there.servers[name].error = {"message": "the engine is dead", "type": "InternalServerError", "code": 500}
        assert said(await run(there, job())) == right_answer(job().tokens, 8)
        there.servers["p0"].status = 500
        with pytest.raises(NoWorkers, match="as scripted"):
            await run(there, job())


async def test_a_server_without_a_connector_is_a_member_by_load_alone() -> None:
    async with world(p0=ScriptedVllm("p0", KEY, described=False)) as there:
        worker = next(worker for worker in there.dispatcher.pools.all() if worker.name == "p0")
        assert worker.registration.hashing is None
        assert said(await run(there, job())) == right_answer(job().tokens, 8)


async def test_a_server_of_another_family_is_refused_and_asked_again_later() -> None:
    other = ScriptedVllm("d1", KEY, family={"engine": "vllm", "block_tokens": "16"}, healthy=False)
    async with world(d1=other) as there:
        other.healthy = True
        await until(lambda: other.descriptions, "it was not asked how its keys are made")
        other.family = dict(FAMILY)
        names = {worker.name for worker in there.dispatcher.pools.all()}
        assert names == {"p0", "d0"}, "one of another family has joined"
        await until(lambda: len(there.dispatcher.pools.all()) == 3, "it was not asked again")


async def test_a_dead_engine_leaves_at_once_and_comes_back_as_another_incarnation() -> None:
    async with world() as there:
        pools = there.dispatcher.pools
        before = next(worker for worker in pools.all() if worker.name == "d0")
        there.servers["d0"].healthy = False
        await until(lambda: all(worker.name != "d0" for worker in pools.all()), "a dead engine stays")
        assert before.gone.is_set()
        there.servers["d0"].started, there.servers["d0"].healthy = "1.9e+09", True
        await there.joined()
        after = next(worker for worker in pools.all() if worker.name == "d0")
        assert after.registration.incarnation == "1.9e+09"


async def test_pauses_between_tokens_teach_what_a_decode_step_takes_and_others_requests_take_their_slots() -> None:
    async with world() as there:
        server, dispatcher = there.servers["d0"], there.dispatcher
        server.running, server.pauses, server.pause_seconds = 3, 10.0, 0.5
        await until(lambda: dispatcher.history.step_calibration, "nothing was learned")
        assert dispatcher.history.step_calibration[0][1] == pytest.approx(0.05)
        worker = next(worker for worker in dispatcher.pools.all() if worker.name == "d0")
        assert dispatcher.books.free_slots(worker) == 1


async def test_a_server_takes_the_role_that_is_wanted() -> None:
    async with world() as there:
        there.dispatcher.pools.want_role("d1", Role.PREFILL)
        await until(
            lambda: [w.role for w in there.dispatcher.pools.all() if w.name == "d1"] == [Role.PREFILL], "no other role"
        )


def test_a_worker_of_the_configuration_is_refused_by_the_key_that_is_wrong(tmp_path: Path) -> None:
    def load(address: str, role: str) -> Config:
        config = tmp_path / "conductor.toml"
        config.write_text(f'[workers.p]\naddress = "{address}"\nrole = "{role}"\nmodel = "m"\n')
        return load_config(config, {})

    assert load("http://h:1", "prefill").workers["p"].role is Role.PREFILL
    with pytest.raises(ConfigError, match=r"workers\.p\.address"):
        load("h:1", "prefill")
    with pytest.raises(ConfigError, match=r"workers.*role"):
        load("http://h:1", "both")


async def test_a_prompt_goes_where_the_engine_has_its_beginning() -> None:
    second = ScriptedVllm("p1", KEY)
    async with world() as there, second.serving():
        pools = there.dispatcher.pools
        settings = VllmSettings("p1", second.address, Role.PREFILL, "model", Node(), 4, KEY, 2.0, False)
        member = VllmMember(settings, pools, there.dispatcher.books.ours_on, there.engines.described)
        task = asyncio.create_task(member.run())
        await until(lambda: len(pools.all()) == 4, "the second prefill server did not join")
        for name in ("p1", "p0"):
            there.engines.caches["p0"].clear()
            there.engines.caches["p1"].clear()
            blocks = Stored([71, 72], None, job().tokens[:8], BLOCK_TOKENS, lora="", medium="GPU")
            there.engines.caches[name].apply(blocks)
            events = await run(there, job())
            assert isinstance(events[0], Begun) and events[0].prefill_worker == name
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
