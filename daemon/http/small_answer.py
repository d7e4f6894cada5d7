"""An object that goes out with its head in one piece: what aiohttp's own response does beside that takes longer than the object."""

import time

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest
from multidict import CIMultiDict

from mooncask.daemon.http.s3.object_headers import http_date


class SmallAnswer(web.StreamResponse):
    """To a GET. `headers` name at least a Content-Type, and are the answer's own from here on."""

    def __init__(self, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        headers[hdrs.CONTENT_LENGTH] = str(len(body))
        super().__init__(status=status, headers=headers)
        self._bytes = body
        self._writer: AbstractStreamWriter | None = None

    @property
    def prepared(self) -> bool:
        return self._writer is not None

    @property
    def keep_alive(self) -> bool:
        return super().keep_alive is not False

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter:
        if self._writer is None:
            self._writer = request.writer
            self._set_connection(request)
            headers = self.headers
            headers[hdrs.DATE] = http_date(int(time.time()))
            major, minor = request.version
            await self._writer.write_headers(f"HTTP/{major}.{minor} {self.status} {self.reason}", headers)
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        assert self._writer is not None and not data
        await self._writer.write_eof(self._bytes)

    def _set_connection(self, request: BaseRequest) -> None:
        if not request.keep_alive:
            self.force_close()
        if request.version < (1, 1):
            if self.keep_alive:
                self.headers[hdrs.CONNECTION] = "keep-alive"
        elif not self.keep_alive:
            self.headers[hdrs.CONNECTION] = "close"
