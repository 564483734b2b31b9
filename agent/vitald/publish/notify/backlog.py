"""
Which changes of findings a receiver gets, what is to be sent of those that it has not, and what is
remembered of it over a restart: what it knows, and up to which transition.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from vitald.model.words import Action, Status
from vitald.publish.notify.findings import describe_change
from vitald.publish.notify.notification import (
    Digest,
    DigestGroup,
    NodeFlags,
    NotificationKind,
    NotifiedFinding,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A fault that the receiver knows of. Times in seconds since the epoch."""

    finding: NotifiedFinding
    is_own: bool  # it had a message of its own; else a digest stood for it
    ended_at: float = 0.0  # 0 while it is open
    ended_by: int = 0  # the transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`began`: when there was none before. `due`: numbers of findings that were open then, and are
    still to be sent. `receipts`: by the key of the fault. `flags`: those that the receiver knows;
    `has_flags_alert`: a message of their own reported bad ones; `flags_sent`: how many there were.
    `full_at`: when a whole burst is possible again. Times in seconds since the epoch.
    """

    cursor: Cursor
    began: float
    due: tuple[int, ...] = ()
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    flags: NodeFlags | None = None
    has_flags_alert: bool = False
    flags_sent: int = 0
    full_at: float = 0.0


def format_progress(progress: Progress) -> str:
    """As JSON, for publish.db."""
    return json.dumps(asdict(progress), default=_format_enum, separators=(",", ":"))


def _format_enum(value: object) -> object:
    if not isinstance(value, Enum):
        raise TypeError(f"unexpected {type(value).__name__}")
    return value.value


def parse_progress(text: str) -> Progress:
    """The inverse of format_progress. Raises ValueError."""
    try:
        document = json.loads(text)
        flags = document["flags"]
        return Progress(
            **{
                **document,
                "cursor": Cursor(**document["cursor"]),
                "due": tuple(document["due"]),
                "receipts": {
                    key: _parse_receipt(each) for key, each in document["receipts"].items()
                },
                "flags": None if flags is None else _parse_flags(flags),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no progress of a receiver: {error}") from None


def _parse_receipt(document: Mapping[str, Any]) -> Receipt:
    finding = document["finding"]
    read = NotifiedFinding(**{**finding, "action": Action(finding["action"])})
    return Receipt(**{**document, "finding": read})


def _parse_flags(document: Mapping[str, Any]) -> NodeFlags:
    return NodeFlags(**{**document, "status": Status(document["status"])})
