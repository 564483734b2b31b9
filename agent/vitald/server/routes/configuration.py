"""
The configuration over the socket: `POST /v1/reload`.

Owns     the form of the answer, and what `/v1/status` says of the file.
Refuses  the reload itself, which the daemon does in a task of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from vitald.config.section import TakesEffect
from vitald.core.config_reload import Reload
from vitald.core.node_state import ConfigurationFile
from vitald.server import endpoints
from vitald.server.endpoint import PAGE
from vitald.server.request import make_route, read_body, require_change_right

if TYPE_CHECKING:
    from vitald.server import schema


class ConfigurationRoutes:
    """The handler."""

    def __init__(self, reload: Callable[[], Awaitable[Reload]]) -> None:
        self._reload = reload

    def list_routes(self) -> list[web.RouteDef]:
        return [make_route(endpoints.RELOAD, self.reload_file)]

    async def reload_file(self, request: web.Request) -> schema.Reloaded:
        require_change_right(request)
        await read_body(request)
        done = await self._reload()
        return {
            "file": _format_path(done.path),
            "errors": [*done.errors],
            "applied": [*done.changes.get(TakesEffect.RELOAD, ())],
            "needsRestart": [*done.changes.get(TakesEffect.RESTART, ())],
            "publisherNeedsRestart": [*done.changes.get(TakesEffect.PUBLISHER, ())],
        }


def describe_configuration(found: ConfigurationFile) -> schema.ApiConfiguration:
    """For /v1/status."""
    return {
        "file": _format_path(found.path),
        "errors": [*found.errors[:PAGE]],
        "needsReload": [*found.reload],
        "needsRestart": [*found.restart],
    }


def _format_path(path: Path | None) -> str | None:
    return str(path) if path is not None else None
