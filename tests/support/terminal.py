"""A program in a terminal of its own: what it draws as lines of text, keys typed into it, a size it is given.

A small emulator understands what rich writes in its full-screen mode: text, cursor moves and clearing. Colours are dropped.
"""

import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl
from types import TracebackType
from typing import Self

SECONDS = 20.0
STEP_SECONDS = 0.1
_PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]|\r|\n|\x08|[^\x1b\r\n\x08]+")


class Terminal:
    """Starts `words` with the terminal as stdin, stdout and stderr; ends it with the `with` statement."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], columns: int = 120, lines: int = 40
    ) -> None:
        self.columns, self.lines = columns, lines
        self._screen = [""] * lines
        self._row = self._column = 0
        self._rest = b""
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        settings = {**os.environ, "TERM": "xterm-256color", **environment}
        for name in ("COLUMNS", "LINES"):
            settings.pop(name, None)
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env=settings, start_new_session=True
        )
        self._slave = slave  # kept open: with it closed everywhere, what was drawn last would be lost
        self.full_screen = False
        """Whether the program took the whole screen and did not give it back."""

    @property
    def settings(self) -> object:
        """How the terminal treats keys: modes and control characters."""
        return termios.tcgetattr(self._slave)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, holds: Callable[[str], bool], seconds: float = SECONDS) -> str:
        """The screen, as soon as it is as wanted. Raises AssertionError with the screen when it does not get there."""
        deadline = time.monotonic() + seconds
        while not holds(text := "\n".join(self._screen)):
            assert self.process.poll() is None or self._read(STEP_SECONDS), f"it ended, the screen is:\n{text}"
            assert self._read(deadline - time.monotonic()), f"not within {seconds} s, the screen is:\n{text}"
        return text

    def wait_end(self, seconds: float = SECONDS) -> int:
        """The exit status, when the program ends of itself."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(STEP_SECONDS)
        while self._read(STEP_SECONDS):
            pass
        return self.process.wait(STEP_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, seconds: float) -> bool:
        """Draws what comes next; False when nothing more comes."""
        if seconds <= 0 or not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False  # the other end is closed
        text = (self._rest + data).decode(errors="ignore")
        cut = (
            max(text.rfind("\x1b"), 0) if "\x1b" in text[-12:] and not _whole(text[text.rfind("\x1b") :]) else len(text)
        )
        self._rest = text[cut:].encode()
        for found in _PART.finditer(text[:cut]):
            self._draw(found)
        return bool(data)

    def _draw(self, found: "re.Match[str]") -> None:
        part = found[0]
        if found[2]:
            self._move(found[1], found[2])
        elif part == "\r":
            self._column = 0
        elif part == "\n":
            self._down()
        elif part == "\x08":
            self._column = max(0, self._column - 1)
        elif not part.startswith("\x1b"):
            line = self._screen[self._row].ljust(self._column)
            self._screen[self._row] = line[: self._column] + part + line[self._column + len(part) :]
            self._column += len(part)

    def _down(self) -> None:
        if self._row == self.lines - 1:
            self._screen = [*self._screen[1:], ""]
        else:
            self._row += 1

    def _move(self, argument: str, letter: str) -> None:
        numbers = [int(word) if word.isdigit() else 0 for word in argument.lstrip("?").split(";")]
        if argument == "?1049" and letter in "hl":
            self.full_screen = letter == "h"
        elif letter == "H":
            self._row = min(max(numbers[0] - 1, 0), self.lines - 1)
            self._column = max((numbers[1] if len(numbers) > 1 else 1) - 1, 0)
        elif letter == "J" and numbers[0] == 2:
            self._screen = [""] * self.lines
        elif letter == "K":
            self._screen[self._row] = "" if numbers[0] == 2 else self._screen[self._row][: self._column]
        elif letter == "A":
            self._row = max(0, self._row - max(1, numbers[0]))


def _whole(escape: str) -> bool:
    return _PART.match(escape) is not None
