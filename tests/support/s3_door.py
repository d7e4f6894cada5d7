"""A daemon as a process of its own with its S3 door as clients are told of it: address, keys, region.

`open_s3` starts one over plain HTTP without keys, or over TLS with a key that everything must be signed with.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from daemon_process import DaemonProcess, Setting
from s3_daemon import tls_settings

REGION = "us-east-1"
SECRET = "test-secret-of-some-length"
DOORS = ("http", "https")
DOMAIN = "localhost"


@dataclass(frozen=True, slots=True)
class S3Door:
    """Where it is and how to come in. `certificate` is the file that vouches for it; empty over HTTP."""

    daemon: DaemonProcess
    endpoint: str
    access_key: str = "test-key"
    secret: str = SECRET
    certificate: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """For clients that are programs of their own."""
        found = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }
        return found | ({"AWS_CA_BUNDLE": self.certificate} if self.certificate else {})


@contextmanager
def open_s3(folder: Path, kind: str, settings: Mapping[str, Setting] | None = None) -> Iterator[S3Door]:
    """`kind` is one of DOORS."""
    certified = kind == "https"
    signed = {"credentials.test-key.secret": SECRET, **tls_settings(folder)} if certified else {}
    with DaemonProcess.start(folder, {"http.domain": DOMAIN, **signed, **(settings or {})}) as daemon:
        certificate = str(folder / "certificate.pem") if certified else ""
        yield S3Door(daemon, f"{kind}://{daemon.http_address}", certificate=certificate)


def boto_client(door: S3Door, **config: Any) -> Any:
    """To be closed. No retries: what goes wrong once is to be seen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # boto's own, on some Pythons
        return boto3.client(
            "s3",
            endpoint_url=door.endpoint,
            aws_access_key_id=door.access_key,
            aws_secret_access_key=door.secret,
            region_name=REGION,
            verify=door.certificate or None,
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config),
        )
