"""API keys: which tenant and class a bearer token stands for. No key itself is kept, and none is ever logged.

A key is looked up under a digest that is keyed with random bytes of this process, so how long that takes tells nothing
about the keys there are.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from mooncask.client.bearer import given_token
from mooncask.conductor.serving.config import KeySection, told_or_read
from mooncask.errors import AccessDenied, ConfigError

KEYS_MAX = 100_000
KEY_CHARACTERS_MAX = 512
_HEX_DIGEST = re.compile("[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """What a key gives; its `name` is that of the configuration. `priority` None: that of the class."""

    name: str
    tenant: str
    service_class: str
    priority: int | None


class KeyRing:
    """All keys of the configuration. Raises ConfigError for one that is given twice, in no way or in more than one."""

    def __init__(self, sections: Mapping[str, KeySection]) -> None:
        if len(sections) > KEYS_MAX:
            raise ConfigError("keys", str(len(sections)), f"there may be {KEYS_MAX} keys")
        self._process_key = secrets.token_bytes(32)
        self._keys: dict[bytes, tuple[bytes, Key]] = {}
        for name, section in sections.items():
            digest = _digest(name, section)
            before = self._keys.get(self._place(digest))
            if before is not None:
                raise ConfigError(f"keys.{name}", "", f"is the same key as that of keys.{before[1].name}")
            if not 0 < len(section.tenant) <= 128 or not section.tenant.isprintable():
                raise ConfigError(f"keys.{name}.tenant", repr(section.tenant), "must be a name of 1 to 128 characters")
            key = Key(name, section.tenant, section.service_class, section.priority)
            self._keys[self._place(digest)] = digest, key

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, authorization: str) -> Key:
        """The key of an Authorization header. Raises AccessDenied, which tells nothing of what was given."""
        given = given_token(authorization)
        if not given:
            raise AccessDenied('an API key is needed: send it as "Authorization: Bearer KEY"')
        digest = hashlib.sha256(given[: KEY_CHARACTERS_MAX + 1].encode("utf-8", "surrogateescape")).digest()
        known, key = self._keys.get(self._place(digest), (b"", None))
        if key is None or not hmac.compare_digest(known, digest):
            raise AccessDenied("this API key is not known here; ask whoever runs this service for one")
        return key

    def _place(self, digest: bytes) -> bytes:
        return hmac.digest(self._process_key, digest, "sha256")


def _digest(name: str, section: KeySection) -> bytes:
    """SHA-256 of the key."""
    given = [field for field in ("key", "key_sha256", "key_file") if getattr(section, field)]
    if len(given) != 1:
        raise ConfigError(f"keys.{name}", ", ".join(given), "give one of key, key_sha256 and key_file")
    if section.key_sha256:
        if not _HEX_DIGEST.fullmatch(section.key_sha256):
            raise ConfigError(f"keys.{name}.key_sha256", "(not shown)", "must be 64 hex digits")
        return bytes.fromhex(section.key_sha256)
    key = told_or_read(section.key, section.key_file, f"keys.{name}.key_file")
    if not key or len(key) > KEY_CHARACTERS_MAX or not key.isprintable() or key != key.strip():
        raise ConfigError(
            f"keys.{name}", "(not shown)", f"a key is 1 to {KEY_CHARACTERS_MAX} characters without spaces around"
        )
    return hashlib.sha256(key.encode()).digest()
