"""The configuration: `POST /v1/reload`, and its part of `/v1/status`."""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypedDict

from vitald.server.schema.values import Keywords

_Key: TypeAlias = Annotated[str, Keywords(examples=("[metrics] listen",))]


class ApiConfiguration(TypedDict):
    """The configuration file as it is on disk, compared with what is in force every 20 s."""

    file: str | None
    """Null: there is none, and the defaults are in force."""
    errors: Annotated[list[str], Keywords(max_items=100)]
    """Why it is refused, each with file, line and key, 100 at most. What was in force before stays
    so, and the daemon would not start with this file."""
    needsReload: list[_Key]
    """Changed keys that take effect at a reload."""
    needsRestart: list[_Key]
    """Changed keys that take effect at a restart of the daemon."""


class ReloadRequest(TypedDict):
    """An empty object."""


class Reloaded(TypedDict):
    """What came of a reload."""

    file: str | None
    """The file that was read; null if there is none, and the defaults are in force."""
    errors: list[str]
    """Why it was refused, each with file, line and key; then nothing has changed. Empty if it is in
    force."""
    applied: list[_Key]
    """Keys that have changed, and are in force now."""
    needsRestart: list[_Key]
    """Keys that have changed since the daemon started, and take effect when it is restarted."""
    publisherNeedsRestart: list[_Key]
    """Keys that have changed since the last reload, and take effect when `vitald publish` is
    restarted."""
