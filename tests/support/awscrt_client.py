"""awscrt's S3Client in a process of its own, which names the bucket by the host as LMCache's S3 adapter does.

Run as `awscrt_client.py HOST:PORT CERTIFICATE`: puts and gets objects of several lengths and prints what went wrong, if anything.
CERTIFICATE empty: plain HTTP.
"""

import os
import sys
from io import BytesIO
from typing import Any

from awscrt.auth import AwsCredentialsProvider, AwsSignatureType, AwsSigningAlgorithm, AwsSigningConfig
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import (
    ClientBootstrap,
    ClientTlsContext,
    DefaultHostResolver,
    EventLoopGroup,
    TlsConnectionOptions,
    TlsContextOptions,
)
from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType

SECONDS_MAX = 60
MIB = 1 << 20
SIZES = (1, 4 * MIB, 40 * MIB)


class Client:
    """Put and get, whole objects."""

    def __init__(self, host: str, certificate: str) -> None:
        group = EventLoopGroup(1)
        bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
        region, key, secret = (os.environ[f"AWS_{name}"] for name in ("REGION", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        provider = AwsCredentialsProvider.new_static(key, secret)
        signing = AwsSigningConfig(
            algorithm=AwsSigningAlgorithm.V4,
            signature_type=AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=provider,
            region=region,
            service="s3",
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value="UNSIGNED-PAYLOAD" if certificate else None,
        )
        self._host = host
        self._client = S3Client(
            bootstrap=bootstrap,
            region=region,
            tls_mode=S3RequestTlsMode.ENABLED if certificate else S3RequestTlsMode.DISABLED,
            tls_connection_options=_tls(certificate),
            signing_config=signing,
            part_size=8 * MIB,
            throughput_target_gbps=1.0,
        )

    def put(self, path: str, body: bytes) -> None:
        headers = HttpHeaders([("Host", self._host), ("Content-Length", str(len(body)))])
        request = HttpRequest("PUT", path, headers, BytesIO(body))
        self._client.make_request(type=S3RequestType.PUT_OBJECT, request=request).finished_future.result(SECONDS_MAX)

    def get(self, path: str) -> bytes:
        found: dict[int, bytes] = {}

        def on_body(chunk: bytes, offset: int, **_: Any) -> None:
            found[offset] = chunk

        request = HttpRequest("GET", path, HttpHeaders([("Host", self._host)]))
        made = self._client.make_request(type=S3RequestType.GET_OBJECT, request=request, on_body=on_body)
        made.finished_future.result(SECONDS_MAX)
        return b"".join(found[offset] for offset in sorted(found))


def _tls(certificate: str) -> TlsConnectionOptions | None:
    if not certificate:
        return None
    options = TlsContextOptions()
    options.override_default_trust_store_from_path(None, certificate)
    return ClientTlsContext(options).new_connection_options()


def main() -> int:
    client = Client(sys.argv[1], sys.argv[2])
    for size in SIZES:
        body = os.urandom(size)
        client.put(f"/kv/block-{size}", body)
        if client.get(f"/kv/block-{size}") != body:
            print(f"other bytes came back of {size}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
