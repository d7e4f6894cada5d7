"""Objects replaced by socket and S3 while they are read through all doors at a time: every read is one whole version."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from mounted_store import Mounted
from version_stress import FileReaders, Stress

from mooncask.client.http import HttpClient
from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind

LENGTHS = (48, 4096, 70_000, 300_000, 1_500_000)
"""Of one block each."""
LONG = (300_000, 3_000_000)
"""Some in parts: longer than a block of these tests' daemon."""


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, LONG])
def test_every_read_is_one_whole_version(mounted: Mounted, lengths: tuple[int, ...], mapped: bool) -> None:
    _stress(mounted, lengths, 1.8, mapped=mapped)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, LONG])
def test_every_read_is_one_whole_version_for_longer(mounted: Mounted, lengths: tuple[int, ...], mapped: bool) -> None:
    _stress(mounted, lengths, 9.0, mapped=mapped)


def _stress(mounted: Mounted, lengths: tuple[int, ...], seconds: float, *, mapped: bool) -> None:
    """`mapped`: one program maps the files too. Its pages are everybody's who opened the file before the mount knew it in two
    versions (docs/MOUNT.md), so nobody does."""
    folder, stress = mounted.objects(), Stress(range(4), lengths, seconds)
    bucket, handle = folder.handle.name, folder.handle
    files = FileReaders(stress, folder.blocks)
    one_block = [length for length in lengths if length <= mounted.client.welcome.block_bytes_max]
    with (
        LocalClient.connect(mounted.daemon.socket_path, deadline_seconds=10) as writer,
        HttpClient.beside(mounted.daemon.socket_path) as http,
        HttpClient.beside(mounted.daemon.socket_path) as reading,
    ):
        own = writer.open_namespace(bucket, kind=NamespaceKind.OBJECT)

        def put(number: int) -> None:
            http.put(bucket, str(number), stress.next_version(number))

        def put_by_socket(number: int) -> None:
            data = stress.next_version(number)
            if len(data) in one_block:
                writer.put(own, [str(number).encode()], [data])

        def get(number: int) -> None:
            stress.note("S3", number, reading.get(bucket, str(number)))

        def acquire(number: int) -> None:
            if len(one_block) < len(lengths):
                return
            with mounted.client.acquire(handle, [str(number).encode()]) as blocks:
                assert blocks[0] is not None
                stress.note("socket", number, bytes(blocks[0].memory))

        for number in stress.numbers:
            put(number)
            if mapped:
                _known_in_two_versions(folder.blocks / str(number), partial(put, number))
        names = [str(number) for number in stress.numbers]
        mapper = subprocess.Popen(
            [
                sys.executable,
                sys.modules[Stress.__module__].__file__ or "",
                str(folder.blocks),
                *(names if mapped else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            stress.run(put, put_by_socket, get, acquire, files.whole, files.pieces, files.kept_open)
        finally:
            files.close()
            said, errors = mapper.communicate()
    assert not stress.odd + said.splitlines(), (stress.done, errors)
    assert all(stress.done[door] for door in ("S3", "whole", "pieces", "kept")) and (not mapped or "right" in errors)


def _known_in_two_versions(path: Path, replace: Callable[[], None]) -> None:
    assert path.stat().st_size
    replace()
    with path.open("rb", buffering=0) as file:
        assert file.read(1)
