"""How findings changed, from the daemon's ledger (`/v1/transitions`), for what is sent once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vitald.checking import read_flag, read_list, read_whole
from vitald.model.words import Action
from vitald.publish.daemon_request import AnswerUnusable, request_daemon
from vitald.publish.summary import explain_error, read_reason, read_short, read_time
from vitald.server.endpoints import TRANSITIONS

if TYPE_CHECKING:
    from vitald.server import schema

_PAGE = 100


class ChangeKind(Enum):
    OPENED = "opened"
    ESCALATED = "escalated"
    IN_REMEDY = "in_remedy"
    CLEARED = "cleared"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """One transition of a finding. `at`: seconds since the epoch. `device`: its names, "" where
    there are none.
    """

    id: int
    at: float
    kind: ChangeKind
    finding: int
    component: str
    device: str
    code: str
    reason: str
    title: str
    action: Action
    cause: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class TransitionPage:
    """`next_after`: where the next page begins; None if there is none. `newest`: the highest id."""

    changes: tuple[FindingChange, ...]
    next_after: int | None
    newest: int


class NoTransitions(AnswerUnusable):
    """The daemon's answer is no page of transitions. The text says why."""


class TransitionReader:
    """Reads pages over the daemon's socket, each with a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read_page(self, after: int) -> TransitionPage:
        """Those after this id, oldest first. Raises DaemonAway, AnswerUnusable."""
        answer = await request_daemon(self._socket, TRANSITIONS, since=after, limit=_PAGE)
        page = parse_page(answer)
        if page.next_after is not None and page.next_after <= after:
            raise NoTransitions(f"the page after {page.next_after} follows that after {after}")
        return page

    async def read_newest(self) -> TransitionPage:
        """The last one only. Raises DaemonAway, AnswerUnusable."""
        return parse_page(await request_daemon(self._socket, TRANSITIONS, newest="true", limit=1))


def parse_page(document: object) -> TransitionPage:
    """The answer of `/v1/transitions`. Raises NoTransitions."""
    if not isinstance(document, Mapping):
        raise NoTransitions("it is no table")
    answer = cast("schema.Transitions", document)
    try:
        return TransitionPage(
            changes=tuple(
                _parse_change(cast("schema.ApiTransition", each))
                for each in read_list(answer["transitions"], 0, _PAGE)
            ),
            next_after=None if answer["next"] is None else _read_id(answer["next"]),
            newest=_read_id(answer["newestId"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NoTransitions(explain_error(error)) from error


def _parse_change(change: schema.ApiTransition) -> FindingChange:
    return FindingChange(
        id=_read_id(change["id"]),
        at=read_time(change["time"]),
        kind=ChangeKind(change["change"]),
        finding=_read_id(change["finding"]),
        component=read_short(change["component"]),
        device=_read_device(change),
        code=read_short(change["code"]),
        reason=read_reason(change["reason"]),
        title=read_short(change["title"]),
        action=Action(change["action"]),
        cause=read_short(change["cause"]),
        simulated=read_flag(change["simulated"]),
    )


def _read_device(change: schema.ApiTransition) -> str:
    device = change["device"]
    return read_short(device["text"]) if device and "text" in device else ""


def _read_id(value: object) -> int:
    return read_whole(value, 0, sys.maxsize)
