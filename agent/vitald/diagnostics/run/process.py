"""
Runs a program with a deadline, and ends it together with everything that it started.

Processes that others started on its behalf, such as DCGM's engine, are not covered:
`device_access.find_leftovers` finds those.

SIGTERM comes first, since `dcgmi` then makes the engine stop its tests; SIGKILL follows after a
grace period. Processes left behind are ended too, also after a normal exit. The program is reaped
last: until then no other process can get its id, which is also the id of its group and session.
Processes that cannot be ended, because they hang in the kernel or belong to another user,
are named in the result.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import structlog

from vitald.diagnostics.check import Command, Output, ProgramEnd
from vitald.diagnostics.run.held_processes import Process
from vitald.diagnostics.run.start import NotStarted, Started, start_program
from vitald.text import clean_line, join_first
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_START_S = 10.0  # a disk that does not answer
_LEFT_S = 1.0  # for a child that was left behind, between SIGTERM and SIGKILL
_LAST_S = 5.0  # for the kernel to clear away what was killed
_HURRY_S = 0.5  # either of these, when the daemon stops
_SETTLE_S = 0.3  # for the end of the output, once nothing of the program is left
_LIST_S = 1.0  # one list of its processes
_AGAIN_S = 0.03  # between two of them
_POLL_S = 0.05  # where the kernel has no pidfd
_READ_BYTES = 256 * 1024
_PIPE_READS = 8  # what a pipe can hold, and more
_MAX_NAMED = 4  # processes named in a sentence


class Programs:
    """Runs one program at a time. `delegated`: the control group that the daemon may divide."""

    def __init__(self, delegated: Path | None = None) -> None:
        if delegated is not None and not os.access(delegated, os.W_OK):
            log.warning(
                "control_group_not_writable",
                path=str(delegated),
                effect="what leaves the session of a diagnostic outlives it",
                next_step="ReadWritePaths= with this path in a drop-in of the unit",
            )
            delegated = None
        self._delegated = delegated
        self._program: _ProgramRun | None = None
        self._task: asyncio.Task[Output] | None = None

    async def execute(self, command: Command) -> Output:
        """Runs it to its end. A cancellation is delivered when all its processes have ended, within
        about a second.
        """
        if self._task is not None and not self._task.done():
            raise RuntimeError("one program at a time")
        program = self._program = _ProgramRun(command, self._delegated)
        task = self._task = asyncio.create_task(
            program.run_program(), name=f"program {command.argv[:1]}"
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            program.end_soon()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])  # it bounds itself
            raise

    def cancel(self, why: str, grace_s: float | None = None) -> None:
        """End the program that runs, if any: SIGTERM now, SIGKILL after the grace, the command's
        own where none is given. Again with a shorter one: sooner.
        """
        if self._program is not None:
            self._program.end_program(ProgramEnd.CANCELLED, why, grace_s)

    async def close(self) -> None:
        """End it, and return when that is done."""
        if self._program is not None and self._task is not None and not self._task.done():
            self._program.end_soon()
            await asyncio.wait([self._task])


class _ProgramRun:
    """One program from start to end."""

    def __init__(self, command: Command, delegated: Path | None) -> None:
        self._command = command
        self._delegated = delegated
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._changed = asyncio.Event()
        self._worker_thread = WorkerThread("diagnostic")
        self._pipes = _OutputPipes(self._changed, command.max_bytes)
        self._pidfd = -1
        self._lock = threading.Lock()
        self._given_up = False
        self._started: Started | None = None
        self._exited: float | None = None
        self._code: int | None = None
        self._ended: ProgramEnd | None = None  # by us
        self._why = ""
        self._kill_at = float("inf")
        self._killed = False
        self._last_s = _LAST_S
        self._behind: list[str] = []
        self._unlisted = ""  # why its processes could not be listed

    # --- from outside, on the loop

    def end_program(self, ended: ProgramEnd, why: str, grace_s: float | None) -> None:
        """Ends the program. One that has just exited by itself keeps its own result."""
        self._check_exit()
        if self._exited is None and self._ended is None:
            self._ended, self._why = ended, clean_line(why)
        self._kill_at = min(
            self._kill_at,
            self._loop.time() + (self._command.grace_s if grace_s is None else grace_s),
        )
        self._changed.set()

    def end_soon(self) -> None:
        """The daemon stops."""
        self._last_s = _HURRY_S
        self.end_program(ProgramEnd.CANCELLED, "the daemon stops", _HURRY_S)

    # --- its life

    async def run_program(self) -> Output:
        try:
            if failed := await self._start_program():
                return self._make_output(ProgramEnd.NOT_STARTED, failed)
            left = await self._wait_for_end()
            await self._drain_output()
            return self._make_result(left)
        finally:
            self._release_resources()

    async def _start_program(self) -> str:
        """Why it does not run; empty where it does."""
        task = asyncio.create_task(self._worker_thread.call(self._spawn_process, _START_S))
        task.add_done_callback(lambda _: self._changed.set())
        await self._wait_until(task.done, lambda: self._kill_at)
        if task.done() and not task.cancelled():
            error = task.exception()
            if isinstance(error, NotStarted):
                return str(error)
            if error is not None and not isinstance(error, ThreadStuck):
                raise error
        with self._lock:
            self._given_up = self._started is None
        if self._given_up:
            task.cancel()
            elapsed_s = self._loop.time() - self._began
            return (
                f"{self._program_name} does not start within {elapsed_s:.1f} s: does"
                " the disk that it is on answer?"
            )
        self._watch_process()
        return ""

    def _spawn_process(self) -> None:
        """Runs in the worker thread. Raises NotStarted."""
        started = start_program(self._command, self._delegated)
        with self._lock:
            if not self._given_up:
                self._started = started
                return
        started.processes.signal_living(signal.SIGKILL)
        started.popen.wait()
        started.processes.close()
        for fd in started.pipes:
            os.close(fd)

    async def _wait_for_end(self) -> list[Process]:
        """Until it has ended, and all that came from it. Returns what has not."""
        deadline = self._began + self._command.deadline_s
        await self._wait_until(
            lambda: self._exited is not None or self._ended is not None, lambda: deadline
        )
        if self._exited is None:
            if self._ended is None:
                self.end_program(
                    ProgramEnd.DEADLINE, f"no end within {self._command.deadline_s:g} s", None
                )
            self._signal_group(signal.SIGTERM)
            await self._signal_living(signal.SIGTERM)
            await self._wait_until(lambda: self._exited is not None, lambda: self._kill_at)
            if self._exited is None:
                self._killed = True
                self._signal_group(signal.SIGKILL)
        return await self._end_remaining()

    async def _end_remaining(self) -> list[Process]:
        """End what is left, the program itself among it where it was killed. Returns what does not
        end.
        """
        began = self._loop.time()
        killing: float | None = None
        # After a normal exit a child that is about to end gets the time for it.
        number: int | None = None if self._ended is None else signal.SIGTERM
        while True:
            now = self._loop.time()
            if self._killed or now >= min(self._kill_at, began + _LEFT_S):
                number, killing = signal.SIGKILL, now if killing is None else killing
            seen = await self._signal_living(number)
            self._check_exit()
            if not seen and self._exited is not None:
                if self._unlisted:
                    self._signal_group(signal.SIGKILL)  # at least
                return []
            if killing is not None and now - killing >= self._last_s:
                return seen
            if number is not None and self._ended is None and not self._behind:
                self._behind = [str(process) for process in seen]
            number = number or signal.SIGTERM
            await self._pause_for(_AGAIN_S)

    async def _signal_living(self, number: int | None) -> list[Process]:
        """The processes that live, after a signal. Empty if they cannot be listed."""
        assert self._started is not None
        signal_living = partial(self._started.processes.signal_living, number)
        try:
            return await self._worker_thread.call(signal_living, _LIST_S)
        except (ThreadStuck, OSError) as error:
            self._unlisted = str(error)
            return []
        except asyncio.CancelledError:
            self.end_soon()
            return await self._signal_living(number)

    async def _drain_output(self) -> None:
        """Reads the rest of the output. Another process may keep the pipes open for ever."""
        until = self._loop.time() + _SETTLE_S
        await self._wait_until(lambda: not self._pipes.is_open, lambda: until)
        self._pipes.drain_pipes()

    async def _pause_for(self, seconds: float) -> None:
        until = self._loop.time() + seconds
        await self._wait_until(lambda: False, lambda: until)

    async def _wait_until(self, done: Callable[[], bool], at: Callable[[], float]) -> None:
        """Until something has happened, or a time, which may come nearer meanwhile."""
        while not done() and (seconds := at() - self._loop.time()) > 0:
            self._changed.clear()
            timer = self._loop.call_later(min(seconds, 3600.0), self._changed.set)
            try:
                await self._changed.wait()
            except asyncio.CancelledError:
                self.end_soon()
            finally:
                timer.cancel()

    # --- the program's end and its output, as the loop sees them

    def _watch_process(self) -> None:
        assert self._started is not None
        self._pipes.watch_pipes(self._started.pipes)
        try:
            self._pidfd = os.pidfd_open(self._started.popen.pid)
            self._loop.add_reader(self._pidfd, self._check_exit)
        except OSError:
            self._poll_exit()

    def _poll_exit(self) -> None:
        self._check_exit()
        if self._exited is None and self._started is not None:
            self._loop.call_later(_POLL_S, self._poll_exit)

    def _check_exit(self) -> None:
        """Whether it has ended. It is not reaped yet."""
        if self._exited is not None:
            self._forget_pidfd()
        if self._exited is not None or self._started is None:
            return
        try:
            info = os.waitid(
                os.P_PID, self._started.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
            )
        except ChildProcessError:
            self._exited = self._loop.time()  # SIGCHLD is ignored: the exit status is lost
        else:
            if info is None:
                return
            self._exited = self._loop.time()
            self._code = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        self._forget_pidfd()
        self._changed.set()

    def _signal_group(self, number: int) -> None:
        """Signals the program's group, without a list of its processes."""
        if self._started is not None:
            self._started.processes.signal_group(number)

    def _forget_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _release_resources(self) -> None:
        self._worker_thread.close()
        started, self._started = self._started, None
        if started is None:
            return
        self._pipes.close_pipes(started.pipes)
        self._forget_pidfd()
        if self._exited is None:
            started.processes.signal_group(signal.SIGKILL)
        _reap_process(started.popen)
        started.processes.close()

    # --- what came of it

    @property
    def _program_name(self) -> str:
        return clean_line(self._command.argv[0]) if self._command.argv else ""

    def _make_result(self, left: list[Process]) -> Output:
        ended = self._ended or (
            ProgramEnd.SIGNALLED if self._code is not None and self._code < 0 else ProgramEnd.EXITED
        )
        ended_all = not left
        if self._exited is None and self._started is not None and not left:
            left = [Process(self._started.popen.pid, self._program_name)]
        stuck = [f"{process}{_describe_stuck(process)}" for process in left]
        why = [*self._explain_end(ended), *self._explain_remaining(stuck, ended_all=ended_all)]
        return self._make_output(ended, "; ".join(why), tuple(left))

    def _explain_end(self, ended: ProgramEnd) -> Iterator[str]:
        """How the program itself ended."""
        if self._why:
            yield self._why
        if ended is ProgramEnd.SIGNALLED:
            yield f"ended by {_describe_signal(-(self._code or 0))}"
        if ended is ProgramEnd.EXITED and self._code is None:
            yield "its exit code is not known: SIGCHLD is ignored here, or somebody else took it"
        if self._killed:
            yield "SIGTERM did not end it: killed"

    def _explain_remaining(self, stuck: list[str], *, ended_all: bool) -> Iterator[str]:
        """What it left behind, and what of that cannot be ended."""
        if self._behind:
            now_ended = ", now ended" if ended_all else ""
            yield f"it left behind {join_first(self._behind, _MAX_NAMED)}{now_ended}"
        if stuck:
            yield f"cannot be ended: {join_first(stuck, _MAX_NAMED)}"
        if self._unlisted:
            yield f"what else it may have left is not known: {clean_line(self._unlisted)}"

    def _make_output(self, ended: ProgramEnd, why: str, left: tuple[Process, ...] = ()) -> Output:
        stdout, stderr = self._pipes.streams
        return Output(
            ended=ended,
            stdout=stdout.text(),
            stderr=stderr.text(),
            exit_code=self._code,
            dropped=stdout.dropped + stderr.dropped,
            seconds=(self._loop.time() if self._exited is None else self._exited) - self._began,
            why=why,
            left=left,
        )


class _OutputPipes:
    """Reads the output of a program while it runs. `changed` is set when a pipe is at its end."""

    def __init__(self, changed: asyncio.Event, max_bytes: int) -> None:
        self.streams = (_KeptOutput(max_bytes // 2), _KeptOutput(max_bytes // 2))
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, _KeptOutput] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def watch_pipes(self, pipes: tuple[int, ...]) -> None:
        for fd, stream in zip(pipes, self.streams):
            os.set_blocking(fd, False)
            self._open[fd] = stream
            self._loop.add_reader(fd, self._read_pipe, fd)

    def drain_pipes(self) -> None:
        """Reads what is in the pipes that others still hold open."""
        for fd in tuple(self._open):
            for _ in range(_PIPE_READS):
                if not self._read_pipe(fd):
                    break

    def close_pipes(self, pipes: tuple[int, ...]) -> None:
        for fd in pipes:
            self._loop.remove_reader(fd)
            os.close(fd)

    def _read_pipe(self, fd: int) -> bool:
        """Reads what is there. True if there may be more."""
        try:
            part = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if part:
            self._open[fd].add(part)
            return True
        self._loop.remove_reader(fd)
        self._open.pop(fd, None)
        self._changed.set()
        return False


class _KeptOutput:
    """The first and the last part of a stream."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._total = 0
        self._head = bytearray()
        self._tail = bytearray()  # up to twice as long as what is kept of it

    def add(self, part: bytes) -> None:
        self._total += len(part)
        room = self._half - len(self._head)
        self._head += part[:room]
        self._tail += part[room:]
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    @property
    def dropped(self) -> int:
        return max(0, self._total - 2 * self._half)

    def text(self) -> str:
        """With a line in the gap, so that two halves of a document do not pass for one."""
        gap = f"\n... {self.dropped} bytes dropped ...\n".encode() if self.dropped else b""
        return (self._head + gap + self._tail[-self._half :]).decode(errors="replace")


_unreaped: list[subprocess.Popen[bytes]] = []  # that could not be ended when they should have


def _reap_process(popen: subprocess.Popen[bytes]) -> None:
    _unreaped.append(popen)
    for left in tuple(_unreaped):
        try:
            pid, _ = os.waitpid(left.pid, os.WNOHANG)
        except ChildProcessError:
            pid = left.pid
        if pid:
            left.returncode = 0  # so that subprocess does not wait for this pid again
            _unreaped.remove(left)


def _describe_stuck(process: Process) -> str:
    return ", which waits in the kernel" if process.is_stuck else ""


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return (
        f"{name} from elsewhere, such as the kernel where memory runs out"
        if number == signal.SIGKILL
        else name
    )
