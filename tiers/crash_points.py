"""Named places where a crash test makes the process kill itself.

`MOONCASK_CRASH_AT=nvme.commit.synced` dies at the first pass through that point, `nvme.commit.synced:7` at the seventh.
The variable is read once, at import; unset, a point costs one comparison. The points and what must be true after a crash
at each are listed in docs/FORMAT.md.
"""

import os
import signal
from itertools import count

VARIABLE = "MOONCASK_CRASH_AT"


def _parse(setting: str) -> tuple[str, int]:
    """("name", pass): which point kills, and at which pass through it."""
    name, _, nth = setting.partition(":")
    return name, int(nth or 1)


_NAME, _PASS = _parse(os.environ.get(VARIABLE, ""))
_passes = count(1)


def crash_point(name: str) -> None:
    """Kill this process with SIGKILL if it was told to die here."""
    if name == _NAME and next(_passes) == _PASS:
        os.kill(os.getpid(), signal.SIGKILL)
