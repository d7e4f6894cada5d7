"""Sizes and durations as people write them in a config: "512MiB", "1.5GiB", 4096; "500ms", "30s", "5m", 2.5.

Pure: text in, number out. Which key had the text is the caller's knowledge (`daemon/config_source.py`).
"""

import math
import re
from collections.abc import Mapping

SIZE_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
SIZE_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
TIME_UNITS = {"": 1.0, "MS": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0, "D": 86400.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)

SIZE_ALLOWED = 'a size such as 4096, "512MiB" or "1.5GiB"'
TIME_ALLOWED = 'a duration in seconds such as 30, 2.5, "500ms" or "5m"'


def parse_size(value: object) -> int:
    """Bytes. Raises ValueError for what is not a size, negative numbers included; a part of a byte is cut off."""
    match value:
        case bool():
            raise ValueError(SIZE_ALLOWED)
        case int() if value >= 0:
            return value
        case str():
            return int(_quantity(value, SIZE_UNITS, SIZE_ALLOWED))
    raise ValueError(SIZE_ALLOWED)


def parse_seconds(value: object) -> float:
    """Seconds. Raises ValueError for what is not a duration, negative and infinite ones included."""
    match value:
        case bool():
            raise ValueError(TIME_ALLOWED)
        case int() | float() if math.isfinite(value) and value >= 0:
            return float(value)
        case str():
            return _quantity(value, TIME_UNITS, TIME_ALLOWED)
    raise ValueError(TIME_ALLOWED)


def format_size(size_bytes: int) -> str:
    """The shortest exact form: 536870912 is 512MiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit.upper()] == 0:
            return f"{size_bytes // SIZE_UNITS[unit.upper()]}{unit}"
    return str(size_bytes)


def _quantity(text: str, units: Mapping[str, float], allowed: str) -> float:
    found = _QUANTITY.fullmatch(text)
    unit = units.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(allowed)
    return float(found[1]) * unit
