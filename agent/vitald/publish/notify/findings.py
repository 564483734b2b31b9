"""Findings with all that a person needs of them, from the daemon (`/v1/findings`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog

from vitald.checking import read_flag, read_list, read_text, read_whole
from vitald.model.words import Action
from vitald.publish.daemon_request import AnswerUnusable, DaemonAway, request_daemon
from vitald.publish.notify.notification import NotifiedFinding
from vitald.publish.summary import explain_error, read_short, read_time
from vitald.publish.transitions import FindingChange
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE
from vitald.text import limit_bytes

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("notify")

_MAX_RAW = 1000


class NoFindings(AnswerUnusable):
    """The daemon's answer has no findings. The text says why."""


class FindingReader:
    """Reads over the daemon's socket, each time with a connection of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read_open(self) -> list[NotifiedFinding]:
        """The strongest 1000, as parse_findings. Raises DaemonAway, AnswerUnusable."""
        answer = await request_daemon(self._socket, endpoints.FINDINGS, limit=MAX_PAGE)
        return parse_findings(answer)

    async def read_one(self, number: int) -> NotifiedFinding | None:
        """An open or a past one; None where the daemon cannot tell: a message without details is
        better than none.
        """
        try:
            answer = await request_daemon(self._socket, endpoints.WHY, id=number)
            return parse_finding(answer.get("finding"))
        except (DaemonAway, AnswerUnusable) as error:
            log.warning("details_not_read", finding=number, error=str(error))
            return None


def parse_findings(document: Mapping[str, object]) -> list[NotifiedFinding]:
    """The answer of `/v1/findings`, without those that a person accepted: they are no news. Raises
    NoFindings.
    """
    try:
        listed = read_list(document["findings"], 0, MAX_PAGE)
        findings = cast("list[schema.ApiFinding]", listed)
        return [parse_finding(each) for each in findings if each["accepted"] is None]
    except (KeyError, ValueError, TypeError) as error:
        raise NoFindings(explain_error(error)) from error


def parse_finding(document: object) -> NotifiedFinding:
    """One of them. Raises NoFindings."""
    if not isinstance(document, Mapping):
        raise NoFindings("a finding is no object")
    finding = cast("schema.ApiFinding", document)
    try:
        device = finding["device"] or {}
        return NotifiedFinding(
            id=read_whole(finding["id"], 1, sys.maxsize),
            component=read_short(finding["component"]),
            code=read_short(finding["code"]),
            title=read_short(finding["title"]),
            action=Action(finding["action"]),
            simulated=read_flag(finding["simulated"]),
            when=read_short(finding["when"]),
            since=read_time(finding["since"]),
            device=read_short(device.get("text", "")),
            uuid=read_short(device.get("uuid", "")),
            serial=read_short(device.get("serial", "")),
            raw=limit_bytes(read_text(finding["raw"]), _MAX_RAW),
            confirmed=read_flag(finding["confirmed"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NoFindings(explain_error(error)) from error


def describe_change(change: FindingChange) -> NotifiedFinding:
    """What a transition itself says of its finding."""
    return NotifiedFinding(
        id=change.finding,
        component=change.component,
        code=change.code,
        title=change.title,
        action=change.action,
        simulated=change.simulated,
        device=change.device,
        cause=change.cause,
    )


def add_details(finding: NotifiedFinding, known: NotifiedFinding | None) -> NotifiedFinding:
    """`known`: as the daemon has it now. What it requires may have changed since; and where the
    ledger was begun anew, it is another finding of that number.
    """
    if known is None or known.key != finding.key:
        return finding
    is_same = known.action is finding.action
    return replace(
        known, action=finding.action, when=known.when if is_same else "", cause=finding.cause
    )
