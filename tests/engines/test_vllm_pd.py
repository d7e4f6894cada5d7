"""Prefill and decode by two of vLLM's API servers, with a small proxy before them and the store between them."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import ClientSession
from daemon_process import DaemonProcess
from pd_proxy import PdProxy
from prompts import prompt
from vllm_process import BLOCK_TOKENS, VllmServer, free_ports

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 1250


async def test_a_decode_server_loads_what_a_prefill_server_computed(
    model: Path, daemon: DaemonProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(VllmServer.begin(model, tmp_path, port, daemon.socket_path, role, load="always"))
            for port, role in zip(free_ports(2), ("kv_producer", "kv_consumer"), strict=True)
        ]
        for server in servers:
            server.ready()
        prefill, decode = servers
        body = {"model": "m", "prompt": prompt(1, TOKENS), "max_tokens": 24, "temperature": 0}
        async with PdProxy(prefill.url, decode.url) as proxy, ClientSession() as session:
            through_both = await complete(session, proxy.url, body)
            (params,) = proxy.handed_over
            assert params["mooncask"]["n_blocks"] == TOKENS // BLOCK_TOKENS
            assert params["do_remote_prefill"] is True
            # The prefill server alone, which never loads: as without any store.
            assert through_both == await complete(session, prefill.url, body)
            loaded = TOKENS // BLOCK_TOKENS
            assert decode.metric("vllm:mooncask_loaded_blocks_total") == loaded
            assert decode.metric("vllm:mooncask_load_failed_blocks_total") == 0
            computed = decode.metric("vllm:prompt_tokens_by_source_total", 'source="local_compute"')
            assert computed == TOKENS - loaded * BLOCK_TOKENS
            # A hand-over of another model is a miss with a name, and the answer the same.
            foreign = {**params, "mooncask": {**params["mooncask"], "family": "0" * 32}}
            other = {**body, "prompt": prompt(2, 300)}
            answer = await complete(session, decode.url, {**other, "kv_transfer_params": foreign})
            assert answer == await complete(session, prefill.url, other)
            assert decode.metric("vllm:mooncask_refused_handovers_total") == 1
            assert "family mismatch" in decode.log.read_text()


async def complete(session: ClientSession, url: str, body: dict[str, object]) -> str:
    async with session.post(f"{url}/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["choices"][0]["text"])
