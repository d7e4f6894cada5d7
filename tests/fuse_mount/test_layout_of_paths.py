"""What paths mean, what attributes say, and which errno an error is: the pure parts."""

import errno

import pytest

from mooncask.client.wire import BlockStat
from mooncask.errors import Busy, DaemonUnavailable, DeadlineExceeded, NoSuchBlock, QuotaExceeded
from mooncask.fuse_mount import layout, xattrs
from mooncask.fuse_mount.attributes import version_ns
from mooncask.fuse_mount.failures import errno_of
from mooncask.fuse_mount.mounts import parse_mounts

KEY = bytes(range(16))
HEX = KEY.hex().encode()


def block(checksum: bytes = bytes(16), **fields: object) -> BlockStat:
    known = {"size": 10, "tiers": [3, 2], "parent": b"", "depth": 0, "tokens": 0, "hits": 4, "pins": 0, "leases": 0}
    rest = {"ttl_seconds": 0.0, "durable": True, "created_seconds": 1000.0}
    return BlockStat(key=KEY, checksum=checksum, **{**known, **rest, **fields})


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (b"/", layout.Root()),
        (b"/.mooncask/stats", layout.OwnPage(b"stats")),
        (b"/ns/blocks", layout.InBlocks(b"ns", ())),
        (b"/ns/blocks/a/b", layout.InBlocks(b"ns", (b"a", b"b"))),
        (b"/ns/by-digest/00/01", layout.DigestFolder(b"ns", b"\0\1")),
        (b"/ns/by-digest/00/01/" + HEX, layout.DigestBlock(b"ns", KEY)),
        (b"/ns/chains/" + HEX, layout.ChainFolder(b"ns", KEY)),
        (b"/ns/chains/" + HEX + b"/000007-" + HEX, layout.ChainBlock(b"ns", KEY, 7, KEY)),
        (b"/ns/chains/" + HEX + b"/next/" + HEX, layout.NextLink(b"ns", KEY, KEY)),
        (b"/ns/chains/" + HEX + b"/.info", layout.ChainInfo(b"ns", KEY)),
    ],
)
def test_paths_mean_places(path: bytes, place: layout.Place) -> None:
    assert layout.parse(path) == place


@pytest.mark.parametrize(
    "path",
    [
        b"/.mooncask/x",
        b"/ns/other",
        b"/ns/by-digest/0",
        b"/ns/by-digest/AB",
        b"/ns/by-digest/00/02/" + HEX,
        b"/ns/chains/" + HEX.upper(),
        b"/ns/chains/" + HEX + b"/7-" + HEX,
    ],
)
def test_one_thing_has_one_path(path: bytes) -> None:
    with pytest.raises(OSError) as raised:
        layout.parse(path)
    assert raised.value.errno == errno.ENOENT


def test_a_version_is_told_by_the_fraction_of_its_time() -> None:
    assert version_ns(block(b"\1" * 16)) != version_ns(block(b"\2" * 16))
    assert version_ns(block(b"\1" * 16)) // 10**9 == 1000


def test_attributes_name_the_fastest_tier_first_and_leave_out_what_is_unknown() -> None:
    assert xattrs.values(block(), is_kv=True)["tier"] == "dram,nvme"
    assert "parent" not in xattrs.values(block(), is_kv=True)
    assert xattrs.values(block(parent=b"\1" * 16), is_kv=True)["parent"] == "01" * 16
    assert xattrs.values(block(), is_kv=False).keys().isdisjoint({"parent", "depth", "tokens"})


def test_a_daemon_that_is_away_is_an_io_error_and_the_rest_its_own() -> None:
    assert errno_of(DaemonUnavailable("s", "why")) == errno_of(DeadlineExceeded("x", 1)) == errno.EIO
    assert errno_of(NoSuchBlock("n", "k")) == errno.ENOENT
    assert errno_of(QuotaExceeded("t", 1, 1)) == errno.EDQUOT
    assert errno_of(Busy("x")) == errno.EAGAIN


def test_mounts_with_odd_names_are_found() -> None:
    text = "36 35 0:39 / /mnt/a\\040b rw shared:1 - fuse.mooncask mooncask rw,user_id=0\n"
    (found,) = parse_mounts(text)
    assert (found.path, found.device, found.is_ours) == ("/mnt/a b", "0:39", True)
