"""A daemon process with S3 credentials, over HTTP and over TLS, and real S3 clients of it.

@pytest.fixture(scope="module", params=SCHEMES)
def door(request, tmp_path_factory):
    with s3_daemon(tmp_path_factory.mktemp("s3"), request.param) as door:
        yield door
"""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from daemon_process import DaemonProcess, Setting

SCHEMES = ["http", "https"]
KEY, SECRET = "TESTKEY1", "a secret of tests/1+=".replace(" ", "-")
READER, READER_SECRET = "READKEY1", "another-secret-of-tests"
STRANGER, STRANGER_SECRET = "OTHERKEY", "a-secret-of-another-tenant"
TOKEN = "a-token-for-the-pages"
REGION = "us-east-1"
DOMAIN = "s3.example"


@dataclass(frozen=True, slots=True)
class S3Door:
    """Where a daemon answers S3, and what a client needs to trust it. `ca` is empty over plain HTTP."""

    daemon: DaemonProcess
    scheme: str
    ca: str
    session: boto3.session.Session = field(default_factory=boto3.session.Session)
    """One for all clients: it reads S3's description, which takes longer than most tests."""

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://{self.daemon.http_address}"

    @contextmanager
    def client(self, key: str = KEY, secret: str = SECRET, region: str = REGION, **config: Any) -> Iterator[Any]:
        """A boto3 S3 client that tries once; `config` are botocore's settings. Over TLS it checks the certificate."""
        client = self.session.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=region,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            verify=self.ca or False,
            config=Config(**{"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, **config}),
        )
        try:
            yield client
        finally:
            client.close()

    def tls(self) -> ssl.SSLContext | None:
        """For clients that are not boto3."""
        return ssl.create_default_context(cafile=self.ca) if self.ca else None


@contextmanager
def s3_daemon(folder: Path, scheme: str, settings: Mapping[str, Setting] | None = None) -> Iterator[S3Door]:
    """A daemon with three keys: one that writes, one that reads, both of tenant default, and one of another tenant."""
    chosen: dict[str, Setting] = {
        f"credentials.{KEY}.secret": SECRET,
        f"credentials.{READER}.secret": READER_SECRET,
        f"credentials.{READER}.rights": "read",
        f"credentials.{STRANGER}.secret": STRANGER_SECRET,
        f"credentials.{STRANGER}.tenant": "other",
        "http.admin_token": TOKEN,
        "http.domain": DOMAIN,
        "nvme.path": "",
        **(tls_settings(folder) if scheme == "https" else {}),
        **(settings or {}),
    }
    with DaemonProcess.start(folder, chosen) as daemon:
        yield S3Door(daemon, scheme, str(folder / "certificate.pem") if scheme == "https" else "")


def tls_settings(folder: Path) -> dict[str, Setting]:
    """A new certificate that signs itself, for 127.0.0.1, localhost and *.localhost, and the settings that use it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mooncask test")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.DNSName("*.localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    return {"http.tls_certificate": str(folder / "certificate.pem"), "http.tls_key": str(folder / "key.pem")}
