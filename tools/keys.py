"""Keys and sizes as people type and read them. Pure.

A key in a KV namespace is a digest, typed in hex; a key in an object namespace is text.
"""

import re

from mooncask.errors import BadRequest

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_key(text: str, is_kv: bool) -> bytes:
    """The key that `text` names in a namespace of that kind. Raises BadRequest for what is not hex in a KV namespace."""
    if not is_kv:
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f"key {text[:80]}: keys of a KV namespace are typed in hex, two digits a byte") from error


def parse_prefix(text: str, is_kv: bool) -> bytes:
    """Bytes that every key begins with whose text begins with `text`: of an odd number of hex digits the last is left out."""
    return parse_key(text[: len(text) // 2 * 2], is_kv) if is_kv else text.encode()


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "10min", "2h" or "7d". Raises BadRequest."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or found[2] not in SECONDS or float(found[1]) <= 0:
        raise BadRequest(f'time "{text[:40]}": a number above 0 with s, min, h or d is wanted, such as 90s or 2h')
    return float(found[1]) * SECONDS[found[2]]


def format_key(key: bytes, is_kv: bool) -> str:
    """The text that `parse_key` reads; object keys that are not UTF-8 keep their odd bytes as \\x.."""
    return key.hex() if is_kv else key.decode(errors="backslashreplace")


def format_size(size_bytes: float) -> str:
    """Bytes in the largest unit that leaves at least one: 1536 is "1.5 KiB"."""
    value = float(size_bytes)
    for unit in UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {UNITS[-1]}"


def format_seconds(seconds: float) -> str:
    """A duration in its two largest units: 3725 is "1 h 2 min"."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    parts = [f"{days} d", f"{hours} h", f"{minutes} min", f"{whole % 60} s"]
    first = next((i for i, part in enumerate(parts) if not part.startswith("0 ")), 3)
    return " ".join(parts[first : first + 2])
