"""
A whole node in a folder, and the real daemon on it: the process that production runs, with its own
paths and ports.

    with Node(tmp_path, kernel_log="file") as node:
        node.write("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")
        node.wait(lambda status: status["rebootRequired"])
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.waiting import WAIT_S, until
from tests.warm import Process, Starter
from vitald.collectors.discovery import find_sections
from vitald.simulator.simulated_node import SimulatedNode

Json = dict[str, Any]
# What the daemon and the command line run with: their libraries, as a node has them, without those
# of the tests (tests/run).
_LEAN = Path(sys.prefix) / "daemon/bin/python"
PYTHON = str(_LEAN) if _LEAN.exists() else sys.executable
_VITALD = (PYTHON, "-m", "vitald")
_BEFORE_PYTHON = (
    "LD_",
    "PYTHON",
    "MALLOC_",
    "GLIBC_",
    "TZ",
)  # variables that are read as a program starts
ROOT = Path(__file__).resolve().parent.parent
# Collectors with a period of their own
POLLED = tuple(section.name for section in find_sections() if "every" in section.list_settings())


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float = WAIT_S) -> None:
        super().__init__("vitald", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


# Each process of a parallel run has ports of its own, below those that the kernel hands out for
# outgoing connections. Several runs on one machine begin at different places.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = random.randrange(1000)
_PORTS = (12000 + 1000 * _WORKER + number % 1000 for number in itertools.count(_FIRST))


def free_port() -> int:
    """One that nobody listens on, and that no other test is given meanwhile."""
    for port in itertools.islice(_PORTS, 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")


@cache
def _starter() -> Starter:
    return Starter(PYTHON)


P = TypeVar("P", bound="LoggedProgram")


class LoggedProgram:
    """What runs while a test does; `errors` is its log, of which the end is printed if that fails."""

    errors: Path

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> object:
        raise NotImplementedError

    def __enter__(self: P) -> P:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is not None and self.errors.exists():
            print(self.errors.read_text()[-8000:])


class Node(LoggedProgram):
    """A node. `kernel_log` is "file" (a file in the folder) or "kmsg" (this machine's own, records
    of users accepted).
    """

    # Whether it is forked from a process that has loaded its modules: in tests, where they do not
    # say otherwise (conftest.py)
    warm = False

    def __init__(
        self,
        folder: Path,
        kernel_log: str = "file",
        userspace: str = "confirmed",
        extra: str = "",
        gpus: SimulatedNode | None = None,
        sysfs: Path | None = None,
        looks: Collection[str] = (),
    ) -> None:
        """`extra`: more sections of the configuration. `gpus`: the GPUs that it has, looked at
        every second. `sysfs`: what stands for /sys. `looks`: of neuron, network, pci, host those
        that are looked at, every second; without, this machine's own are left alone.
        """
        self.folder = folder
        self.state, self.runtime = folder / "state", folder / "run"
        self.log = folder / "kernel.log"
        self.errors = folder / "vitald.log"
        self.port = free_port()
        self.socket = self.runtime / "vitald.sock"
        self.config = folder / "config.toml"
        self.process: Process | None = None
        self.environment: dict[str, str] = dict(gpus.environment) if gpus is not None else {}
        self.command = [*_VITALD, "run", "--config", str(self.config)]
        self.fds: tuple[int, ...] = ()  # that it is started with
        folder.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        source = (
            f'source = "file"\npath = "{self.log}"' if kernel_log == "file" else 'source = "kmsg"'
        )
        sysfs = gpus.sysfs if gpus is not None else sysfs
        tree = f'sysfs = "{sysfs}"' if sysfs is not None else ""
        for section in POLLED:
            if f"[{section}]" not in extra:
                extra += f'\n[{section}]\nenabled = {str(section in looks).lower()}\nevery = "1s"\n'
        if "settle" not in extra:  # tests begin with the fault that they are about
            header = "" if "[expect]\n" in extra else "[expect]\n"
            extra = f"{header}{extra}".replace("[expect]\n", '[expect]\nsettle = "0s"\n', 1)
        if gpus is not None:
            extra = (
                f'[nvml]\nlibrary = "{gpus.library}"\nfast = "1s"\nslow = "2s"\ninventory ='
                f' "30s"\n{extra}'
            )
        self.settings = f"""
[paths]
{tree}
state = "{self.state}"
runtime = "{self.runtime}"
[kernel_log]
{source}
userspace = "{userspace}"
[metrics]
listen = "127.0.0.1:{self.port}"
[log]
format = "json"
{extra}
"""
        self.config.write_text(self.settings)

    def start(self, wait: bool = True) -> None:
        environment = {**os.environ, **self.environment}
        program, words = tuple(self.command[:3]), self.command[3:]
        forked = (
            self.warm
            and program == _VITALD
            and not self.fds
            and not any(name.startswith(_BEFORE_PYTHON) for name in self.environment)
        )
        with self.errors.open("ab") as errors:
            if forked:
                self.process = _starter().start(words, environment, errors.fileno())
            else:
                self.process = subprocess.Popen(
                    self.command,
                    stdout=errors,
                    stderr=errors,
                    cwd=ROOT,
                    env=environment,
                    pass_fds=self.fds,
                )
        if wait:
            until(lambda: self.answers("/healthz"), "the daemon to answer")
            until(self._looked, "the first look")

    def _looked(self) -> bool:
        return all(source["state"] != "starting" for source in self.status()["sources"])

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Seconds that it took to end."""
        if self.process is None:
            return 0.0
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(WAIT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process = None
        return time.monotonic() - begun

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self, number: int = signal.SIGTERM) -> None:
        self.stop(number)
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The daemon gets no turn meanwhile, as on a machine with other work."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def configure(self, old: str, new: str) -> None:
        """Change the configuration file; the daemon is not told."""
        text = self.config.read_text()
        assert old in text, old
        self.config.write_text(text.replace(old, new))

    def reload(self) -> Json:
        """SIGHUP, and what the daemon says to it in its log."""
        assert self.process is not None
        before = len(self.said("reloaded", "reload_refused"))
        self.process.send_signal(signal.SIGHUP)
        until(
            lambda: len(self.said("reloaded", "reload_refused")) > before,
            "an answer to SIGHUP",
        )
        return self.said("reloaded", "reload_refused")[-1]

    def said(self, *names: str) -> list[Json]:
        """The entries of the daemon's log with these names."""
        lines = self.errors.read_text().splitlines() if self.errors.exists() else []
        entries = [
            json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")
        ]
        return [entry for entry in entries if entry.get("event") in names]

    def write(self, *lines: str) -> None:
        """Lines at the end of the followed file."""
        with self.log.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    def request(
        self, method: str, path: str, body: object = None, timeout: float = WAIT_S
    ) -> tuple[int, Json]:
        connection = UnixConnection(self.socket, timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Json:
        status, answer = self.request("GET", path)
        assert status == 200, (status, answer)
        return answer

    def answers(self, path: str) -> bool:
        try:
            return self.request("GET", path, timeout=2.0)[0] == 200
        except (OSError, http.client.HTTPException, ValueError):
            return False

    def status(self) -> Json:
        return self.get("/v1/status")

    def findings(self, query: str = "") -> list[Json]:
        return self.get(f"/v1/findings?limit=1000{query}")["findings"]

    def events(self, query: str = "") -> list[Json]:
        """All of them, page by page."""
        found: list[Json] = []
        after: object = 0
        while after is not None:
            page = self.get(f"/v1/events?limit=1000&since={after}{query}")
            found += page["events"]
            after = page["next"]
        return found

    def metrics(self) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/metrics", timeout=WAIT_S
        ) as response:
            text: str = response.read().decode()
            return text

    def metric(self, name: str) -> float | None:
        """The value of the series written exactly so, labels included; None where it is not
        there.
        """
        for line in self.metrics().splitlines():
            series, _, value = line.rpartition(" ")
            if series == name:
                return float(value)
        return None

    def wait(self, holds: Callable[[Json], object]) -> Json:
        """The first status for which `holds` is true."""
        found: list[Json] = []

        def try_once() -> bool:
            found[:] = [self.status()]
            return bool(holds(found[0]))

        until(try_once, "a status")
        return found[0]

    def wait_for_polls(self, *names: str, times: int = 3) -> None:
        """Until each of these sources was polled `times` more times."""
        for _ in range(times):
            before = self._last_seen(names)
            until(
                lambda before=before: all(
                    seen != before[name] for name, seen in self._last_seen(names).items()
                ),
                f"another poll of {names}",
            )

    def _last_seen(self, names: Collection[str]) -> dict[str, str]:
        sources = self.status()["sources"]
        return {one["name"]: one["lastRead"] for one in sources if one["name"] in names}

    def cli(
        self, *arguments: str, stdin: bytes | None = None, timeout: float = WAIT_S
    ) -> subprocess.CompletedProcess[str]:
        """`vitald ARGUMENTS --socket ...`."""
        command = [PYTHON, "-m", "vitald", *arguments]
        offline = ("scan", "replay", "explain", "config", "version", "run")
        if arguments[0] not in offline or arguments[:2] == ("config", "reload"):
            command += ["--socket", str(self.socket)]
        if arguments[0] == "drill":
            command += ["--config", str(self.config)]
        return subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=stdin and stdin.decode(),
        )

    def memory_kib(self, which: str = "VmRSS") -> int:
        """Resident now; with `VmHWM` the most that it ever was."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{which}:")[2].split()[0])
