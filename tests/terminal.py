"""The command line on a terminal of its own, of a size that may change."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from tests.harness import PYTHON, ROOT
from tests.pace import patient

HOME = "\x1b[H"
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`vitald ARGUMENTS` with a terminal for all three streams. What it wrote is in `shown`."""

    def __init__(self, *arguments: str, columns: int = 80, rows: int = 24, **more: str) -> None:
        self._leader, self._follower = pty.openpty()
        self.resize(columns, rows)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        named = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", **more}
        for name in (
            "COLUMNS",
            "LINES",
        ):  # readline sets them for the children of the process that loads it
            named.pop(name, None)
        self.process = subprocess.Popen(
            [PYTHON, "-m", "vitald", *arguments],
            cwd=ROOT,
            stdin=self._follower,
            stdout=self._follower,
            stderr=self._follower,
            preexec_fn=_take_terminal,
            env=named,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10.0)
        os.close(self._leader)
        os.close(self._follower)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def read(self, seconds: float = 0.1) -> str:
        """What it has written so far, and within so many seconds."""
        while select.select([self._leader], [], [], seconds)[0]:
            self.shown += self._decoder.decode(os.read(self._leader, 1 << 16))
            seconds = 0.0
        return self.shown

    def wait_for(self, text: str, seconds: float = 10.0) -> None:
        """Until it has written the text, since the last call of `forget`."""
        until = time.monotonic() + patient(seconds)
        while text not in self.read():
            assert time.monotonic() < until, (text, self.shown[-2000:])
            assert self.process.poll() is None or text in self.read(), self.shown[-2000:]

    def forget(self) -> None:
        self.shown = ""

    def wait_for_end(self, seconds: float = 20.0) -> int:
        """The exit code. What it writes is read meanwhile."""
        until = time.monotonic() + patient(seconds)
        while self.process.poll() is None:
            assert time.monotonic() < until, self.shown[-2000:]
            self.read(0.02)
        self.read(0.0)
        return self.process.returncode

    @property
    def lines(self) -> list[str]:
        return remove_sequences(self.shown).replace("\r", "").rstrip("\n").split("\n")

    @property
    def frame(self) -> list[str]:
        """The lines of the last frame that is complete."""
        *frames, last = self.shown.split(HOME)
        whole = frames[-1] if len(frames) > 1 else last
        return remove_sequences(whole).replace("\r", "").rstrip("\n").split("\n")


def run_on_terminal(*arguments: str, columns: int = 80, rows: int = 24) -> list[str]:
    """The lines that the command writes there."""
    with Terminal(*arguments, columns=columns, rows=rows) as terminal:
        terminal.wait_for_end()
        return terminal.lines


def remove_sequences(text: str) -> str:
    return _SEQUENCE.sub("", text)


def _take_terminal() -> None:
    """A session of its own, whose terminal this is: Ctrl-C and a new size reach it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
