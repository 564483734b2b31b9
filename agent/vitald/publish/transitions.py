"""How findings changed, from the daemon's ledger (`/v1/transitions`), for what is sent once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, cast

import aiohttp

from vitald.model import Action
from vitald.publish.http import parse_json, read_limited
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

_URL = "http://vitald/v1/transitions"
_ANSWER_S = 10.0
_MAX_BYTES = 4 * 1024 * 1024
_PAGE = 500


class ChangeKind(Enum):
    OPENED = "opened"
    ESCALATED = "escalated"
    IN_REMEDY = "in_remedy"
    CLEARED = "cleared"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """One transition of a finding. `at`: seconds since the epoch."""

    id: int
    at: float
    kind: ChangeKind
    finding: int
    component: str
    code: str
    reason: str
    title: str
    action: Action
    cause: str
    simulated: bool
    on_trial: bool


@dataclass(frozen=True, slots=True)
class TransitionPage:
    """`next_after`: where the next page begins; None if there is none. `newest`: the highest id."""

    changes: tuple[FindingChange, ...]
    next_after: int | None
    newest: int


class DaemonAway(Exception):
    """The daemon does not answer."""


class NoTransitions(Exception):
    """The daemon's answer is no page of transitions. The text says why."""


class TransitionReader:
    """Reads pages over the daemon's socket, each with a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read_page(self, after: int) -> TransitionPage:
        """Those after this id, oldest first. Raises DaemonAway, NoTransitions."""
        return parse_page(await self._read({"since": str(after), "limit": str(_PAGE)}))

    async def read_newest(self) -> TransitionPage:
        """The last one only. Raises DaemonAway, NoTransitions."""
        return parse_page(await self._read({"newest": "true", "limit": "1"}))

    async def _read(self, query: Mapping[str, str]) -> object:
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(self._socket)),
                    timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
                ) as session,
                session.get(_URL, params=query) as answer,
            ):
                content = await read_limited(answer, _MAX_BYTES)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise DaemonAway(str(error) or type(error).__name__) from error
        if answer.status != 200:
            raise NoTransitions(f"HTTP {answer.status}: {content[:200].decode(errors='replace')}")
        try:
            return parse_json(content)
        except ValueError as error:
            raise NoTransitions("the answer is not JSON") from error


def parse_page(document: object) -> TransitionPage:
    """The answer of `/v1/transitions`. Raises NoTransitions."""
    if not isinstance(document, Mapping):
        raise NoTransitions("it is no table")
    answer = cast("schema.Transitions", document)
    try:
        return TransitionPage(
            changes=tuple(_parse_change(each) for each in answer["transitions"]),
            next_after=answer["next"],
            newest=int(answer["newestId"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NoTransitions(f"{type(error).__name__}: {error}") from error


def _parse_change(change: schema.ApiTransition) -> FindingChange:
    return FindingChange(
        id=change["id"],
        at=parse_rfc3339(change["time"]).timestamp(),
        kind=ChangeKind(change["change"]),
        finding=change["finding"],
        component=change["component"],
        code=change["code"],
        reason=change["reason"],
        title=change["title"],
        action=Action(change["action"]),
        cause=change["cause"],
        simulated=change["simulated"],
        on_trial=change["onTrial"],
    )
