"""What somebody else made: archives that no export writes, and names that a terminal would act on."""

import io
import json
import tarfile

import pytest

from mooncask.errors import BadRequest
from mooncask.tools.output import complain, print_json
from mooncask.tools.transfer.manifest import decode_entry
from mooncask.tools.transfer.tar_archive import TarReader


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "zz"},
        {"checksum": "zz"},
        {"parent": "0"},
        {"size": -1},
        {"expires_seconds": 1e308},
        {"headers": {"content-type": "a\r\nx-evil: 1"}},
    ],
)
def test_an_entry_that_no_export_writes_is_refused(fields: dict[str, object]) -> None:
    entry = {"key": "00", "size": 1, "checksum": "00" * 16} | fields
    with pytest.raises(BadRequest):
        decode_entry(json.dumps(entry), "here")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("mode", ["r:", "r|"])
def test_a_member_that_is_no_plain_file_is_refused_and_leads_nowhere(kind: bytes, mode: str) -> None:
    info = tarfile.TarInfo("mooncask-export.json")
    info.type, info.linkname = kind, "/etc/passwd"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(info)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer, mode=mode) as tar, pytest.raises(BadRequest):  # type: ignore[call-overload]
        TarReader(tar, "here", 0)


def test_errors_and_documents_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[2J\x07\x9b31m\u202eb"
    complain(f"no block {name}")
    print_json({"key": name})
    out, err = capsys.readouterr()
    assert err == "mooncask: no block a\\x1b[2J\\x07\\x9b31m\\x202eb\n"
    assert json.loads(out) == {"key": name}
    assert all(char.isprintable() or char == "\n" for char in out)
