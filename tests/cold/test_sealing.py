"""Key files: which are taken, and that a new key can be put before an old one."""

from pathlib import Path

import pytest

from mooncask.daemon.cold.sealing import AesGcm, CannotOpen, Plain, open_sealing
from mooncask.errors import ConfigError

pytest.importorskip("cryptography", reason="the package cryptography (extra cold) is not installed")


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def sealed(sealing: AesGcm | Plain, text: bytes) -> bytes:
    return b"".join(sealing.seal(b"object", 5, [text[:2], memoryview(text)[2:]]))


def test_without_a_file_nothing_is_encrypted() -> None:
    sealing = open_sealing("")
    assert isinstance(sealing, Plain) and sealed(sealing, b"abcdef") == b"abcdef"


def test_a_new_key_before_the_old_one_encrypts_and_both_decrypt(tmp_path: Path) -> None:
    old = open_sealing(key_file(tmp_path, "11" * 32))
    both = open_sealing(key_file(tmp_path, "22" * 32 + "\n" + "11" * 32 + "\n"))
    assert isinstance(old, AesGcm) and isinstance(both, AesGcm)
    written = sealed(old, b"abcdef")
    assert bytes(both.open(old.key_id, b"object", 5, written)) == b"abcdef"
    newer = sealed(both, b"abcdef")
    assert both.key_id != old.key_id and len(newer) == 6 + both.extra_bytes
    with pytest.raises(CannotOpen, match=both.key_id.hex()):
        old.open(both.key_id, b"object", 5, newer)


def test_equal_parts_look_different_each_time(tmp_path: Path) -> None:
    sealing = open_sealing(key_file(tmp_path, "11" * 32))
    assert isinstance(sealing, AesGcm)
    assert len({sealed(sealing, b"abcdef") for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("11" * 31, 0o600, "64 hex digits"),
        ("", 0o600, "64 hex digits"),
        ("no key at all", 0o600, "64 hex digits"),
        ("11" * 32, 0o644, "chmod 600"),
    ],
)
def test_a_file_that_is_no_key_of_ones_own_is_refused_without_being_shown(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    path = key_file(tmp_path, text, mode)
    with pytest.raises(ConfigError, match=said) as refused:
        open_sealing(path)
    assert refused.value.key == "cold.encryption_key_file" and (not text or text not in refused.value.message)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be readable"):
        open_sealing(str(tmp_path / "none"))
