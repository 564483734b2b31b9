"""Which changes of findings a receiver gets, and which of them are still to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vitald.model import Action
from vitald.publish.notify.notification import Digest, DigestGroup, NotificationKind
from vitald.publish.notify.progress import Delivery
from vitald.publish.transitions import ChangeKind, FindingChange
from vitald.publish_sections import NotifySettings

BURST = 20  # messages at once; beyond that, one stands for the rest
MAX_DELIVERIES = 2000  # findings that are remembered of a receiver
_MAX_GROUPS, _SHOWN_GROUPS = 500, 20
_KINDS = {
    ChangeKind.OPENED: NotificationKind.OPENED,
    ChangeKind.ESCALATED: NotificationKind.ESCALATED,
    ChangeKind.CLEARED: NotificationKind.CLEARED,
}

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

    def is_of_interest(self, change: FindingChange) -> bool:
        """Whether it gets such a finding at all. Rules on trial never count."""
        return (
            change.action.rank >= self.min_rank
            and not change.on_trial
            and (self.drills or not change.simulated)
        )


@dataclass(slots=True)
class Backlog:
    """What is to be sent, of which only the first are kept.

    `deliveries`: what the receiver has once all this is sent. `ends`: the ends of findings of which
    it had a message of their own. They are sent one by one in any case, for something may be open
    there until then.
    """

    rules: DeliveryRules
    deliveries: dict[int, Delivery]
    first: list[FindingChange] = field(default_factory=list)
    ends: list[FindingChange] = field(default_factory=list)
    count: int = 0
    oldest_at: float = 0.0
    first_id: int = 0
    last_id: int = 0
    _groups: Counter[_Group] = field(default_factory=Counter)

    def add_change(self, change: FindingChange) -> None:
        """Of the ledger; it is left out where it is not to be sent."""
        kind = _KINDS.get(change.kind)
        if kind is NotificationKind.CLEARED:
            delivery = self.deliveries.pop(change.finding, None)
            if delivery is None or delivery is Delivery.DUE or kind not in self.rules.kinds:
                return
            self._add(change, kind, is_end=delivery.had_own)
        elif kind is not None and self.rules.is_of_interest(change):
            if kind not in self.rules.kinds and change.finding not in self.deliveries:
                # It required less when it began: to the receiver it begins now.
                kind, change = NotificationKind.OPENED, replace(change, kind=ChangeKind.OPENED)
            if kind in self.rules.kinds:
                self.deliveries.setdefault(change.finding, Delivery.DIGEST)
                self._add(change, kind, is_end=False)

    def add_due(self, change: FindingChange) -> None:
        """A finding that is open, as if it were opened now."""
        self._add(change, NotificationKind.OPENED, is_end=False)

    def _add(self, change: FindingChange, kind: NotificationKind, *, is_end: bool) -> None:
        if len(self.first) < BURST:
            self.first.append(change)
        if is_end and len(self.ends) < BURST:
            self.ends.append(change)
        group = (kind, change.code, change.action)
        if group in self._groups or len(self._groups) < _MAX_GROUPS:
            self._groups[group] += 1
        self.count += 1
        self.oldest_at = self.oldest_at or change.at
        self.first_id = self.first_id or change.id
        self.last_id = change.id

    def summarize(self) -> Digest:
        """One message for all of it."""
        return Digest(
            first_id=self.first_id,
            last_id=self.last_id,
            count=self.count,
            groups=tuple(
                DigestGroup(kind=kind, code=code, action=action, count=count)
                for (kind, code, action), count in self._groups.most_common(_SHOWN_GROUPS)
            ),
        )


def update_deliveries(
    deliveries: Mapping[int, Delivery], change: FindingChange
) -> dict[int, Delivery]:
    """What the receiver knows after a message on this change."""
    after = {number: each for number, each in deliveries.items() if number != change.finding}
    if change.kind is not ChangeKind.CLEARED:
        after[change.finding] = Delivery.SINGLE
    return limit_deliveries(after)


def mark_due(deliveries: Mapping[int, Delivery]) -> dict[int, Delivery]:
    """All of it is to be sent again."""
    return {
        number: Delivery.REPEAT if each.had_own else Delivery.DUE
        for number, each in deliveries.items()
    }


def mark_done(deliveries: Mapping[int, Delivery]) -> dict[int, Delivery]:
    """What was due and could not be found is not due any more."""
    after = {number: each for number, each in deliveries.items() if each is not Delivery.DUE}
    return {number: Delivery.SINGLE if each.had_own else each for number, each in after.items()}


def limit_deliveries(deliveries: Mapping[int, Delivery]) -> dict[int, Delivery]:
    """The latest findings only."""
    return {number: deliveries[number] for number in sorted(deliveries)[-MAX_DELIVERIES:]}
