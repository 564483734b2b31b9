"""
The gate before the HTTP server: how many clients at once, and how long one may take.

aiohttp bounds what a request may hold, not how slowly it may come. The gate wraps the server's protocol: a client over
the limit is told so and closed; one that has not sent a whole request in time, or does not take its answer, is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_FIRST_S = 5.0  # from connecting to a complete request
_EACH_S = 30.0  # from a request to the next one, answer and idling included
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"


class Gate:
    """Counts the clients of one listener. `gate(factory)` makes the protocols that it watches."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self.timed_out = 0
        self._open: dict[asyncio.BaseTransport, _Watched] = {}

    @property
    def clients(self) -> int:
        return len(self._open)

    def wrap(self, factory: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        return lambda: _Watched(self, factory())

    def serving(self, transport: asyncio.BaseTransport | None, *, streaming: bool = False) -> None:
        """A whole request has come: its time starts anew. A stream has no end; its writer watches over itself."""
        if transport is not None and (watched := self._open.get(transport)) is not None:
            watched.give(None if streaming else _EACH_S)


class _Watched(asyncio.Protocol):
    def __init__(self, gate: Gate, inner: asyncio.Protocol) -> None:
        self._gate = gate
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False

    def give(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire) if seconds is not None else None

    def _expire(self) -> None:
        self._gate.timed_out += 1
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._gate.clients >= self._gate.most:
            self._gate.refused += 1
            body = b'{"error": "too many clients", "hint": "%d at once; try again later"}\n' % self._gate.most
            transport.write(_REFUSAL % (len(body), body))
            transport.close()
            return
        self._admitted = True
        self._transport = transport
        self._gate._open[transport] = self
        self.give(_FIRST_S)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._admitted:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        if self._admitted:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._admitted:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._admitted:
            self.give(None)
            self._gate._open.pop(self._transport, None)  # type: ignore[arg-type]  # set when admitted
            self._inner.connection_lost(error)
