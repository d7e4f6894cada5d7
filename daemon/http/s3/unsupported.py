"""Headers that ask for what this API does not have: refused by name, since whoever sent them relies on what they say. Pure."""

from collections.abc import Mapping

_REFUSED_PREFIXES = (
    "x-amz-server-side-encryption",
    "x-amz-object-lock-",
    "x-amz-grant-",
    "x-amz-copy-source-server-side",
)
_REFUSED = frozenset({"x-amz-tagging", "x-amz-website-redirect-location", "x-amz-write-offset-bytes", "x-amz-mfa"})
_ONLY = {
    "x-amz-acl": frozenset({"private", "bucket-owner-full-control", "bucket-owner-read"}),
    "x-amz-storage-class": frozenset({"STANDARD"}),
    "x-amz-tagging-directive": frozenset({"COPY", "REPLACE"}),
}
"""What may be asked for, because it is what there is: objects are their tenant's alone, and nothing has tags."""


def unsupported_header(headers: Mapping[str, str]) -> str:
    """The first such header with its value; empty when there is none."""
    for name, value in headers.items():
        low = name.lower()
        if low.startswith("x-amz-") and (
            low in _REFUSED or low.startswith(_REFUSED_PREFIXES) or value not in _ONLY.get(low, (value,))
        ):
            return f"{low}: {value[:100]}"
    return ""
