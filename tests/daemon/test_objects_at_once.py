"""Many readers and writers of few long objects at once: every answer is one version, whole, and nothing is left at the end."""

import asyncio
import random
from pathlib import Path

import pytest
from child_processes import until
from http_door import Http, running_http, settled
from object_driver import CHUNK, MIB, SETTINGS, body, part_keys

KEYS = 5
STEPS = 60
CLIENTS = 8
SIZES = (0, 17, CHUNK, CHUNK + 1, 3 * CHUNK + 5, 6 * CHUNK)


def stamped(stamp: int, size: int) -> bytes:
    """Its own description, then what the description says."""
    head = b"%020d%020d" % (stamp, size)
    return head + body(size, stamp)


def check(data: bytes) -> None:
    assert data == stamped(int(data[:20]), int(data[20:40]))


class Client:
    """One of them. What it may see of a key: any version that was ever put, or nothing."""

    def __init__(self, http: Http, number: int) -> None:
        self.http, self.random = http, random.Random(number)
        self.stamp = number * 1_000_000

    async def run(self) -> None:
        for _ in range(STEPS):
            await self.random.choice([self.put, self.put, self.upload, self.get, self.get, self.range, self.delete])(
                f"/photos/k{self.random.randrange(KEYS)}"
            )

    def version(self) -> bytes:
        self.stamp += 1
        return stamped(self.stamp, self.random.choice(SIZES))

    async def put(self, path: str) -> None:
        status, answer, _ = await self.http.ask("PUT", path, data=self.version())
        assert status == 200, answer

    async def upload(self, path: str) -> None:
        data = stamped(self.stamp + 1, 5 * MIB)
        self.stamp += 1
        _, answer, _ = await self.http.ask("POST", f"{path}?uploads")
        name = answer.decode().partition("<UploadId>")[2].partition("<")[0]
        tags = []
        for number, part in enumerate((data[: 5 * MIB], data[5 * MIB :]), 1):
            status, text, headers = await self.http.ask("PUT", f"{path}?partNumber={number}&uploadId={name}", data=part)
            assert status == 200, text
            tags.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{headers['ETag']}</ETag></Part>")
        if self.random.random() < 0.3:
            assert (await self.http.ask("DELETE", f"{path}?uploadId={name}"))[0] == 204
            return
        document = f"<CompleteMultipartUpload>{''.join(tags)}</CompleteMultipartUpload>".encode()
        status, text, _ = await self.http.ask("POST", f"{path}?uploadId={name}", data=document)
        assert status == 200, text

    async def get(self, path: str) -> None:
        status, data, _ = await self.http.ask("GET", path)
        assert status in (200, 404), data
        if status == 200:
            check(data)

    async def range(self, path: str) -> None:
        status, data, headers = await self.http.ask("GET", path, headers={"Range": "bytes=0-39"})
        if status == 404:
            return
        assert status == 206 and int(headers["Content-Range"].partition("/")[2]) == 40 + int(data[20:40])

    async def delete(self, path: str) -> None:
        assert (await self.http.ask("DELETE", path))[0] == 204


@pytest.mark.slow
async def test_every_answer_is_one_whole_version_whatever_goes_on_beside(tmp_path: Path) -> None:
    settings = {**SETTINGS, "dram.capacity": "48MiB", "nvme.path": str(tmp_path), "nvme.capacity": "600MiB"}
    async with running_http(settings) as http:
        await http.ask("PUT", "/photos")
        await asyncio.gather(*(Client(http, number).run() for number in range(1, CLIENTS + 1)))
        bucket = http.daemon.store.namespace("photos")
        assert bucket is not None
        for number in range(KEYS):
            status, data, _ = await http.ask("GET", f"/photos/k{number}")
            if status == 200:
                check(data)
            await http.ask("DELETE", f"/photos/k{number}")
        await until(lambda: not part_keys(http.daemon, bucket))
        assert http.daemon.service.counters["objects_incomplete"] == 0
        assert http.daemon.store.counters["quarantined"] == 0
        await settled(http)
