"""Requests to a daemon with S3 keys, header by header, signed by botocore's own signer; and what they are answered."""

import http.client
from collections.abc import Mapping
from datetime import UTC, datetime
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from s3_daemon import KEY, REGION, SECRET, S3Door


def refusal(error: ClientError) -> tuple[int, str]:
    """(status, S3's error code) of what boto3 raised."""
    return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


class Answer:
    """A raw answer; `code` is S3's error code."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.body, self.headers = response.status, response.read(), response.headers

    @property
    def code(self) -> str:
        return ElementTree.fromstring(self.body).findtext("Code") or ""


def ask(door: S3Door, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
    """One request with exactly these headers, on a connection of its own."""
    host, port = door.daemon.http_address.rsplit(":", 1)
    tls = door.tls()
    connection: http.client.HTTPConnection = (
        http.client.HTTPSConnection(host, int(port), context=tls, timeout=20)
        if tls
        else http.client.HTTPConnection(host, int(port), timeout=20)
    )
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def sign(
    door: S3Door,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    when: datetime | None = None,
    host: str = "",
) -> dict[str, str]:
    """All headers of a request that botocore signs; `when` is the signer's clock."""
    host = host or door.daemon.http_address
    timestamp = (when or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    found = {
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
        **(headers or {}),
        "Host": host,
        "X-Amz-Date": timestamp,
    }
    request = AWSRequest(method, f"http://{host}{target}", headers=found)
    request.context["timestamp"] = timestamp
    signer = S3SigV4Auth(Credentials(KEY, SECRET), "s3", REGION)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signed = signer.signed_headers(signer.headers_to_sign(request))
    proof = f"Credential={signer.scope(request)}, SignedHeaders={signed}, Signature={signer.signature(text, request)}"
    return {**found, "Authorization": f"AWS4-HMAC-SHA256 {proof}"}
