"""docs/S3.md names every operation that there is, and every code with which one can be refused."""

import re
from pathlib import Path

from mooncask.daemon.http.s3.operations import Operation
from mooncask.errors import ConfigError, MooncaskError, error_classes

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "S3.md").read_text()
_REFUSED = re.compile(r'Refused\(\s*(\d{3}),\s*"(\w+)"')
_AT_START = frozenset(
    {"FolderInUse", "ForeignFolder", "UnsupportedVersion", "NoDirectIO", "AddressInUse", "FolderNotWritable"}
)
"""What only a start can raise."""


def documented() -> dict[str, set[int]]:
    """Code -> statuses, by the table of errors."""
    found: dict[str, set[int]] = {}
    for line in DOCUMENT.partition("## Errors")[2].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and re.fullmatch(r"[\d, ]+", cells[2]):
            for code in cells[1].split(", "):
                found[code] = {int(status) for status in cells[2].split(", ")}
    return found


def met_over_http(name: str, cls: type[MooncaskError]) -> bool:
    """By a client of S3: not what only a start or the Conductor raises, nor what a room keeps to itself."""
    of_the_daemon = cls.__module__.startswith("mooncask.errors") and cls.__module__ != "mooncask.errors.serving"
    return of_the_daemon and not issubclass(cls, ConfigError) and name not in _AT_START and cls.exit_code != 2


def test_every_operation_is_in_the_table_of_operations() -> None:
    names = set(re.findall(r"\w+", DOCUMENT.partition("## Operations")[2].partition("## Errors")[0]))
    assert {operation.value for operation in Operation} <= names


def test_every_error_of_the_tree_has_its_code_and_status_in_the_table() -> None:
    table = documented()
    for name, cls in error_classes().items():
        if met_over_http(name, cls):
            assert cls.http_status in table.get(cls.code, set()), f"{name}: {cls.code} {cls.http_status}"


def test_every_refusal_that_only_s3_knows_is_in_the_table() -> None:
    table, found = documented(), 0
    for path in (ROOT / "daemon" / "http").rglob("*.py"):
        for status, code in _REFUSED.findall(path.read_text()):
            found += 1
            assert int(status) in table.get(code, set()), f"{path.name}: {code} {status}"
    assert found > 20, "the pattern still finds them"
