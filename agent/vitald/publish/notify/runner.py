"""
Sends one receiver what changed: findings that were opened, escalated or cleared, and the node's
flags.

Findings follow the ledger's transitions, in their order. What the receiver knows, and up to which
transition, is stored once it has taken a message: a crash between the two sends that one again,
with the same key and id. Where more is waiting than may be sent, one digest stands for all of it;
which transitions these are is stored before it is sent.

The end of a fault is sent once it has lasted (`settle`), so that one that comes and goes is sent
once. After a start nothing is sent for a while (`quiet`). A receiver that is new gets what is open,
and from then on what changes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from vitald.backoff import Backoff
from vitald.publish.daemon_request import DaemonAway
from vitald.publish.notify.backlog import (
    Backlog,
    DeliveryRules,
    News,
    Progress,
    Receipt,
    format_progress,
    parse_progress,
)
from vitald.publish.notify.findings import FindingReader, add_details
from vitald.publish.notify.formats.text import rate_flags
from vitald.publish.notify.notification import (
    WELL,
    Digest,
    NodeFlags,
    NodeIdentity,
    Notification,
    NotificationKind,
    build_notification,
    is_worse,
    read_flags,
)
from vitald.publish.notify.receiver import NotificationRefused, QuietTime, Receiver
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.retry import RateLimit, Retry
from vitald.publish.sink import WORSE_S, SinkFailed
from vitald.publish.state_store import Cursor, StateStore
from vitald.publish.summary import NodeSummary, PublishedState
from vitald.publish.transition_runner import LedgerReplaced, TransitionRunner
from vitald.publish.transitions import ChangeKind, FindingChange, TransitionReader

log: structlog.stdlib.BoundLogger = structlog.get_logger("notify")

_BURST, _PER_MINUTE = 4, 1.0  # messages at once, and in the long run: at most 5 in any minute
_BACKOFF = Backoff(1.0, 300.0)
_DELIVERY_S = 120.0  # more than any receiver takes by its own limits
_DIGEST, _FLAGS = "digest", "flags"  # keys


class NotifyRunner(TransitionRunner):
    """One `[notify.NAME]` of the type webhook or exec."""

    def __init__(
        self,
        name: str,
        settings: NotifySettings,
        receiver: Receiver,
        node: NodeIdentity,
        store: StateStore,
        reader: TransitionReader,
        findings: FindingReader,
    ) -> None:
        super().__init__(name, reader, Retry(_BACKOFF, _BACKOFF))
        self._settings = settings
        self._rules = DeliveryRules.from_settings(settings)
        self._receiver = receiver
        self._node = node
        self._store = store
        self._findings = findings
        self._limit = RateLimit(_PER_MINUTE, _BURST)
        self._progress: Progress | None = None
        self._quiet = QuietTime(name, settings.quiet_s, store)
        self._flags: NodeFlags | None = None
        self._flags_since = 0.0  # on the monotonic clock
        self._refused = ""  # the message that was dropped last, and why

    def offer_state(self, state: PublishedState) -> None:
        """The state is this now. Its flags are sent where the ledger has nothing new, too."""
        is_other = state != self._state
        if isinstance(state, NodeSummary):
            self._node = replace(self._node, boot_id=state.boot_id)
        super().offer_state(state)
        if is_other:
            self._changed.set()

    async def _wait(self, pause: float) -> None:
        """What happens meanwhile is sent as soon as the receiver and the limit allow it."""
        held = pause if self._retry.failures else self._limit.find_wait_s(time.monotonic())
        await asyncio.sleep(min(held, pause))
        try:
            await asyncio.wait_for(self._changed.wait(), max(0.0, pause - held))
        except asyncio.TimeoutError:
            return

    async def _send_backlog(self) -> float | None:
        if wait := await self._quiet.find_left():
            self._note_idle()
            return wait
        progress = self._progress or await self._load()
        away: DaemonAway | None = None
        waits: list[float | None] = []
        try:
            waits.append(await self._send_changes(progress))
        except DaemonAway as error:  # ends and flags are sent without the daemon, too
            away = error
        waits += [await self._send_ends(), await self._send_flags()]
        if away is not None:
            waits.append(self._note_away(away))
        elif not self.health.waiting:
            self._note_idle()
        return min((wait for wait in waits if wait is not None), default=None)

    # --- the start

    async def _load(self) -> Progress:
        """What was stored; of a receiver that is new, the present. Raises DaemonAway,
        AnswerUnusable.
        """
        text = self._store.read_progress(self.name)
        try:
            progress = parse_progress(text) if text else await self._synchronize(None)
        except ValueError as error:
            log.error("progress_lost", sink=self.name, error=str(error))
            progress = await self._synchronize(None)
        until_full = progress.full_at - time.time()
        self._limit.full_at = time.monotonic() + min(until_full, self._limit.refill_s)
        self._progress = progress
        return progress

    async def _synchronize(self, former: Progress | None) -> Progress:
        """With the present state of the ledger: it is another one, or the receiver is new."""
        cursor = await self._find_newest()
        wanted = [
            finding
            for finding in await self._findings.read_open()
            if self._rules.is_of_interest(finding)
        ]
        now, is_open = time.time(), {finding.key for finding in wanted}
        known = former.receipts if former is not None else {}
        receipts = {
            key: receipt
            if key in is_open or receipt.ended_at
            else _end_receipt(receipt, now, "the ledger was begun anew")
            for key, receipt in known.items()
        }
        has_opened = NotificationKind.OPENED in self._rules.kinds
        due = tuple(each.id for each in wanted if has_opened and each.key not in receipts)
        begun = replace(
            former or Progress(cursor=cursor, began=now), cursor=cursor, receipts=receipts, due=due
        )
        await self._store_progress(begun)
        return begun

    async def _store_progress(self, progress: Progress) -> None:
        self._progress = progress
        await self._store.write_progress(self.name, format_progress(progress))

    # --- findings

    async def _send_changes(self, progress: Progress) -> float | None:
        """Seconds to wait where the limit is reached; None when all is sent."""
        while True:
            try:
                backlog, scanned = await self._read_backlog(progress)
            except LedgerReplaced:
                progress = await self._synchronize(progress)
                continue
            if not backlog.count:
                complete = backlog.complete(scanned)
                if complete != progress:
                    await self._store_progress(complete)
                self.health = replace(self.health, waiting=0, waiting_since=0.0)
                return None
            self.health = replace(
                self.health, waiting=backlog.count, waiting_since=backlog.oldest_at
            )
            available = self._limit.count_available(time.monotonic())
            if not available:
                return self._limit.find_wait_s(time.monotonic())
            is_single = backlog.count <= available and not progress.cursor.combined
            if is_single and backlog.first is not None:
                progress = await self._send_news(backlog.first)
            else:
                progress = await self._send_digest(progress, backlog, scanned)

    async def _read_backlog(self, progress: Progress) -> tuple[Backlog, Cursor]:
        """What is to be sent, and the position after all that was read."""
        backlog = Backlog(self._rules, progress)
        if progress.due:
            for finding in await self._findings.read_open():
                if finding.id in progress.due:
                    backlog.add_due(finding)
        passed = await self._find_passed(progress.cursor)

        def visit(change: FindingChange) -> None:
            if change.finding not in passed:
                backlog.add_change(change)

        return backlog, await self._scan_changes(progress.cursor, visit)

    async def _find_passed(self, cursor: Cursor) -> set[int]:
        """Findings that came and went in the quiet time."""
        opened: set[int] = set()
        passed: set[int] = set()
        began, ends = self._quiet.began, self._quiet.ends

        def visit(change: FindingChange) -> None:
            if began <= change.at <= ends and change.kind is ChangeKind.OPENED:
                opened.add(change.finding)
            if change.at <= ends and change.kind is ChangeKind.CLEARED:
                passed.update(opened.intersection([change.finding]))

        if cursor.at <= ends:
            await self._scan_changes(cursor, visit)
        return passed

    async def _send_news(self, news: News) -> Progress:
        known = await self._findings.read_one(news.finding.id)
        finding = add_details(news.finding, known)
        receipt = replace(news.after.receipts[finding.key], finding=finding)
        message = build_notification(
            news.kind,
            news.at,
            *self._describe_node(),
            subject=finding.key,
            occasion=news.occasion,
            finding=finding,
        )
        after = replace(news.after, receipts={**news.after.receipts, finding.key: receipt})
        return await self._deliver(message, after)

    async def _send_digest(self, progress: Progress, backlog: Backlog, scanned: Cursor) -> Progress:
        """One message for all; which these are is stored before."""
        cursor = progress.cursor
        combined = replace(cursor, combined=cursor.combined or scanned.position)
        await self._store_progress(replace(progress, cursor=combined))
        occasion = (cursor.position, cursor.at, combined.combined)
        message = build_notification(
            NotificationKind.DIGEST,
            backlog.oldest_at,
            *self._describe_node(),
            subject=_DIGEST,
            occasion=occasion,
            digest=backlog.summarize(),
        )
        return await self._deliver(message, backlog.complete(scanned))

    # --- ends

    async def _send_ends(self) -> float | None:
        """Seconds until the next one is due, or may be sent; None where there is none."""
        while (progress := self._progress) is not None:
            left = self._find_ended(progress)
            due = {key: progress.receipts[key] for key, wait in left.items() if not wait}
            own = next((key for key, receipt in due.items() if receipt.is_own), None)
            digested = [key for key, receipt in progress.receipts.items() if not receipt.is_own]
            is_digest_over = bool(digested) and all(key in due for key in digested)
            if own is None and not is_digest_over:
                return min((wait for wait in left.values() if wait), default=None)
            if wait := self._limit.find_wait_s(time.monotonic()):
                return wait
            if own is not None:
                await self._send_end(progress, own)
            else:
                await self._send_end_of_digests(progress, digested)
        return None

    def _find_ended(self, progress: Progress) -> dict[str, float]:
        """Seconds until the end of each fault that has ended may be sent."""
        now, settle = time.time(), self._settings.settle_s
        left = {
            key: receipt.ended_at + settle - now
            for key, receipt in progress.receipts.items()
            if receipt.ended_at
        }
        # More than that, and the clock was set.
        return {key: wait if 0.0 < wait <= settle else 0.0 for key, wait in left.items()}

    async def _send_end(self, progress: Progress, key: str) -> None:
        receipt = progress.receipts[key]
        message = build_notification(
            NotificationKind.CLEARED,
            receipt.ended_at,
            *self._describe_node(),
            subject=key,
            occasion=(receipt.ended_by, receipt.ended_at),
            finding=receipt.finding,
        )
        await self._deliver(message, _drop_receipts(progress, [key]))

    async def _send_end_of_digests(self, progress: Progress, keys: list[str]) -> None:
        ended = [progress.receipts[key] for key in keys]
        message = build_notification(
            NotificationKind.DIGEST,
            max(receipt.ended_at for receipt in ended),
            *self._describe_node(),
            subject=_DIGEST,
            occasion=sorted((receipt.ended_by, receipt.ended_at) for receipt in ended),
            digest=Digest(count=len(ended), groups=()),
        )
        await self._deliver(message, _drop_receipts(progress, keys))

    # --- flags

    async def _send_flags(self) -> float | None:
        """Seconds until a change of them is due, or may be sent; None where there is none."""
        progress, now = self._progress, time.monotonic()
        if progress is None or NotificationKind.FLAGS not in self._rules.kinds:
            return None
        known = progress.flags
        flags = read_flags(self._state, known)
        if flags != self._flags:
            self._flags, self._flags_since = flags, now
        is_over = progress.has_flags_alert and rate_flags(flags) == "info"
        if flags == (known or WELL) and not is_over:
            return None
        settle = WORSE_S if is_worse(known or WELL, flags) else self._settings.settle_s
        wait = self._flags_since + settle - now
        if wait > 0.0 or (wait := self._limit.find_wait_s(now)):
            return wait
        message = build_notification(
            NotificationKind.FLAGS,
            time.time() - (now - self._flags_since),
            *self._describe_node(),
            subject=_FLAGS,
            occasion=(progress.began, progress.flags_sent, flags),
            former_flags=known,
        )
        after = replace(
            progress,
            has_flags_alert=rate_flags(flags) != "info",
            flags_sent=progress.flags_sent + 1,
        )
        await self._deliver(message, after)
        return 0.0

    # --- delivery

    def _describe_node(self) -> tuple[NodeIdentity, NodeFlags]:
        known = self._progress.flags if self._progress is not None else None
        return self._node, read_flags(self._state, known)

    async def _deliver(self, message: Notification, after: Progress) -> Progress:
        """Returns the progress, which is stored, once the receiver has it, or has refused it for
        good. Raises SinkFailed.
        """
        try:
            await asyncio.wait_for(self._receiver.deliver(message), _DELIVERY_S)
        except asyncio.TimeoutError:
            raise SinkFailed(f"no end within {_DELIVERY_S:g} s") from None
        except NotificationRefused as error:
            self._drop(message, str(error))
        else:
            self._refused = ""
            self._note_success(waiting=max(self.health.waiting - 1, 0), writes=1)
        now = time.monotonic()
        self._limit.count(now)
        full_at = time.time() + self._limit.full_at - now
        progress = replace(after, flags=message.flags, full_at=full_at)
        await self._store_progress(progress)
        return progress

    def _drop(self, message: Notification, why: str) -> None:
        """It is not sent again. Shown until another one is taken."""
        self._retry.note_success()
        self._refused = f"dropped {message.kind.value} {message.key}: {why}"
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
        if not self._refused:
            self._note_success(waiting=0, writes=0)


def _end_receipt(receipt: Receipt, now: float, cause: str) -> Receipt:
    return replace(receipt, ended_at=now, finding=replace(receipt.finding, cause=cause))


def _drop_receipts(progress: Progress, keys: list[str]) -> Progress:
    kept = {key: receipt for key, receipt in progress.receipts.items() if key not in keys}
    return replace(progress, receipts=kept)
