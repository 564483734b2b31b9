"""Which changes of findings a receiver gets, and what is to be sent of those that it has not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from vitald.model import Action
from vitald.publish.notify.findings import describe_change
from vitald.publish.notify.notification import (
    Digest,
    DigestGroup,
    NotificationKind,
    NotifiedFinding,
)
from vitald.publish.notify.progress import Progress, Receipt
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.state_store import Cursor
from vitald.publish.transitions import ChangeKind, FindingChange

# Faults that are remembered of a receiver, besides those that had a message of their own. Of others
# the end is not sent.
MAX_RECEIPTS = 500
_MAX_GROUPS, _SHOWN_GROUPS, _SHOWN_COMPONENTS = 500, 10, 8

_Group = tuple[NotificationKind, str, Action]


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """Which findings a receiver gets."""

    kinds: frozenset[NotificationKind]
    min_rank: int
    drills: bool

    @classmethod
    def from_settings(cls, settings: NotifySettings) -> DeliveryRules:
        return cls(
            kinds=frozenset(NotificationKind(kind) for kind in settings.on),
            min_rank=Action(settings.min_action).rank,
            drills=settings.drills,
        )

    def is_of_interest(self, finding: NotifiedFinding) -> bool:
        """Whether it gets such a finding at all."""
        return finding.action.rank >= self.min_rank and (self.drills or not finding.simulated)


@dataclass(frozen=True, slots=True)
class News:
    """One thing to send. `at`: in seconds since the epoch. `occasion`: what made it, the same in
    each attempt. `after`: the progress once it is sent alone.
    """

    kind: NotificationKind
    finding: NotifiedFinding
    at: float
    occasion: object
    after: Progress


class Backlog:
    """What is to be sent. Only the first is kept; the rest is counted."""

    def __init__(self, rules: DeliveryRules, progress: Progress) -> None:
        self.first: News | None = None
        self.count = 0
        self.oldest_at = 0.0
        self._rules = rules
        self._progress = progress
        self._cursor = progress.cursor
        self._receipts = dict(progress.receipts)
        self._groups: Counter[_Group] = Counter()
        self._components: dict[_Group, list[str]] = {}

    def add_due(self, finding: NotifiedFinding) -> None:
        """One that was open when the receiver was new."""
        self._open(
            finding, NotificationKind.OPENED, finding.since, ("due", finding.id, finding.since)
        )

    def add_change(self, change: FindingChange) -> None:
        """One of the ledger, in its order."""
        self._cursor = Cursor(position=change.id, at=change.at)
        if change.kind in (ChangeKind.IN_REMEDY, ChangeKind.OTHER):
            return
        if change.kind is ChangeKind.CLEARED:
            self._end(change)
            return
        kind = NotificationKind(change.kind.value)
        self._open(describe_change(change), kind, change.at, (change.id, change.at))

    def _open(
        self, finding: NotifiedFinding, kind: NotificationKind, at: float, occasion: object
    ) -> None:
        if not self._rules.is_of_interest(finding):
            return
        known = self._receipts.get(finding.key)
        if known is None:
            if NotificationKind.OPENED in self._rules.kinds:
                kind = NotificationKind.OPENED  # perhaps it required less before
            is_news = kind in self._rules.kinds
        else:
            kind = NotificationKind.ESCALATED
            is_stronger = finding.action.rank > known.finding.action.rank
            is_news = is_stronger and kind in self._rules.kinds
        if known is not None:
            # Its details are known already.
            action, cause = (finding if is_news else known.finding).action, finding.cause
            finding = replace(known.finding, id=finding.id, action=action, cause=cause)
        is_own = known is not None and known.is_own
        if known is not None or (is_news and len(self._receipts) < MAX_RECEIPTS):
            self._receipts[finding.key] = Receipt(finding=finding, is_own=is_own)
        if is_news:
            self._add(finding, kind, at, occasion)

    def _end(self, change: FindingChange) -> None:
        key = describe_change(change).key
        known = self._receipts.get(key)
        if known is None:
            return
        if NotificationKind.CLEARED not in self._rules.kinds:
            del self._receipts[key]
            return
        self._receipts[key] = replace(
            known,
            finding=replace(known.finding, cause=change.cause),
            ended_at=change.at,
            ended_by=change.id,
        )

    def _add(
        self, finding: NotifiedFinding, kind: NotificationKind, at: float, occasion: object
    ) -> None:
        if self.first is None:
            receipt = Receipt(finding=finding, is_own=True)
            after = replace(
                self._progress,
                cursor=self._cursor,
                receipts={**self._receipts, finding.key: receipt},
            )
            self.first = News(kind, finding, at, occasion, after)
            self.oldest_at = at
        self.count += 1
        group = (kind, finding.code, finding.action)
        if group in self._groups or len(self._groups) < _MAX_GROUPS:
            self._groups[group] += 1
            components = self._components.setdefault(group, [])
            if len(components) < _SHOWN_COMPONENTS:
                components.append(finding.component)

    def complete(self, cursor: Cursor) -> Progress:
        """The progress once all of it is sent. `cursor`: how far the ledger was read."""
        return replace(self._progress, cursor=cursor, due=(), receipts=self._receipts)

    def summarize(self) -> Digest:
        """One message for all of it."""
        return Digest(
            count=self.count,
            groups=tuple(
                DigestGroup(
                    kind=kind,
                    code=code,
                    action=action,
                    count=count,
                    components=tuple(self._components[kind, code, action]),
                )
                for (kind, code, action), count in self._groups.most_common(_SHOWN_GROUPS)
            ),
        )
