"""The S3 keys that the configuration names, with their secrets read. Nothing here checks a signature."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from mooncask.daemon.config import Config, CredentialSection
from mooncask.daemon.http.callers.caller import Caller
from mooncask.errors import ConfigError

_FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Credential:
    """One access key: its secret, and on whose behalf it acts."""

    secret: str = field(repr=False)
    caller: Caller


def load_credentials(config: Config) -> dict[str, Credential]:
    """Access key id -> credential. Reads the files of `secret_file`: at start, or in a thread. Raises ConfigError."""
    return {name: _load(name, section) for name, section in config.credentials.items()}


def _load(name: str, section: CredentialSection) -> Credential:
    secret = section.secret or secret_of_file(f"credentials.{name}.secret_file", section.secret_file)
    return Credential(secret, Caller(section.tenant, name, may_write=section.rights == "write"))


def secret_of_file(key: str, path: str) -> str:
    """The one line of the file that `key` names. Raises ConfigError, also for a file that others than its owner may open."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_FILE_BYTES_MAX + 1).decode().strip()
    except OSError as error:
        raise ConfigError(key, f'"{path}"', f"must be readable ({error.strerror})") from error
    except UnicodeDecodeError:
        raise ConfigError(key, f'"{path}"', "must hold one secret as text") from None
    if mode & 0o077:
        raise ConfigError(key, f'"{path}"', f"has mode {mode:04o}; nobody but its owner may open it: chmod 600")
    if len(text) < 8 or len(text) > _FILE_BYTES_MAX or len(text.split()) != 1:
        raise ConfigError(key, f'"{path}"', "must hold one secret of at least 8 characters without blanks")
    return text
