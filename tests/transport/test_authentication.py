"""Proofs: each covers all that was said, fits one side only, and tells nothing of the secret that could be used again."""

import dataclasses
import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.daemon.transport import authentication as auth
from mooncask.errors import AccessDenied, BadRequest, MooncaskError, ProtocolMismatch

KEY = auth.derive_key("a secret")
SAID = auth.Transcript(b"preamble", b"PREAMBLE", b"certificate", b"CERTIFICATE", b"introduction", b"answer")


def test_both_sides_of_the_same_talk_come_to_the_same_proofs() -> None:
    again = dataclasses.replace(SAID)
    auth.check_proof(SAID.client_proof(KEY), again.client_proof(KEY), "peer")
    auth.check_proof(SAID.server_proof(KEY), again.server_proof(KEY), "peer")


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(auth.Transcript)])
def test_a_proof_covers_every_word_the_certificates_included(field: str) -> None:
    other = dataclasses.replace(SAID, **{field: getattr(SAID, field) + b"x"})
    for mine, theirs in ((SAID.client_proof, other.client_proof), (SAID.server_proof, other.server_proof)):
        with pytest.raises(AccessDenied):
            auth.check_proof(mine(KEY), theirs(KEY), "peer")


def test_words_cannot_be_moved_from_one_field_to_the_next() -> None:
    moved = dataclasses.replace(SAID, introduction=b"introductio", answer=b"nanswer")
    assert moved.client_proof(KEY) != SAID.client_proof(KEY)


def test_a_proof_is_what_the_page_says() -> None:
    """docs/PEERS.md, spelled out with nothing of ours."""
    key = hashlib.sha256(b"mooncask cluster secret 1\0" + b"a secret").digest()
    words = [b"client", b"preamble", b"PREAMBLE", b"certificate", b"CERTIFICATE", b"introduction", b"answer"]
    said = b"mooncask peers 1\0" + b"".join(struct.pack("<I", len(word)) + word for word in words)
    assert SAID.client_proof(KEY) == hmac.new(key, said, "sha256").digest()


def test_a_proof_cannot_be_sent_back_as_the_answer_to_itself() -> None:
    with pytest.raises(AccessDenied):
        auth.check_proof(SAID.server_proof(KEY), SAID.client_proof(KEY), "peer")


def test_another_secret_gives_another_proof_and_the_error_names_the_key_of_the_configuration() -> None:
    with pytest.raises(AccessDenied, match=r"peer n2 .*cluster\.secret"):
        auth.check_proof(SAID.client_proof(KEY), SAID.client_proof(auth.derive_key("b secret")), "n2")


def test_a_preamble_says_version_purpose_and_tls() -> None:
    for preamble in (auth.Preamble(1, auth.CONTROL, False), auth.Preamble(65535, auth.DATA, True)):
        assert auth.parse_preamble(preamble.encode()) == preamble
        assert len(preamble.encode()) == auth.PREAMBLE_BYTES


def test_a_preamble_that_does_not_fit_is_refused_by_what_does_not() -> None:
    ours = auth.Preamble(1, auth.CONTROL, True)
    with pytest.raises(ProtocolMismatch):
        auth.check_preamble(ours, auth.Preamble(2, auth.CONTROL, True))
    with pytest.raises(AccessDenied, match="TLS"):
        auth.check_preamble(ours, auth.Preamble(1, auth.CONTROL, False))
    with pytest.raises(BadRequest):
        auth.check_preamble(ours, auth.Preamble(1, auth.DATA, True))
    auth.check_preamble(ours, auth.Preamble(1, auth.CONTROL, True))


def test_a_refusal_in_the_place_of_a_proof_is_raised() -> None:
    with pytest.raises(AccessDenied, match="not you"):
        auth.parse_proof(auth.encode(auth.Refusal("AccessDenied", "not you")))
    assert auth.parse_proof(auth.encode(auth.Proof(b"mac", b"token"))) == auth.Proof(b"mac", b"token")


@pytest.mark.parametrize(
    "wrong",
    [
        auth.Introduction("n", bytes(15), "a:1", bytes(32)),
        auth.Introduction("n", bytes(16), "a:1", bytes(31)),
        auth.Introduction("", bytes(16), "a:1", bytes(32)),
        auth.Introduction("n" * 300, bytes(16), "a:1", bytes(32)),
        auth.Introduction("n\n", bytes(16), "a:1", bytes(32)),
    ],
)
def test_an_introduction_without_what_it_must_have_is_refused(wrong: auth.Introduction) -> None:
    with pytest.raises(BadRequest):
        auth.parse_introduction(auth.encode(wrong))


@given(st.binary(max_size=200))
def test_whatever_a_stranger_says_is_refused_with_an_error_of_ours(said: bytes) -> None:
    for parse in (auth.parse_preamble, auth.parse_introduction, auth.parse_proof):
        try:
            parse(said)
        except MooncaskError:
            continue


def test_credentials_show_no_key() -> None:
    from peer_world import SECRET, credentials_of

    shown = repr(credentials_of("n", "a:1", None))
    assert SECRET not in shown and repr(auth.derive_key(SECRET)) not in shown
