"""
Serves the status page over HTTP, from a port.

Owns     who gets the page: a request with the secret in its path. Any user of the machine can
         connect to a port of the loopback, and would see what the caller may see. The name of the
         host in a request must be one of this machine, so that no web site can have a browser ask
         in its name (DNS rebinding). The limits of clients and requests are those of the daemon's
         port.
Refuses  every method but GET and HEAD, and a log: the path is a secret.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus

from aiohttp import web

from vitald.cli.page.model import Page
from vitald.cli.page.template import PageTemplate
from vitald.server.connection_limit import ConnectionLimit
from vitald.server.listeners import serve_application
from vitald.server.routes import library
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
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


class PageServer:
    """`read_page` is called in a thread of its own, once for each request; `describe_failure` makes
    the page if that takes too long.
    """

    def __init__(
        self,
        token: str,
        hosts: Collection[str],
        read_page: Callable[[], Page],
        describe_failure: Callable[[str], Page],
    ) -> None:
        """`hosts`: names in the Host header that are allowed besides addresses of the loopback;
        with `*` any address, written as numbers.
        """
        self.connection_limit = ConnectionLimit(MAX_CLIENTS, newest_first=True)
        self._token, self._hosts = token, {host.lower() for host in hosts}
        self._read_page, self._describe_failure = read_page, describe_failure
        self._template = PageTemplate()
        self._thread = WorkerThread("page")

    def build_application(self) -> web.Application:
        app = web.Application(middlewares=[self._check_request], client_max_size=1024)
        app.on_response_prepare.append(self._add_headers)
        app.router.add_route("*", "/{token}/", self._show_page)
        return app

    async def serve(self, listeners: list[socket.socket]) -> None:
        """Serve until SIGINT or SIGTERM."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        async with serve_application(self.build_application(), self.connection_limit, listeners):
            await stopping.wait()

    @web.middleware
    async def _check_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.connection_limit.restart_timer(request.transport)
        if request.method not in _METHODS:
            return _refuse(405, "only GET and HEAD", Allow=", ".join(_METHODS))
        if not self._is_own_host(request.headers.get("Host", "")):
            return _refuse(421, "this is not the host of that name: open the printed address")
        token = request.match_info.get("token", "")
        if not secrets.compare_digest(_to_bytes(token), _to_bytes(self._token)):
            return _refuse(403, "open the whole address that vitald page printed")
        return await handler(request)

    async def _show_page(self, request: web.Request) -> web.Response:
        try:
            page = await self._thread.call(self._read_page, _MAX_READ_S)
        except ThreadStuck:
            page = self._describe_failure("the daemon takes too long to answer")
        text = self._template.render_page(
            page, is_live=True, is_refreshing=request.query.get("refresh") != "off"
        )
        status = HTTPStatus.SERVICE_UNAVAILABLE if page.error else HTTPStatus.OK
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)

    async def _add_headers(self, _: web.Request, response: web.StreamResponse) -> None:
        library.sign_response(response)
        response.headers.update(_HEADERS)
        response.headers["Content-Security-Policy"] = (
            f"{self._template.policy}; frame-ancestors 'none'"
        )

    def _is_own_host(self, header: str) -> bool:
        """Whether the Host header names this machine. The port may be another: of a tunnel."""
        host = _remove_port(header).lower()
        if host == "localhost" or host in self._hosts:
            return True
        try:
            address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return address.is_loopback or "*" in self._hosts


def _remove_port(header: str) -> str:
    host, colon, port = header.rpartition(":")
    return host if colon and port.isascii() and port.isdigit() else header


def _to_bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _refuse(status: int, why: str, **headers: str) -> web.Response:
    return web.Response(text=f"{why}\n", status=status, headers=headers)
