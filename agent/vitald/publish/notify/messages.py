"""Notifications from what the daemon says. The same facts give the same key and id."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from vitald.model import Action, Status
from vitald.publish.notify.backlog import Backlog
from vitald.publish.notify.notification import (
    NodeFlags,
    NodeIdentity,
    Notification,
    NotificationKind,
    NotifiedFinding,
)
from vitald.publish.notify.progress import TimedFlags
from vitald.publish.state_store import Cursor
from vitald.publish.summary import NodeSummary, PublishedState
from vitald.publish.transitions import ChangeKind, FindingChange


def read_flags(state: PublishedState | None, former: NodeFlags) -> NodeFlags:
    """While the daemon is silent, the status is unknown, no repair is known to be done, and none is
    due.
    """
    if not isinstance(state, NodeSummary):
        return replace(former, status=Status.UNKNOWN, reboot_due=False, replacement_due=False)
    return NodeFlags(
        status=state.status,
        reboot_required=state.reboot_required,
        replacement_required=state.replacement_required,
        reboot_due=bool(state.reboot_reason),
        replacement_due=bool(state.replacement_reason),
        simulated=state.simulated,
    )


def build_finding_message(
    change: FindingChange,
    kind: NotificationKind,
    node: NodeIdentity,
    flags: NodeFlags,
    *,
    repeated_at: float = 0.0,
) -> Notification:
    """On one finding. `repeated_at`: since when it is to be sent again; 0 for the first time."""
    return Notification(
        kind=kind,
        key=f"{node.host}/{change.finding}",
        id=_make_id(node.host, kind.value, change.finding, change.id, change.at, repeated_at),
        time=change.at,
        node=node,
        flags=flags,
        finding=NotifiedFinding(
            id=change.finding,
            component=change.component,
            kind=change.code_kind or change.code.partition("/")[0],
            code=change.code,
            reason=change.reason,
            title=change.title,
            action=change.action,
            when=change.when,
            todo=change.action.phrase,
            since=change.since,
            uuid=change.uuid,
            serial=change.serial,
            raw=change.raw,
            source=change.source,
            cause=change.cause,
            confirmed=change.confirmed,
            simulated=change.simulated,
        ),
    )


def build_former_end(number: int, cursor: Cursor) -> FindingChange:
    """The end of a finding of a ledger that is gone, of which nothing more is known. `cursor`: what
    was read of that ledger.
    """
    return FindingChange(
        id=cursor.position,
        at=cursor.at,
        kind=ChangeKind.CLEARED,
        finding=number,
        component="",
        code="",
        reason="",
        title="finding of the former ledger",
        action=Action.NONE,
        cause="the ledger was begun anew",
        simulated=False,
        on_trial=False,
    )


def build_digest_message(
    backlog: Backlog,
    cursor: Cursor,
    node: NodeIdentity,
    flags: NodeFlags,
    *,
    repeated_at: float = 0.0,
) -> Notification:
    """One for all of a backlog. `cursor`: where that begins and ends."""
    key = f"{node.host}/digest/{cursor.position}-{cursor.combined}"
    return Notification(
        kind=NotificationKind.DIGEST,
        key=key,
        id=_make_id(key, cursor.at, repeated_at),
        time=backlog.oldest_at,
        node=node,
        flags=flags,
        digest=backlog.summarize(),
    )


def build_flags_message(
    pending: TimedFlags, former: TimedFlags | None, node: NodeIdentity
) -> Notification:
    """The node's flags are others than those that were sent last."""
    return Notification(
        kind=NotificationKind.FLAGS,
        key=f"{node.host}/flags",
        id=_make_id(node.host, "flags", pending.flags.status.value, pending.at),
        time=pending.at,
        node=node,
        flags=pending.flags,
        former_flags=former.flags if former is not None else None,
    )


def _make_id(*key: str | float) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]
