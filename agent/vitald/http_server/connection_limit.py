"""
Connection limit of the HTTP server: number of clients at once, and time limits of each.

aiohttp limits the size of a request, not its duration. The limit wraps the server's protocol: a
client over it gets an error and is closed; so is one that has not sent a whole request in time, or
does not read its answer.

Other users must not be able to keep out the scheduler's health check: on a Unix socket some places
are reserved for root, the daemon's own user and a trusted one, and any other user has a share. On a
port, where the user is unknown, the client that was served longest ago makes room for the newest.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

from vitald.http_server.peer import read_peer

_FIRST_S = 5.0  # from connecting to a complete request
_EACH_S = 30.0  # from a request to the next one, answer and idling included


def _format_refusal(status: int, reason: str, error: str, hint: str) -> bytes:
    body = json.dumps({"error": error, "hint": hint}).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nConnection:"
        f" close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class ConnectionLimit:
    """Counts the clients of one listener. `wrap_factory` makes the protocols that it watches.

    Of the `max_clients` places, `reserved` are kept for users who may change something and for
    `trusted_uid`, and any other user has `max_per_user`. `newest_first`: a new client is never
    refused, but takes the place of another one.
    """

    def __init__(
        self,
        max_clients: int,
        *,
        reserved: int = 0,
        max_per_user: int | None = None,
        newest_first: bool = False,
        trusted_uid: int | None = None,
    ) -> None:
        self.max_clients = max_clients
        self.reserved = reserved
        self.max_per_user = max_clients if max_per_user is None else max_per_user
        self.newest_first = newest_first
        self.trusted_uid = trusted_uid
        self.refused = 0
        self.timed_out = 0
        # In the order in which they were served
        self._open: dict[asyncio.BaseTransport, _LimitedProtocol] = {}
        self.quiet = asyncio.Event()  # every client has sent its request
        self.quiet.set()

    @property
    def clients(self) -> int:
        return len(self._open)

    def wrap_factory(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> Callable[[], asyncio.Protocol]:
        return lambda: _LimitedProtocol(self, factory())

    def find_refusal(self, uid: int | None) -> str:
        """Why there is no room for a client of this user, None for one with a reserved place;
        empty where there is.
        """
        if self.newest_first:
            while self.clients >= self.max_clients:
                self.refused += 1
                oldest, _ = next(iter(self._open.items()))
                self.forget_client(oldest)
                if isinstance(oldest, asyncio.Transport):
                    oldest.abort()
        others = [watched.uid for watched in self._open.values() if watched.uid is not None]
        if self.clients >= self.max_clients or (
            uid is not None and len(others) >= self.max_clients - self.reserved
        ):
            return (
                f"{self.max_clients} at once, {self.reserved} of them kept for root"
                if self.reserved
                else f"{self.max_clients} at once"
            )
        if uid is not None and others.count(uid) >= self.max_per_user:
            return f"{self.max_per_user} at once for one user"
        return ""

    def admit_client(self, transport: asyncio.BaseTransport, watched: _LimitedProtocol) -> None:
        self._open[transport] = watched
        self.quiet.clear()

    def forget_client(self, transport: asyncio.BaseTransport) -> None:
        self._open.pop(transport, None)
        self._update_quiet()

    def restart_timer(
        self, transport: asyncio.BaseTransport | None, *, streaming: bool = False
    ) -> None:
        """A complete request has arrived: restart its time limit. A stream has none; its writer has
        limits of its own.
        """
        if transport is not None and (watched := self._open.pop(transport, None)) is not None:
            self._open[transport] = watched
            watched.note_request(None if streaming else _EACH_S)
            self._update_quiet()

    def _update_quiet(self) -> None:
        if all(watched.heard for watched in self._open.values()):
            self.quiet.set()


class _LimitedProtocol(asyncio.Protocol):
    def __init__(self, connection_limit: ConnectionLimit, inner: asyncio.Protocol) -> None:
        self.uid: int | None = None  # None: a place is reserved for it
        self._connection_limit = connection_limit
        self._inner = inner
        self._transport: asyncio.Transport | None = None  # once admitted
        self._timer: asyncio.TimerHandle | None = None
        self._served = False
        self._expired = False

    @property
    def heard(self) -> bool:
        """A whole request of it has come."""
        return self._served

    def note_request(self, seconds: float | None) -> None:
        self._served = True
        self.set_time_limit(seconds)

    def set_time_limit(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            asyncio.get_running_loop().call_later(seconds, self._close_expired)
            if seconds is not None
            else None
        )

    def _close_expired(self) -> None:
        self._connection_limit.timed_out += 1
        if self._transport is None or self._expired:
            return
        if self._served:
            self._transport.abort()  # it does not take its answer, or idles
        else:
            self._expired = True
            self._transport.write(
                _format_refusal(
                    408,
                    "Request Timeout",
                    "the request did not come in time",
                    f"it must be whole within {_FIRST_S:g} s",
                )
            )
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.uid = _read_uid(transport, self._connection_limit.trusted_uid)
        if full := self._connection_limit.find_refusal(self.uid):
            self._connection_limit.refused += 1
            transport.write(
                _format_refusal(
                    503, "Service Unavailable", "too many clients", f"{full}; try again later"
                )
            )
            transport.close()
            return
        self._transport = transport
        self._connection_limit.admit_client(transport, self)
        self.set_time_limit(_FIRST_S)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._transport is not None else None

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self.set_time_limit(None)
            self._connection_limit.forget_client(self._transport)
            self._inner.connection_lost(error)


def _read_uid(transport: asyncio.Transport, trusted_uid: int | None) -> int | None:
    """The peer's user; None if a place is reserved for it, and on a port, where it is unknown."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    try:
        peer = read_peer(sock)
    except OSError:
        return -1  # gone again
    return None if peer.may_change or peer.uid == trusted_uid else peer.uid
