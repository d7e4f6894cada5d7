"""Without credentials: everybody on this machine is let in, but no page of a foreign site; and files that must be right."""

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from http_door import running_http
from s3_daemon import tls_settings

from mooncask.daemon.config import Config, CredentialSection, HttpSection
from mooncask.daemon.config_source import load_config
from mooncask.daemon.http.browsers import is_from_foreign_page
from mooncask.daemon.http.callers.credentials import load_credentials
from mooncask.daemon.http.tls import tls_context
from mooncask.errors import ConfigError

SECRET = "a-secret-of-tests"


# --- anonymous callers -----------------------------------------------------------------------------------------------


async def test_signed_requests_are_taken_without_a_look_at_the_signature() -> None:
    """Many clients sign whatever they are given; here there is no secret to check it with."""
    async with running_http() as http:
        header = "AWS4-HMAC-SHA256 Credential=any/20130524/us-east-1/s3/aws4_request,SignedHeaders=host,Signature=any"
        assert (await http.ask("PUT", "/photos", headers={"Authorization": header}))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example:80"}, {"Sec-Fetch-Site": "cross-site"}],
)
async def test_a_foreign_page_in_a_browser_is_refused(headers: dict[str, str]) -> None:
    async with running_http() as http:
        for method, path in (("GET", "/"), ("PUT", "/photos"), ("GET", "/-/v1/status"), ("GET", "/-/metrics")):
            assert await http.error(method, path, headers=headers) == (403, "AccessDenied")
        assert (await http.ask("GET", "/-/healthz", headers=headers))[0] == 200


@pytest.mark.parametrize(
    ("host", "foreign"),
    [
        ("127.0.0.1:9470", False),
        ("[::1]:9470", False),
        ("localhost:9470", False),
        ("bucket.localhost", False),
        ("node-7", False),
        ("s3.example:80", False),
        ("bucket.s3.example", False),
        ("S3.Example", False),
        ("evils3.example", True),
        ("example", False),
        ("1.2.3.4.5", True),
        ("evil.example", True),
    ],
)
def test_names_that_can_only_be_this_machines(host: str, foreign: bool) -> None:
    assert is_from_foreign_page({"host": host}, "s3.example") is foreign


def test_what_a_browser_says_of_the_page_decides() -> None:
    for site, foreign in (("none", False), ("same-origin", False), ("same-site", True), ("cross-site", True)):
        assert is_from_foreign_page({"host": "127.0.0.1", "sec-fetch-site": site}, "") is foreign


async def test_a_token_guards_the_pages_also_where_no_key_is_configured() -> None:
    async with running_http({"http.admin_token": "a-token-for-pages"}) as http:
        assert (await http.ask("PUT", "/photos"))[0] == 200
        assert await http.error("GET", "/-/v1/status") == (403, "AccessDenied")
        right = {"Authorization": "Bearer a-token-for-pages"}
        assert (await http.ask("GET", "/-/v1/status", headers=right))[0] == 200


async def test_an_empty_token_opens_nothing() -> None:
    """Where keys are configured and no token is."""
    async with running_http({"credentials.KEY1.secret": SECRET}) as http:
        for given in ("Bearer", "Bearer ", "bearer  "):
            answer = await http.error("GET", "/-/v1/status", headers={"Authorization": given})
            assert answer == (403, "AccessDenied")


# --- files -----------------------------------------------------------------------------------------------------------


def with_file(path: Path) -> Config:
    return Config(credentials={"KEY": CredentialSection(secret_file=str(path), tenant="team", rights="read")})


def test_a_secret_comes_from_a_file_that_only_its_owner_may_open(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    found = load_credentials(with_file(path))["KEY"]
    assert found.secret == SECRET and found.caller.tenant == "team" and not found.caller.may_write
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"KEY.secret_file.*0640.*chmod 600"):
        load_credentials(with_file(path))


@pytest.mark.parametrize("content", [b"", b"short", b"two words are no secret", b"\xff" * 20, b"x" * 5000])
def test_a_file_that_holds_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="must hold one secret") as caught:
        load_credentials(with_file(path))
    assert "words" not in caught.value.message and caught.value.__cause__ is None


def test_a_secret_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.*No such file"):
        load_credentials(with_file(tmp_path / "none"))


def http_of(settings: dict[str, Any]) -> HttpSection:
    return load_config(None, {}, {"http": {name.removeprefix("http."): value for name, value in settings.items()}}).http


def test_tls_begins_with_version_1_2(tmp_path: Path) -> None:
    context = tls_context(http_of(tls_settings(tmp_path)))
    assert context is not None and context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert tls_context(HttpSection()) is None


def test_tls_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    good, other = tls_settings(first), tls_settings(second)
    (tmp_path / "text").write_text("hello")
    for change in (
        {"http.tls_key": other["http.tls_key"]},
        {"http.tls_key": str(tmp_path / "text")},
        {"http.tls_certificate": str(tmp_path / "text")},
        {"http.tls_certificate": str(tmp_path / "none")},
    ):
        with pytest.raises(ConfigError, match=r"http\.tls_certificate"):
            tls_context(http_of({**good, **change}))


def test_a_key_with_a_passphrase_is_refused_without_a_question(tmp_path: Path) -> None:
    good = tls_settings(tmp_path)
    locked = tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(Path(str(good["http.tls_key"])).read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"word")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    with pytest.raises(ConfigError, match="passphrase"):
        tls_context(http_of({**good, "http.tls_key": str(locked)}))


async def test_no_credential_and_no_token_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = {"credentials.KEY1.secret": SECRET, "http.admin_token": "a-token-for-pages"}
    async with running_http(settings) as http:
        await http.ask("GET", "/", headers={"Authorization": "Bearer a-token-for-pages"})
        await http.ask("GET", "/-/v1/status", headers={"Authorization": "Bearer a-token-for-pages"})
        assert SECRET not in repr(vars(http.daemon.http))
    assert SECRET not in caplog.text and "a-token-for-pages" not in caplog.text
