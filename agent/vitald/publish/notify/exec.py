"""
Runs a program for each notification: no shell, the body of the format `vitald` on standard input.

    exit status 0        delivered
    exit status 65       the message is refused for good (EX_DATAERR of sysexits.h)
    any other, a signal  tried again
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import structlog

from vitald.config.paths import PATH
from vitald.publish.notify.formats import FORMATS, encode_json
from vitald.publish.notify.formats.text import describe_notification, is_simulated
from vitald.publish.notify.notification import Notification
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.sink import SinkFailed
from vitald.text import limit_bytes, replace_unprintable

log: structlog.stdlib.BoundLogger = structlog.get_logger("notify")

MAX_RUN_S = 30.0
_GRACE_S = 5.0  # between SIGTERM and SIGKILL
_KILL_S = 1.0
_DRAIN_S = 1.0  # for output that is still in the pipe
_EX_DATAERR = 65
_MAX_OUTPUT = 64 * 1024
_LOGGED_BYTES = 1000
_MAX_VALUE = 1000  # bytes of a variable


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """`status`: as of a shell, negative for a signal. `output`: the end of both streams."""

    status: int
    timed_out: bool
    output: str


class ExecReceiver:
    """One program, which runs once at a time."""

    def __init__(self, name: str, command: Sequence[str], timeout_s: float = MAX_RUN_S) -> None:
        self._name = name
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._running = asyncio.Lock()

    async def deliver(self, notification: Notification) -> None:
        """Raises SinkFailed, NotificationRefused."""
        begun = time.monotonic()
        result = await self.run_program(notification)
        log.info(
            "program_ended",
            sink=self._name,
            status=result.status,
            seconds=round(time.monotonic() - begun, 3),
            output=limit_bytes(result.output, _LOGGED_BYTES),
        )
        check_result(self._command[0], result, self._timeout_s)

    async def run_program(self, notification: Notification) -> ProgramResult:
        """Raises SinkFailed where it cannot be started."""
        async with self._running:
            return await self._run(notification)

    async def _run(self, notification: Notification) -> ProgramResult:
        body = encode_json(FORMATS["vitald"].build(notification))
        with _OutputPipe() as output, _open_body(body) as stdin:
            process = await self._start(notification, stdin, output)
            try:
                timed_out = await _wait(process, self._timeout_s)
                await output.wait_for_end(_DRAIN_S)
            finally:
                await _kill(process)  # and what it has left behind
            return ProgramResult(process.returncode or 0, timed_out, output.describe())

    async def _start(
        self, notification: Notification, stdin: BinaryIO, output: _OutputPipe
    ) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=stdin,
                stdout=output.write_end,
                stderr=output.write_end,
                env=build_environment(notification),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SinkFailed(f"{self._command[0]}: {error.strerror or error}") from error
        except ValueError as error:  # NUL in an argument or a variable
            raise SinkFailed(f"{self._command[0]}: {error}") from error
        output.close_write_end()
        return process


def check_result(program: str, result: ProgramResult, timeout_s: float) -> None:
    """Raises SinkFailed, NotificationRefused."""
    if result.timed_out:
        raise SinkFailed(f"{program}: ended after {timeout_s:g} s without a result")
    if result.status == 0:
        return
    last = limit_bytes(result.output[-200:], 200)
    shown = f": {last}" if last else ""
    if result.status == _EX_DATAERR:
        raise NotificationRefused(f"{program}: exit status {result.status}{shown}")
    if result.status < 0:
        raise SinkFailed(f"{program}: killed by signal {-result.status}{shown}")
    raise SinkFailed(f"{program}: exit status {result.status}{shown}")


def build_environment(notification: Notification) -> dict[str, str]:
    """Nothing of the publisher's own. Of the finding, empty where there is none."""
    finding, flags = notification.finding, notification.flags
    values = {
        "TRANSITION": notification.kind.value,
        "ID": notification.id,
        "DEDUP_KEY": notification.key,
        "HOST": notification.node.host,
        "INSTANCE_ID": notification.node.instance_id,
        "SERIAL": finding.serial if finding else "",
        "STATUS": flags.status.value,
        "REBOOT_DUE": str(flags.reboot_due).lower(),
        "REPLACEMENT_DUE": str(flags.replacement_due).lower(),
        "SUMMARY": describe_notification(notification),
        "COMPONENT": finding.component if finding else "",
        "CODE": finding.code if finding else "",
        "ACTION": finding.action.value if finding else "",
        "WHEN": finding.when if finding else "",
        "CONFIRMED": str(finding.confirmed).lower() if finding else "",
        "SIMULATED": str(is_simulated(notification)).lower(),
    }
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        **{f"VITALD_{key}": limit_bytes(value, _MAX_VALUE) for key, value in values.items()},
    }


async def _wait(process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    """Until it has ended. Whether it had to be ended."""
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
        return False
    except asyncio.TimeoutError:
        _signal_group(process, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _GRACE_S)
    except asyncio.TimeoutError:
        await _kill(process)
    return True


async def _kill(process: asyncio.subprocess.Process) -> None:
    """With its children. One that hangs in the kernel does not end: it is left behind."""
    _signal_group(process, signal.SIGKILL)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), _KILL_S)


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # none is left, or only those of another user
        return


def _open_body(body: bytes) -> BinaryIO:
    """A file in memory: the program may read nothing of it, and blocks no writer."""
    file = os.fdopen(os.memfd_create("notification", os.MFD_CLOEXEC), "w+b")
    file.write(body)
    file.seek(0)
    return file


class _OutputPipe:
    """Keeps the last _MAX_OUTPUT bytes; the rest must be read, or the program would wait. A context
    manager.

    Not asyncio's own pipe: with that, waiting for the program means waiting for its children, which
    keep the pipe open.
    """

    def __init__(self) -> None:
        self._tail = bytearray()
        self._ended = asyncio.Event()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    def __enter__(self) -> _OutputPipe:
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        self.close_write_end()

    def close_write_end(self) -> None:
        """Once the program has it."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    async def wait_for_end(self, timeout_s: float) -> None:
        """Until all of it is read, or for so long."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    def describe(self) -> str:
        """In one line."""
        return replace_unprintable(self._tail.decode(errors="replace").strip(), " ")

    def _read(self) -> None:
        chunk = os.read(self._read_end, _MAX_OUTPUT)
        self._tail += chunk
        del self._tail[:-_MAX_OUTPUT]
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self._ended.set()
