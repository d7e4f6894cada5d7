"""/etc/mooncask/mooncask.toml as it is shipped: it loads, it has every key with its true default, and each is explained."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mooncask.daemon.config import Config, CredentialSection, Section, TenantSection
from mooncask.daemon.config_source import load_config
from mooncask.daemon.reload import is_reloadable, keys

EXAMPLE = Path(__file__).parents[2] / "packaging" / "etc" / "mooncask.toml"
SETTING = re.compile(r"^#([a-z0-9_]+ = .*|\[[a-zA-Z0-9_.-]+\])$")
"""A default, or the header of a section that is one of many: "#key = value" has no blank behind its "#", a sentence has one."""
OF_THIS_MACHINE = {"node.name", "socket.trusted_writers"}
MANY: dict[str, type[Section]] = {"tenants": TenantSection, "credentials": CredentialSection}
WITHOUT_EACH_OTHER = {"credentials": {"secret"}}
"""What can't stand beside something else of its section."""


def lines() -> list[str]:
    return EXAMPLE.read_text().splitlines()


def as_written() -> dict[str, dict[str, object]]:
    """Section by section what every "#key = value" line says, with the sections that are one of many under their kind's name."""
    found: dict[str, dict[str, object]] = {}
    section = ""
    for line in lines():
        text = line.removeprefix("#") if SETTING.match(line) else line
        if header := re.fullmatch(r"\[([a-zA-Z0-9_.-]+)\]", text):
            section = header[1].partition(".")[0]
            found.setdefault(section, {})
        elif line.startswith("#") and text != line:
            key, _, value = text.partition(" = ")
            assert key not in found[section], f"{section}.{key} stands there twice"
            found[section][key] = value
    return found


def defaults() -> dict[str, type[Section]]:
    known = {field.name: field.type for field in msgspec.structs.fields(Config)}
    return {**known, **MANY}


def test_it_loads_and_changes_only_what_a_node_under_systemd_wants() -> None:
    changed = {key for key, value in keys(load_config(EXAMPLE, {})).items() if value != keys(Config()).get(key)}
    assert changed == {"socket.path", "socket.mode", "nvme.path"}


@pytest.mark.parametrize("section", sorted(defaults()))
def test_every_key_of_the_section_stands_in_it_and_no_other(section: str) -> None:
    known = {field.name for field in msgspec.structs.fields(defaults()[section])}
    written = set(as_written().get(section, {}))
    assert written == known, f"missing: {sorted(known - written)}, unknown: {sorted(written - known)}"


def test_it_has_no_section_that_does_not_exist() -> None:
    assert set(as_written()) == set(defaults())


def test_every_default_is_the_true_one(tmp_path: Path) -> None:
    """What is commented out, as a file of its own, is what a daemon without a file has."""
    sections = {name: values for name, values in as_written().items() if name not in MANY}
    path = tmp_path / "defaults.toml"
    path.write_text("\n".join(_section(name, values) for name, values in sections.items()))
    found, true = keys(load_config(path, {})), keys(Config())
    wrong = {key: (found[key], true[key]) for key in true if found[key] != true[key]}
    assert set(wrong) <= OF_THIS_MACHINE, wrong


def test_sections_that_are_one_of_many_can_be_used_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    path.write_text(
        "\n".join(
            _section(f"{name}.one", {k: v for k, v in values.items() if k not in WITHOUT_EACH_OTHER.get(name, ())})
            for name, values in as_written().items()
            if name in MANY
        )
    )
    config: Any = load_config(path, {})
    assert [name for name in MANY if "one" not in getattr(config, name)] == []


def test_every_key_is_explained_by_a_sentence_right_above() -> None:
    bare = []
    for number, line in enumerate(lines()):
        if SETTING.match(line) and not line.startswith("#["):
            above = next(
                text for text in reversed(lines()[:number]) if not SETTING.match(text) or text.startswith("#[")
            )
            if not above.startswith("# "):
                bare.append(line)
    assert bare == []


def test_exactly_those_keys_are_marked_that_a_reload_can_change() -> None:
    marked = {key for key, sentences in explained().items() if "[reload" in sentences}
    assert marked == {key for key in explained() if is_reloadable(key)}


def explained() -> dict[str, str]:
    """Each key with the sentences above it; keys that follow each other share them."""
    found: dict[str, str] = {}
    section, sentences, after_key = "", "", False
    for line in lines():
        text = line.removeprefix("#") if SETTING.match(line) else line
        if header := re.fullmatch(r"\[([a-zA-Z0-9_.-]+)\]", text):
            section = header[1]
        elif SETTING.match(line):
            found[f"{section}.{text.partition(' = ')[0]}"] = sentences
        elif line.startswith("# "):
            sentences = line if after_key else sentences + line
        after_key = not line.startswith("# ")
    return found


def _section(name: str, values: dict[str, object]) -> str:
    return f"[{name}]\n" + "\n".join(f"{key} = {value}" for key, value in values.items())
