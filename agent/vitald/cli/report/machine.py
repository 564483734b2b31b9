"""
What `vitald report` reads from the machine itself: versions, the service, its log, the kernel's
messages, a scrape of the metrics.

Owns     a deadline and a size limit for each part; of what is too long the newest is kept.
Refuses  programs from the caller's PATH, and files behind links.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import selectors
import shutil
import stat
import subprocess
import time
from collections import deque
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from vitald import __version__
from vitald.cli.render import Json
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord
from vitald.metrics.settings import Listen

UNITS = (
    *("vitald.service", "vitald.socket", "vitald-publish.service"),
    *("vitald-recover.service", "vitald-recover.path"),
)
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S = 10.0
_MAX_LINES = 4000
_MAX_TEXT_BYTES = 2 * 1024 * 1024
_MAX_METRICS_BYTES = 8 * 1024 * 1024
_MAX_RECORD_BYTES = 16 * 1024
_PROPERTIES = (
    "Id,LoadState,UnitFileState,ActiveState,SubState,Result,NRestarts,ExecMainStatus,ExecMainCode,"
    "MainPID,ExecMainStartTimestamp,ExecMainExitTimestamp,ActiveEnterTimestamp,MemoryCurrent,"
    "MemoryPeak,CPUUsageNSec,TasksCurrent,FragmentPath,DropInPaths,User,WatchdogUSec,StatusText"
)
_LIBRARIES = (
    "aiohttp",
    "anyio",
    "jinja2",
    "nvidia-ml-py",
    "prometheus-client",
    "pyudev",
    "structlog",
    "systemd-python",
    "tomli",
)
_MODULES = ("nvidia", "nvidia_peermem", "neuron", "efa", "ib_core", "mlx5_core", "amdgpu")


class Unavailable(Exception):
    """Not on this machine, or not readable by this user; the text says why."""


def list_versions(procfs: Path, sysfs: Path) -> Json:
    """The versions of everything that a finding may depend on; null if it is not installed."""
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    try:
        systemd = run_program("systemctl", "--version").partition("\n")[0]
    except Unavailable:
        systemd = None
    return {
        "vitald": __version__,
        "python": platform.python_version(),
        "sqlite": _find_sqlite_version(),
        "kernel": " ".join(
            (platform.system(), platform.release(), platform.version(), platform.machine())
        ),
        "distribution": distribution,
        "systemd": systemd,
        "modules": {
            name: _read_first_line(sysfs / "module" / name / "version") for name in _MODULES
        },
        "nvidia": _read_first_line(procfs / "driver/nvidia/version"),
        "libraries": {name: _find_library_version(name) for name in _LIBRARIES},
    }


def _find_sqlite_version() -> str:
    import sqlite3

    return sqlite3.sqlite_version


def _find_library_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read_first_line(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.readline(4096).decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_service() -> str:
    """The state of our units, from systemd."""
    return run_program("systemctl", "show", f"--property={_PROPERTIES}", *UNITS)


def read_own_log() -> str:
    """The newest lines that vitald's units logged, the oldest first."""
    text = run_program(
        "journalctl",
        *(f"--unit={unit}" for unit in UNITS),
        "--no-pager",
        "--quiet",
        "--reverse",
        "--utc",
        f"--lines={_MAX_LINES}",
    )
    if not text.strip():
        raise Unavailable("the journal has nothing of vitald that you may read")
    return "\n".join(reversed(text.splitlines())) + "\n"


def read_kernel_messages(path: Path) -> str:
    """The newest of the kernel's messages, escaped as /dev/kmsg gives them; of a log file
    its end.
    """
    if not stat.S_ISCHR(path.stat().st_mode):
        return read_tail(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise Unavailable(f"{path}: {error.strerror}: needs root or CAP_SYSLOG") from error
    lines: deque[str] = deque(maxlen=_MAX_LINES)
    end = time.monotonic() + _TIMEOUT_S
    try:
        while time.monotonic() < end:
            try:
                record = KernelRecord.parse(os.read(fd, _MAX_RECORD_BYTES))
            except (BrokenPipeError, TornRecord):
                continue  # overwritten before it was read
            except BlockingIOError:
                break
            origin = "kernel" if record.from_kernel else "USER SPACE"
            text = record.text.decode("ascii", "replace")
            lines.append(f"[{record.usec / 1e6:12.6f}] {origin} <{record.level}> {text}\n")
    finally:
        os.close(fd)
    return "".join(lines)


def read_tail(path: Path) -> str:
    """The last lines of a file. Raises OSError; also for a link, and Unavailable for what is
    no file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Unavailable(f"{path} is no regular file")
        cut = about.st_size > _MAX_TEXT_BYTES
        file.seek(max(0, about.st_size - _MAX_TEXT_BYTES))
        data = file.read(_MAX_TEXT_BYTES)
    if cut:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def read_decisions(path: Path) -> list[Json]:
    """The decision log of the recovery: one JSON object a line."""
    found: list[Json] = []
    for line in read_tail(path).splitlines():
        with suppress(ValueError, RecursionError):  # the line that was being written
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def scrape_metrics(listen: Listen | None, seconds: float) -> str:
    """The metrics in the Prometheus text format. `seconds`: timeout of each operation."""
    if listen is None or listen.port == 0:
        raise Unavailable("no address is configured")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)
    connection = http.client.HTTPConnection(host, listen.port, timeout=seconds)
    end = time.monotonic() + 2 * seconds
    data = b""
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            raise Unavailable(f"{listen} answers {answer.status}")
        while part := answer.read1(65536):
            data += part
            if len(data) > _MAX_METRICS_BYTES or time.monotonic() > end:
                raise Unavailable(f"{listen} does not come to an end")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{listen}: {error}") from error
    finally:
        connection.close()
    return data.decode("utf-8", "replace")


def run_program(program: str, *arguments: str) -> str:
    """The standard output of a system program, within limits. Raises Unavailable."""
    path = shutil.which(program, path=_PATH)
    if path is None:
        raise Unavailable(f"no {program} here")
    environment = {
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
        "SYSTEMD_COLORS": "0",
        "SYSTEMD_PAGER": "",
        "TZ": "UTC",
    }
    end, data, refused = time.monotonic() + _TIMEOUT_S, bytearray(), bytearray()
    process = subprocess.Popen(
        [path, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
    )
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, data)
        selector.register(process.stderr, selectors.EVENT_READ, refused)
        while selector.get_map() and time.monotonic() < end and len(data) < _MAX_TEXT_BYTES:
            for key, _ in selector.select(max(0.0, end - time.monotonic())):
                part = os.read(key.fd, 65536)
                key.data.extend(part[: max(0, _MAX_TEXT_BYTES - len(key.data))])
                if not part:
                    selector.unregister(key.fileobj)
    try:
        code = process.wait(max(0.0, min(1.0, end - time.monotonic())))
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        code = 0 if data else -1
    if code and not data:
        words = (
            refused.decode("utf-8", "replace").strip()
            if code > 0
            else f"it did not answer in {_TIMEOUT_S:g} s"
        )
        raise Unavailable(f"{program}: {words[:300] or 'it failed'}")
    return data.decode("utf-8", "replace")
