"""Listening sockets of the daemon, and the HTTP server behind them."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import structlog
from aiohttp import web

from vitald.http_server import library
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.metrics.settings import Listen
from vitald.systemd import take_passed_sockets

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_SHUTDOWN_S = 0.5
_KEPT_ALIVE_S = 30.0
# Turns of the loop, which has accepted connections that its protocol does not know yet.
_HANDED_OVER = 10
_NO_REQUEST_S = 0.3  # grace period for clients that connected but sent no request yet
_BACKLOG = 256


class CannotStart(Exception):
    """A fault that an operator must correct; the text names it."""


@asynccontextmanager
async def serve_application(
    app: web.Application,
    connection_limit: ConnectionLimit,
    listeners: list[socket.socket],
    *,
    patient: bool = False,
) -> AsyncIterator[None]:
    """Serve an application behind its connection limit. `patient`: at the end, wait a moment for
    the requests of clients that are connected already.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_SHUTDOWN_S,
        handler_cancellation=True,
    )
    await runner.setup()
    assert runner.server is not None
    protocol = partial(library.Protocol, runner.server, _KEPT_ALIVE_S)
    loop = asyncio.get_running_loop()
    try:
        servers = [
            await loop.create_server(
                connection_limit.wrap_factory(protocol), sock=listener, backlog=_BACKLOG
            )
            for listener in listeners
        ]
        try:
            yield
        finally:
            for sock in (sock for server in servers for sock in server.sockets):
                # Clients that connect now wait for the next daemon if systemd holds the socket.
                loop.remove_reader(sock.fileno())
            if patient:
                for _ in range(_HANDED_OVER):
                    await asyncio.sleep(0)
                await wait_until(connection_limit.quiet, _NO_REQUEST_S)
            for server in servers:
                server.close()
    finally:
        await runner.cleanup()


def open_api_sockets(path: Path, expected_group: int, stack: AsyncExitStack) -> list[socket.socket]:
    """The sockets that systemd passed, and one of our own at `path` where that is not among them;
    it is unlinked when `stack` is closed. Raises CannotStart.
    """
    sockets = take_passed_sockets()
    for passed in sockets:
        if (group := Path(passed.getsockname()).stat().st_gid) != expected_group:
            log.error(
                "socket_group",
                socket=passed.getsockname(),
                group=group,
                wanted=expected_group,
                next_step=(
                    "[socket] group cannot change a socket of systemd's: systemctl edit"
                    " vitald.socket, [Socket] SocketGroup="
                ),
            )
    if str(path) not in [each.getsockname() for each in sockets]:
        sockets.append(open_unix_socket(path, expected_group))
        stack.callback(path.unlink, missing_ok=True)
    return sockets


def open_unix_socket(path: Path, group: int) -> socket.socket:
    """A listening socket that the group may connect to. Raises CannotStart."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Left by a daemon that was killed; a living one holds the lock
        path.unlink(missing_ok=True)
        before = os.umask(0o117)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(_BACKLOG)  # at once: a client that finds the file may connect
        if path.stat().st_gid != group:
            os.chown(path, -1, group)
    except OSError as error:
        made.close()
        raise CannotStart(
            f"{path}: {error.strerror}: cannot listen there ([socket] path)"
        ) from error
    return made


def open_tcp_socket(listen: Listen) -> socket.socket:
    """A listening socket. Raises CannotStart."""
    try:
        return socket.create_server(
            (listen.host, listen.port),
            family=socket.AF_INET6 if ":" in listen.host else socket.AF_INET,
        )
    except OSError as error:
        raise CannotStart(
            f"{listen}: {error.strerror}: cannot listen there ([metrics] listen)"
        ) from error


async def wait_until(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or `seconds` have passed."""
    with anyio.move_on_after(seconds):
        await event.wait()


def find_group_id(name: str | None) -> int:
    """The group of that name, or our own. Raises CannotStart."""
    if name is None:
        return os.getegid()
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotStart(f"[socket] group: there is no group {name!r} on this node") from None


def find_user_id(name: str) -> int | None:
    """None where there is no such user on this node: nobody more may do anything then."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None
