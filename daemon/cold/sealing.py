"""Encryption of what goes into the bucket: AES-256-GCM, or nothing at all.

Each object has a key of its own, derived from the configured one and the object's identity; each part of it a random nonce. What a
part is bound to (object, place in it) is authenticated with it: a part that was moved or altered does not open.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mooncask.errors import ConfigError

Piece = bytes | memoryview
KEY_BYTES = 32
KEY_ID_BYTES = 8
NO_KEY_ID = bytes(KEY_ID_BYTES)
NONCE_BYTES = 12
TAG_BYTES = 16
_OBJECT_DOMAIN = b"mooncask cold object 1\0"
_ID_DOMAIN = b"mooncask cold key 1\0"
_FILE_BYTES_MAX = 4096


class CannotOpen(Exception):
    """A part is not what was sealed: another key, other bytes, another place. The text says which, for people."""


class Sealing(Protocol):
    """May be used by several threads at once."""

    @property
    def key_id(self) -> bytes:
        """What this one seals with; NO_KEY_ID = it does not encrypt."""
        ...

    @property
    def extra_bytes(self) -> int:
        """By how much a sealed part is longer."""
        ...

    def seal(self, identity: bytes, place: int, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Of one part, given in pieces, what is to be written; in pieces too, which may be the very same."""
        ...

    def open(self, key_id: bytes, identity: bytes, place: int, sealed: bytes | memoryview) -> memoryview:
        """The part. Raises CannotOpen."""
        ...


class Plain:
    """Nothing is encrypted; what others encrypted can't be read."""

    key_id = NO_KEY_ID
    extra_bytes = 0

    def seal(self, identity: bytes, place: int, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return pieces

    def open(self, key_id: bytes, identity: bytes, place: int, sealed: bytes | memoryview) -> memoryview:
        if key_id != NO_KEY_ID:
            raise CannotOpen(f"encrypted with key {key_id.hex()}, and this node has no key (cold.encryption_key_file)")
        return memoryview(sealed)


@dataclass(frozen=True, slots=True)
class AesGcm:
    """Seals with the first of `keys`, opens what any of them sealed. What is not encrypted is not trusted."""

    key_id: bytes
    keys: Mapping[bytes, bytes]
    extra_bytes: int = NONCE_BYTES + TAG_BYTES

    def seal(self, identity: bytes, place: int, pieces: Sequence[Piece]) -> Sequence[Piece]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(NONCE_BYTES)
        key = _object_key(self.keys[self.key_id], identity)
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return [nonce, AESGCM(key).encrypt(nonce, whole, _bound_to(identity, place))]

    def open(self, key_id: bytes, identity: bytes, place: int, sealed: bytes | memoryview) -> memoryview:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self.keys.get(key_id)
        if key is None:
            how = "not encrypted" if key_id == NO_KEY_ID else f"encrypted with key {key_id.hex()}"
            raise CannotOpen(
                f"{how}, and this node reads only what keys {', '.join(k.hex() for k in self.keys)} encrypted"
            )
        if len(sealed) < self.extra_bytes:
            raise CannotOpen("too short for what is encrypted")
        nonce, rest = bytes(sealed[:NONCE_BYTES]), memoryview(sealed)[NONCE_BYTES:]
        try:
            return memoryview(AESGCM(_object_key(key, identity)).decrypt(nonce, rest, _bound_to(identity, place)))
        except InvalidTag:
            raise CannotOpen("not what was encrypted there") from None


def open_sealing(key_file: str) -> Sealing:
    """Raises ConfigError when there is a key and no package, or no key in the file."""
    if not key_file:
        return Plain()
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError as error:
        allowed = 'needs the package "cryptography" (pip install mooncask[cold])'
        raise ConfigError("cold.encryption_key_file", f'"{key_file}"', allowed) from error
    keys = {key_id(key): key for key in _read_keys(Path(key_file))}
    return AesGcm(next(iter(keys)), keys)


def key_id(key: bytes) -> bytes:
    """Tells keys apart and says nothing of them."""
    return hashlib.sha256(_ID_DOMAIN + key).digest()[:KEY_ID_BYTES]


def _read_keys(path: Path) -> Sequence[bytes]:
    name = "cold.encryption_key_file"
    try:
        mode = path.stat().st_mode & 0o777
        text = path.read_bytes()[:_FILE_BYTES_MAX].decode("ascii")
    except OSError as error:
        raise ConfigError(name, f'"{path}"', f"must be readable ({error.strerror})") from error
    except UnicodeDecodeError:
        text, mode = "", 0o600
    if mode & 0o077:
        raise ConfigError(name, f'"{path}"', f"has mode {mode:04o}; nobody but its owner may open it: chmod 600")
    try:
        keys = [bytes.fromhex(line) for line in text.split()]
    except ValueError:
        keys = []
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ConfigError(name, f'"{path}"', f"must hold {KEY_BYTES} bytes as {2 * KEY_BYTES} hex digits a line")
    return keys


def _object_key(key: bytes, identity: bytes) -> bytes:
    return hmac.digest(key, _OBJECT_DOMAIN + identity, "sha256")


def _bound_to(identity: bytes, place: int) -> bytes:
    return identity + place.to_bytes(8, "little")
