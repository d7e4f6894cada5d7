"""What every error of Mooncask is; the tree itself is in `errors/__init__.py`."""

import errno as _errno
from typing import ClassVar


class MooncaskError(Exception):
    """Base of all; never raised itself."""

    code: ClassVar[str] = "InternalError"
    http_status: ClassVar[int] = 500
    errno: ClassVar[int] = _errno.EIO
    exit_code: ClassVar[int] = 1

    @property
    def message(self) -> str:
        return str(self)
