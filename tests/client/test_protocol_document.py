"""docs/PROTOCOL.md describes client/wire.py: every message, with its number, its fields in order, and their defaults."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from mooncask.client import wire

DOCUMENT = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text()


def structs() -> list[type[msgspec.Struct]]:
    found = [item for _, item in inspect.getmembers(wire, inspect.isclass) if issubclass(item, msgspec.Struct)]
    return [struct for struct in found if struct not in (wire.Message, msgspec.Struct)]


def messages() -> list[type[wire.Message]]:
    return [struct for struct in structs() if issubclass(struct, wire.Message)]


def section(tag: int) -> str:
    """The part of the page under the heading that names this number."""
    parts = re.split(r"^### ", DOCUMENT, flags=re.MULTILINE)
    (found,) = [part for part in parts if re.search(rf"(^|, ){tag} \w", part.splitlines()[0])]
    return found


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.__name__)
def test_a_message_is_described_with_its_number_and_fields_in_order(message: type[wire.Message]) -> None:
    tag = message.__struct_config__.tag
    assert isinstance(tag, int)
    text = section(tag)
    assert f"{tag} {message.__name__}" in text.splitlines()[0]
    described = re.findall(r"^\| `(\w+)` \| (.+?) \|", text, flags=re.MULTILINE)
    fields = [field for field in msgspec.structs.fields(message) if field.name != "id"]
    assert [name for name, _ in described] == [field.name for field in fields]
    for (name, kind), field in zip(described, fields, strict=True):
        assert (" = " in kind) == (not field.required), f"{name}: whether it has a default"


@pytest.mark.parametrize(
    "struct", [struct for struct in structs() if not issubclass(struct, wire.Message)], ids=lambda item: item.__name__
)
def test_an_array_inside_a_message_is_described_with_its_fields_in_order(struct: type[msgspec.Struct]) -> None:
    name = "hint" if struct is wire.HintFields else struct.__name__
    match = re.search(rf"A {name} is the array \[(.*?)\]", DOCUMENT, flags=re.DOTALL)
    assert match is not None
    outside_parentheses = re.sub(r"\([^)]*\)", "", match[1])
    assert re.findall(r"`(\w+)`", outside_parentheses) == [field.name for field in msgspec.structs.fields(struct)]


def test_the_limits_are_those_of_the_code() -> None:
    assert f"at most {wire.FRAME_BYTES_MAX:,}" in DOCUMENT
    assert f"at most {wire.BATCH_MAX:,}" in DOCUMENT
    assert f"1 to {wire.KEY_BYTES_MAX:,} bytes" in DOCUMENT
    assert f"Version {wire.PROTOCOL}." in DOCUMENT


def test_numbers_of_enumerations_are_those_of_the_code() -> None:
    for state in wire.CommitState:
        assert f"{state.value} {state.name}" in section(108)
    for tier, name in ((wire.Tier.HBM, "HBM"), (wire.Tier.DRAM, "DRAM"), (wire.Tier.NVME, "NVMe")):
        assert f"{tier.value} {name}" in section(103)


def test_tiers_have_one_numbering_in_client_and_store() -> None:
    from mooncask.tiers.block import TierName

    assert {tier.name: tier.value for tier in TierName} == {
        tier.name: tier.value for tier in wire.Tier if tier is not wire.Tier.NONE
    }
