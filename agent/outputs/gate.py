"""
The gate before the HTTP server: how many clients at once, and how long one may take.

aiohttp bounds what a request may hold, not how slowly it may come. The gate wraps the server's protocol: a client over
the limit is told so and closed; one that has not sent a whole request in time, or does not take its answer, is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

_FIRST_S = 5.0  # from connecting to a complete request
_EACH_S = 30.0  # from a request to the next one, answer and idling included


def _refusal(status: int, reason: str, error: str, hint: str) -> bytes:
    body = json.dumps({"error": error, "hint": hint}).encode() + b"\n"
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


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

    def admit(self, transport: asyncio.BaseTransport, watched: _Watched) -> None:
        self._open[transport] = watched

    def forget(self, watched: _Watched) -> None:
        self._open = {transport: other for transport, other in self._open.items() if other is not watched}

    def serving(self, transport: asyncio.BaseTransport | None, *, streaming: bool = False) -> None:
        """A whole request has come: its time starts anew. A stream has no end; its writer watches over itself."""
        if transport is not None and (watched := self._open.get(transport)) is not None:
            watched.served(None if streaming else _EACH_S)


class _Watched(asyncio.Protocol):
    def __init__(self, gate: Gate, inner: asyncio.Protocol) -> None:
        self._gate = gate
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._admitted = False
        self._served = False

    def served(self, seconds: float | None) -> None:
        self._served = True
        self.give(seconds)

    def give(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire) if seconds is not None else None

    def _expire(self) -> None:
        self._gate.timed_out += 1
        if self._transport is None:
            return
        if self._served:
            self._transport.abort()  # it does not take its answer, or idles
        else:
            self._transport.write(
                _refusal(408, "Request Timeout", "the request did not come in time", f"it must be whole within {_FIRST_S:g} s")
            )
            self._transport.close()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._gate.clients >= self._gate.most:
            self._gate.refused += 1
            transport.write(_refusal(503, "Service Unavailable", "too many clients", f"{self._gate.most} at once; try again later"))
            transport.close()
            return
        self._admitted = True
        self._transport = transport
        self._gate.admit(transport, self)
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
            self._gate.forget(self)
            self._inner.connection_lost(error)
