"""
grpclib's server with limits on its clients, any of whom may be hostile, and its run until a signal.

grpclib limits neither connections nor what a client sends: it takes a message of 4 GiB if that is
announced. So a connection may send `MAX_BYTES` altogether, which also bounds the frames that ask
for a reply; it lives for `MAX_S`, and a user has a share of the places.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import structlog
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from vitald import __version__
from vitald.cli.nvhcd.config import NvhcdConfig
from vitald.cli.nvhcd.listener import BACKLOG
from vitald.cli.nvhcd.messages import HealthCodec
from vitald.cli.nvhcd.service import HealthCheckService, VerdictReader, ask_daemon
from vitald.server.peer import read_peer
from vitald.systemd import Notifier

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvhcd")

MAX_CLIENTS, MAX_PER_USER = 128, 32
MAX_BYTES = 64 * 1024  # a request has some 300
MAX_S = 90.0  # a client gives up after 60
_NOTIFY_S, _CLOSE_S = 5.0, 2.0


class ClientLimit:
    """Counts the clients by user. `refused`: those without a place; `cut_off`: those that exceeded
    a limit, or sent what is no HTTP/2.
    """

    def __init__(self) -> None:
        self.refused = self.cut_off = 0
        self._open: Counter[int] = Counter()

    @property
    def clients(self) -> int:
        return sum(self._open.values())

    def admit_client(self, uid: int) -> bool:
        if self.clients >= MAX_CLIENTS or self._open[uid] >= MAX_PER_USER:
            self.refused += 1
            return False
        self._open[uid] += 1
        return True

    def forget_client(self, uid: int) -> None:
        self._open[uid] -= 1
        if not self._open[uid]:
            del self._open[uid]


class _LimitedProtocol(asyncio.Protocol):
    """grpclib's protocol of one connection, within the limits."""

    def __init__(self, limit: ClientLimit, inner: H2Protocol) -> None:
        self._limit, self._inner = limit, inner
        self._transport: asyncio.Transport | None = None  # once admitted
        self._uid = -1
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        try:
            self._uid = read_peer(transport.get_extra_info("socket")).uid
        except OSError:
            transport.abort()  # the client is gone again
            return
        if not self._limit.admit_client(self._uid):
            transport.abort()
            return
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(MAX_S, self._cut_off)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._received += len(data)
        if self._received > MAX_BYTES:
            self._cut_off()
            return
        try:
            self._inner.data_received(data)
        except Exception:  # grpclib's, by what a client sent
            self._cut_off()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return
        self._limit.forget_client(self._uid)
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(error)

    def _cut_off(self) -> None:
        assert self._transport is not None
        self._limit.cut_off += 1
        self._transport.abort()


class HealthServer(Server):
    """grpclib's server, whose connections have limits."""

    def __init__(self, service: HealthCheckService) -> None:
        super().__init__([service], codec=HealthCodec())
        self.limit = ClientLimit()
        # It logs a traceback for each request that is none.
        logging.getLogger("grpclib").setLevel(logging.CRITICAL + 1)

    def _protocol_factory(self) -> H2Protocol:
        limited: object = _LimitedProtocol(self.limit, super()._protocol_factory())
        return limited  # type: ignore[return-value]  # asyncio needs a Protocol only


async def serve(config: NvhcdConfig, listeners: Sequence[socket.socket]) -> None:
    """Answer until SIGTERM or SIGINT. Raises NoThread."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    verdicts = VerdictReader(partial(ask_daemon, config.daemon_socket))
    service = HealthCheckService(verdicts, config.nvhcd.unknown)
    servers = [HealthServer(service) for _ in listeners]
    for server, listener in zip(servers, listeners):
        await server.start(sock=listener, backlog=BACKLOG)
    notifier = Notifier()
    log.info("serving", version=__version__, sockets=[each.getsockname() for each in listeners])
    notifier.notify_ready()
    await _notify_until(stopping, notifier, service, servers)
    notifier.notify_stopping()
    for server in servers:
        server.close()
    closing = [asyncio.ensure_future(server.wait_closed()) for server in servers]
    await asyncio.wait(closing, timeout=_CLOSE_S)
    log.info("stopped", answered=service.answered)


async def _notify_until(
    stopping: asyncio.Event,
    notifier: Notifier,
    service: HealthCheckService,
    servers: Sequence[HealthServer],
) -> None:
    """The line that `systemctl status` shows, and the watchdog, until the signal."""
    interval = min(notifier.watchdog_s or _NOTIFY_S, _NOTIFY_S)
    while not stopping.is_set():
        limits = [server.limit for server in servers]
        notifier.notify_status(
            f"{service.answered} requests answered;"
            f" {sum(limit.refused for limit in limits)} connections refused,"
            f" {sum(limit.cut_off for limit in limits)} cut off"
        )
        notifier.notify_watchdog()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopping.wait(), interval)
