"""
Serves the status page over HTTP, on a port of the loopback.

Owns     who gets the page: a request with the token in its path, since any user of the machine can
         connect to the port; and only under a name of the loopback, so that no web site can have a
         browser request it under its own name (DNS rebinding).
Refuses  every method but GET and HEAD, and an access log: the path is a secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from vitald.cli.page.model import Page, Span
from vitald.cli.page.template import PageTemplate
from vitald.http_server import library
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.http_server.listeners import serve_application
from vitald.worker_thread import ThreadStuck, WorkerThread

MAX_CLIENTS = 16
_MAX_READ_S = 15.0
_TOKEN_BYTES = 24  # 192 bits
_METHODS = ("GET", "HEAD")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SPANS = {span.value: span for span in Span}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


class PageServer:
    """`read_page` is called in a thread for each request; if that takes too long, the page is what
    `describe_failure` returns.
    """

    def __init__(
        self,
        token: str,
        read_page: Callable[[Span | None], Page],
        describe_failure: Callable[[str], Page],
    ) -> None:
        self.connection_limit = ConnectionLimit(MAX_CLIENTS, newest_first=True)
        self._token = token
        self._read_page, self._describe_failure = read_page, describe_failure
        self._template = PageTemplate()
        self._thread = WorkerThread("page")

    def build_application(self) -> web.Application:
        app = web.Application(middlewares=[self._check_request], client_max_size=1024)
        app.on_response_prepare.append(self._add_headers)
        app.router.add_route("*", "/{token}/", self._show_page)
        return app

    async def serve(self, listener: socket.socket) -> None:
        """Serve until SIGINT or SIGTERM."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        async with serve_application(self.build_application(), self.connection_limit, [listener]):
            await stopping.wait()

    @web.middleware
    async def _check_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.connection_limit.restart_timer(request.transport)
        if request.method not in _METHODS:
            return _refuse(405, "only GET and HEAD", Allow=", ".join(_METHODS))
        if not is_loopback(request.headers.get("Host", "")):
            return _refuse(421, "not the host of that name: open the printed address")
        token = request.match_info.get("token", "")
        if not secrets.compare_digest(_encode(token), _encode(self._token)):
            return _refuse(403, "open the whole address that vitald page printed")
        return await handler(request)

    async def _show_page(self, request: web.Request) -> web.Response:
        span = _SPANS.get(request.query.get("span", ""))
        try:
            page = await self._thread.call(lambda: self._read_page(span), _MAX_READ_S)
        except ThreadStuck:
            page = self._describe_failure("the daemon takes too long to answer")
        is_refreshing = request.query.get("refresh") != "off"
        text = self._template.render_page(
            page, is_live=True, is_refreshing=is_refreshing, span=span
        )
        status = HTTPStatus.SERVICE_UNAVAILABLE if page.error else HTTPStatus.OK
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)

    async def _add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        library.sign_response(response)
        response.headers.update(_HEADERS)
        response.headers["Content-Security-Policy"] = (
            f"{self._template.policy}; frame-ancestors 'none'"
        )


def is_loopback(header: str) -> bool:
    """Whether a Host header names the loopback. The port may be that of a tunnel."""
    host, colon, port = header.rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        host = header
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _refuse(status: int, why: str, **headers: str) -> web.Response:
    return web.Response(text=f"{why}\n", status=status, headers=headers)
