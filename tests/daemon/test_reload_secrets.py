"""SIGHUP with secrets: certificates, keys and the pages' token are changed under a daemon that goes on serving."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import ClientError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from daemon_process import DaemonProcess, Setting
from service_manager import ServiceManager

SECRETS = ("first-secret-value", "second-secret-value")


def write_certificate(folder: Path, name: str) -> None:
    """A self-signed one for `name` as cert.pem and key.pem, in the place of what is there."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def served_name(address: str, server_name: str | None) -> str:
    """The name in the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=server_name) as connection,
    ):
        shown = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True))
        return str(shown.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


@contextmanager
def running(
    tmp_path: Path, settings: dict[str, Setting], more: str = ""
) -> Iterator[tuple[DaemonProcess, ServiceManager]]:
    with ServiceManager() as manager, DaemonProcess(tmp_path, settings) as daemon:
        daemon.config_path.write_text(daemon.config_path.read_text() + more)
        daemon.environment = manager.environment
        daemon.run()
        manager.wait_for("READY=1")
        yield daemon, manager


def reload(daemon: DaemonProcess, manager: ServiceManager, before: str = "", after: str = "") -> str:
    text = daemon.config_path.read_text()
    daemon.config_path.write_text(text.replace(before, after) if before else text)
    os.kill(daemon.pid, signal.SIGHUP)
    return manager.status()


def tls(folder: Path) -> dict[str, Setting]:
    return {"http.tls_certificate": str(folder / "cert.pem"), "http.tls_key": str(folder / "key.pem")}


# --- certificates -------------------------------------------------------------------------------------------------------


def test_a_renewed_certificate_is_served_to_new_connections_with_and_without_a_server_name(tmp_path: Path) -> None:
    write_certificate(tmp_path, "first")
    with running(tmp_path, tls(tmp_path)) as (daemon, manager):
        assert served_name(daemon.http_address, None) == "first"
        write_certificate(tmp_path, "second")
        assert served_name(daemon.http_address, None) == "first"
        assert "read again" in reload(daemon, manager)
        assert served_name(daemon.http_address, None) == "second"
        assert served_name(daemon.http_address, "s3.example") == "second"
        write_certificate(tmp_path, "third")
        reload(daemon, manager)
        assert served_name(daemon.http_address, "s3.example") == "third"


def test_a_certificate_that_does_not_fit_its_key_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    write_certificate(tmp_path, "first")
    with running(tmp_path, tls(tmp_path)) as (daemon, manager):
        key = (tmp_path / "key.pem").read_bytes()
        write_certificate(tmp_path, "second")
        (tmp_path / "key.pem").write_bytes(key)
        status = reload(daemon, manager, "[dram]", '[log]\nlevel = "debug"\n[dram]')
        assert status.startswith("reload refused, nothing has changed: http.tls_certificate")
        assert served_name(daemon.http_address, None) == "first"
        assert " debug " not in daemon.log(), "nothing of the reload was taken"


def test_tls_is_neither_turned_on_nor_off_without_a_restart(tmp_path: Path) -> None:
    write_certificate(tmp_path, "first")
    lines = "".join(f'{key.removeprefix("http.")} = "{value}"\n' for key, value in tls(tmp_path).items())
    with running(tmp_path, {}) as (daemon, manager):
        status = reload(daemon, manager, "[http]\n", f"[http]\n{lines}")
        assert "http.tls_certificate, http.tls_key" in status and "needs a restart" in status


# --- S3 keys ------------------------------------------------------------------------------------------------------------


def buckets(daemon: DaemonProcess, secret: str) -> str:
    """ "ok", or S3's code of the refusal."""
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{daemon.http_address}",
        aws_access_key_id="READER",
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=BotoConfig(retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
    )
    try:
        client.list_buckets()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    finally:
        client.close()
    return "ok"


def test_a_changed_secret_lets_the_new_one_in_and_the_old_one_out_and_is_not_said(tmp_path: Path) -> None:
    first, second = SECRETS
    with running(tmp_path, {}, f'[credentials.READER]\nsecret = "{first}"\n') as (daemon, manager):
        assert (buckets(daemon, first), buckets(daemon, second)) == ("ok", "SignatureDoesNotMatch")
        status = reload(daemon, manager, first, second)
        assert "credentials.READER.secret" in status
        assert (buckets(daemon, first), buckets(daemon, second)) == ("SignatureDoesNotMatch", "ok")
        assert [secret for secret in SECRETS if secret in status + daemon.log()] == []


def test_a_secret_file_is_read_again_and_one_that_others_may_read_is_refused(tmp_path: Path) -> None:
    first, second = SECRETS
    file = tmp_path / "reader.secret"
    file.write_text(first)
    file.chmod(0o600)
    with running(tmp_path, {}, f'[credentials.READER]\nsecret_file = "{file}"\n') as (daemon, manager):
        file.write_text(second)
        assert "read again" in reload(daemon, manager)
        assert buckets(daemon, second) == "ok"
        file.write_text(first)
        file.chmod(0o644)
        assert "reload refused" in reload(daemon, manager)
        assert buckets(daemon, second) == "ok"


def test_the_first_key_closes_the_door_to_those_who_do_not_sign(tmp_path: Path) -> None:
    with running(tmp_path, {}) as (daemon, manager):
        assert buckets(daemon, SECRETS[0]) == "ok", "nobody's signature is looked at"
        reload(daemon, manager, "[dram]", f'[credentials.READER]\nsecret = "{SECRETS[1]}"\n[dram]')
        assert (buckets(daemon, SECRETS[0]), buckets(daemon, SECRETS[1])) == ("SignatureDoesNotMatch", "ok")


# --- before a start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[credentials.READER]\nsecret_file = "/none"\n', "credentials.READER.secret_file"),
        ('[http]\ntls_certificate = "/none"\ntls_key = "/none"\n', "http.tls_certificate"),
    ],
)
def test_a_check_of_the_configuration_reads_the_files_that_it_names(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mooncask.toml"
    path.write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "mooncask.daemon", "--check-config", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert run.returncode == 78 and run.stderr.startswith(f"mooncask: {says}"), run.stderr
