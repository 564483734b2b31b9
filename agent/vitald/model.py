"""
The nouns: what was seen, what is wrong, what must be done.

Owns     the words that every other module speaks, and the order of actions.
Refuses  I/O, clocks, and meaning: what a code stands for is in the catalogue.

All times are seconds since the epoch (UTC), as floats. PCI addresses are written as the kernel's sysfs writes them:
lower-case `dddd:bb:dd.f`, the domain at least four digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, Union

T = TypeVar("T")
Value = Union[str, int, float, bool, None, "list[int]"]
Fields = Mapping[str, Value]


def changed(one: T, **values: object) -> T:
    """`dataclasses.replace` at half its price, for what each line of a storm changes; of slotted dataclasses that check nothing."""
    made: T = object.__new__(type(one))
    for name in one.__slots__:  # type: ignore[attr-defined]
        object.__setattr__(made, name, values[name] if name in values else getattr(one, name))
    return made


class Action(Enum):
    """What must be done. The members' order is the order of strength.

    `inspect` stands beside the ladder: a person or a deeper diagnostic must look. When one word has to be said for the
    whole node it outranks what is the job's own affair, and is outranked by everything that asks for a remedy of the node.
    """

    NONE = "none"
    OBSERVE = "observe"
    RESTART_WORKLOAD = "restart_workload"
    INSPECT = "inspect"
    RESET_DEVICE = "reset_device"
    REBOOT_NODE = "reboot_node"
    REPLACE_NODE = "replace_node"

    @property
    def rank(self) -> int:
        return _RANK[self]

    @property
    def words(self) -> str:
        """What to do, for a person."""
        return _WORDS[self]

    @property
    def unfit(self) -> bool:
        """Whether an open finding that asks for this, now, makes the node unfit for work."""
        return self.rank >= _RANK[Action.RESET_DEVICE]

    @staticmethod
    def strongest(actions: Iterable[Action]) -> Action:
        return max(actions, key=lambda action: action.rank, default=Action.NONE)


_RANK = {action: rank for rank, action in enumerate(Action)}

_WORDS = {
    Action.NONE: "nothing to do",
    Action.OBSERVE: "keep an eye on it",
    Action.INSPECT: "have a person or a deeper diagnostic look at it",
    Action.RESTART_WORKLOAD: "restart the workload",
    Action.RESET_DEVICE: "reset the device",
    Action.REBOOT_NODE: "reboot the node",
    Action.REPLACE_NODE: "replace the node",
}


class When(Enum):
    """When the action is due. The members' order is the order of urgency.

    `maintenance` changes no fitness, no flag and no advice to jobs: it waits until the node is taken out of service anyway.
    """

    MAINTENANCE = "maintenance"
    AFTER_JOB = "after_job"  # when the work that runs has ended
    NOW = "now"

    @property
    def urgency(self) -> int:
        return _URGENCY[self]

    @property
    def words(self) -> str:
        """What follows the words of an action; empty for `now`."""
        return _WHEN_WORDS[self]


_URGENCY = {when: urgency for urgency, when in enumerate(When)}
_WHEN_WORDS = {When.NOW: "", When.AFTER_JOB: " after the running job", When.MAINTENANCE: " at the next maintenance"}


class Status(Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class ComponentKind(Enum):
    NODE = "node"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NEURON = "neuron"
    NIC = "nic"
    PCI = "pci"
    CPU = "cpu"
    DIMM = "dimm"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Component:
    """The thing that is well or ill. `id` is its PCI address until something better (serial, UUID) is known."""

    kind: ComponentKind
    id: str = ""

    def __hash__(self) -> int:
        """Of the id alone: it is looked up several times for each line of a storm, and an enum's hash is not remembered."""
        return hash(self.id)

    @property
    def name(self) -> str:
        return f"{self.kind.value}/{self.id}" if self.id else self.kind.value

    @staticmethod
    def parse(name: str) -> Component:
        """The inverse of `name`. Raises ValueError for a kind that does not exist."""
        kind, _, id_ = name.partition("/")
        return Component(ComponentKind(kind), id_)


NODE = Component(ComponentKind.NODE)


class Trust(Enum):
    """Who wrote the line an event was read from, and whether it is believed."""

    KERNEL = "kernel"  # facility 0, or a file that the operator named as the kernel's log
    ACCEPTED = "accepted"  # written from user space, and judged: as hearsay, or where the configuration vouches for it like the kernel's
    ANNOUNCED = "announced"  # written from user space by a drill that announced itself
    UNTRUSTED = "untrusted"  # written from user space, or about a device that is not here: shown and counted, never judged
    DAEMON = "daemon"  # vitald's own observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One fact, once. `identity` says where it came from: read twice, it is still one fact."""

    identity: str
    time: float
    source: str
    kind: str
    code: str
    component: Component
    boot_id: str
    raw: str = ""
    trust: Trust = Trust.KERNEL
    fields: Fields = field(default_factory=dict)
    follows: str | None = None  # identity of the event that this record continues (SXid severity and data records)
    simulated_until: float | None = None  # set for a drill: the event is simulated, and its finding ends then

    @property
    def simulated(self) -> bool:
        return self.simulated_until is not None

    @property
    def judged(self) -> bool:
        return self.trust is not Trust.UNTRUSTED

    @property
    def hearsay(self) -> bool:
        """Whether a process wrote it, and nobody vouches for it: it may open a finding of its own, and change nothing else."""
        return is_hearsay(self.fields)

    @property
    def vouched_by(self) -> str:
        """Who says that this is so, where that is enough to have the node repaired for it. Empty for the text of a log."""
        if self.trust is Trust.DAEMON:
            return self.source
        return "[kernel_log] userspace" if self.fields.get(VOUCHED) is True else ""


VOUCHED = "vouched"  # field of a record that a process wrote: whether the configuration takes it for a confirmed fault


def is_hearsay(fields: Fields) -> bool:
    return fields.get(VOUCHED) is False


class FindingState(Enum):
    OPEN = "open"
    IN_REMEDY = "in_remedy"  # somebody has begun what it asks for; it stands until the evidence says that it held
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, by when, and why it differs from the catalogue's table. `because` is for people.

    `unusable`: the device cannot be used, so the node is unfit for work whatever the action.
    `unknown`: what was known of the node is lost, so nobody can say whether it is fit.
    """

    action: Action
    when: When
    because: str = ""
    unusable: bool = False
    unknown: bool = False

    def stronger(self, other: Asked) -> bool:
        return (self.action.rank, self.when.urgency) > (other.action.rank, other.when.urgency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A person knows of a finding and lives with it until a moment, unless it gets worse than `asked`."""

    by: str
    reason: str
    since: float
    until: float
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem of one component. A new value replaces it at every transition; `id` stays.

    What it asks for is made of layers: the table's ruling on the strongest event; the context of its incident instead,
    where a rule says so, but no less than what is told under it; instead of those the driver's own word; and at least what
    escalation asks for.
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
    source: str  # which source would see it again
    ruled: Asked
    context: Asked | None = None
    told: Asked | None = None  # the most that an echo of it asks for, which has no finding of its own
    driver: Asked | None = None
    escalated: Asked | None = None
    incident: int = 0
    heard_since: float = 0.0  # since when its source has been listened to without a pause
    quiet_s: float | None = None  # ends after so much quiet; None: not by quiet
    confirmed_by: str = ""  # the source that saw it, or the second one that agrees with the log; empty while only text tells of it
    remedy_at: float | None = None  # when its remedy was begun
    shadow: bool = False  # of a rule on trial: shown, without effect
    state: FindingState = FindingState.OPEN
    accepted: Acceptance | None = None
    simulated_until: float | None = None
    cleared_at: float | None = None
    cleared_by: str | None = None

    @property
    def asked(self) -> Asked:
        """What it asks for, all layers considered."""
        asked = self.table
        if self.driver is not None and asked.action in _DRIVERS_TO_SAY:
            asked = self.driver
        if self.escalated is not None and self.escalated.action.rank > asked.action.rank:
            due = asked.when if asked.action.unfit and asked.when is When.NOW else self.escalated.when
            asked = Asked(self.escalated.action, due, self.escalated.because)
        elif self.escalated is not None and self.escalated.stronger(asked):
            asked = self.escalated
        return asked

    @property
    def table(self) -> Asked:
        """What the catalogue asks for, the incident considered."""
        asked = self.context or self.ruled
        return self.told if self.told is not None and self.told.stronger(asked) else asked

    @property
    def action(self) -> Action:
        return self.asked.action

    @property
    def when(self) -> When:
        return self.asked.when

    @property
    def unusable(self) -> bool:
        """Whether its device cannot be used."""
        return self.ruled.unusable

    @property
    def unknown(self) -> bool:
        """Whether nobody can say, while it is open, that the node is fit."""
        return self.ruled.unknown and not self.deferred

    @property
    def deferred(self) -> bool:
        """Whether it is shown and counts for nothing else: somebody accepted it, or it waits for maintenance."""
        return self.accepted is not None or (self.when is When.MAINTENANCE and not self.unusable)

    def makes_unfit(self, *, between_jobs: bool) -> bool:
        """Whether the node is unfit for work while this is open. `between_jobs`: what waits for the running job is due."""
        if self.deferred:
            return False
        due = self.when is When.NOW or between_jobs
        return self.unusable or (self.action.unfit and due)

    @property
    def confirmed(self) -> bool:
        """Whether others may repair the node for it: it does not rest on the text of a log alone."""
        return bool(self.confirmed_by)

    @property
    def hearsay(self) -> bool:
        """Whether it rests on what a process wrote, and nobody vouches for."""
        return is_hearsay(self.fields)

    @property
    def open(self) -> bool:
        return self.state is not FindingState.CLEARED

    @property
    def simulated(self) -> bool:
        return self.simulated_until is not None

    @property
    def key(self) -> FindingKey:
        return self.component, self.code, self.simulated, self.shadow


FindingKey = tuple[Component, str, bool, bool]

# The driver knows whether a device needs a reset or the node a reboot. Of jobs and of spare parts it says nothing.
_DRIVERS_TO_SAY = (Action.RESET_DEVICE, Action.REBOOT_NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One code of one component in an incident, however often it was printed."""

    component: Component
    code: str
    name: str  # what the catalogue's stories call it: its code, or an alias of some of its lines
    count: int
    first: float
    last: float
    boot_id: str
    usec: int | None  # of the last one, on the kernel's own clock
    places: frozenset[str]  # addresses it speaks of: its own, the port above, what is behind it
    pids: frozenset[int]
    processes: frozenset[str]
    raw: str  # the first line


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One physical story: a root cause and its consequences, told once. Lives as long as one of its findings is open.

    `members` are sorted, the root first. `story` names the entry of the catalogue that joined them, if one did.
    """

    id: int
    members: tuple[Member, ...]
    since: float
    last: float
    boot_id: str = ""  # of its last event, and where that stands on the kernel's own clock
    usec: int | None = None
    story: str = ""
    simulated: bool = False
    closed_at: float | None = None

    @property
    def root(self) -> Member:
        return self.members[0]

    @property
    def count(self) -> int:
        return sum(member.count for member in self.members)

    def member(self, component: Component, code: str) -> Member | None:
        return next((one for one in self.members if one.code == code and one.component == component), None)


def alone(finding: Finding) -> Incident:
    """The incident of a finding that nothing else is known to belong to."""
    member = Member(
        component=finding.component,
        code=finding.code,
        name=finding.code,
        count=finding.count,
        first=finding.since,
        last=finding.last,
        boot_id=finding.boot_id,
        usec=None,
        places=frozenset({finding.component.id} - {""}),
        pids=frozenset(),
        processes=frozenset(),
        raw=finding.raw,
    )
    return Incident(id=finding.incident, members=(member,), since=finding.since, last=finding.last, simulated=finding.simulated)


class MarkKind(Enum):
    """What a device's record is made of."""

    FAULT = "fault"  # a fault of the device itself was the root of an incident
    REMEDY = "remedy"  # what a finding asked for was done
    NOT_HELD = "not_held"  # the fault came back after its remedy
    PROCESS = "process"  # a process died of a fault that may be its own or the device's
    REMOVED = "removed"  # it left its slot with something open that only a replacement ends
    ACCEPTED = "accepted"  # a boot ended what a person lives with until a moment: it may be found again
    JOB_DIED = "job_died"
    DIAGNOSTIC_FAILED = "diagnostic_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry in a device's record. `device` is what survives a move (UUID, serial), else the component's name."""

    device: str
    time: float
    kind: MarkKind
    fault: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is remembered of the thing in a slot: who it is, and when it was last reset or put there."""

    component: Component
    uuid: str = ""
    serial: str = ""
    reset_at: float = 0.0
    placed_at: float = 0.0

    @property
    def identity(self) -> str:
        return self.uuid or self.serial


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What judging changed beside the findings, to be stored with them."""

    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    forgotten: tuple[Mark, ...] = ()  # marks that had to make room
    devices: tuple[Device, ...] = ()
    settled: tuple[tuple[Component, str, float], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # a device's record goes on under another name: (former, new)
    shifted: float = 0.0  # seconds by which all remembered times are told anew, before what else is here


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All that judging needs to know of the past: the fold so far."""

    findings: tuple[Finding, ...] = ()
    incidents: tuple[Incident, ...] = ()
    marks: tuple[Mark, ...] = ()
    devices: tuple[Device, ...] = ()
    settled: tuple[tuple[Component, str, float], ...] = ()  # when a component's code was last dealt with: older lines are history
    next_finding: int = 1
    next_incident: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A finding changed, and why. `finding` is its new value. An empty cause: only counted once more."""

    time: float
    finding: Finding
    cause: str
    event: str | None = None  # identity of the event that caused it
    opened: bool = False


Sample = Union[float, str, "tuple[float, ...]"]  # a value, or one for each part, such as a link


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What was read of one component: values by the name of the reading, in base units; what cannot be observed, and why.

    `identity` is what survives a move (UUID). `fresh` are the values that this look read; the others are from earlier ones.
    """

    component: Component
    identity: str
    time: float
    looked: float  # the same moment on the monotonic clock
    values: Mapping[str, Sample]
    fresh: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    blind: str = ""  # looked at, but nothing can be said of its health, and why
    who: Mapping[str, str] = field(default_factory=dict)  # what finds it: index, address, interface, mount


class SourceState(Enum):
    STARTING = "starting"
    OK = "ok"
    FAILED = "failed"
    RELEASED = "released"  # it stepped aside because somebody asked it to
    ABSENT = "not present"  # this node has nothing that it could look at


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    """When a source last truly looked. Past its deadline, what it watches is unknown, not healthy."""

    name: str
    state: SourceState
    deadline: float  # seconds a look may be old
    last_seen: float | None = None
    looked: float = 0.0  # the same moment on the monotonic clock, which nobody can step
    detail: str = ""
    simulated: bool = False  # what it reads is not real

    def fresh(self, monotonic: float) -> bool:
        return self.state in (SourceState.OK, SourceState.ABSENT) and monotonic - self.looked <= self.deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The fold of all open findings and of how fresh the sources are. Derived, never stored."""

    status: Status
    action: Action
    reboot_required: bool
    reboot_confirmed: bool  # and a confirmed finding asks for it
    replacement_required: bool
    replacement_confirmed: bool
    simulated: bool  # at least one open finding is a drill's, or what is read is simulated
    reasons: tuple[str, ...]
