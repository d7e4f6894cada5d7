"""What a failure is to whoever called `open` or `read`. Pure."""

import errno
import os

from mooncask.errors import DaemonUnavailable, DeadlineExceeded, MooncaskError


def errno_of(error: MooncaskError) -> int:
    """The errno of the error's class, but EIO where the daemon did not answer.

    The classes say ENOTCONN and ETIMEDOUT for that; from a mounted file system the first would say that the mount is gone,
    and no program expects the second.
    """
    if isinstance(error, DaemonUnavailable | DeadlineExceeded):
        return errno.EIO
    return error.errno


def failure(number: int) -> OSError:
    """An OSError of this number."""
    return OSError(number, os.strerror(number))
