"""
The socket API: HTTP and JSON over a Unix socket. `openapi.json` beside this file is its contract.

Owns     the application: its routes, who may read, and that every error is JSON.
Refuses  judging and waiting: answers come from the node's state, and a change goes through the
         pipeline's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog
from aiohttp import web

from vitald import __version__
from vitald.catalog import Catalog
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.diagnostics.view import DiagnosticsView
from vitald.http_server import library
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.http_server.peer import Peer, read_peer
from vitald.recovery.requester import RecoveryRequester
from vitald.server.request import PUBLISHES, RequestRefused
from vitald.server.routes.context import RouteContext
from vitald.server.routes.drills import DrillRoutes
from vitald.server.routes.events import EventRoutes, TransitionRoutes
from vitald.server.routes.findings import FindingRoutes
from vitald.server.routes.jobs import SchedulerRoutes
from vitald.server.routes.node import NodeRoutes
from vitald.server.routes.publishers import PublisherRoutes
from vitald.server.routes.summary import SummaryRoutes
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

_MAX_CLIENTS = 128
# Of the clients: places for root, the daemon's own user and the publisher's, and the share of any
# other user.
_RESERVED, _MAX_PER_USER = 32, 24
_BODY_BYTES = 16 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes(Protocol):
    """Handlers of one subject."""

    def list_routes(self) -> list[web.RouteDef]: ...


class Api:
    """The application and its connection limit; `more` are routes besides its own. `publisher_uid`:
    the user of `vitald publish`, where it is known.
    """

    def __init__(
        self,
        *,
        node_state: NodeState,
        pipeline: Pipeline,
        catalog: Catalog,
        interpreter: Interpreter,
        inventory: PciInventory,
        reader: WorkerThread,
        drill_path: Path,
        group: int,
        publisher_uid: int | None = None,
        diagnostics: DiagnosticsView,
        recovery: RecoveryRequester | None = None,
        is_idle: Callable[[], bool] = lambda: False,
        more: Sequence[Routes] = (),
    ) -> None:
        self.group = group
        self.connection_limit = ConnectionLimit(
            _MAX_CLIENTS,
            reserved=_RESERVED,
            max_per_user=_MAX_PER_USER,
            trusted_uid=publisher_uid,
        )
        self._publisher_uid = publisher_uid
        self._context = RouteContext(
            node_state=node_state,
            pipeline=pipeline,
            catalog=catalog,
            inventory=inventory,
            reader=reader,
            is_idle=is_idle,
        )
        self._routes: tuple[Routes, ...] = (
            NodeRoutes(self._context, interpreter, diagnostics, recovery),
            FindingRoutes(self._context),
            EventRoutes(self._context, self.connection_limit),
            SummaryRoutes(self._context),
            TransitionRoutes(self._context),
            PublisherRoutes(node_state),
            SchedulerRoutes(node_state),
            DrillRoutes(node_state, interpreter, drill_path),
            *more,
        )

    def replace_catalog(self, catalog: Catalog) -> None:
        """Answer with a reloaded catalogue from here on."""
        self._context.catalog = catalog

    def build_application(self) -> web.Application:
        app = web.Application(middlewares=[self._handle_request], client_max_size=_BODY_BYTES)
        app.on_response_prepare.append(library.sign_prepared)
        for routes in self._routes:
            app.add_routes(routes.list_routes())
        return app

    @web.middleware
    async def _handle_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check that the peer may read, and answer every error as JSON."""
        self.connection_limit.restart_timer(request.transport)
        try:
            peer = _read_peer(request)
            if not peer.may_read(self.group):
                raise RequestRefused(
                    403,
                    f"uid {peer.uid} may not read",
                    "join the socket's group, or run this as root",
                )
            request["peer"] = peer
            request[PUBLISHES] = peer.uid == self._publisher_uid
            return await handler(request)
        except RequestRefused as refused:
            return library.make_error(refused.status, refused.error, refused.hint)
        except web.HTTPException as raised:
            hint = "see /v1/openapi.json" if raised.status in (404, 405) else ""
            what = ""
            if raised.status == 404:
                what = f"no such path: vitald {__version__} has version 1 of the API, /v1"
            return library.convert_error(raised, what, hint)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("request_failed", path=request.path)
            return library.make_error(
                500, "vitald failed to answer", "its log says why; please report it"
            )


def _read_peer(request: web.Request) -> Peer:
    sock = request.get_extra_info("socket")
    if sock is None:
        raise ConnectionResetError("the client is gone")
    return read_peer(sock)
