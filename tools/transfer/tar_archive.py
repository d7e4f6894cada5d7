"""An export as a tar: the manifest, a member a block with its entry in a PAX header, and the end.

A run that was stopped leaves a tar whose last member may be cut: the next run finds the last whole one, cuts what is
behind it, and goes on. Any tar program can list and unpack it.
"""

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from mooncask.errors import BadRequest
from mooncask.tools.output import stdout_bytes
from mooncask.tools.transfer.archive import Chunks
from mooncask.tools.transfer.manifest import (
    END_NAME,
    MANIFEST_NAME,
    End,
    Entry,
    Manifest,
    decode_entry,
    decode_manifest,
    encode,
    mark,
)

ENTRY_HEADER = "MOONCASK.entry"
BLOCK = tarfile.BLOCKSIZE
READ_BYTES = 4 << 20
MANIFEST_BYTES_MAX = 1 << 20


class TarWriter:
    """Writes to a file or a pipe; see `archive.Writer`."""

    def __init__(self, file: IO[bytes], manifest: Manifest, already: dict[str, str], is_pipe: bool = False) -> None:
        self._file, self._manifest, self._is_pipe = file, manifest, is_pipe
        self.already = already
        self._blocks = self._size_bytes = 0

    @classmethod
    def to_stdout(cls, manifest: Manifest) -> Self:
        """A tar from its beginning; a pipe cannot be gone on with."""
        if sys.stdout.isatty():
            raise BadRequest("export to - writes a tar to stdout, which is a terminal; redirect it, or name a file")
        writer = cls(stdout_bytes(), manifest, {}, is_pipe=True)
        writer._member(MANIFEST_NAME, encode(manifest))
        return writer

    @classmethod
    def to_file(cls, path: Path, manifest: Manifest) -> Self:
        """A new file, or one that an earlier run began. Raises BadRequest when it is no export of this namespace."""
        if not path.exists() or path.stat().st_size == 0:
            writer = cls(path.open("wb"), manifest, {})
            writer._member(MANIFEST_NAME, encode(manifest))
            return writer
        begun = _scan(path)
        begun.manifest.check_continues(manifest, str(path))
        file = path.open("r+b")
        file.truncate(begun.end)
        file.seek(begun.end)
        writer = cls(file, manifest, begun.marks)
        writer._blocks, writer._size_bytes = len(begun.marks), begun.size_bytes
        return writer

    def add(self, entry: Entry, payload: Chunks) -> None:
        folder, key = ("blocks", entry.key) if self._manifest.kind == "kv" else ("objects", quote(entry.key_bytes, ""))
        info = tarfile.TarInfo(f"{folder}/{key}")
        info.size, info.mtime = entry.size, int(entry.created_seconds)
        info.pax_headers = {ENTRY_HEADER: encode(entry).decode()}
        self._file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        done = 0
        for chunk in payload:
            self._file.write(chunk)
            done += len(chunk)
        assert done == entry.size, (done, entry)
        self._pad(done)
        self._blocks += 1
        self._size_bytes += done

    def finish(self) -> None:
        self._member(END_NAME, encode(End(blocks=self._blocks, size_bytes=self._size_bytes)))
        self._file.write(bytes(2 * BLOCK))
        self._file.flush()
        if not self._is_pipe:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self._is_pipe:
            self._file.close()

    def _member(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._file.write(info.tobuf(tarfile.PAX_FORMAT) + data)
        self._pad(len(data))

    def _pad(self, size: int) -> None:
        self._file.write(bytes(-size % BLOCK))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TarPayload:
    """A member's bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def chunks(self) -> Iterator[bytes]:
        while chunk := self._file.read(READ_BYTES):
            yield chunk


class TarReader:
    """Reads from a file or a pipe; see `archive.Reader`. Raises BadRequest for what is no export."""

    def __init__(self, tar: tarfile.TarFile, where: str, size_bytes: int) -> None:
        self._tar, self._where = tar, where
        self.size_bytes = size_bytes
        self.finished = False
        first = self._next()
        if first is None or first.name != MANIFEST_NAME or first.size > MANIFEST_BYTES_MAX:
            raise BadRequest(f"{where} is no export of Mooncask: it does not begin with {MANIFEST_NAME}")
        self.manifest = decode_manifest(self._open(first).read(), where)

    @classmethod
    def from_stdin(cls) -> Self:
        return cls._reading(sys.stdin.buffer, "r|", "stdin", 0)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls._reading(path.open("rb"), "r:", str(path), path.stat().st_size)

    @classmethod
    def _reading(cls, file: IO[bytes], mode: str, where: str, size_bytes: int) -> Self:
        try:
            return cls(tarfile.open(fileobj=file, mode=mode), where, size_bytes)  # type: ignore[call-overload]
        except (tarfile.TarError, BadRequest) as error:
            file.close()
            raise error if isinstance(error, BadRequest) else BadRequest(f"{where} is no tar: {error}") from error

    def blocks(self) -> Iterator[tuple[Entry, TarPayload]]:
        while (member := self._next()) is not None:
            if member.name == END_NAME:
                self.finished = True
                return
            text = member.pax_headers.get(ENTRY_HEADER)
            if text is None:
                raise BadRequest(f"{self._where}: member {member.name[:80]} is no block of an export")
            yield decode_entry(text, self._where), TarPayload(self._open(member))
            self._tar.members.clear()  # type: ignore[attr-defined]  # or it remembers every member of the archive

    def close(self) -> None:
        file = self._tar.fileobj
        self._tar.close()
        if isinstance(file, io.IOBase) and file is not sys.stdin.buffer:
            file.close()

    def _next(self) -> tarfile.TarInfo | None:
        """None at the end, also at one that was cut: `finished` tells."""
        try:
            return self._tar.next()
        except tarfile.ReadError:
            return None
        except ValueError as error:  # tarfile's own, of sparse maps and numbers that are none
            raise BadRequest(f"{self._where} is no export of Mooncask: {error}") from error

    def _open(self, member: tarfile.TarInfo) -> IO[bytes]:
        if not member.isreg() or member.sparse is not None:
            raise BadRequest(f"{self._where}: member {member.name[:80]} is no plain file, as all of an export are")
        file = self._tar.extractfile(member)
        assert file is not None, member
        return file


class _Begun:
    """What an earlier run left: whole blocks, and where the last one ends."""

    def __init__(self, manifest: Manifest, end: int) -> None:
        self.manifest, self.end = manifest, end
        self.marks: dict[str, str] = {}
        self.size_bytes = 0


def _scan(path: Path) -> _Begun:
    """Raises BadRequest when `path` is no export: a file of somebody else's is not cut."""
    reader, length = TarReader.from_file(path), path.stat().st_size
    try:
        begun = _Begun(reader.manifest, reader._tar.offset)
        for entry, _ in reader.blocks():
            end = reader._tar.offset  # where the next member begins
            if end > length:
                break
            begun.end = end
            begun.marks[entry.key] = mark(entry)
            begun.size_bytes += entry.size
    finally:
        reader.close()
    return begun
