"""
Events of the Node object: one for each finding that was opened, asks for more, is in remedy or was
cleared.

They follow the ledger's transitions, with a stored position. The name of an event is made from its
transition, so that the API server refuses a second one (409 AlreadyExists): a crash between the
event and the position neither repeats nor loses it. Where there are too many for RATE, one event
stands for the rest; which these are is stored before it is sent, so that it too comes once.

Source: Kubernetes API events.k8s.io/v1, Event (limits of its fields), tried against 1.36; events of
a node belong into the namespace `default`.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace

from vitald.model.reasons import FixedReason
from vitald.model.words import Action
from vitald.publish.kubernetes.client import KubernetesClient, report_failures
from vitald.publish.kubernetes.desired import MAX_MESSAGE_BYTES
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.retry import RateLimit, Retry
from vitald.publish.state_store import Cursor, StateStore
from vitald.publish.transition_runner import LedgerReplaced, TransitionRunner
from vitald.publish.transitions import ChangeKind, FindingChange, TransitionReader
from vitald.text import count_noun, limit_bytes
from vitald.timestamps import format_rfc3339

MAX_AGE_S = 3600.0  # the API server keeps events for an hour by default
_PER_MINUTE, _BURST = 10, 20
_MAX_NAME = 253  # a DNS subdomain
_MAX_INSTANCE = 128


@dataclass(frozen=True, slots=True)
class _Kind:
    """`words`: of the note; `{asks}` is what the finding requires."""

    action: str
    type: str
    words: str


_KINDS = {
    ChangeKind.OPENED: _Kind("Opened", "Warning", "opened: {asks}"),
    ChangeKind.ESCALATED: _Kind("Escalated", "Warning", "escalated: {asks}"),
    ChangeKind.IN_REMEDY: _Kind("InRemedy", "Normal", "in remedy"),
    ChangeKind.CLEARED: _Kind("Cleared", "Normal", "cleared"),
}


@dataclass(slots=True)
class Backlog:
    """The changes that are to be sent, of which only the first are kept."""

    first: list[FindingChange]
    count: int = 0
    has_warning: bool = False
    oldest_at: float = 0.0
    last_id: int = 0  # of these

    def add_change(self, change: FindingChange) -> None:
        if len(self.first) < _BURST:
            self.first.append(change)
        self.oldest_at = self.oldest_at or change.at
        self.has_warning = self.has_warning or _KINDS[change.kind].type == "Warning"
        self.last_id = change.id
        self.count += 1


def is_announced(change: FindingChange, *, drills: bool) -> bool:
    """Whether it is worth an event: from `inspect` on."""
    return (
        change.kind in _KINDS
        and change.action.rank >= Action.INSPECT.rank
        and (drills or not change.simulated)
    )


def build_event(change: FindingChange, node: NodeObject, prefix: str) -> dict[str, object]:
    """The event for one change."""
    kind = _KINDS[change.kind]
    drill = "SIMULATED: " if change.simulated else ""
    words = kind.words.format(asks=change.action.phrase)
    board = f" ({change.device})" if change.device else ""
    note = (
        f"{drill}{change.component}{board}: {change.title} ({change.code}), {words}; {change.cause}"
    )
    key = ("transition", change.id, change.finding, change.at)
    return _build(
        node, prefix, _name_event(node, *key), kind.action, change.reason, kind.type, change.at
    ) | {"note": limit_bytes(note, MAX_MESSAGE_BYTES)}


def build_combined_event(
    backlog: Backlog, cursor: Cursor, node: NodeObject, prefix: str
) -> dict[str, object]:
    """One event for all of a backlog, up to `cursor.combined`."""
    key = ("combined", cursor.position, cursor.at, cursor.combined)
    type_ = "Warning" if backlog.has_warning else "Normal"
    note = f"and {count_noun(backlog.count, 'more change')} of findings: vitald findings"
    return _build(
        node,
        prefix,
        _name_event(node, *key),
        "Combined",
        FixedReason.MORE_CHANGES.value,
        type_,
        backlog.oldest_at,
    ) | {"note": note}


def _name_event(node: NodeObject, *key: object) -> str:
    """`node1.0123456789abcdef`; another object of the same name has other events."""
    digest = hashlib.sha256(repr((node.uid, *key)).encode()).hexdigest()[:16]
    return f"{node.name[: _MAX_NAME - 17].rstrip('.-')}.{digest}"


def _build(
    node: NodeObject, prefix: str, name: str, action: str, reason: str, type_: str, at: float
) -> dict[str, object]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": format_rfc3339(at, "microseconds"),
        "reportingController": f"{prefix}/vitald",
        "reportingInstance": node.name[:_MAX_INSTANCE],
        "action": action,
        "reason": reason,
        "type": type_,
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
    }


class EventRunner(TransitionRunner):
    """Sends the events of one node, each once."""

    def __init__(
        self,
        client: KubernetesClient,
        reader: TransitionReader,
        store: StateStore,
        prefix: str,
        *,
        drills: bool,
    ) -> None:
        """`drills`: simulated findings, too."""
        super().__init__("kubernetes-events", reader, Retry())
        self._client = client
        self._store = store
        self._prefix = prefix
        self._drills = drills
        self._limit = RateLimit(_PER_MINUTE, _BURST)
        self._is_over_limit = False

    async def _send_backlog(self) -> float | None:
        """Seconds to wait where the limit is reached; None when all is sent. Raises SinkFailed,
        DaemonAway, AnswerUnusable.
        """
        while True:
            cursor = await self._find_cursor()
            backlog, scanned = await self._read_backlog(cursor, time.time() - MAX_AGE_S)
            if backlog.count:
                node = await self._read_node(backlog)
                if node.created > time.time() - MAX_AGE_S:
                    backlog, scanned = await self._read_backlog(cursor, node.created)
            if not backlog.count:
                await self._note_sent(scanned)
                return None
            wait = await self._send_part(backlog, cursor, scanned, node)
            if wait:
                return wait

    async def _send_part(
        self, backlog: Backlog, cursor: Cursor, scanned: Cursor, node: NodeObject
    ) -> float:
        """Send the first ones, or one event for all. Seconds to wait where the limit is reached."""
        if cursor.combined or (self._is_over_limit and backlog.count > 1):
            if wait := self._limit.take(time.monotonic()):
                return wait
            await self._send_combined(backlog, cursor, scanned, node)
            self._is_over_limit = False
            return 0.0
        for change in backlog.first:
            if wait := self._limit.take(time.monotonic()):
                self._is_over_limit = True
                return wait
            with report_failures():
                await self._client.create_event(build_event(change, node, self._prefix))
            await self._store.write_cursor(self.name, Cursor(position=change.id, at=change.at))
            self._note_success(waiting=max(self.health.waiting - 1, 0), writes=1)
        self._is_over_limit = False
        return 0.0

    async def _send_combined(
        self, backlog: Backlog, cursor: Cursor, scanned: Cursor, node: NodeObject
    ) -> None:
        cursor = replace(cursor, combined=cursor.combined or scanned.position)
        await self._store.write_cursor(self.name, cursor)
        with report_failures():
            await self._client.create_event(
                build_combined_event(backlog, cursor, node, self._prefix)
            )
        await self._store.write_cursor(self.name, scanned)
        self._note_success(waiting=0, writes=1)

    async def _note_sent(self, scanned: Cursor) -> None:
        if scanned != self._store.read_cursor(self.name):
            await self._store.write_cursor(self.name, scanned)
        self._is_over_limit = False
        self._note_success(waiting=0, writes=0)

    async def _read_node(self, backlog: Backlog) -> NodeObject:
        self.health = replace(self.health, waiting=backlog.count, waiting_since=backlog.oldest_at)
        with report_failures():
            return await self._client.read_node()

    # --- the ledger

    async def _find_cursor(self) -> Cursor:
        """The stored one; the first time the present: open findings are not announced again."""
        cursor = self._store.read_cursor(self.name)
        if cursor is None:
            cursor = await self._find_newest()
            await self._store.write_cursor(self.name, cursor)
        return cursor

    async def _read_backlog(self, cursor: Cursor, not_before: float) -> tuple[Backlog, Cursor]:
        """What is to be sent, and the position after all that was read."""
        backlog = Backlog([])

        def visit(change: FindingChange) -> None:
            if change.at >= not_before and is_announced(change, drills=self._drills):
                backlog.add_change(change)

        try:
            return backlog, await self._scan_changes(cursor, visit)
        except LedgerReplaced:
            return backlog, await self._scan_changes(Cursor(position=0, at=0.0), visit)
