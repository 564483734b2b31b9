"""`vitald` on a terminal of its own, and what its screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Callable

import pyte

from tests.harness import PYTHON, ROOT
from tests.waiting import WAIT_S, until


class Terminal:
    """A terminal of so many columns and rows, with a command on it.

    `written`: all that the command wrote. `screen`: what it shows now, as an emulator of xterm
    shows it.
    """

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        rows: int = 24,
        stdout: int | None = None,
        **environment: str,
    ) -> None:
        """`stdout`: standard output, if it is not the terminal."""
        self._leader, self._follower = pty.openpty()
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._raw = b""
        self.resize(columns, rows)
        kept = {name: value for name, value in os.environ.items() if name not in _OF_A_TERMINAL}
        self.process = subprocess.Popen(
            [PYTHON, "-m", "vitald", *arguments],
            cwd=ROOT,
            stdin=self._follower,
            stdout=self._follower if stdout is None else stdout,
            stderr=self._follower,
            env={**kept, "TERM": "xterm", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # for Ctrl-C and a new size
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._leader)
        os.close(self._follower)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def press(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    @property
    def written(self) -> str:
        self._read()
        return self._raw.decode(errors="replace").replace("\r\n", "\n")

    @property
    def screen(self) -> list[str]:
        self._read()
        return [line.rstrip() for line in self._screen.display]

    def wait_for(self, holds: Callable[[], object]) -> None:
        until(holds, lambda: f"what is not in\n{self.written[-2000:]}")

    def wait_for_end(self) -> int:
        """The exit code. What it writes is read meanwhile: a terminal holds only some."""

        def has_ended() -> bool:
            self._read()
            return self.process.poll() is not None

        self.wait_for(has_ended)
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        while select.select([self._leader], [], [], 0)[0]:
            part = os.read(self._leader, 1 << 16)
            self._raw += part
            self._stream.feed(part)


# They come before the terminal's own size, or choose colours.
_OF_A_TERMINAL = {"COLUMNS", "LINES", "NO_COLOR"}


def show_on_terminal(
    *arguments: str, columns: int = 100, rows: int = 48, **environment: str
) -> str:
    """What the command wrote on a terminal."""
    with Terminal(*arguments, columns=columns, rows=rows, **environment) as terminal:
        terminal.wait_for_end()
        return terminal.written
