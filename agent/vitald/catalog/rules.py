"""
A rule of the catalogue: what a code means, what an event with it requires, and which evidence
closes its finding.

Refuses  files and clocks; the loader reads, and the judge decides when a rule applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Union

from vitald.catalog.diagnosis import Diagnosis
from vitald.catalog.threshold import Threshold
from vitald.model.event import ALIKE, DOUBTED, SETTLING, UNDATED, Fields
from vitald.model.finding import Requirement
from vitald.model.words import Action, ComponentKind, When

Scalar = Union[str, int, bool]
# Fields of lines that are weak evidence: they require `inspect` at most
_WEAK_EVIDENCE = {
    UNDATED: "read late, without a date",
    DOUBTED: "perhaps not the kernel's: it may be the rest of the line before it",
}
_OF_SHARED_CAUSE = (
    "Check what they share before any single device: the driver (was its package built for this"
    " kernel?), its firmware, the board, its power; and compare other nodes."
)
_OF_PEERS = (
    "Find the worker that failed first: a device that has a finding of its own, another node of the"
    " job, or the network between them. Failing together says nothing against any one of them."
)


class FaultClass(Enum):
    """What a fault is attributed to."""

    APPLICATION = "application"
    DRIVER = "driver"
    HARDWARE = "hardware"
    THERMAL = "thermal"
    FABRIC = "fabric"
    INFORMATIONAL = "informational"
    UNUSED = "unused"  # a number that current drivers do not print
    UNKNOWN = "unknown"  # not in the catalogue

    @property
    def is_inside_device(self) -> bool:
        """Whether the cause is inside the device, so that a replacement cures it. Links, ports and
        temperatures also depend on what surrounds the node.
        """
        return self is FaultClass.HARDWARE

    @property
    def may_require_replacement(self) -> bool:
        """Whether an entry may require a replacement itself, where its source says so."""
        software = (FaultClass.APPLICATION, FaultClass.DRIVER, FaultClass.INFORMATIONAL)
        return self not in software


class DeviceListing(Enum):
    """Lists of devices of a node. A device that a line names must be in the list, if the line is
    from the same node.
    """

    MEMORY_CONTROLLERS = "memory_controllers"
    DISKS = "disks"
    DRIVES = "drives"
    NETWORK_DEVICES = "network_devices"

    @property
    def noun(self) -> str:
        """One of them, for operators: `network device`."""
        return self.value.replace("_", " ").removesuffix("s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Fields of the line that change the action. Every field of `where` must have one of its
    values.

    A field that is a list (status bits) matches if one of its values does. `NAME_not` matches if
    the field has a value that is none of those listed: an unknown bit. `NAME_above` matches if the
    field is a number above the one given.
    """

    where: Mapping[str, tuple[Scalar, ...]]
    action: Action | None = None  # replaces the rule's action
    at_least: Action | None = None  # only raises it
    when: When | None = None
    unusable: bool | None = None
    title: str | None = None
    advice: str | None = None
    escalation: str = ""  # the policy of the action, if it is not the entry's own

    def matches(self, fields: Fields) -> bool:
        for name, wanted in self.where.items():
            if name.endswith("_above"):
                if not _is_above(fields.get(name.removesuffix("_above")), wanted):
                    return False
                continue
            field = name.removesuffix("_not")
            value = fields.get(field)
            values = _list_values(value)
            # True == 1 in Python, but a flag is not a number here.
            listed = [any(type(v) is type(w) and v == w for w in wanted) for v in values]
            if not any(listed) if field == name else all(listed):
                return False
        return True


def _list_values(value: object) -> list[object]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _is_above(value: object, limits: tuple[Scalar, ...]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return any(isinstance(limit, int) and value > limit for limit in limits)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule requires for one event."""

    action: Action
    when: When
    title: str
    advice: str
    clears: Clears
    escalation: str
    unusable: bool = False
    unknown: bool = False
    requirement: Requirement = field(init=False)

    def __post_init__(self) -> None:
        unknown = self.unknown and self.action is not Action.NONE
        requirement = Requirement(self.action, self.when, unusable=self.unusable, unknown=unknown)
        object.__setattr__(self, "requirement", requirement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of the catalogue."""

    code: str
    kind: str
    title: str
    meaning: str
    fault_class: FaultClass
    action: Action
    clears: Clears
    escalation: str
    source: str
    when: When = When.NOW
    # The device cannot be used: the node is unfit for work whatever the action
    unusable: bool = False
    # Knowledge of the node was lost: its status is unknown, unless a finding makes it unhealthy
    unknown: bool = False
    advice: str = ""
    mnemonic: str = ""
    cases: tuple[Case, ...] = ()
    # Codes with the same name here are one fault, for escalation and the device's history; an entry
    # that names none has its code here
    fault: str = ""
    state: bool = False  # each event replaces the former action, and `none` closes the finding
    # The driver's recommendation for its device: it replaces what entries of other codes require
    driver_recommendation: bool = False
    context: bool = False  # a line beside a fault, not counted as one: it explains others
    # Evidence that closes findings of the event's component or, if that is the node, of `of`
    evidence: Evidence | None = None
    of: tuple[ComponentKind, ...] = ()
    # Other codes of the component, whose findings this one's `none` closes
    clears_codes: tuple[str, ...] = ()
    thresholds: tuple[Threshold, ...] = ()  # the readings that mean it
    component: ComponentKind = ComponentKind.NODE
    # Printed while the driver probes: the banner of the same load closes nothing
    at_probe: bool = False
    # If all devices of the kind fail with it at once, the cause is what they share
    shared_cause: bool = False
    # If several devices have it at once, a worker elsewhere failed, and none of them is suspected
    of_peers: bool = False
    fatal: bool | None = None  # for a line that contains no such field
    among: DeviceListing | None = None  # the list that must contain the device in the line
    match: tuple[str, ...] = ()  # line shapes, for the kinds whose grammar is data
    starts: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    # The codes of lines that print a stack: the shapes are tried on its first frame in a module
    in_stack_after: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    diagnostic: Diagnosis | None = None  # how a diagnostic's report of it is interpreted
    origin: str = ""  # file that holds the entry
    strongest: Action = field(init=False)  # that it requires, of all its cases
    # What it requires where no case matches; made at the first use, as it serves every log line
    _plain: Ruling | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = (case.action or case.at_least for case in self.cases)
        actions = (self.action, *(action for action in own if action is not None))
        object.__setattr__(self, "strongest", Action.find_strongest(actions))

    @property
    def is_known(self) -> bool:
        return self.fault_class is not FaultClass.UNKNOWN

    @property
    def may_confirm_others(self) -> bool:
        """Whether an observation of it may confirm another fault of its device: for one of its
        cases it requires a remedy or makes the device unusable, and no application can cause it.
        """
        if self.fault_class is FaultClass.APPLICATION:
            return False
        unusable = self.unusable or any(case.unusable for case in self.cases)
        return unusable or self.strongest.makes_unfit

    @property
    def _makes_unusable(self) -> bool:
        return self.unusable and self.action is not Action.NONE

    def _choose_alike_action(self, action: Action) -> Action:
        """What several devices alike require, each of which would require `action`. A fault that
        may be the device's own, such as timeouts all day, stays what it is, once for the node.
        """
        if self.of_peers:
            return action if self.fault_class.is_inside_device else Action.OBSERVE
        return Action.INSPECT

    def _remember_plain(self) -> Ruling:
        ruling = Ruling(
            self.action,
            self.when,
            self.title,
            self.advice,
            self.clears,
            self.escalation,
            self._makes_unusable,
            self.unknown,
        )
        object.__setattr__(self, "_plain", ruling)
        return ruling

    def apply_to(self, fields: Fields) -> Ruling:
        """What the rule requires for an event with these fields.

        The strongest matching case replaces the action; `at_least` cases then may raise it.
        """
        ruling = self._plain or self._remember_plain()
        matching = [case for case in self.cases if case.matches(fields)]
        replacing = [case for case in matching if case.action is not None]
        if replacing:
            ruling = _apply_case(ruling, max(replacing, key=lambda case: _rank_case(case, self)))
        for case in matching:
            if case.at_least is not None and case.at_least.rank > ruling.action.rank:
                ruling = _apply_case(ruling, case)
        if SETTLING in fields and ruling.action.makes_unfit:
            ruling = _limit_settling(ruling)
        weakness = next((text for field, text in _WEAK_EVIDENCE.items() if field in fields), "")
        if weakness and (ruling.action.makes_unfit or ruling.unusable):
            ruling = replace(
                ruling,
                action=Action.INSPECT,
                title=f"{ruling.title} ({weakness})",
                clears=ruling.clears.join_evidence(CLEARS_OF[Action.INSPECT]),
                escalation="none",
                unusable=False,
            )
        if ALIKE in fields and ruling.action is not Action.NONE:
            ruling = replace(
                ruling,
                action=self._choose_alike_action(ruling.action),
                when=When.NOW,
                title=f"{ruling.title} ({_count_alike(str(fields[ALIKE]))})",
                advice=_OF_PEERS if self.of_peers else _OF_SHARED_CAUSE,
                escalation="none",
                unusable=not self.of_peers,
            )
        return ruling


def _count_alike(names: str) -> str:
    kind = names.partition("/")[0]
    return f"{names.count(',') + 1} devices of kind {kind} alike"


def _limit_settling(ruling: Ruling) -> Ruling:
    """What is required while the state may still change: nothing that costs the node."""
    if ruling.when is When.MAINTENANCE:
        return ruling  # it costs nothing now
    return replace(
        ruling,
        action=Action.INSPECT,
        title=f"{ruling.title} (since the start; settling)",
        escalation="none",
        unusable=ruling.unusable or ruling.when is When.NOW,
    )


def _rank_case(case: Case, rule: Rule) -> tuple[int, int, bool]:
    """Sort key: of two cases with the same action, the one due earlier is the stronger."""
    unusable = rule.unusable if case.unusable is None else case.unusable
    return (case.action or Action.NONE).rank, (case.when or rule.when).urgency, unusable


def _apply_case(ruling: Ruling, case: Case) -> Ruling:
    action = case.action or case.at_least or ruling.action
    return replace(
        ruling,
        action=action,
        clears=ruling.clears if action is ruling.action else CLEARS_OF.get(action, ruling.clears),
        when=case.when or ruling.when,
        unusable=action is not Action.NONE
        and (ruling.unusable if case.unusable is None else case.unusable),
        title=case.title or ruling.title,
        advice=case.advice or ruling.advice,
        escalation=case.escalation or ruling.escalation,
    )


class Evidence(Enum):
    """What an event is evidence of, so that it closes findings."""

    REBOOT = "reboot"
    DEVICE_RESET = "device_reset"
    REPLACED = "replaced"
    DIAGNOSTIC = "diagnostic"  # passed, at the run level in the event's field `level`


@dataclass(frozen=True, slots=True, kw_only=True)
class Clears:
    """The evidence that closes a finding; a person may always close it."""

    reboot: bool = False
    device_reset: bool = False
    recovers: bool = False
    replaced: bool = False
    diagnostic: int | None = None  # passed at this DCGM run level
    quiet_s: float | None = None

    def is_cleared_by(self, evidence: Evidence, level: int = 0) -> bool:
        """Whether this evidence closes the finding. `level`: DCGM run level of a diagnostic."""
        if evidence is Evidence.DIAGNOSTIC:
            return self.diagnostic is not None and level >= self.diagnostic
        # A replaced board was reset as well.
        return {
            Evidence.REBOOT: self.reboot,
            Evidence.DEVICE_RESET: self.device_reset,
            Evidence.REPLACED: True,
        }[evidence]

    def join_evidence(self, other: Clears) -> Clears:
        """This evidence or the other's; the quiet period stays this one's."""
        levels = [clears.diagnostic for clears in (self, other) if clears.diagnostic is not None]
        return Clears(
            reboot=self.reboot or other.reboot,
            device_reset=self.device_reset or other.device_reset,
            recovers=self.recovers or other.recovers,
            replaced=self.replaced or other.replaced,
            diagnostic=min(levels, default=None),
            quiet_s=self.quiet_s,
        )

    def list_phrases(self) -> list[str]:
        """Phrases for operators: `a reboot`, `24 h without another`."""
        phrases = []
        if self.device_reset:
            phrases.append("a device reset")
        if self.reboot:
            phrases.append("a reboot")
        if self.replaced:
            phrases.append("replacement")
        if self.recovers:
            phrases.append("its own recovery")
        if self.diagnostic is not None:
            phrases.append(f"a passed level {self.diagnostic} diagnostic")
        if self.quiet_s is not None:
            hours = self.quiet_s / 3600
            phrases.append(
                f"{hours:g} h without another"
                if hours >= 1
                else f"{self.quiet_s / 60:g} min without another"
            )
        return phrases


# What closes a finding whose action is not its entry's own, by action.
CLEARS_OF = {
    Action.NONE: Clears(quiet_s=3600.0, reboot=True),
    Action.OBSERVE: Clears(quiet_s=86400.0, reboot=True),
    Action.INSPECT: Clears(diagnostic=3, reboot=True),
    Action.RESTART_WORKLOAD: Clears(quiet_s=3600.0, reboot=True),
    Action.RESET_DEVICE: Clears(device_reset=True, reboot=True),
    Action.REBOOT_NODE: Clears(reboot=True),
    Action.REPLACE_NODE: Clears(replaced=True),
}
