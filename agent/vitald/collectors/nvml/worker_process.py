"""
The daemon's side of the worker process: starts it, sends commands, shows where it hangs, ends it.

Nothing here calls the driver or waits for a process that does not end: one that is stuck in the
kernel is abandoned, and known by its process id and start time.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitald.collectors.nvml.codes import MARKER

_LINE_BYTES = 4 * 1024 * 1024
_TERM_S, _KILL_S = 0.5, 1.0
_START = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); from vitald.collectors.nvml.worker import"
    " main; main()"
)


class WorkerGone(Exception):
    """The process ended by itself. The message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The call that a worker is in: its C name, its GPU ("" for none), and since how many
    seconds.
    """

    call: str
    gpu: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.call} on gpu/{self.gpu}" if self.gpu else self.call


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWorker:
    """A process that was killed and has not ended. `started` distinguishes it from a later one with
    the same process id.
    """

    pid: int
    started: str
    where: InFlight
    state: str  # the states of its threads and where they wait in the kernel

    @property
    def is_gone(self) -> bool:
        return read_start_time(self.pid) != self.started


class WorkerProcess:
    """One worker process. Each command is answered once, in order. `on_message` is called with each
    message that answers no command.
    """

    def __init__(self, library: str, on_message: Callable[[Mapping[str, Any]], None]) -> None:
        """Raises OSError if no process can be started."""
        self._on_message = on_message
        self._shared = os.memfd_create("vitald-nvml", os.MFD_CLOEXEC)
        os.ftruncate(self._shared, MARKER.size)
        self._marker = mmap.mmap(self._shared, MARKER.size)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-c",
                    _START,
                    "\n".join(sys.path),
                    library,
                    str(self._shared),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._shared],
                cwd="/",
            )
        except OSError:
            self._marker.close()
            os.close(self._shared)
            raise
        self.ended = False  # or abandoned, if it could not be ended
        self.pid = self._process.pid
        self.started = read_start_time(self.pid)
        self._answer: asyncio.Future[Mapping[str, Any]] | None = None
        self._reading = asyncio.create_task(self._read_messages(), name="nvml worker")

    def send_command(self, command: Mapping[str, Any]) -> asyncio.Future[Mapping[str, Any]]:
        """Sends a command; only one at a time. The future raises WorkerGone if the process
        ends.
        """
        assert self._answer is None or self._answer.done()
        assert self._process.stdin is not None
        self._answer = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._fail_answer()
        return self._answer

    @property
    def in_flight(self) -> InFlight | None:
        """The call that it is in; None if it is in none."""
        began, call, gpu = MARKER.unpack_from(self._marker, 0)
        if not began:
            return None
        return InFlight(
            call=_decode_text(call),
            gpu=_decode_text(gpu),
            seconds=max(0.0, time.monotonic() - began),
        )

    async def end_process(self) -> StuckWorker | None:
        """Terminates, then kills it. Returns it if it still exists after that; it is then
        abandoned.
        """
        where = self.in_flight or InFlight(call="nothing known", gpu="", seconds=0.0)
        self._reading.cancel()
        self.ended = True
        for signal, seconds in ((self._process.terminate, _TERM_S), (self._process.kill, _KILL_S)):
            signal()
            if await _wait_for_end(self._process, seconds):
                self._close_files()
                return None
        state = list_thread_states(self.pid)
        self._close_files()
        return StuckWorker(pid=self.pid, started=self.started, where=where, state=state)

    def kill_process(self) -> None:
        """Kills it without waiting for its end."""
        self._reading.cancel()
        self._process.kill()
        self._process.poll()
        self._close_files()

    def _close_files(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(BufferError, OSError):
            self._marker.close()
            os.close(self._shared)
        if self._answer is not None:
            self._answer.cancel()

    async def _read_messages(self) -> None:
        assert self._process.stdout is not None
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "answer" not in message:
                    self._on_message(message)
                elif self._answer is not None and not self._answer.done():
                    self._answer.set_result(message["answer"])
        except ValueError as error:
            self._fail_answer(f"its output is no JSON line: {error}")
        finally:
            transport.close()
        await _wait_for_end(self._process, _KILL_S)
        self._fail_answer()

    def _fail_answer(self, reason: str = "") -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerGone(reason or self._describe_end()))

    def _describe_end(self) -> str:
        code, where = self._process.poll(), self.in_flight
        ended = f"exit status {code}" if code is None or code >= 0 else f"signal {-code}"
        during = f" in {where}" if where else ""
        return f"the NVML worker ended ({ended}){during}"


async def _wait_for_end(process: subprocess.Popen[bytes], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.01)
    return True


def read_start_time(pid: int) -> str:
    """In clock ticks since boot; empty if there is no such process, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def list_thread_states(pid: int) -> str:
    """The state of each thread and where it waits in the kernel. No other files are read: those of
    a stuck process may block their reader.
    """
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            where = (task / "wchan").read_text().strip("\0\n ")
        except OSError:
            continue
        found.append(f"{state} in {where}" if where not in ("", "0") else state)
    return ", ".join(dict.fromkeys(found))


def list_device_users(minors: Sequence[int]) -> tuple[list[tuple[int, str]], int]:
    """The processes that have device files of the driver open (process id and name), and how many
    processes could not be inspected. `minors`: of which GPUs; empty for any file of the driver.
    """
    wanted = {f"/dev/nvidia{minor}" for minor in minors}
    found, hidden = [], 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            names = {str(link.readlink()) for link in (entry / "fd").iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        except OSError:
            hidden += 1
            continue
        if names & wanted or (not wanted and any(name.startswith("/dev/nvidia") for name in names)):
            found.append((int(entry.name), _read_process_name(entry)))
    return sorted(found), hidden


def _read_process_name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"


def _decode_text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
