"""What two ends tell each other, and what is refused of it."""

import re
from pathlib import Path

import msgspec
import pytest

from mooncask.daemon.transport.rdma.exchange import (
    VERSION,
    Acceptance,
    End,
    Offer,
    encode,
    parse_acceptance,
    parse_offer,
    regions_of,
)
from mooncask.daemon.transport.rdma.regions import Region
from mooncask.errors import BadRequest

END = End("ethernet", "::ffff:10.0.0.5", 0, 3, 17, 0xABCDEF, 16)
DOCUMENT = (Path(__file__).parents[2] / "docs" / "PEERS.md").read_text()
OFFER = Offer(VERSION, END)
ACCEPTANCE = Acceptance(END, [Region(0, 4096, 1 << 40, 7), Region(4096, 100, 1 << 41, 8)], bytes(32), 1 << 42, 9)


def test_what_is_sent_is_what_arrives() -> None:
    assert parse_offer(encode(OFFER)) == OFFER
    assert parse_acceptance(encode(ACCEPTANCE)) == ACCEPTANCE
    assert regions_of(ACCEPTANCE).size_bytes == 4196


@pytest.mark.parametrize(
    "changes",
    [
        {"gid": "10.0.0.5"},
        {"queue_pair": 1 << 24},
        {"queue_pair": -1},
        {"packet": 1 << 24},
        {"lid": 1 << 16},
        {"mtu": 0},
        {"mtu": 6},
        {"reads": 0},
    ],
)
def test_numbers_that_no_queue_pair_has_are_refused(changes: dict[str, object]) -> None:
    end = msgspec.structs.replace(END, **changes)
    with pytest.raises(BadRequest):
        parse_offer(encode(Offer(VERSION, end)))
    with pytest.raises(BadRequest):
        parse_acceptance(encode(msgspec.structs.replace(ACCEPTANCE, end=end)))


def test_another_version_is_named() -> None:
    with pytest.raises(BadRequest, match="version 2"):
        parse_offer(encode(Offer(2, END)))


@pytest.mark.parametrize(
    "changes", [{"regions": []}, {"regions": [Region(4096, 1, 1, 1)]}, {"nonce": b"short"}], ids=str
)
def test_an_acceptance_without_an_arena_or_a_nonce_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        parse_acceptance(encode(msgspec.structs.replace(ACCEPTANCE, **changes)))


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x92\x01\x90", b"\xff" * 40])
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_offer(payload)
    with pytest.raises(BadRequest):
        parse_acceptance(payload)


def test_the_page_of_the_protocol_has_every_field_in_order() -> None:
    section = DOCUMENT.partition("\n## RDMA\n")[2].partition("\n## ")[0]
    ends, regions = section.partition("| of a region |")[::2]
    fields = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    assert tuple(fields.findall(ends)) == End.__struct_fields__
    assert tuple(fields.findall(regions)) == Region.__struct_fields__
    arrays = [tuple(re.findall(r"`(\w+)`", array)) for array in re.findall(r"\[(`.*?`)\]", section)]
    assert arrays == [Offer.__struct_fields__, Acceptance.__struct_fields__]
