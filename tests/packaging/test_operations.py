"""docs/OPERATIONS.md speaks of what exists: commands, configuration keys, alerts, files, exit codes."""

import re
from pathlib import Path

import pytest

import mooncask.errors
from mooncask.daemon.config import Config
from mooncask.daemon.reload import keys
from mooncask.errors import MooncaskError
from mooncask.tools.command_table import COMMANDS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "OPERATIONS.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", TEXT) + [line.strip() for line in TEXT.splitlines() if line.startswith("    ")]
"""What stands in backquotes or in an indented block."""


def test_every_command_in_it_exists() -> None:
    named = {word for code in CODE for word in re.findall(r"(?:^|bin/|&& )mooncask ([a-z]+)", code)}
    assert len(named) > 8 and named - set(COMMANDS) == set()


def test_every_configuration_key_in_it_exists() -> None:
    known = set(keys(Config()))
    sections = {key.partition(".")[0] for key in known}
    named = {code for code in CODE if re.fullmatch(r"[a-z0-9]+\.[a-z_]+", code) and code.partition(".")[0] in sections}
    assert len(named) > 10 and named - known == set()


def test_every_alert_in_it_exists() -> None:
    rules = (ROOT / "packaging" / "prometheus" / "mooncask.rules.yml").read_text()
    named = {code for code in CODE if re.fullmatch(r"Mooncask[A-Z]\w+", code)}
    assert named == set(re.findall(r"- alert: (\w+)", rules))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:docs|packaging)/[\w./@-]*\w/?", TEXT))))
def test_the_file_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_exit_codes_of_a_start_are_those_of_the_errors() -> None:
    at_start = {"ConfigError", "FolderInUse", "ForeignFolder", "UnsupportedVersion", "NoDirectIO", "AddressInUse"}
    found = {getattr(mooncask.errors, name).exit_code for name in at_start}
    assert found == {78} and issubclass(mooncask.errors.ConfigError, MooncaskError)
    assert "| 78 |" in TEXT and f"| {mooncask.errors.BadArgument.exit_code} |" in TEXT
