"""
Reports the progress of a training process to vitald on its node, and receives advice to save.

    from vitald_job import job

    job.start()
    for step, batch in enumerate(loader):
        loss = train_step(batch)
        job.step(step, loss=loss)

One file, standard library only, Python 3.8 or later. It imports nothing of vitald; a copy of the
file works as well.

It never harms the job: it raises nothing, waits for nothing, starts no thread, and does nothing
where no daemon runs. A step is written to a page of memory that the daemon made and sealed, without
a system call. What fails inside is counted in `job.counts`.

The contract with the daemon: docs/jobs-client.md.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import json
import math
import mmap
import os
import socket
import struct
import sys
import time
from types import TracebackType
from typing import Any, Mapping, Sequence

__all__ = ["Checkpoint", "Job", "job"]
__version__ = "1.0.0"

VERSION = 1  # of the contract
SOCKET = "/run/vitald/job/job.sock"
MAX_PACKET_BYTES, MAX_TEXT, MAX_JOB = 2048, 512, 64
_MAX_TEXT_BYTES = 1536
# seq, step, monotonic, seconds, busy, loss, grad_norm, phase, flags, phase_limit, seq
PAGE = struct.Struct("<QQdddddIIdQ")
PAGE_FILE_BYTES = 4096
PHASES = ("init", "train", "eval", "checkpoint", "wait", "end")
NOT_FINITE = 1  # flag of the page
HOLD_FLAGS_S = 2.5  # how long it stays, so that no reading misses it

# Where launchers leave what a process is. The first variable that is set counts.
ENVIRONMENT: Mapping[str, Sequence[str]] = {
    "job": ("VITALD_JOB_ID", "SLURM_JOB_ID", "AWS_BATCH_JOB_ID", "TORCHELASTIC_RUN_ID"),
    "rank": ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "world": ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"),
}
# Restarts by the launcher and by the scheduler, added.
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
# Words of an exception that say what it was about; the first that occurs counts.
EXCEPTIONS = (
    ("oom", ("outofmemoryerror", "out of memory", "memoryerror")),
    ("nccl", ("nccl", "distbackenderror")),
    ("neuron", ("nrt_", "neuron")),
    ("cuda", ("cuda", "cublas", "cudnn")),
)

_RETRY_S = 30.0  # between two attempts to connect
_WELCOME_POLL_S, _WELCOME_S = 0.01, 10.0
_MAX_PACKETS_PER_S = 10.0  # the daemon accepts 20
_NAN = math.nan
_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 2  # in fcntl from Python 3.9
_NEVER = math.inf
_PAGE = slice(0, PAGE.size)
_pack, _monotonic, _isfinite = PAGE.pack, time.monotonic, math.isfinite  # of each step


def read_identity(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says of this process: job, rank, local_rank, world, attempt."""
    found: dict[str, Any] = {"rank": 0}
    for key, names in ENVIRONMENT.items():
        value = next((environ[name] for name in names if environ.get(name)), "")
        if key == "job":
            found[key] = value[:MAX_JOB]
        elif _is_number(value):
            found[key] = int(value)
    restarts = [environ.get(name, "") for name in RESTARTS]
    found["attempt"] = sum(int(text) for text in restarts if _is_number(text))
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def classify_exception(text: str) -> str:
    lowered = text.lower()
    for what, words in EXCEPTIONS:
        if any(word in lowered for word in words):
            return what
    return "other"


class Job:
    """One process of a job. A program has the instance `job`; more are for tests."""

    def __init__(self) -> None:
        self.counts = {"sent": 0, "dropped": 0, "connected": 0, "errors": 0}
        self._hello: dict[str, Any] = {}
        self._path = ""
        self._socket: socket.socket | None = None
        self._page: mmap.mmap | None = None
        self._due = _NEVER  # next time that the socket is served
        self._next_attempt = 0.0
        self._welcome_until = 0.0
        self._every = 1.0
        self._tokens, self._tokens_at = _MAX_PACKETS_PER_S, 0.0
        self._advice: dict[str, Any] | None = None
        self._followed: dict[str, Any] | None = None  # advice after which a checkpoint was complete
        self._registered = False
        self._phase, self._limit = 0, 0.0
        self._reset_step()

    def _reset_step(self) -> None:
        self._seq = 0
        self._began = _NAN  # when the current step began
        self._collective = _NAN
        self._hold_until = 0.0
        # step, monotonic, seconds, busy, loss, grad_norm; none yet while monotonic is 0
        self._last = (0, 0.0, _NAN, _NAN, _NAN, _NAN)
        self._flags = 0

    # What a job calls

    def start(
        self,
        *,
        job: str | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world: int | None = None,
        attempt: int | None = None,
        step_limit: float = 0.0,
        path: str | None = None,
    ) -> None:
        """
        Connects to the daemon, if there is one, and says which process this is: by default what
        torchrun, Slurm or MPI left in the environment.

        `step_limit`: seconds after which a step counts as stalled; 0 leaves that to the daemon.
        """
        try:
            self._close()
            given = {
                "job": job,
                "rank": rank,
                "local_rank": local_rank,
                "world": world,
                "attempt": attempt,
            }
            found = read_identity(os.environ)
            found.update({key: value for key, value in given.items() if value is not None})
            self._hello = {"v": VERSION, "kind": "hello", **found, "step_limit_s": step_limit}
            self._path = os.environ.get("VITALD_JOB_SOCKET", SOCKET) if path is None else path
            self._reset_step()
            self._phase, self._limit = 0, 0.0
            if not self._path:  # switched off
                return
            self._register()
            self._next_attempt = 0.0
            self._serve(_monotonic())
        except Exception:
            self.counts["errors"] += 1

    def step(
        self,
        step: int,
        loss: float | None = None,
        *,
        seconds: float | None = None,
        busy: float | None = None,
        grad_norm: float | None = None,
    ) -> None:
        """
        Reports that `step` is complete.

        `loss`, `grad_norm`: numbers that the job has anyway; the last loss counts until the next.
        A tensor is ignored: reading it would wait for the GPU. `seconds`: of the step, by default
        the time since the previous call. `busy`: seconds of it before the first collective, by
        default what `mark_collective` measured.
        """
        try:
            now = _monotonic()
            if now >= self._due:
                self._serve(now)
            if self._socket is None:  # the usual case without a daemon
                self._began, self._collective = now, _NAN
                return
            if seconds is None:
                seconds = now - self._began
            if busy is None:
                busy = self._collective - self._began
            self._began, self._collective = now, _NAN
            flags = NOT_FINITE if now < self._hold_until else 0
            if not isinstance(loss, (float, int)):
                loss = self._last[4]  # the last one, as jobs log it every so many steps
            elif not _isfinite(loss):
                flags = self._hold_flags(now)
            if not isinstance(grad_norm, (float, int)):
                grad_norm = _NAN
            elif not _isfinite(grad_norm):
                flags = self._hold_flags(now)
            if not self._phase:
                self._phase = 1  # the first step ends `init`
            self._last, self._flags = (step, now, seconds, busy, loss, grad_norm), flags
            if self._page is not None:
                self._write_page()
        except Exception:
            self.counts["errors"] += 1

    def mark_collective(self) -> None:
        """
        Marks the moment before the first collective of a step: the time since the previous step is
        `busy`. Later calls within a step are ignored.
        """
        if math.isnan(self._collective):
            self._collective = _monotonic()

    def phase(self, phase: str, limit: float = 0.0) -> Phase:
        """
        A context in which the process does something else than steps: init, eval, wait.

        `limit`: seconds for which a lack of steps is no stall.
        """
        return Phase(self, phase, limit)

    def checkpoint(
        self, step: int, tier: str = "global", *, limit: float = 1800.0, blocking: bool = True
    ) -> Checkpoint:
        """
        A context that reports a checkpoint: complete, or failed if an exception leaves it.

        `tier`: memory, local or global. `blocking`: whether steps wait for it.
        """
        return Checkpoint(self, step, tier, limit, blocking=blocking)

    def report_error(self, what: str, text: str) -> None:
        """Reports an error: `what` is nccl, cuda, nan, oom, neuron or other."""
        try:
            shown = "".join(char if char.isprintable() else " " for char in str(text)[:MAX_TEXT])
            shown = shown.encode("utf-8", "replace")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")
            self._send({"kind": "error", "what": what, "text": shown})
        except Exception:
            self.counts["errors"] += 1

    @property
    def save_advised(self) -> bool:
        """
        Whether the node advises to save now, because it is to be reset or rebooted, and this
        process has reported no complete checkpoint since.

        It differs between nodes: all ranks must agree (all-reduce MAX) before they act on it.
        """
        advice = self.advice
        return advice is not None and advice != self._followed

    @property
    def advice(self) -> dict[str, Any] | None:
        """The advice to save as received, with `why`, `action`, `when` and `by`; None if none."""
        try:
            now = _monotonic()
            if now >= self._due:
                self._serve(now)
        except Exception:
            self.counts["errors"] += 1
        return self._advice

    def end(self) -> None:
        """Says that this process ends as intended. Called by itself at the interpreter's exit."""
        try:
            if self._socket is not None:
                self._set_phase(PHASES.index("end"), 0.0)
        except Exception:
            self.counts["errors"] += 1
        self._close()

    # Connection

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self._exit)
            os.register_at_fork(after_in_child=self._close)

    def _exit(self) -> None:
        """A process that an exception ends does not say `end`."""
        try:
            error = getattr(sys, "last_value", None)
            if error is None or isinstance(error, KeyboardInterrupt):
                self.end()
            elif self._socket is not None:
                text = f"{type(error).__name__}: {error}"
                self.report_error(classify_exception(text), text)
        except Exception:
            self.counts["errors"] += 1
        self._close()

    def _close(self) -> None:
        """Lets go of the daemon for good; in the child of a fork only of the child's copies."""
        self._due = _NEVER
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        page, self._page = self._page, None
        self._advice = None
        for opened in (page, connection):
            try:
                if opened is not None:
                    opened.close()
            except Exception:
                self.counts["errors"] += 1

    def _serve(self, now: float) -> None:
        """Connects if it is time to, and reads what the daemon has sent."""
        if self._socket is None:
            self._connect(now)
        if self._socket is not None:
            self._receive()
        if self._socket is None:
            self._due = self._next_attempt
        elif self._page is None and now < self._welcome_until:
            self._due = now + _WELCOME_POLL_S
        else:
            self._due = now + self._every

    def _connect(self, now: float) -> None:
        if now < self._next_attempt:
            return
        self._next_attempt, self._welcome_until = now + _RETRY_S, now + _WELCOME_S
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            opened.setblocking(False)
            opened.connect(self._path)
            opened.send(json.dumps(self._hello).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            opened.close()
            return
        self._socket = opened
        self.counts["connected"] += 1
        if self._phase:
            self._send_phase()

    def _receive(self) -> None:
        for _ in range(16):  # packets at a time
            if self._socket is None:
                return
            try:
                data, fds = self._receive_packet(self._socket)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, fds = b"", []
            try:
                if not data:
                    self._disconnect()
                    return
                self._apply_packet(data, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    @staticmethod
    def _receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
        room = socket.CMSG_SPACE(4 * 4)
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        data, ancillary, _, _ = connection.recvmsg(2 * MAX_PACKET_BYTES, room, flags)
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        return data, list(fds)

    def _apply_packet(self, data: bytes, fds: list[int]) -> None:
        try:
            packet = json.loads(data)
        except ValueError:
            packet = None
        if not isinstance(packet, dict):
            self.counts["errors"] += 1
        elif packet.get("kind") == "welcome":
            every = packet.get("every_s")
            if isinstance(every, (int, float)) and 0.01 <= every <= 60:
                self._every = float(every)
            if fds:
                self._map_page(fds[0])
        elif packet.get("kind") == "advice":
            self._advice = packet if packet.get("advice") == "save" else None
            if self._advice is None:
                self._followed = None

    def _read_advice(self) -> dict[str, Any] | None:
        """The advice, with what has arrived but was not due to be read."""
        try:
            if self._socket is not None:
                self._receive()
        except Exception:
            self.counts["errors"] += 1
        return self._advice

    def _map_page(self, fd: int) -> None:
        """A page that could shrink is refused: writing beyond its end would end the process."""
        if not fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK:
            raise ValueError("the page is not sealed")
        page = mmap.mmap(fd, PAGE_FILE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._page, before = page, self._page
        if before is not None:
            before.close()
        self._seq = 0
        self._write_page()

    def _write_page(self) -> None:
        """The last step, and the phase. Nothing before the first step: packets report its phase."""
        if self._page is not None and self._last[1]:
            self._seq = seq = self._seq + 1
            # One copy of packed bytes: `pack_into` clears the page before it fills it.
            self._page[_PAGE] = _pack(seq, *self._last, self._phase, self._flags, self._limit, seq)

    def _hold_flags(self, now: float) -> int:
        self._hold_until = now + HOLD_FLAGS_S
        return NOT_FINITE

    # Messages

    def _send(self, message: dict[str, Any]) -> None:
        now = _monotonic()
        if now >= self._due:
            self._serve(now)
        if self._socket is None:
            return
        refill = (now - self._tokens_at) * _MAX_PACKETS_PER_S
        self._tokens = min(_MAX_PACKETS_PER_S, self._tokens + refill)
        self._tokens_at = now
        data = json.dumps({"v": VERSION, **message}, ensure_ascii=False).encode()
        if self._tokens < 1.0 or len(data) > MAX_PACKET_BYTES:
            self.counts["dropped"] += 1
            return
        self._tokens -= 1.0
        try:
            self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            self.counts["dropped"] += 1
        except OSError:
            self.counts["dropped"] += 1
            self._disconnect()
            self._due = self._next_attempt
        else:
            self.counts["sent"] += 1

    def _set_phase(self, phase: int, limit: float) -> None:
        self._phase, self._limit = phase, limit
        self._began = _monotonic()  # a step does not include another phase
        self._write_page()
        self._send_phase()

    def _send_phase(self) -> None:
        self._send({"kind": "phase", "phase": PHASES[self._phase], "limit_s": self._limit})


class Phase:
    """Context of `Job.phase`: on exit the phase before it continues."""

    def __init__(self, job: Job, phase: str, limit: float) -> None:
        self._job, self._name, self._limit = job, phase, limit
        self._before = (1, 0.0)

    def __enter__(self) -> Phase:
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _enter(self) -> None:
        try:
            self._before = self._job._phase, self._job._limit
            self._job._set_phase(PHASES.index(self._name), float(self._limit))
        except Exception:
            self._job.counts["errors"] += 1

    def _leave(self) -> None:
        try:
            self._job._set_phase(*self._before)
        except Exception:
            self._job.counts["errors"] += 1


class Checkpoint(Phase):
    """Context of `Job.checkpoint`. Set `bytes` to what was written."""

    def __init__(self, job: Job, step: int, tier: str, limit: float, *, blocking: bool) -> None:
        super().__init__(job, "checkpoint", limit)
        self.bytes: int | None = None
        self._step, self._tier, self._blocking = step, tier, blocking
        self._began = 0.0
        self._advice: dict[str, Any] | None = None  # at its beginning

    def __enter__(self) -> Checkpoint:
        self._began = _monotonic()
        self._advice = self._job._read_advice()
        if self._blocking:
            self._enter()
        self._report("begin")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._report("end" if kind is None else "failed")
        if kind is None and self._advice is not None and self._tier != "memory":
            self._job._followed = self._advice
        if self._blocking:
            self._leave()

    def _report(self, state: str) -> None:
        try:
            message: dict[str, Any] = {"kind": "checkpoint", "state": state, "tier": self._tier}
            message["step"] = int(self._step)
            if state != "begin":
                message["seconds"] = _monotonic() - self._began
                if self.bytes is not None:
                    message["bytes"] = int(self.bytes)
            self._job._send(message)
        except Exception:
            self._job.counts["errors"] += 1


job = Job()
