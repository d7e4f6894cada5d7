"""Signs one request as S3 clients do (AWS signature version 4, in a header), for the bench's signed load."""

import hashlib
import hmac
import time

REGION = "us-east-1"
UNSIGNED = "UNSIGNED-PAYLOAD"


def signed_headers(
    method: str, path: str, host: str, key: str, secret: str, seconds: float | None = None
) -> list[tuple[str, str]]:
    """The headers to send beside Host. `path` is percent-encoded already and has no query."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = (
        f"{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{UNSIGNED}\nx-amz-date:{stamp}\n\n{names}\n{UNSIGNED}"
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signing_key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        signing_key = hmac.digest(signing_key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(signing_key, text.encode(), "sha256").hex()
    authorization = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return [("x-amz-date", stamp), ("x-amz-content-sha256", UNSIGNED), ("Authorization", authorization)]
