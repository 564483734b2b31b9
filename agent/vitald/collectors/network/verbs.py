"""
Whether programs can use an RDMA device: its verbs character device, and a context opened on it.

The port of an adapter may be up while the adapter answers no commands. On mlx5 and EFA, opening a
context is a command to the adapter. The calls run in a child process. A read waits for it for a
moment only; a later one takes its result. A child that passes its deadline is killed; one that
cannot be killed is abandoned, and no other is started for the device meanwhile.

What is hidden from the daemon, or not permitted to it, says nothing about the device.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from vitald.collectors import small_files
from vitald.collectors.small_files import RawReadings, describe_error

LIBRARY = "libibverbs.so.1"
_START = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); from vitald.collectors.network.verbs_child"
    " import main; main()"
)
# Answers of a device, or of a driver that has given it up. Others may come from this process.
_DEVICE_ERRORS = (errno.EIO, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EREMOTEIO)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)
_MAX_OUTPUT = 4096
_SOON_S = 0.15  # a device that is well answers by then, on a machine that is not busy
_UNKNOWN_AGAIN = 12  # periods until a probe that says nothing, such as of access, is repeated
_MAX_CHILDREN = 4  # at a time, of all adapters: each needs memory
_LIVES_ON_S = 60  # a child whose daemon is gone ends by itself
_DEVICE_CALLS = ("ibv_open_device", "ibv_query_device", "ibv_close_device")
_RESULTS = ("ok", "failed", "unlisted", "absent")


class _Child:
    """A probe that was started."""

    def __init__(self, library: str, name: str, seconds: float) -> None:
        """Raises OSError."""
        self.began = time.monotonic()
        self._output = b""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _START, "\n".join(sys.path)),
                *(library, name, str(int(seconds) + _LIVES_ON_S)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)

    def read_lines(self) -> list[str]:
        """What it has printed so far."""
        with suppress(BlockingIOError):
            while len(self._output) < _MAX_OUTPUT and (part := os.read(self._pipe, _MAX_OUTPUT)):
                self._output += part
        return self._output.decode("ascii", "replace").splitlines()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_soon(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SOON_S)

    def kill(self) -> None:
        """Does not wait for its end."""
        self._process.kill()

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class VerbsResult:
    """What a probe found. `call`: the last one; `reason`: why nothing is known of the device."""

    hung: bool = False
    failed: bool = False
    call: str = ""
    error: str = ""
    reason: str = ""
    seconds: float = 0.0


class ProbeLimit:
    """Limits the children of all adapters."""

    def __init__(self, most: int = _MAX_CHILDREN) -> None:
        self._slots = threading.Semaphore(most)

    def take(self) -> bool:
        """False if there are too many."""
        return self._slots.acquire(blocking=False)

    def give_back(self) -> None:
        self._slots.release()


@dataclass(slots=True)
class VerbsProbe:
    """The probe of one adapter. `dev` stands for /dev; `every_s`: 0 for never. `sees_all_devices`:
    /dev is the node's, so that a file which is not there does not exist.
    """

    limit: ProbeLimit
    every_s: float
    deadline_s: float
    dev: str = "/dev"
    library: str = LIBRARY
    sees_all_devices: bool = False
    _child: _Child | None = None
    _result: VerbsResult | None = None
    _due: float = field(default=0.0)

    def read_device(self, raw: RawReadings, folder: str, rdma: str) -> None:
        """Adds what is known of RDMA device `rdma`. `folder`: of its PCI function in sysfs. Starts
        a probe if one is due.
        """
        node = _find_node(folder, rdma)
        if not node:
            raw.missing["verbs_missing"] = "the kernel has no verbs device for it (ib_uverbs)"
            return
        raw.values["verbs_device"] = node
        if not self._add_presence(raw, node) or not self.every_s:
            return
        self._collect_result()
        if self._child is None and time.monotonic() >= self._due and self.limit.take():
            self._start(rdma)
            self._collect_result()
        if self._result is not None:
            _add_result(raw, self._result)

    def _add_presence(self, raw: RawReadings, node: str) -> bool:
        """Whether the character device is there."""
        try:
            present = small_files.list_names(f"{self.dev}/infiniband")
        except OSError as error:
            raw.missing["verbs_missing"] = describe_error(error)
            return False
        if node not in present and not self.sees_all_devices:
            raw.missing["verbs_missing"] = f"/dev/infiniband/{node} is not visible from here"
            return False
        raw.values["verbs_missing"] = float(node not in present)
        return node in present

    def _start(self, rdma: str) -> None:
        self._due = time.monotonic() + self.every_s
        try:
            self._child = _Child(self.library, rdma, self.deadline_s)
        except OSError as error:
            self.limit.give_back()
            self._result = VerbsResult(reason=f"no process could be started: {error}")
            return
        self._child.wait_soon()

    def _collect_result(self) -> None:
        """Takes the result of a probe that has ended. What hangs is killed."""
        child = self._child
        if child is None:
            return
        running, lines = child.is_running, child.read_lines()
        seconds = time.monotonic() - child.began
        if running:
            if seconds > self.deadline_s:
                self._result = _describe_hang(lines)
                child.kill()
            return
        child.close()
        self._child = None
        self.limit.give_back()
        if self._result is None or not self._result.hung or _is_finished(lines):
            self._result = _parse_result(lines, seconds)
        if self._result.failed or self._result.hung:
            self._due = 0.0  # not on the word of one probe
        elif self._result.reason:
            self._due = child.began + _UNKNOWN_AGAIN * self.every_s


def _find_node(folder: str, rdma: str) -> str:
    """The name of the verbs device, such as uverbs0; empty if there is none."""
    for name in small_files.list_names(f"{folder}/infiniband_verbs"):
        with suppress(OSError):  # it went away meanwhile
            if small_files.read_attribute(f"{folder}/infiniband_verbs/{name}/ibdev") == rdma:
                return name
    return ""


def _is_finished(lines: list[str]) -> bool:
    return bool(lines) and lines[-1].split(" ")[0] in _RESULTS


def _find_call(lines: list[str]) -> str:
    calls = [line for line in lines if line.startswith("ibv_")]
    return calls[-1] if calls else "loading libibverbs"


def _describe_hang(lines: list[str]) -> VerbsResult:
    """Only a call on the device hangs for the device; all else may be a busy machine."""
    call = _find_call(lines)
    if call not in _DEVICE_CALLS:
        return VerbsResult(reason=f"the probe did not get beyond {call} in time")
    return VerbsResult(hung=True, call=call)


def _parse_result(lines: list[str], seconds: float) -> VerbsResult:
    if not _is_finished(lines):
        return VerbsResult(reason=f"the probe ended by itself in {_find_call(lines)}")
    word, _, number = lines[-1].partition(" ")
    if word == "ok":
        return VerbsResult(seconds=seconds)
    if word == "absent":
        return VerbsResult(reason=f"there is no {LIBRARY}")
    if word == "unlisted":
        return VerbsResult(reason="libibverbs has no provider for it")
    code = int(number) if number.isdecimal() else 0
    error = describe_error(OSError(code, os.strerror(code)))
    call = _find_call(lines)
    if code in _DEVICE_ERRORS:
        return VerbsResult(failed=True, call=call, error=error, seconds=seconds)
    hint = ": the service may not use it (DeviceAllow=)" if code in _NOT_ALLOWED else ""
    return VerbsResult(reason=f"{call}: {error}{hint}")


def _add_result(raw: RawReadings, result: VerbsResult) -> None:
    if result.reason:
        raw.missing["verbs_failed"] = result.reason
        return
    raw.values["verbs_hung"] = float(result.hung)
    if result.call:
        raw.values["verbs_call"] = result.call
    if result.hung:
        return
    raw.values |= {"verbs_failed": float(result.failed), "verbs_seconds": result.seconds}
    if result.error:
        raw.values["verbs_error"] = result.error
