"""
Daemons from a process that has loaded their modules already: half of what a start costs is loading
them, and the tests start hundreds.

Owns     the process that forks them, and the handle by which a test knows the one that it started.

What is forked runs `vitald.cli.main` with its own words, environment, folder and outputs, as
`python -m vitald` does: it reads its configuration and the catalogue, whose patterns are compiled
already. Tests of how a process is started (test_service, test_packages) start one of their own, as
everything outside the tests does.

    python -m tests.warm FD    what a test process runs: forks for whom the socket FD connects it
    with, and ends with it
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_MOST = 1 << 20  # bytes of a message: an environment may be long
_ROOT = Path(__file__).resolve().parent.parent


class Process(Protocol):
    """What tests use of a started daemon; subprocess.Popen has it too."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A daemon that was forked. As with Popen, its pid is its own until its end has been seen."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None  # the exit code, or the negative number of a signal
        self._starter = starter

    def poll(self) -> int | None:
        self._starter.listen(self, 0.0)
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        self._starter.listen(self, timeout)
        if self.code is None:
            raise subprocess.TimeoutExpired(["vitald"], timeout or 0.0)
        return self.code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Starter:
    """Starts daemons for one test process."""

    def __init__(self, python: str) -> None:
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (own, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        with its:
            command = [python, "-m", "tests.warm", str(its.fileno())]
            self._server = subprocess.Popen(
                command, cwd=_ROOT, pass_fds=(its.fileno(),), stdin=subprocess.DEVNULL
            )
        self._socket = own
        self._lock = threading.RLock()
        self._running: dict[int, Forked] = {}
        atexit.register(self._end)

    def start(self, words: Sequence[str], environment: Mapping[str, str], output: int) -> Forked:
        """`vitald WORDS`; `output` is its standard output and its standard error."""
        request = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], [output])
            while (started := self._hear()) is None:
                pass
        return started

    def listen(self, one: Forked, timeout: float | None) -> None:
        """Until this one has ended, or for so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while one.code is None:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not select.select([self._socket], [], [], left)[0]:
                    return
                self._hear()

    def _end(self) -> None:
        """Nobody is forked any more; what still runs was let go by its test."""
        self._socket.close()
        try:
            self._server.wait(5.0)
        except subprocess.TimeoutExpired:
            self._server.kill()

    def _hear(self) -> Forked | None:
        """Takes a message in: that one has ended, or the one that was started, which is
        returned.
        """
        message = self._socket.recv(_MOST)
        if not message:
            raise RuntimeError(f"the process that forks daemons is gone: {self._server.wait()}")
        told: dict[str, int] = json.loads(message)
        if "code" in told:
            self._running.pop(told["pid"]).code = told["code"]
            return None
        return self._running.setdefault(told["pid"], Forked(self, told["pid"]))


def serve(connection: socket.socket) -> list[str] | None:
    """Fork whenever one is asked for. Returns in each child, with its words; in the parent when
    nobody asks any more.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    former = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGCHLD, signal.SIGINT)
    }
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        readable = select.select([connection.fileno(), woken], [], [])[0]
        if woken in readable:
            os.read(woken, 4096)
            _tell_who_ended(connection)
        if connection.fileno() not in readable:
            continue
        message, fds, _, _ = socket.recv_fds(connection, _MOST, 1)
        if not message:
            return None
        (output,) = fds
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number, handler in former.items():
                signal.signal(number, handler)
            connection.close()
            os.close(woken)
            os.close(wake)
            return _become(json.loads(message), output)
        os.close(output)
        connection.send(json.dumps({"pid": pid}).encode())


def _tell_who_ended(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection.send(
            json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode()
        )


def _become(request: dict[str, object], output: int) -> list[str]:
    """A process like one that was started with this."""
    environment, words = request["environment"], request["words"]
    assert isinstance(environment, dict) and isinstance(words, list)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    gc.unfreeze()
    gc.enable()
    return [str(word) for word in words]


def main() -> int:
    from vitald import catalog, cli
    from vitald.cli import run  # noqa: F401  what `vitald run` loads by name

    gc.disable()
    import vitald.daemon  # noqa: F401  and this is what takes long

    catalog.load_catalog()
    gc.collect()
    gc.freeze()  # what is shared is not to be written to
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words is None:
        return 0
    sys.argv[1:] = words
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
