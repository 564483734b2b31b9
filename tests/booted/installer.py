"""
`packaging/install` in a machine: started, killed in part or whole, and run to its end.

Owns     one run of it, and which of its processes are hit.
Refuses  knowing what a test expects.

Its processes are those of its session: what systemd starts for it is in another one. Source:
proc(5), stat.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.booted.machine import Machine
from tests.harness import ROOT
from tests.waiting import until

PLACE = "/root/checkout"
_LONG_S = 120.0
_READ = (
    *("packaging", "agent", "systemd", "docs", "README.md", "CHANGELOG.md", "LICENSE"),
    *("config.example.toml", "pyproject.toml"),
)


def put_checkout(machine: Machine) -> None:
    """As much of this checkout as the installer and the build read."""
    for name in _READ:
        source, target = ROOT / name, machine.root / PLACE.lstrip("/") / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def dpkg_state(machine: Machine) -> tuple[str, str]:
    """Of vitald, on the disk: a word, and `reinstreq` where dpkg was killed as it unpacked."""
    folder = machine.root / "var/lib/dpkg"
    form = "${db:Status-Status} ${db:Status-Eflag}"
    query = ["dpkg-query", f"--admindir={folder}", "--show", f"--showformat={form}", "vitald"]
    state, _, flag = subprocess.run(query, capture_output=True, text=True).stdout.partition(" ")
    return state, flag


class Run:
    """One run, in a session of its own."""

    def __init__(self, machine: Machine, *arguments: str, under: tuple[str, ...] = ()) -> None:
        number, name = tempfile.mkstemp(prefix="installer-", dir=machine.folder)
        self._out = Path(name)
        with os.fdopen(number, "wb") as out:
            argv = machine.argv("HOME=/root", *under, f"{PLACE}/packaging/install", *arguments)
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it goes on, whatever the test found."""
        self.kill()

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def end(self, seconds: float = _LONG_S) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def until(self, holds: Callable[[], object], what: str) -> None:
        """While it runs: its end is a failure."""

        def holds_while_it_runs() -> bool:
            if holds():
                return True
            code = self.process.poll()
            assert code is None, f"ended ({code}) before {what}:\n{self.said}"
            return False

        until(holds_while_it_runs, lambda: f"{what}:\n{self.said}", _LONG_S)

    def names(self) -> set[str]:
        """What runs for it."""
        return {name for _, name in self._processes()}

    def kill(self, *names: str) -> list[str]:
        """Every process of it, or those of these names. What was hit."""
        hit: dict[int, str] = {}  # a killed process is listed until the kernel has ended it
        while found := [one for one in self._processes() if not names or one[1] in names]:
            for number, name in found:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
                hit[number] = name
            self.process.poll()
        if not names:
            self.process.wait(10.0)
        return list(hit.values())

    def _processes(self) -> Iterator[tuple[int, str]]:
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with suppress(OSError, ValueError):
                name, rest = (folder / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
                state, _, _, session, *_ = rest.split()
                if int(session) == self.process.pid and state not in "ZX":
                    yield int(folder.name), name
