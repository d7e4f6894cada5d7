"""Random writing, renaming and removing through a mount gives what the same gives in a plain folder, step by step."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mounted_store import Mounted

NAMES = ["a", "b", "c", "deep/a", "deep/b", ".x", "caf\u00e9"]
LENGTHS = [0, 1, 10, 5000, 70_000]
LONG = 2_500_000
"""More than a block of these tests' daemon: stored in parts."""


def write(root: Path, name: str, data: bytes) -> None:
    (root / name).write_bytes(data)


def append(root: Path, name: str, data: bytes) -> None:
    with (root / name).open("ab") as file:
        file.write(data)


def change(root: Path, name: str, offset: int, data: bytes) -> None:
    with (root / name).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def truncate(root: Path, name: str, length: int) -> None:
    os.truncate(root / name, length)


def remove(root: Path, name: str) -> None:
    (root / name).unlink()


def rename(root: Path, old: str, new: str) -> None:
    (root / old).rename(root / new)


def read(root: Path, name: str) -> bytes:
    return (root / name).read_bytes()


def listed(root: Path) -> list[tuple[str, int]]:
    return sorted(
        (str(path.relative_to(root)), path.stat().st_size if path.is_file() else 0) for path in root.rglob("*")
    )


def many(root: Path, name: str, steps: list[tuple[str, int, bytes]]) -> list[bytes]:
    """Several steps on one open file."""
    found = []
    descriptor = os.open(root / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        for step, number, data in steps:
            match step:
                case "write":
                    os.pwrite(descriptor, data, number)
                case "truncate":
                    os.ftruncate(descriptor, number)
                case "sync":
                    os.fsync(descriptor)
                case "read":
                    found.append(os.pread(descriptor, 30_000, number))
                case "close a copy":
                    os.close(os.dup(descriptor))
    finally:
        os.close(descriptor)
    return found


def outcome(act: Callable[..., Any], root: Path, arguments: tuple[Any, ...]) -> Any:
    try:
        return act(root, *arguments)
    except OSError as error:
        return error.errno


def next_step(dice: random.Random) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    name, data = dice.choice(NAMES), dice.randbytes(LONG if dice.random() < 0.01 else dice.choice(LENGTHS))
    steps = [
        (
            dice.choice(["write", "truncate", "sync", "read", "close a copy"]),
            dice.randrange(90_000),
            dice.randbytes(5000),
        )
        for _ in range(dice.randrange(6))
    ]
    choices: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (write, (name, data)),
        (append, (name, data)),
        (change, (name, dice.randrange(80_000), data)),
        (truncate, (name, dice.randrange(90_000))),
        (remove, (name,)),
        (rename, (name, dice.choice(NAMES))),
        (read, (name,)),
        (listed, ()),
        (many, (name, steps)),
    ]
    return dice.choice(choices)


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 400), *(pytest.param(seed, 1500, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_a_mount_is_as_a_plain_folder(mounted: Mounted, tmp_path: Path, seed: int, count: int) -> None:
    dice, mount = random.Random(seed), mounted.objects().blocks
    for root in (mount, tmp_path):
        (root / "deep").mkdir()
    for number in range(count):
        act, arguments = next_step(dice)
        shown = f"step {number}: {act.__name__} {str(arguments)[:80]}"
        assert outcome(act, mount, arguments) == outcome(act, tmp_path, arguments), shown
    for name in NAMES:
        assert outcome(read, mount, (name,)) == outcome(read, tmp_path, (name,)), name
