"""The small proxy before a prefill and a decode server, as people put one before vLLM: one token from the first, with
`do_remote_decode`, then everything from the second, with the `kv_transfer_params` that came back."""

from typing import Any, Self

from aiohttp import ClientSession, ClientTimeout, web

ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


class PdProxy:
    """`handed_over` are the params that went from one to the other."""

    def __init__(self, prefill: str, decode: str) -> None:
        """Both are http://host:port."""
        self._prefill, self._decode = prefill, decode
        self.handed_over: list[dict[str, Any]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._session = ClientSession(timeout=ClientTimeout(120))
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        first = await self._post(self._prefill, {**body, "max_tokens": 1, "kv_transfer_params": ASKED})
        params = first.get("kv_transfer_params")
        self.handed_over.append(params)
        return web.json_response(await self._post(self._decode, {**body, "kv_transfer_params": params}))

    async def _post(self, server: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(f"{server}/v1/completions", json=body) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer
