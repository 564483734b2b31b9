"""
Sends one receiver what changed: findings that were opened, escalated or cleared, and the node's
flags.

Findings follow the ledger's transitions, in their order. What the receiver got, and up to
which transition, is stored once a message is delivered; hence a crash between the two sends one
message again, with the same key and id. Where there are too many for RATE, one message stands for
the rest; which these are is stored before it is sent. Flags that differ from those sent last are
stored before they are sent, too.

A receiver that is new gets what is open, and from then on what changes; the same where the
ledger was begun anew, after the ends of those findings of which it had a message of their own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from vitald.backoff import Backoff
from vitald.publish.ask_daemon import DaemonAway
from vitald.publish.notify.backlog import (
    BURST,
    Backlog,
    DeliveryRules,
    limit_deliveries,
    mark_done,
    mark_due,
    update_deliveries,
)
from vitald.publish.notify.flags import ReceiverFlags, StateReader
from vitald.publish.notify.messages import (
    build_digest_message,
    build_finding_message,
    build_flags_message,
    build_former_end,
)
from vitald.publish.notify.notification import (
    NodeIdentity,
    Notification,
    NotificationKind,
)
from vitald.publish.notify.progress import Delivery
from vitald.publish.notify.receiver import NotificationRefused, Receiver
from vitald.publish.rate_limit import RateLimit
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import Cursor, StateStore
from vitald.publish.summary import NodeSummary, PublishedState
from vitald.publish.transition_runner import LedgerReplaced, TransitionRunner
from vitald.publish.transitions import ChangeKind, FindingChange, NoTransitions, TransitionReader
from vitald.publish_sections import NotifySettings

log: structlog.stdlib.BoundLogger = structlog.get_logger("notify")

GIVE_UP_S = 24 * 3600.0
_PER_MINUTE = 4.0  # in the long run, besides BURST
_BACKOFF = Backoff(1.0, 300.0)
_DELIVERY_S = 120.0  # more than any receiver takes by its own limits


class NotifyRunner(TransitionRunner):
    """One `[[notify]]` of the type webhook or exec."""

    def __init__(
        self,
        settings: NotifySettings,
        receiver: Receiver,
        node: NodeIdentity,
        store: StateStore,
        reader: TransitionReader,
        state_reader: StateReader | None = None,
    ) -> None:
        """`state_reader`: where the states that are offered count drills otherwise."""
        name = f"notify/{settings.name}"
        super().__init__(name, reader, store, Retry(unreachable=_BACKOFF, refused=_BACKOFF))
        self._settings = settings
        self._receiver = receiver
        self._node = node
        self._rules = DeliveryRules.from_settings(settings)
        self._limit = RateLimit(_PER_MINUTE, BURST)
        self._paid_for = ""  # the message that the limit has counted already
        self._is_over_limit = False
        self._flags = ReceiverFlags(name, store, state_reader, drills=settings.drills)
        self._refused = ""  # the message that was dropped last, and why
        self._failing_since: float | None = None  # on the monotonic clock

    def offer_state(self, state: PublishedState) -> None:
        """The state is this now. Its flags are read where the ledger has nothing new, too."""
        is_other = state != self._state or self._flags.has_own_reader
        super().offer_state(state)
        if is_other:
            self._changed.set()

    async def _wait(self, pause: float) -> None:
        """What happens meanwhile is sent at once, unless the receiver or the limit is the reason to
        wait.
        """
        if self._retry.failures or self._is_over_limit:
            await asyncio.sleep(pause)
            return
        try:
            await asyncio.wait_for(self._changed.wait(), pause)
        except asyncio.TimeoutError:
            return

    async def _send_backlog(self) -> float | None:
        try:
            changes_wait = await self._try_changes()
        except NoTransitions:
            await self._send_flags()
            raise
        waits = [changes_wait, await self._send_flags()]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _try_changes(self) -> float | None:
        """Flags are sent without the daemon, too."""
        try:
            return await self._send_changes()
        except DaemonAway as error:
            log.debug("transitions_not_read", sink=self.name, error=str(error))
            return None

    # --- findings

    async def _send_changes(self) -> float | None:
        """Seconds to wait where the limit is reached or what is open is due again; None when all is
        sent.
        """
        while True:
            cursor = self._store.read_cursor(self.name) or await self._begin()
            until_repeat = await self._mark_repeated()
            try:
                backlog, scanned = await self._read_backlog(cursor)
            except LedgerReplaced:
                await self._end_former_findings(cursor)
                await self._begin()
                continue
            if not backlog.count:
                await self._note_read(cursor, scanned)
                return until_repeat
            if not self.health.waiting:
                self.health = replace(self.health, waiting_since=backlog.oldest_at)
            self.health = replace(self.health, waiting=backlog.count)
            wait = await self._send_part(backlog, cursor, scanned)
            if wait:
                return wait

    async def _begin(self) -> Cursor:
        """At the present: what is open is due, what came and went before is not sent."""
        due: dict[int, Delivery] = {}

        def visit(change: FindingChange) -> None:
            due.pop(change.finding, None)
            if change.kind is not ChangeKind.CLEARED and self._rules.is_of_interest(change):
                due[change.finding] = Delivery.DUE

        cursor = await self._scan_changes(Cursor(position=0, at=0.0), visit)
        if NotificationKind.OPENED not in self._rules.kinds:
            due.clear()
        former = self._store.read_progress(self.name)
        progress = replace(former, deliveries=limit_deliveries(due), repeated_at=time.time())
        await self._store.write_progress(self.name, progress, cursor)
        return cursor

    async def _end_former_findings(self, cursor: Cursor) -> None:
        """Of a ledger that is gone: findings of the new one have the same numbers, hence keys."""
        deliveries = self._store.read_progress(self.name).deliveries
        former = [number for number, each in deliveries.items() if each.had_own]
        if NotificationKind.CLEARED not in self._rules.kinds or not former:
            return
        since = self.health.waiting_since or time.time()
        self.health = replace(self.health, waiting=len(former), waiting_since=since)
        for number in former:
            await self._send_change(build_former_end(number, cursor), NotificationKind.CLEARED)

    async def _mark_repeated(self) -> float | None:
        """Make what is open due again when it is time. Seconds until then; None for never."""
        if not self._settings.repeat_s:
            return None
        progress, now = self._store.read_progress(self.name), time.time()
        left = progress.repeated_at + self._settings.repeat_s - now
        if 0.0 < left <= self._settings.repeat_s:  # else the clock was set
            return left
        due = mark_due(progress.deliveries)
        await self._store.write_progress(
            self.name, replace(progress, deliveries=due, repeated_at=now)
        )
        return self._settings.repeat_s

    async def _read_backlog(self, cursor: Cursor) -> tuple[Backlog, Cursor]:
        """What is due of what is open; else what is new. And the position after all of that."""
        deliveries = self._store.read_progress(self.name).deliveries
        if any(each.is_due for each in deliveries.values()):
            backlog = await self._read_due(cursor)
            if backlog.count:
                return backlog, cursor
            deliveries = mark_done(deliveries)
        backlog = Backlog(self._rules, dict(deliveries))
        return backlog, await self._scan_changes(cursor, backlog.add_change)

    async def _read_due(self, cursor: Cursor) -> Backlog:
        deliveries = self._store.read_progress(self.name).deliveries
        last: dict[int, FindingChange] = {}

        def visit(change: FindingChange) -> None:
            if change.finding in deliveries and deliveries[change.finding].is_due:
                last.pop(change.finding, None)
                if change.kind is not ChangeKind.CLEARED:
                    last[change.finding] = change

        backlog = Backlog(self._rules, dict(deliveries))
        if cursor.position:
            await self._scan_changes(Cursor(position=0, at=0.0, combined=cursor.position), visit)
        for change in last.values():
            backlog.add_due(change)
        for number in last:
            backlog.deliveries[number] = (
                Delivery.SINGLE if deliveries[number].had_own else Delivery.DIGEST
            )
        return backlog

    async def _send_part(self, backlog: Backlog, cursor: Cursor, scanned: Cursor) -> float:
        """Send the first ones, or one message for all. Seconds to wait where the limit is
        reached.
        """
        if cursor.combined or (self._is_over_limit and backlog.count > len(backlog.ends) + 1):
            for change in backlog.ends:
                await self._send_change(change, NotificationKind.CLEARED)
            if backlog.ends:
                return 0.0  # the rest is read again
            return await self._send_digest(backlog, cursor, scanned)
        is_due = scanned is cursor
        for change in backlog.first:
            kind = NotificationKind.OPENED if is_due else NotificationKind(change.kind.value)
            is_free = change in backlog.ends
            if not is_free and (wait := self._take_token(f"{change.id}")):
                self._is_over_limit = True
                return wait
            position = cursor if is_due else Cursor(position=change.id, at=change.at)
            await self._send_change(change, kind, position)
        self._is_over_limit = False
        return 0.0

    async def _send_change(
        self, change: FindingChange, kind: NotificationKind, cursor: Cursor | None = None
    ) -> None:
        progress = self._store.read_progress(self.name)
        delivery = progress.deliveries.get(change.finding)
        is_due = delivery is not None and delivery.is_due
        message = build_finding_message(
            change,
            kind,
            self._identify_node(),
            await self._flags.read_current(self._state),
            repeated_at=progress.repeated_at if is_due else 0.0,
        )
        await self._deliver(message)
        progress = self._store.read_progress(self.name)
        after = update_deliveries(progress.deliveries, change)
        await self._store.write_progress(self.name, replace(progress, deliveries=after), cursor)

    async def _send_digest(self, backlog: Backlog, cursor: Cursor, scanned: Cursor) -> float:
        progress = self._store.read_progress(self.name)
        is_due = scanned is cursor
        if is_due:
            range_ = Cursor(position=backlog.first_id, at=0.0, combined=backlog.last_id)
        else:
            range_ = replace(cursor, combined=cursor.combined or scanned.position)
        if wait := self._take_token(f"{range_.position}-{range_.combined}"):
            return wait
        if not is_due:
            await self._store.write_cursor(self.name, range_)
        await self._deliver(
            build_digest_message(
                backlog,
                range_,
                self._identify_node(),
                await self._flags.read_current(self._state),
                repeated_at=progress.repeated_at if is_due else 0.0,
            )
        )
        progress = replace(
            self._store.read_progress(self.name), deliveries=limit_deliveries(backlog.deliveries)
        )
        await self._store.write_progress(self.name, progress, scanned)
        self._is_over_limit = False
        return 0.0

    def _take_token(self, message: str) -> float:
        """Seconds to wait before it may be sent. A message that is sent again counts once."""
        if message == self._paid_for:
            return 0.0
        wait = self._limit.take(time.monotonic())
        if not wait:
            self._paid_for = message
        return wait

    async def _note_read(self, cursor: Cursor, scanned: Cursor) -> None:
        self._is_over_limit = False
        progress = self._store.read_progress(self.name)
        deliveries = mark_done(progress.deliveries)
        if scanned != cursor or deliveries != progress.deliveries:
            await self._store.write_progress(
                self.name, replace(progress, deliveries=deliveries), scanned
            )
        self._note_idle()

    # --- flags

    async def _send_flags(self) -> float | None:
        """Seconds until a change counts; None where there is none."""
        if NotificationKind.FLAGS not in self._rules.kinds:
            return None
        while True:
            progress = self._store.read_progress(self.name)
            if progress.pending is None:
                wait = await self._flags.store_change(progress, self._state)
                if wait is None or wait > 0.0:
                    return wait
                continue
            if not self.health.waiting:
                since = progress.pending.at
                self.health = replace(self.health, waiting=1, waiting_since=since)
            await self._deliver(
                build_flags_message(progress.pending, progress.flags, self._identify_node())
            )
            progress = self._store.read_progress(self.name)
            await self._store.write_progress(
                self.name, replace(progress, flags=progress.pending, pending=None)
            )

    # --- delivery

    def _identify_node(self) -> NodeIdentity:
        boot_id = self._state.boot_id if isinstance(self._state, NodeSummary) else ""
        return replace(self._node, boot_id=boot_id or self._node.boot_id)

    async def _deliver(self, message: Notification) -> None:
        """Returns once it is delivered, refused for good or given up. Raises SinkFailed."""
        try:
            await asyncio.wait_for(self._receiver.deliver(message), _DELIVERY_S)
        except asyncio.TimeoutError:
            self._retry_or_give_up(message, SinkFailed(f"no end within {_DELIVERY_S:g} s"))
        except SinkFailed as error:
            self._retry_or_give_up(message, error)
        except NotificationRefused as error:
            self._drop(message, f"refused: {error}")
            self._failing_since = None
            self._retry.note_success()
        else:
            self._failing_since = None
            self._refused = ""
            self._note_success(waiting=max(self.health.waiting - 1, 0), writes=1)

    def _retry_or_give_up(self, message: Notification, error: SinkFailed) -> None:
        """What is younger than the outage still has time."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if min(now - self._failing_since, time.time() - message.time) < GIVE_UP_S:
            raise error
        self._drop(message, f"given up after {GIVE_UP_S / 3600:g} h: {error}")

    def _drop(self, message: Notification, why: str) -> None:
        """It will not be sent. Shown until another one is."""
        self._refused = f"{message.kind.value} {message.key}: {why}"
        self.health = replace(
            self.health,
            is_up=False,
            error=self._refused,
            failures=self.health.failures + 1,
            waiting=max(self.health.waiting - 1, 0),
        )
        log.error("notification_dropped", sink=self.name, key=message.key, id=message.id, why=why)

    def _note_idle(self) -> None:
        """Nothing is left to send. That is no success while what was dropped is shown."""
        if self._refused:
            self._retry.note_success()
            self.health = replace(self.health, waiting=0, waiting_since=0.0, error=self._refused)
        else:
            self._note_success(waiting=0, writes=0)
