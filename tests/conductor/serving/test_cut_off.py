"""A Conductor that the network has cut off from its workers: nothing is reset, and still nobody computes for nobody."""

import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import requests
from conductor_process import ConductorProcess
from network_places import Network
from served_pool import OPTIONS, SETTINGS, Stream, until
from tiny_model import prompt_of, write_tiny_llama
from tiny_tokenizer import write_tiny_tokenizer
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.worker_api import GONE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_a_worker_ends_the_requests_of_a_conductor_that_it_can_not_reach_and_finds_it_again(tmp_path: Path) -> None:
    model = write_tiny_tokenizer(write_tiny_llama(tmp_path / "tiny"))
    for name in ("tokenizer_config.json", "generation_config.json"):
        (model / name).write_text("{}")
    with Network("conductor", "worker") as network:
        here, there = network["conductor"], network["worker"]
        settings = SETTINGS.format(secret=SECRET, model=model)
        listen = {"MOONCASK_CONDUCTOR_SERVER_WORKERS_LISTEN": f"{here.address}:0"}
        with ConductorProcess.start(tmp_path, settings, listen, under=here.prefix) as conductor:
            options = {
                **OPTIONS,
                "conductor": conductor.workers_url,
                "listen": f"{there.address}:0",
                "model_name": "tiny",
            }
            start = WorkerServerProcess.start
            nowhere = str(tmp_path / "no.sock")
            with (
                start(tmp_path, "prefill-1", "prefill", model, nowhere, there.prefix, **options),
                start(tmp_path, "decode-1", "decode", model, nowhere, there.prefix, **options) as worker,
                here.threads(1) as near,
                there.threads(1) as far,
            ):
                until(lambda: near.submit(asked, conductor, 2).result().status_code == 200, "nothing is answered", 60)
                stream = near.submit(lambda: Stream(asked(conductor, 1900, stream=True)).read(5)).result()
                assert far.submit(lambda: worker.state().report.running).result() == 1
                network.cut("conductor", "worker")
                began = time.monotonic()
                until(lambda: not far.submit(lambda: worker.state().report.requests).result(), "it goes on for nobody")
                assert time.monotonic() - began < GONE_SECONDS + 1.5
                near.submit(stream.read).result()
                assert not stream.whole
                assert '"error"' in stream.events[-1]
                stream.close()
                network.heal("conductor", "worker")
                until(lambda: near.submit(asked, conductor, 2).result().status_code == 200, "it is not found again")


def asked(conductor: ConductorProcess, max_tokens: int, stream: bool = False) -> requests.Response:
    body = {
        "model": "tiny",
        "prompt": prompt_of(40, seed=1),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
    }
    return requests.post(f"{conductor.url}/v1/completions", json=body, stream=stream, timeout=60)
