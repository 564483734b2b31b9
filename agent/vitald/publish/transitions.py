"""How findings changed, from the daemon's ledger (`/v1/transitions`), for what is sent once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vitald.checking import read_flag, read_list, read_text, read_whole
from vitald.model import Action
from vitald.publish.ask_daemon import NotAnswered, ask_daemon
from vitald.publish.summary import explain_error, read_reason, read_short, read_time
from vitald.text import replace_unprintable

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_BYTES = 4 * 1024 * 1024
_PAGE, _MAX_RAW = 500, 1024


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
    # What a daemon of an older version does not say; 0.0 and "" are unknown.
    code_kind: str = ""
    since: float = 0.0
    when: str = ""
    raw: str = ""
    source: str = ""
    uuid: str = ""
    serial: str = ""
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class TransitionPage:
    """`next_after`: where the next page begins; None if there is none. `newest`: the highest id."""

    changes: tuple[FindingChange, ...]
    next_after: int | None
    newest: int


class NoTransitions(Exception):
    """The daemon's answer is no page of transitions. The text says why."""


class TransitionReader:
    """Reads pages over the daemon's socket, each with a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read_page(self, after: int) -> TransitionPage:
        """Those after this id, oldest first. Raises DaemonAway, NoTransitions."""
        page = parse_page(await self._read({"since": str(after), "limit": str(_PAGE)}))
        if page.next_after is not None and page.next_after <= after:
            raise NoTransitions(f"the page after {page.next_after} follows that after {after}")
        return page

    async def read_newest(self) -> TransitionPage:
        """The last one only. Raises DaemonAway, NoTransitions."""
        return parse_page(await self._read({"newest": "true", "limit": "1"}))

    async def _read(self, query: Mapping[str, str]) -> object:
        try:
            return await ask_daemon(self._socket, "/v1/transitions", query, _MAX_BYTES)
        except NotAnswered as error:
            raise NoTransitions(str(error)) from error


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
        code=read_short(change["code"]),
        reason=read_reason(change["reason"]),
        title=read_short(change["title"]),
        action=Action(change["action"]),
        cause=read_short(change["cause"]),
        simulated=read_flag(change["simulated"]),
        on_trial=read_flag(change["onTrial"]),
        code_kind=read_short(change.get("kind", "")),
        since=read_time(change["since"]) if "since" in change else 0.0,
        when=read_short(change.get("when", "")),
        raw=replace_unprintable(read_text(change.get("raw", ""))[:_MAX_RAW]),
        source=read_short(change.get("source", "")),
        uuid=read_short(change.get("uuid", "")),
        serial=read_short(change.get("serial", "")),
        confirmed=read_flag(change.get("confirmed", False)),
    )


def _read_id(value: object) -> int:
    return read_whole(value, 0, sys.maxsize)
