"""`export` and `import` between two real daemons: a prompt hits where it was imported, a run that was stopped goes on, and
bytes that changed on the way are not stored. The bucket is one of a daemon's own S3 door."""

import os
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import WORDS, CommandLine
from daemon_process import DaemonProcess
from xxhash import xxh3_128_hexdigest

from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient
from mooncask.client.wire import BlockStat
from mooncask.tools.transfer.archive import open_reader, open_writer
from mooncask.tools.transfer.bucket_archive import INDEX_BLOCKS
from mooncask.tools.transfer.manifest import Entry, Manifest
from mooncask.tools.transfer.order import parents_first

FAMILY = {"model": "m", "block_tokens": "2"}
SHARD = "tp 0/1"
BLOCKS = 12


@dataclass(frozen=True)
class Node:
    daemon: DaemonProcess
    command: CommandLine

    def client(self) -> LocalClient:
        return LocalClient.connect(self.daemon.socket_path, deadline_seconds=30.0)

    def put_chain(self, name: str, blocks: int = BLOCKS, size: int = 40_000) -> list[bytes]:
        with self.client() as client:
            namespace = client.open_namespace(name, FAMILY, SHARD)
            keys = chain(namespace.root(), list(range(2 * blocks)), 2)
            payloads = [os.urandom(size + i) for i in range(blocks)]
            parents, depths = [namespace.root(), *keys[:-1]], range(1, blocks + 1)
            client.put(namespace, keys, payloads, parents=parents, depths=depths, tokens=[2] * blocks)
        return keys

    def matched(self, name: str, keys: list[bytes]) -> int:
        with self.client() as client:
            return len(client.match(client.open_namespace(name, FAMILY, SHARD, create=False), keys))

    def payloads(self, name: str, keys: list[bytes]) -> list[bytes]:
        with self.client() as client:
            namespace = client.open_namespace(name, FAMILY, SHARD, create=False)
            with client.acquire(namespace, keys) as blocks:
                return [bytes(block.memory) for block in blocks if block is not None]

    def stats(self, name: str, keys: list[bytes]) -> list[BlockStat]:
        with self.client() as client:
            namespace = client.open_namespace(name, FAMILY, SHARD, create=False)
            return [found for found in client.stat(namespace, keys) if found is not None]


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    with tempfile.TemporaryDirectory(prefix="mc-") as name:
        folders = [Path(name) / letter for letter in "ab"]
        for folder in folders:
            folder.mkdir()
        with DaemonProcess.start(folders[0]) as a, DaemonProcess.start(folders[1]) as b:
            yield Node(a, CommandLine(a.socket_path)), Node(b, CommandLine(b.socket_path))


def test_a_prompt_hits_in_the_daemon_that_imported_its_blocks(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = nodes
    keys = here.put_chain("moves")
    with here.client() as client:
        client.set_ttl(client.open_namespace("moves", FAMILY, SHARD, create=False), keys[-1:], 1000)
    assert here.command.json("export", "moves", str(tmp_path / "x.tar"))["blocks"] == BLOCKS
    assert there.command.json("import", str(tmp_path / "x.tar"))["blocks"] == BLOCKS
    assert there.matched("moves", keys) == BLOCKS
    assert there.payloads("moves", keys) == here.payloads("moves", keys)
    for was, now in zip(here.stats("moves", keys), there.stats("moves", keys), strict=True):
        assert (was.parent, was.depth, was.tokens, was.checksum) == (now.parent, now.depth, now.tokens, now.checksum)
    assert there.stats("moves", keys)[-1].ttl_seconds > 900
    assert there.command.json("stat", "moves")["family"] == FAMILY


def test_the_tar_holds_parents_before_what_continues_them(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    keys = nodes[0].put_chain("ordered")
    nodes[0].command.run("export", "ordered", str(tmp_path / "x.tar"))
    with tarfile.open(tmp_path / "x.tar") as tar:
        names = [member.name for member in tar]
    assert names[1:-1] == [f"blocks/{key.hex()}" for key in keys]


def test_an_export_that_was_cut_goes_on_at_its_last_whole_block(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = nodes
    keys, tar = here.put_chain("cut"), tmp_path / "x.tar"
    here.command.run("export", "cut", str(tar))
    whole = tar.read_bytes()
    for length in (len(whole) // 2, len(whole) // 2 + 700, 3000):
        tar.write_bytes(whole[:length])
        result = here.command.json("export", "cut", str(tar))
        assert result["blocks"] + result["already"] == BLOCKS and result["blocks"] > 0
        assert tar.read_bytes() == whole
    assert there.command.json("import", str(tar), "cut-here")["blocks"] == BLOCKS
    assert there.matched("cut-here", keys) == BLOCKS


def test_an_unfinished_export_imports_what_it_has_and_says_so(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = nodes
    keys, tar = here.put_chain("half"), tmp_path / "x.tar"
    here.command.run("export", "half", str(tar))
    whole = tar.read_bytes()
    tar.write_bytes(whole[: len(whole) // 2])
    said = there.command.error("import", str(tar), expect=65)
    assert "unfinished" in said and "export again" in said
    begun = there.matched("half", keys)
    assert 0 < begun < BLOCKS
    tar.write_bytes(whole)
    assert there.command.json("import", str(tar)) | {"source": "", "size_bytes": 0} == {
        "source": "",
        "namespace": "half",
        "blocks": BLOCKS - begun,
        "size_bytes": 0,
        "already": begun,
        "expired": 0,
        "wrong": [],
        "finished": True,
    }
    assert there.matched("half", keys) == BLOCKS


def test_a_second_export_adds_what_came_meanwhile(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here = nodes[0]
    here.put_chain("grows", blocks=4)
    here.command.run("export", "grows", str(tmp_path / "x.tar"))
    here.put_chain("grows", blocks=6)
    result = here.command.json("export", "grows", str(tmp_path / "x.tar"))
    assert (result["blocks"], result["already"]) == (2, 4)


def test_bytes_that_changed_in_the_tar_are_not_stored(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = nodes
    keys, tar = here.put_chain("flipped"), tmp_path / "x.tar"
    here.command.run("export", "flipped", str(tar))
    data = bytearray(tar.read_bytes())
    with tarfile.open(tar) as opened:
        place = opened.getmember(f"blocks/{keys[3].hex()}").offset_data
    data[place + 100] ^= 1
    tar.write_bytes(data)
    said = there.command.error("import", str(tar), expect=65)
    assert keys[3].hex() in said and "not stored" in said
    assert there.matched("flipped", keys) == 3
    assert len(there.stats("flipped", keys)) == BLOCKS - 1


def test_a_tar_goes_through_a_pipe(nodes: tuple[Node, Node]) -> None:
    here, there = nodes
    keys = here.put_chain("piped", blocks=3)
    out = here.command.spawn("export", "piped", "-")
    assert out.returncode == 0 and b"3 blocks" in out.stderr
    into = there.command.spawn("import", "-", stdin=out.stdout)
    assert into.returncode == 0, into.stderr
    assert there.matched("piped", keys) == 3


def test_a_bucket_takes_an_export_and_gives_it_back(nodes: tuple[Node, Node]) -> None:
    pytest.importorskip("obstore", reason="the package obstore (extra s3) is not installed")
    here, there = nodes
    keys = here.put_chain("buckets")
    endpoint = f"http://{there.daemon.http_address}"
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/exports", method="PUT")):
        pass
    words = ("s3://exports/a/b", "--endpoint-url", endpoint)
    assert here.command.json("export", "buckets", *words)["blocks"] == BLOCKS
    assert here.command.json("export", "buckets", *words)["already"] == BLOCKS
    assert there.command.json("import", *words)["blocks"] == BLOCKS
    assert there.matched("buckets", keys) == BLOCKS
    assert there.payloads("buckets", keys) == here.payloads("buckets", keys)
    block = f"a/b/blocks/{keys[2].hex()}"
    there.command.run("put", "exports", block, "-", stdin=b"x" * 40_002)
    assert keys[2].hex() in there.command.error("import", words[0], "buckets-b", *words[1:], expect=65)


def test_a_bucket_export_that_was_killed_goes_on_behind_its_last_index(nodes: tuple[Node, Node]) -> None:
    pytest.importorskip("obstore", reason="the package obstore (extra s3) is not installed")
    there = nodes[1]
    there.command.run("namespaces", "create", "killed-exports")
    endpoint = f"http://{there.daemon.http_address}"
    manifest = Manifest(namespace="n", kind="object")
    payload = b"some bytes"

    def entry(i: int) -> Entry:
        return Entry(key=f"{i:08x}", size=len(payload), checksum=xxh3_128_hexdigest(payload))

    with open_writer("s3://killed-exports/x", manifest, endpoint) as writer:
        for i in range(INDEX_BLOCKS + 5):
            writer.add(entry(i), [payload])
    begun = open_reader("s3://killed-exports/x", endpoint)
    assert not begun.finished
    assert [found.key for found, _ in begun.blocks()] == [entry(i).key for i in range(INDEX_BLOCKS)]
    with open_writer("s3://killed-exports/x", manifest, endpoint) as writer:
        assert len(writer.already) == INDEX_BLOCKS
        for i in range(INDEX_BLOCKS, INDEX_BLOCKS + 5):
            writer.add(entry(i), [payload])
        writer.finish()
    ended = open_reader("s3://killed-exports/x", endpoint)
    assert ended.finished
    assert [b"".join(bytes_.chunks()) for _, bytes_ in ended.blocks()] == [payload] * (INDEX_BLOCKS + 5)


def test_a_bucket_that_wants_signatures_gets_them_from_the_usual_variables(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    pytest.importorskip("obstore", reason="the package obstore (extra s3) is not installed")
    here = nodes[0]
    long = os.urandom(17 << 20)
    here.command.run("put", "signed-objects", "long", "-", stdin=long)
    settings = {"credentials.KEYID.secret": "a secret of some length"}
    with DaemonProcess.start(tmp_path, settings) as daemon:
        CommandLine(daemon.socket_path).run("namespaces", "create", "signed")
        words = ("s3://signed/x", "--endpoint-url", f"http://{daemon.http_address}")
        assert "AWS_ACCESS_KEY_ID" in here.command.error("export", "signed-objects", *words, expect=77)
        keys = {"AWS_ACCESS_KEY_ID": "KEYID", "AWS_SECRET_ACCESS_KEY": settings["credentials.KEYID.secret"]}
        command = CommandLine(here.daemon.socket_path, keys)
        assert command.json("export", "signed-objects", *words)["blocks"] == 1
        assert command.json("import", words[0], "signed-back", *words[1:])["blocks"] == 1
    here.command.run("get", "signed-back", "long", "--output", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == long


def test_a_bucket_that_is_not_there_and_an_endpoint_that_is_down_are_named(nodes: tuple[Node, Node]) -> None:
    pytest.importorskip("obstore", reason="the package obstore (extra s3) is not installed")
    here, there = nodes
    here.put_chain("nowhere", blocks=1)
    endpoint = f"http://{there.daemon.http_address}"
    assert "s3://absent-bucket/x" in here.command.error(
        "export", "nowhere", "s3://absent-bucket/x", "--endpoint-url", endpoint, expect=64
    )
    said = here.command.error("export", "nowhere", "s3://b/x", "--endpoint-url", "http://127.0.0.1:9", expect=74)
    assert "s3://b/x" in said and "run it again" in said


def test_objects_keep_their_names_bytes_and_headers(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here, there = nodes
    objects = {"plain": b"abc", "a folder/with + and %/é": b"x" * 100_000, "empty": b"", "long": os.urandom(17 << 20)}
    for key, data in objects.items():
        here.command.run("put", "things", key, "-", stdin=data)
    objects["typed"] = b"{}"
    headers = {"Content-Type": "application/json", "Cache-Control": "max-age=5", "x-amz-meta-who": "me"}
    url = f"http://{here.daemon.http_address}/things/typed"
    with urllib.request.urlopen(urllib.request.Request(url, objects["typed"], headers, method="PUT")):
        pass
    result = here.command.json("export", "things", str(tmp_path / "x.tar"))
    assert result["blocks"] == len(objects)
    assert there.command.json("import", str(tmp_path / "x.tar"))["blocks"] == len(objects)
    for key, data in objects.items():
        there.command.run("get", "things", key, "--output", str(tmp_path / "out"))
        assert (tmp_path / "out").read_bytes() == data
    with urllib.request.urlopen(f"http://{there.daemon.http_address}/things/typed") as answer:
        assert {name: answer.headers[name] for name in headers} == headers
    assert there.command.json("import", str(tmp_path / "x.tar"))["already"] == len(objects)
    assert here.command.json("export", "things", str(tmp_path / "x.tar"))["already"] == len(objects)


def test_another_namespace_does_not_go_into_the_same_tar(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here = nodes[0]
    here.put_chain("first", blocks=1)
    here.command.run("put", "second", "k", "-", stdin=b"x")
    here.command.run("export", "first", str(tmp_path / "x.tar"))
    assert "choose another target" in here.command.error("export", "second", str(tmp_path / "x.tar"), expect=64)


def test_a_file_of_somebody_elses_is_neither_read_nor_overwritten(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    here = nodes[0]
    here.put_chain("mine", blocks=1)
    (tmp_path / "notes").write_text("not a tar\n" * 200)
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(tmp_path / "notes", "notes")
    for name in ("notes", "other.tar"):
        before = (tmp_path / name).read_bytes()
        for words in (["export", "mine", str(tmp_path / name)], ["import", str(tmp_path / name)]):
            assert name in here.command.error(*words, expect=64)
        assert (tmp_path / name).read_bytes() == before
    assert "a tar file" in here.command.error("export", "mine", "ftp://x/y", expect=64)


def test_ctrl_c_leaves_an_export_that_can_be_gone_on_with(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    """Stopped while its reader, a pipe that nobody empties, keeps it waiting; the pipe's bytes are the tar so far."""
    here = nodes[0]
    here.put_chain("stopped", blocks=12, size=200_000)
    process = subprocess.Popen(
        [*WORDS, "export", "stopped", "-"],
        env={**os.environ, **here.command.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    begin = process.stdout.read(300_000)
    process.send_signal(2)
    rest, said = process.communicate(timeout=30)
    assert process.returncode == 130 and b"goes on from there" in said, (process.returncode, said)
    (tmp_path / "x.tar").write_bytes(begin + rest)
    result = here.command.json("export", "stopped", str(tmp_path / "x.tar"))
    assert result["already"] >= 1 and result["blocks"] + result["already"] == 12


def test_blocks_are_put_in_order_by_parents_whatever_their_depths_say() -> None:
    def block(key: bytes, parent: bytes, depth: int) -> BlockStat:
        return BlockStat(key, 1, [2], b"", parent, depth, 2, 0, 0, 0, 0.0, False, time.time())

    blocks = [
        block(b"c", b"b", 0),
        block(b"a", b"root", 5),
        block(b"b", b"a", 0),
        block(b"x", b"y", 0),
        block(b"y", b"x", 0),
    ]
    ordered = [found.key for found in parents_first(blocks)]
    assert sorted(ordered) == [b"a", b"b", b"c", b"x", b"y"]
    assert ordered.index(b"a") < ordered.index(b"b") < ordered.index(b"c")
