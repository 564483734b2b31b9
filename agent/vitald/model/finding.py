"""
Findings: open faults of components, what they require, and how they changed. Incidents: a root
cause and its consequences. And all that the judge remembers, with the changes of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from vitald.model.component import Component, Device, Mark
from vitald.model.event import ALIKE, Fields, is_hearsay
from vitald.model.words import Action, Status, When

FindingKey = tuple[Component, str, bool]
# The driver knows whether a device needs a reset or the node a reboot; nothing of jobs and spare
# parts.
_DRIVERS_TO_SAY = (Action.RESET_DEVICE, Action.REBOOT_NODE)


class FindingState(Enum):
    OPEN = "open"
    # The remedy was begun; the finding stays open until evidence shows that it worked
    IN_REMEDY = "in_remedy"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A required action and when it is due. `reason`: why it differs from the catalogue's entry.

    `unusable`: the device cannot be used, so the node is unfit for work whatever the action.
    `unknown`: knowledge of the node was lost, so whether it is fit is unknown.
    """

    action: Action
    when: When
    reason: str = ""
    unusable: bool = False
    unknown: bool = False

    def is_stronger_than(self, other: Requirement) -> bool:
        return (self.action.rank, self.when.urgency) > (other.action.rank, other.when.urgency)

    def supersedes(self, other: Requirement) -> bool:
        """Whether this escalation follows the other one. An inspection with an unusable device is
        the last: all remedies failed.
        """
        if self.unusable or other.unusable:
            return self.unusable and not other.unusable
        return self.is_stronger_than(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A person accepts a finding until a time, unless it requires more than `required`."""

    by: str
    reason: str
    since: float
    until: float
    required: Requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault of one component. A new value replaces it at every transition; `id` stays.

    Its requirement is composed of layers: `base`, the catalogue's entry for the strongest event;
    `context` instead, if co-occurrence changes it; at least `implied`; `driver` instead, if the
    driver recommends another remedy; and at least `escalation`, or an inspection instead if the
    remedy failed.
    """

    id: int
    component: Component
    code: str
    kind: str
    since: float
    last: float
    count: int
    boot_id: str  # boot in which it was last seen
    title: str
    raw: str  # the line that decided the action
    fields: Fields  # of the event that decided the action
    source: str  # the source that would observe it again
    base: Requirement
    context: Requirement | None = None
    implied: Requirement | None = None  # the strongest one of its suppressed consequences
    driver: Requirement | None = None
    escalation: Requirement | None = None
    incident: int = 0
    read_since: float = 0.0  # start of its source's last gap-free reading
    quiet_s: float | None = None  # quiet period after which it ends; None: it does not
    # The source that observed it, or the second one that agrees with the log; empty while it rests
    # on text only
    confirmed_by: str = ""
    # The strongest action that this confirms: any if the fault itself was observed, else the
    # witness's own
    confirmed_action: Action = Action.REPLACE_NODE
    remedy_at: float | None = None  # when its remedy was begun
    state: FindingState = FindingState.OPEN
    accepted: Acceptance | None = None
    simulated_until: float | None = None
    cleared_at: float | None = None
    cleared_by: str | None = None

    @property
    def requirement(self) -> Requirement:
        """What the finding requires, by all layers."""
        if self.escalation is None and self.driver is None and self.implied is None:
            return self.context or self.base  # most findings; this runs for every log line
        asked = self.requirement_before_escalation
        if self.has_failed_remedy and self.escalation is not None:
            return self.escalation
        if self.escalation is not None and self.escalation.action.rank > asked.action.rank:
            due = (
                asked.when
                if asked.action.makes_unfit and asked.when is When.NOW
                else self.escalation.when
            )
            asked = Requirement(self.escalation.action, due, self.escalation.reason)
        elif self.escalation is not None and self.escalation.is_stronger_than(asked):
            asked = self.escalation
        return asked

    @property
    def requirement_before_escalation(self) -> Requirement:
        """What the catalogue and the driver require, whatever the device's history is."""
        asked = self.catalog_requirement
        if self.driver is not None and asked.action in _DRIVERS_TO_SAY:
            return self.driver
        return asked

    @property
    def has_failed_remedy(self) -> bool:
        """Whether all remedies of its escalation policy failed, so that a person must look."""
        return self.escalation is not None and self.escalation.unusable

    @property
    def catalog_requirement(self) -> Requirement:
        """What the catalogue requires, with its incident considered."""
        asked = self.context or self.base
        return (
            self.implied
            if self.implied is not None and self.implied.is_stronger_than(asked)
            else asked
        )

    @property
    def action(self) -> Action:
        return self.requirement.action

    @property
    def when(self) -> When:
        return self.requirement.when

    @property
    def unusable(self) -> bool:
        """Whether its device cannot be used."""
        return self.base.unusable or self.has_failed_remedy

    @property
    def unknown(self) -> bool:
        """Whether it is unknown, while this is open, that the node is fit."""
        return self.base.unknown and not self.is_deferred

    @property
    def is_deferred(self) -> bool:
        """Whether it is shown but does not count: a person accepted it, or it waits for
        maintenance.
        """
        return self.accepted is not None or (self.when is When.MAINTENANCE and not self.unusable)

    def makes_unfit(self, *, between_jobs: bool) -> bool:
        """Whether the node is unfit for work while this is open.

        `between_jobs`: actions that wait for the running job are due.
        """
        if self.is_deferred:
            return False
        due = self.when is When.NOW or between_jobs
        return self.unusable or (self.action.makes_unfit and due)

    @property
    def instruction(self) -> str:
        """What must be done, and when. That the device is unusable matters more than the action."""
        unusable = "it cannot be used: " if self.unusable and not self.action.makes_unfit else ""
        return f"{unusable}{self.action.phrase}{self.when.phrase}"

    @property
    def is_confirmed(self) -> bool:
        """Whether the node may be repaired for it: what it requires does not rest on the text of a
        log alone.
        """
        return bool(self.confirmed_by) and self.action.rank <= self.confirmed_action.rank

    @property
    def is_hearsay(self) -> bool:
        """Whether it rests on lines of user processes that the configuration does not accept, or on
        lines that may be such.
        """
        return is_hearsay(self.fields)

    @property
    def is_open(self) -> bool:
        return self.state is not FindingState.CLEARED

    @property
    def is_simulated(self) -> bool:
        return self.simulated_until is not None

    @property
    def components(self) -> tuple[Component, ...]:
        """Its component and, if it is one of the node for several devices, those."""
        alike = self.fields.get(ALIKE)
        if not isinstance(alike, str):
            return (self.component,)
        return (self.component, *map(Component.parse_name, alike.split(",")))

    @property
    def key(self) -> FindingKey:
        return self.component, self.code, self.is_simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of a finding, which is its new value. An empty cause: only counts changed."""

    time: float
    finding: Finding
    cause: str
    event: str | None = None  # identity of the event that caused it
    opened: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One code of one component in an incident, however often it was printed."""

    component: Component
    code: str
    name: str  # its name in correlation rules: the code, or an alias
    count: int
    first: float
    last: float
    boot_id: str
    usec: int | None  # of the last one, in microseconds on the kernel's clock
    addresses: frozenset[str]  # addresses: its own, the port upstream, devices behind it
    pids: frozenset[int]
    processes: frozenset[str]
    raw: str  # the first line


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A root cause and its consequences. It stays open while one of its findings is open.

    `members` are sorted, the root first. `rule` names the correlation rule that joined them, if
    one did.
    """

    id: int
    members: tuple[Member, ...]
    since: float
    last: float
    boot_id: str = ""  # of its last event, as is `usec`, the time on the kernel's clock
    usec: int | None = None
    rule: str = ""
    simulated: bool = False
    closed_at: float | None = None

    @property
    def root(self) -> Member:
        return self.members[0]

    @property
    def event_count(self) -> int:
        return sum(member.count for member in self.members)

    def find_member(self, component: Component, code: str) -> Member | None:
        return next(
            (
                member
                for member in self.members
                if member.code == code and member.component == component
            ),
            None,
        )


def make_single_incident(finding: Finding) -> Incident:
    """The incident of a finding that belongs to no other."""
    member = Member(
        component=finding.component,
        code=finding.code,
        name=finding.code,
        count=finding.count,
        first=finding.since,
        last=finding.last,
        boot_id=finding.boot_id,
        usec=None,
        addresses=frozenset({finding.component.id} - {""}),
        pids=frozenset(),
        processes=frozenset(),
        raw=finding.raw,
    )
    return Incident(
        id=finding.incident,
        members=(member,),
        since=finding.since,
        last=finding.last,
        simulated=finding.is_simulated,
    )


class ResolvedFault(NamedTuple):
    """When the fault of a component was last resolved: lines from before are history."""

    component: Component
    code: str
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the judge changed in addition to findings, to be stored with them."""

    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    forgotten: tuple[Mark, ...] = ()  # marks that were removed
    devices: tuple[Device, ...] = ()
    resolved: tuple[ResolvedFault, ...] = ()
    # A device's history continues under another name: (former, new)
    renamed: tuple[tuple[str, str], ...] = ()
    # Seconds by which all stored times are shifted, before the other changes are applied
    shifted: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Everything that the judge needs to know of the past."""

    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    devices: tuple[Device, ...] = ()
    resolved: tuple[ResolvedFault, ...] = ()
    next_finding: int = 1
    next_incident: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The node's status and flags, derived from open findings and the freshness of sources."""

    status: Status
    action: Action
    reboot_required: bool
    reboot_confirmed: bool  # a confirmed finding requires it
    replacement_required: bool
    replacement_confirmed: bool
    simulated: bool  # an open finding is of a drill, or readings are simulated
    reasons: tuple[str, ...]
