"""
The listening end of the job socket: connections, their limits, and the pages of their ranks.

Owns     accepting, the rate of packets, and the goodbye of a connection.
Refuses  what a packet means: the telemetry gets what was parsed.

Any local user may connect, so everything is limited before it is parsed: connections by user and
in all, packets of each connection by a token bucket. A connection that sends more is read four
times a second, and closed if it goes on; a user who connects on and on is kept out by the kernel.
Callbacks of the loop, not tasks, read: a packet costs no coroutine. In one pass of the loop, few
are accepted and read, so that the API is served between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import structlog

from vitald.backoff import Backoff
from vitald.jobsocket.access_list import deny_users
from vitald.jobsocket.admission import Admission
from vitald.jobsocket.advice_packet import format_advice
from vitald.jobsocket.connection import Connection
from vitald.jobsocket.identity import (
    JobIdentity,
    read_credentials,
    read_identity,
)
from vitald.jobsocket.packets import Hello, Listen, WrongPacket, parse_packet
from vitald.jobsocket.page import RankPage
from vitald.jobsocket.telemetry import JobTelemetry, TooManyJobs
from vitald.model.job_page import (
    EVERY_S,
    MAX_PACKET_BYTES,
    MAX_WRONG_PACKETS,
    VERSION,
    PacketKind,
)
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("job_socket")

FOLDER, NAME = "job", "job.sock"
_BACKLOG = 256
_READS, _READS_PAUSED = 16, 32  # packets of a connection at a time
_READS_OF_PASS = 64  # packets of all connections in one pass of the loop, then no other connection
_PAUSE_S = 0.25  # of a connection that sends too much
_MAX_FULL_READS = 4  # in a row, of so many packets: a second at more than six times the rate
_HELLO_S = 10.0  # from connecting to its hello
_NO_FILES_S = 1.0  # without accepting, where no file can be opened
_ACCEPTS = 8  # connections in one pass of the loop
_REFUSED_S = 0.01  # without accepting, after a refusal
_BACKOFF = Backoff(1.0, 60.0)


class JobSocket:
    """`path`: of the socket, in a folder of its own. `reader` reads procfs."""

    def __init__(
        self,
        path: Path,
        telemetry: JobTelemetry,
        procfs: Path,
        reader: WorkerThread,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._telemetry = telemetry
        self._procfs = procfs
        self._reader = reader
        self._clock = clock
        self._connections: dict[int, Connection] = {}  # by file descriptor
        self._admission = Admission()
        self._denied: frozenset[int] = frozenset()  # users, by the access list of the socket
        self._reads_left = _READS_OF_PASS
        self._tasks: anyio.abc.TaskGroup | None = None
        self._advice = telemetry.advice  # as the ranks have it
        self._welcome = {
            "v": VERSION,
            "kind": PacketKind.WELCOME.value,
            "node": socket.gethostname(),
            "every_s": EVERY_S,
        }

    async def run(self) -> None:
        """Serve until cancelled. A failure is reported, and the socket opened again: jobs are heard
        later, and nothing else depends on it.
        """
        failures = 0
        while True:
            began = self._clock()
            try:
                with contextlib.closing(open_job_socket(self._path)) as listener:
                    self._denied = frozenset()
                    self._telemetry.reports.error = ""
                    await self._serve(listener)
            except OSError as error:
                reason = error.strerror or str(error)
            except Exception as error:  # a defect here must not end the daemon
                log.exception("job_socket_broke")
                reason = f"{type(error).__name__}: {error}"
            self._telemetry.reports.error = f"{self._path}: {reason}"
            failures = 0 if self._clock() - began > _BACKOFF.delay_s(10) else failures
            if not failures:
                log.error("job_socket_failed", socket=str(self._path), error=reason)
            await anyio.sleep(_BACKOFF.delay_s(failures))
            failures += 1

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as self._tasks:
                loop.add_reader(listener.fileno(), self._accept, listener)
                while True:
                    await anyio.sleep(EVERY_S)
                    self._read_pages()
                    self._admission.forget(self._clock())
                    self._deny_barred()
                    self._telemetry.judge()
                    self._telemetry.reports.connections = len(self._connections)
                    self._send_advice()
        finally:
            loop.remove_reader(listener.fileno())
            for connection in list(self._connections.values()):
                self._close(connection, is_ours=True)
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _send_advice(self) -> None:
        """To every rank that said hello and to listeners, where it has changed. Also before one
        more is told: who connects gets the advice of now, not that of the last pass.
        """
        advice = self._telemetry.advice
        if advice == self._advice:
            return
        self._advice = advice
        data = format_advice(advice)
        for connection in list(self._connections.values()):
            if connection.handle is not None or connection.is_listener:
                self._send(connection, data)

    # --- connections

    def _accept(self, listener: socket.socket) -> None:
        refused = self._telemetry.reports.refused
        for _ in range(_ACCEPTS):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                log.warning("job_not_accepted", error=str(error))
                self._pause_listener(listener, _NO_FILES_S)
                return
            self._admit(sock)
        if self._telemetry.reports.refused > refused:
            self._deny_barred()
            self._pause_listener(listener, _REFUSED_S)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            peer = read_credentials(sock)
        except OSError:
            sock.close()
            return
        now = self._clock()
        if not self._admission.admit(peer.uid, now):
            self._telemetry.reports.refused += 1
            sock.close()
            return
        connection = Connection(sock, peer, now)
        self._connections[sock.fileno()] = connection
        self._resume(connection)

    def _deny_barred(self) -> None:
        """Where the kernel cannot keep them out, they are accepted and closed, a few at a time."""
        barred = self._admission.barred
        if barred == self._denied:
            return
        for uid in barred - self._denied:
            log.warning("job_user_barred", uid=uid, reason="connects without end")
        self._denied = barred
        try:
            deny_users(self._path, barred)
        except OSError as error:
            log.info("job_access_list_failed", socket=str(self._path), error=error.strerror)

    def _close(self, connection: Connection, *, is_ours: bool = False) -> None:
        """`is_ours`: the daemon ends it, so it says nothing about the rank."""
        number = connection.sock.fileno()
        if self._connections.pop(number, None) is None:
            return
        asyncio.get_running_loop().remove_reader(number)
        self._read_page(connection)
        if connection.page is not None:
            connection.page.close()
        connection.sock.close()
        self._admission.release(connection.peer.uid)
        if connection.handle is not None:
            self._telemetry.remove_rank(connection.handle, is_ours=is_ours)

    def _pause_listener(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())

        def resume() -> None:
            if listener.fileno() >= 0:
                loop.add_reader(listener.fileno(), self._accept, listener)

        loop.call_later(seconds, resume)

    def _resume(self, connection: Connection) -> None:
        asyncio.get_running_loop().add_reader(connection.sock.fileno(), self._read, connection)

    # --- packets

    def _read(self, connection: Connection) -> None:
        """Read what has come. Level-triggered: what is left wakes the loop again."""
        if not self._may_read():
            return
        most = _READS_PAUSED if connection.is_slowed else _READS
        is_over, is_flood, now = False, False, self._clock()
        for _ in range(most):
            self._reads_left -= 1
            try:
                # One byte more shows a packet that is too long. What else comes with it (files)
                # is not taken.
                data = connection.sock.recv(MAX_PACKET_BYTES + 1)
            except BlockingIOError:
                connection.full_reads = 0
                break
            except ConnectionResetError:  # it ended without reading our last packet; its own come
                continue
            except OSError:
                data = b""
            if not data:
                self._close(connection)
                return
            if not connection.bucket.take(now):
                self._telemetry.reports.dropped += 1
                is_over = True
                continue
            if not self._take_packet(connection, data):
                return
        else:
            connection.full_reads += connection.is_slowed
            is_flood = connection.full_reads >= _MAX_FULL_READS
        connection.is_slowed = False
        if is_flood:
            self._close(connection, is_ours=True)
        elif is_over:
            self._slow_down(connection)

    def _may_read(self) -> bool:
        """Whether this pass of the loop may read another connection. What is scheduled now runs in
        the next one.
        """
        if self._reads_left == _READS_OF_PASS:
            asyncio.get_running_loop().call_soon(self._begin_pass)
        return self._reads_left > 0

    def _begin_pass(self) -> None:
        self._reads_left = _READS_OF_PASS

    def _slow_down(self, connection: Connection) -> None:
        loop, number = asyncio.get_running_loop(), connection.sock.fileno()
        loop.remove_reader(number)

        def again() -> None:
            if self._connections.get(number) is connection:
                connection.is_slowed = True
                self._resume(connection)

        loop.call_later(_PAUSE_S, again)

    def _take_packet(self, connection: Connection, data: bytes) -> bool:
        """Whether to go on reading."""
        try:
            packet = parse_packet(data)
            if isinstance(packet, (Hello, Listen)) is connection.is_greeted:
                raise WrongPacket("one hello comes first")
            if connection.is_listener:
                raise WrongPacket("a listener is no rank")
        except WrongPacket as error:
            return self._note_wrong(connection, str(error))
        if isinstance(packet, Hello):
            connection.is_greeted = True
            asyncio.get_running_loop().remove_reader(connection.sock.fileno())
            assert self._tasks is not None
            self._tasks.start_soon(self._greet, connection, packet)
            return False
        if isinstance(packet, Listen):
            self._send_advice()
            connection.is_greeted = connection.is_listener = True
            self._send(connection, format_advice(self._advice))
            return True
        assert connection.handle is not None
        self._telemetry.take_packet(connection.handle, packet)
        return True

    def _note_wrong(self, connection: Connection, why: str) -> bool:
        self._telemetry.reports.wrong += 1
        connection.wrong += 1
        if connection.wrong < MAX_WRONG_PACKETS:
            return True
        log.debug("job_closed", uid=connection.peer.uid, pid=connection.peer.pid, why=why)
        self._close(connection, is_ours=True)
        return False

    async def _greet(self, connection: Connection, hello: Hello) -> None:
        """Find out whose rank it is, and hand over its page. Nothing is read meanwhile."""
        read = partial(read_identity, self._procfs, connection.peer, hello.job)
        try:
            identity = await self._reader.call(read)
        except ThreadStuck:
            identity = JobIdentity(uid=connection.peer.uid, claimed=hello.job)
        number = connection.sock.fileno()
        if self._connections.get(number) is not connection:
            return
        self._send_advice()
        try:
            connection.page = RankPage()
            connection.handle = self._telemetry.add_rank(identity, hello, connection.peer.pid)
            with contextlib.suppress(ConnectionError):  # gone: what it sent before is still read
                socket.send_fds(
                    connection.sock, [json.dumps(self._welcome).encode()], [connection.page.fd]
                )
        except TooManyJobs:
            self._telemetry.reports.refused += 1
            self._close(connection, is_ours=True)
            return
        except OSError:
            self._close(connection, is_ours=True)
            return
        if self._advice.save:
            self._send(connection, format_advice(self._advice))
        self._resume(connection)

    def _send(self, connection: Connection, data: bytes) -> None:
        """A client that does not read gets nothing more: its connection is not worth waiting."""
        with contextlib.suppress(OSError):
            connection.sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    # --- pages

    def _read_pages(self) -> None:
        now = self._clock()
        for connection in list(self._connections.values()):
            self._read_page(connection)
            is_silent = connection.handle is None and not connection.is_listener
            if is_silent and now - connection.connected_at > _HELLO_S:
                self._close(connection, is_ours=True)

    def _read_page(self, connection: Connection) -> None:
        if connection.page is None or connection.handle is None:
            return
        reading = connection.page.read()
        if reading is not None:
            self._telemetry.take_page(connection.handle, reading)


def open_job_socket(path: Path) -> socket.socket:
    """A listening socket that every user may connect to, in a folder that only the daemon may
    write. Raises OSError.
    """
    path.parent.mkdir(mode=0o755, exist_ok=True)
    path.parent.chmod(0o755)  # whatever the umask
    path.unlink(missing_ok=True)  # left by a daemon that was killed; a living one holds the lock
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        made.bind(str(path))
        os.chmod(path, 0o666)  # noqa: PTH101, S103
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
