"""
Where the HTTP library and the event loop refuse something before our handlers see it.

Owns     what is answered then: JSON like every other error, without a byte of what the client sent;
         and what the log says of clients that could not be let in, once a minute with their number.
Refuses  anything that a handler of ours can answer itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from vitald import __version__

log: structlog.stdlib.BoundLogger = structlog.get_logger("http")

_SAY_S = 60.0
# Those for which asyncio tries again a second later
_NO_ROOM = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
}


def sign_response(response: web.StreamResponse) -> None:
    """Which vitald answers: who asks may be of another version. (And no word of the server
    library's.)
    """
    response.headers["Server"] = f"vitald/{__version__}"


async def sign_prepared(_: web.Request, response: web.StreamResponse) -> None:
    """`sign_response`, as an application calls it."""
    sign_response(response)


def make_error(status: int, what: str, hint: str = "") -> web.Response:
    """The body is an `Error` of the API (server/schema)."""
    answer = {"error": what}
    if hint:
        answer["hint"] = hint
    return web.json_response(answer, status=status)


def convert_error(raised: web.HTTPException, what: str = "", hint: str = "") -> web.Response:
    """An error of the library's as one of ours. Its text may repeat what was sent; its reason is
    the status in words.
    """
    response = make_error(raised.status, what or raised.reason, hint)
    if "Allow" in raised.headers:
        response.headers["Allow"] = raised.headers["Allow"]
    return response


class Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ()

    def __init__(self, manager: web.Server, keep_alive_s: float) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=keep_alive_s,
            access_log=None,  # type: ignore[arg-type]  # None: no log
        )

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, or a fault of ours outside of the handlers."""
        if status >= 500 or request.writer.output_size > 0:
            # Logs it; raises where an answer has begun
            super().handle_error(request, status, exc, message)
        error = "vitald failed to answer" if status >= 500 else "this is no request of HTTP 1.1"
        response = make_error(
            status, "a line of the request is too long" if isinstance(exc, LineTooLong) else error
        )
        response.force_close()
        sign_response(response)
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """What the library raised, where no handler has caught it."""
        if isinstance(resp, web.HTTPException):
            resp = convert_error(resp)
            sign_response(resp)
        return await super().finish_response(request, resp, start_time)


class Doorkeeper:
    """What the loop says of clients that it could not let in: asyncio has a line for each try,
    hundreds a second.
    """

    def __init__(self) -> None:
        self._untold = 0
        self._error = ""
        self._timer: asyncio.TimerHandle | None = None

    def handle(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """The loop's exception handler."""
        raised = context.get("exception")
        if (
            not isinstance(raised, OSError)
            or raised.errno not in _NO_ROOM
            or "accept" not in str(context.get("message"))
        ):
            loop.default_exception_handler(dict(context))
            return
        self._untold += 1
        self._error = os.strerror(raised.errno)
        if self._timer is None:
            self._tell(loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """At once, and again after a minute in which there were more."""
        if not self._untold:
            self._timer = None
            return
        log.error(
            "clients_not_let_in",
            error=self._error,
            times=self._untold,
            effect="they wait; it is tried again every second",
        )
        self._untold = 0
        self._timer = loop.call_later(_SAY_S, self._tell, loop)
