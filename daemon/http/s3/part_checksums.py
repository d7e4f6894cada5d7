"""The checksum of an object from those of its parts. Pure, but for awscrt, which combines CRCs.

COMPOSITE: the checksum of the parts' checksums, with their number behind it. FULL_OBJECT: what the whole object's would be,
which only CRCs can be combined to.
"""

import base64
import hashlib
import zlib
from collections.abc import Sequence

from mooncask.daemon.objects.manifest import PartRow
from mooncask.errors import BadParameter

COMPOSITE, FULL_OBJECT = "COMPOSITE", "FULL_OBJECT"
ALGORITHMS = {
    "crc32": (COMPOSITE, FULL_OBJECT),
    "crc32c": (COMPOSITE, FULL_OBJECT),
    "crc64nvme": (FULL_OBJECT,),
    "sha1": (COMPOSITE,),
    "sha256": (COMPOSITE,),
}
"""Name -> the types that S3 has of it, the default first."""


def chosen_type(algorithm: str, asked: str) -> str:
    """Raises BadParameter."""
    if not algorithm:
        if asked:
            raise BadParameter("x-amz-checksum-type", asked, "only together with x-amz-checksum-algorithm")
        return ""
    types = ALGORITHMS[algorithm]
    if asked and asked not in types:
        raise BadParameter("x-amz-checksum-type", asked, f"of {algorithm.upper()}: {' or '.join(types)}")
    return asked or types[0]


def object_checksum(rows: Sequence[PartRow], algorithm: str, kind: str) -> str:
    """base64, with "-N" behind a composite one; empty where a part has no checksum of that algorithm."""
    if not algorithm or not all(row.checksum for row in rows):
        return ""
    digests = [base64.b64decode(row.checksum) for row in rows]
    if kind == COMPOSITE:
        return f"{base64.b64encode(_digest(algorithm, b''.join(digests))).decode()}-{len(rows)}"
    return base64.b64encode(_combined(algorithm, digests, [row.size for row in rows])).decode()


def _digest(algorithm: str, data: bytes) -> bytes:
    match algorithm:
        case "sha1":
            return hashlib.sha1(data, usedforsecurity=False).digest()
        case "sha256":
            return hashlib.sha256(data).digest()
        case "crc32":
            return zlib.crc32(data).to_bytes(4, "big")
    from awscrt import checksums

    found: bytes = checksums.crc32c(data).to_bytes(4, "big")
    return found


def _combined(algorithm: str, digests: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    from awscrt import checksums

    combine = {
        "crc32": checksums.combine_crc32,
        "crc32c": checksums.combine_crc32c,
        "crc64nvme": checksums.combine_crc64nvme,
    }[algorithm]
    total: int = int.from_bytes(digests[0], "big")
    for digest, size in zip(digests[1:], sizes[1:], strict=True):
        total = int(combine(total, int.from_bytes(digest, "big"), size))
    found: bytes = total.to_bytes(len(digests[0]), "big")
    return found
