"""docs/PEERS.md describes the messages between nodes: numbers, fields in order, and bounds."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from mooncask.daemon.transport import authentication as auth
from mooncask.daemon.transport import endpoint, messages, pool
from mooncask.daemon.transport.served_leases import LeaseLimits
from mooncask.daemon.transport.tcp.channel import UNSENT_BYTES_MAX
from mooncask.daemon.transport.tcp.settings import LinkSettings, ServeSettings

DOCUMENT = (Path(__file__).parents[2] / "docs" / "PEERS.md").read_text()
SERVE, LINK = ServeSettings(LeaseLimits(1, 1)), LinkSettings()


def described() -> dict[str, list[str]]:
    """Message -> its fields as the page has them."""
    parts = re.split(r"^##+ ", DOCUMENT, flags=re.MULTILINE)
    found = [(re.match(r"(\d+) (\w+)\n", part), part) for part in parts]
    return {
        f"{head[1]} {head[2]}": re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE)
        for head, part in found
        if head is not None
    }


def in_code() -> dict[str, list[str]]:
    kinds = [kind for _, kind in inspect.getmembers(messages, inspect.isclass) if issubclass(kind, messages.Message)]
    return {
        f"{kind.__struct_config__.tag} {kind.__name__}": [name for name in kind.__struct_fields__ if name != "id"]
        for kind in kinds
        if kind is not messages.Message
    }


def test_every_message_is_described_with_its_number_and_its_fields_in_order() -> None:
    assert described() == in_code()


@pytest.mark.parametrize("kind", [messages.ReadPieces, auth.Introduction, auth.Proof])
def test_other_arrays_are_described_with_their_fields_in_order(kind: type[msgspec.Struct]) -> None:
    (line,) = (
        line for line in DOCUMENT.splitlines() if re.search(rf"^A {kind.__name__} is|client \| {kind.__name__} ", line)
    )
    assert list(dict.fromkeys(re.findall(r"`(\w+)`", line)))[: len(kind.__struct_fields__)] == list(
        kind.__struct_fields__
    )


@pytest.mark.parametrize(
    "text",
    [
        f"Version {auth.PROTOCOL}.",
        f"`{auth.MAGIC.decode()}`",
        f"preamble of {auth.PREAMBLE_BYTES} bytes",
        f"length of at most {auth.HANDSHAKE_FRAME_BYTES_MAX:,}",
        f"`nonce` ({auth.NONCE_BYTES} random bytes)",
        f"{auth.TOKEN_BYTES} random bytes that name the link",
        f"takes more than {SERVE.handshake_seconds:g} s is cut",
        f"at most {messages.FRAME_BYTES_MAX:,}\n",
        f"1 to {messages.KEYS_MAX:,} keys of 1 to {messages.KEY_BYTES_MAX:,} bytes",
        f"At most {messages.ASK_BYTES_MAX:,} bytes",
        f"1 to {messages.PIECES_MAX:,} pieces",
        f"header of {messages.ANSWER_BYTES} bytes",
        f"Sent every {LINK.keepalive_seconds:g} s",
        f"nothing for {LINK.silence_seconds:g} s",
        f"leases of a link | {endpoint.LEASES_OF_A_LINK_MAX:,},",
        f"under way | {SERVE.requests_max}",
        f"data connections of a link | {SERVE.connections_of_a_link_max}",
        f"links to a node | {SERVE.links_max}, and {SERVE.links_of_a_peer_max} of one peer",
        f"in their handshake | {SERVE.handshakes_max}",
        f"unsent answers | {UNSENT_BYTES_MAX >> 20} MiB",
        f"| {pool.BACKOFF_SECONDS:g} s, doubled with each failure up to {pool.BACKOFF_SECONDS_MAX:g} s",
    ],
)
def test_a_bound_on_the_page_is_the_one_in_the_code(text: str) -> None:
    assert text in DOCUMENT


def test_both_sides_end_a_silent_link_after_the_same_time() -> None:
    assert SERVE.silence_seconds == LINK.silence_seconds
    assert endpoint.SHARE_OF_A_LINK == 0.25
