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
from typing import Union

Value = Union[str, int, float, bool, None, "list[int]"]
Fields = Mapping[str, Value]


class Action(Enum):
    """What must be done. The members' order is the order of strength.

    `inspect` stands beside the ladder: a person or a deeper diagnostic must look. It outranks `observe` when one word
    has to be said for the whole node, and is outranked by everything that asks for a remedy.
    """

    NONE = "none"
    OBSERVE = "observe"
    INSPECT = "inspect"
    RESTART_WORKLOAD = "restart_workload"
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
    """When the action is due: at once, or when the work that runs has ended."""

    NOW = "now"
    AFTER_JOB = "after_job"


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
    ACCEPTED = "accepted"  # written from user space, taken because the configuration says so
    ANNOUNCED = "announced"  # written from user space by a drill that announced itself
    UNTRUSTED = "untrusted"  # written from user space: shown and counted, never judged
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


class FindingState(Enum):
    OPEN = "open"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem of one component. A new value replaces it at every transition; `id` stays."""

    id: int
    component: Component
    code: str
    kind: str
    action: Action
    when: When
    since: float
    last: float
    count: int
    boot_id: str  # boot in which it was last seen
    title: str
    raw: str  # the line that decided the action
    fields: Fields  # of the event that decided the action
    state: FindingState = FindingState.OPEN
    simulated_until: float | None = None
    cleared_at: float | None = None
    cleared_by: str | None = None

    @property
    def simulated(self) -> bool:
        return self.simulated_until is not None

    @property
    def key(self) -> FindingKey:
        return self.component, self.code, self.simulated


FindingKey = tuple[Component, str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A finding changed, and why. `finding` is its new value. An empty cause: only counted once more."""

    time: float
    finding: Finding
    cause: str
    event: str | None = None  # identity of the event that caused it
    opened: bool = False


class SourceState(Enum):
    STARTING = "starting"
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    """When a source last truly looked. Past its deadline, what it watches is unknown, not healthy."""

    name: str
    state: SourceState
    deadline: float  # seconds a look may be old
    last_seen: float | None = None
    looked: float = 0.0  # the same moment on the monotonic clock, which nobody can step
    detail: str = ""

    def fresh(self, monotonic: float) -> bool:
        return self.state is SourceState.OK and monotonic - self.looked <= self.deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The fold of all open findings and of how fresh the sources are. Derived, never stored."""

    status: Status
    action: Action
    reboot_required: bool
    replacement_required: bool
    simulated: bool  # at least one open finding is a drill's
    reasons: tuple[str, ...]
