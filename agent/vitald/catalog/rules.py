"""
What a code means: the catalogue's entries, and how one of them rules on an event.

Owns     rules, their cases, what clears them, the ladders of escalation.
Refuses  files and clocks; the loader reads, the judge decides when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Union

from vitald.catalog.correlation import CorrelationRules
from vitald.catalog.diagnosis import Diagnosis
from vitald.catalog.escalation import EscalationPolicy
from vitald.catalog.lemon import LemonScoring
from vitald.catalog.threshold import Threshold, ThresholdGroup
from vitald.model import Action, ComponentKind, Fields, Requirement, When


class FaultClass(Enum):
    """Whose fault it is."""

    APPLICATION = "application"
    DRIVER = "driver"
    HARDWARE = "hardware"
    THERMAL = "thermal"
    FABRIC = "fabric"
    INFORMATIONAL = "informational"
    UNUSED = "unused"  # a number that current drivers do not print
    UNKNOWN = "unknown"  # not in the catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Clears:
    """What closes a finding, besides a named person, who always may."""

    reboot: bool = False
    device_reset: bool = False
    recovers: bool = False
    replaced: bool = False
    diagnostic: int | None = None  # passed at this DCGM run level
    quiet_s: float | None = None

    def is_cleared_by(self, cure: Evidence, level: int = 0) -> bool:
        """Whether this evidence closes the finding."""
        if cure is Evidence.DIAGNOSTIC:
            return self.diagnostic is not None and level >= self.diagnostic
        # A board that was replaced has had its reset, and a reboot too is a reset of every device.
        return {
            Evidence.REBOOT: self.reboot,
            Evidence.DEVICE_RESET: self.device_reset,
            Evidence.REPLACED: True,
        }[cure]

    def join_evidence(self, other: Clears) -> Clears:
        """By this evidence or the other's; the quiet time stays this one's."""
        levels = [one.diagnostic for one in (self, other) if one.diagnostic is not None]
        return Clears(
            reboot=self.reboot or other.reboot,
            device_reset=self.device_reset or other.device_reset,
            recovers=self.recovers or other.recovers,
            replaced=self.replaced or other.replaced,
            diagnostic=min(levels, default=None),
            quiet_s=self.quiet_s,
        )

    def list_phrases(self) -> list[str]:
        """For people: `a reboot`, `24 h without another`."""
        said = []
        if self.device_reset:
            said.append("a device reset")
        if self.reboot:
            said.append("a reboot")
        if self.replaced:
            said.append("replacement")
        if self.recovers:
            said.append("its own recovery")
        if self.diagnostic is not None:
            said.append(f"a passed level {self.diagnostic} diagnostic")
        if self.quiet_s is not None:
            hours = self.quiet_s / 3600
            said.append(
                f"{hours:g} h without another"
                if hours >= 1
                else f"{self.quiet_s / 60:g} min without another"
            )
        return said


class DeviceListing(Enum):
    """Devices that a node lists: one that a line names must be one of them, on the node that the
    line is from.
    """

    MEMORY_CONTROLLERS = "memory_controllers"
    DISKS = "disks"
    DRIVES = "drives"
    NETWORK_DEVICES = "network_devices"

    @property
    def noun(self) -> str:
        """One of them, for people."""
        return self.value.replace("_", " ").removesuffix("s")


class Evidence(Enum):
    """What an event is evidence of: that something was done which ends findings."""

    REBOOT = "reboot"
    DEVICE_RESET = "device_reset"
    REPLACED = "replaced"
    DIAGNOSTIC = "diagnostic"  # passed, at the run level in the event's field `level`


Scalar = Union[str, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Context in the line that changes the action. Every field of `where` must hold one of its
    values.

    A field that is a list (status bits) holds if one of its values does. `NAME_not` holds if the
    field has a value that is none of those listed: a bit that no table knows. `NAME_above` holds if
    the field is a number above the one given.
    """

    where: Mapping[str, tuple[Scalar, ...]]
    action: Action | None = None  # replaces the rule's action
    at_least: Action | None = None  # only raises it
    when: When | None = None
    unusable: bool | None = None
    title: str | None = None
    advice: str | None = None

    def matches(self, fields: Fields) -> bool:
        for name, wanted in self.where.items():
            if name.endswith("_above"):
                if not _is_above(fields.get(name.removesuffix("_above")), wanted):
                    return False
                continue
            field = name.removesuffix("_not")
            value = fields.get(field)
            values = value if isinstance(value, list) else [] if value is None else [value]
            # True == 1 in Python, but a flag is not a number here.
            listed = [any(type(v) is type(w) and v == w for w in wanted) for v in values]
            if not any(listed) if field == name else all(listed):
                return False
        return True


def _is_above(value: object, limits: tuple[Scalar, ...]) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return any(isinstance(limit, int) and value > limit for limit in limits)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule says about one event."""

    action: Action
    when: When
    title: str
    advice: str
    clears: Clears
    unusable: bool = False
    unknown: bool = False

    @property
    def requirement(self) -> Requirement:
        return Requirement(
            self.action,
            self.when,
            unusable=self.unusable,
            unknown=self.unknown and self.action is not Action.NONE,
        )


# What closes a finding whose action is not its entry's own: it follows the action.
CLEARS_OF = {
    Action.NONE: Clears(quiet_s=3600.0, reboot=True),
    Action.OBSERVE: Clears(quiet_s=86400.0, reboot=True),
    Action.INSPECT: Clears(diagnostic=3, reboot=True),
    Action.RESTART_WORKLOAD: Clears(quiet_s=3600.0, reboot=True),
    Action.RESET_DEVICE: Clears(device_reset=True, reboot=True),
    Action.REBOOT_NODE: Clears(reboot=True),
    Action.REPLACE_NODE: Clears(replaced=True),
}


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
    unusable: bool = (
        False  # the device cannot be used: the node is unfit for work whatever the action
    )
    # What was known of the node is lost: its status is unknown, unless something else makes it
    # unhealthy
    unknown: bool = False
    advice: str = ""
    mnemonic: str = ""
    cases: tuple[Case, ...] = ()
    fault: str = (
        ""  # codes with one name here are one fault, for escalation and the device's record
    )
    state: bool = False  # each event replaces the former action, and `none` closes the finding
    driver_recommendation: bool = (
        False  # the driver's own word on its device: it outranks what other codes' entries ask for
    )
    context: bool = False  # no fault: it explains others
    evidence: Evidence | None = (
        # Evidence that ends findings, of the event's component or, where it is the node, of `of`
        None
    )
    of: tuple[ComponentKind, ...] = ()
    clears_codes: tuple[
        str, ...
    ] = ()  # other codes of the component that end with this one's `none`
    thresholds: tuple[Threshold, ...] = ()  # which readings mean it
    trial: Rule | None = None  # a rule on trial: what it would ask for is shown, without effect
    component: ComponentKind = ComponentKind.NODE
    at_probe: bool = (
        False  # printed while the driver probes: the banner of the same load ends nothing
    )
    fatal: bool | None = None  # for a line that says so in words
    among: DeviceListing | None = None  # what the device is one of that the line names
    match: tuple[str, ...] = ()  # line shapes, for the kinds whose grammar is data
    starts: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    diagnostic: Diagnosis | None = None  # how a diagnostic's report of it is read
    origin: str = ""  # file that holds the entry

    @property
    def is_known(self) -> bool:
        return self.fault_class is not FaultClass.UNKNOWN

    @property
    def _makes_unusable(self) -> bool:
        return self.unusable and self.action is not Action.NONE

    def apply_to(self, fields: Fields) -> Ruling:
        """The strongest matching case replaces the action; `at_least` cases then raise what
        stands.
        """
        ruling = Ruling(
            self.action,
            self.when,
            self.title,
            self.advice,
            self.clears,
            self._makes_unusable,
            self.unknown,
        )
        matching = [case for case in self.cases if case.matches(fields)]
        replacing = [case for case in matching if case.action is not None]
        if replacing:
            ruling = _apply_case(ruling, max(replacing, key=lambda case: _rank_case(case, self)))
        for case in matching:
            if case.at_least is not None and case.at_least.rank > ruling.action.rank:
                ruling = _apply_case(ruling, case)
        return ruling


def _rank_case(case: Case, rule: Rule) -> tuple[int, int, bool]:
    """Of two cases with one action, the one that is due earlier is the stronger."""
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
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """What a cloud's instance type has. `efa` is the most that one can be launched with; `cores`
    are those of each Neuron device.
    """

    gpus: int = 0
    neuron: int = 0
    efa: int = 0
    cores: int = 0


class Catalog:
    """All rules by code, the default rule of each kind, the ladders, the stories, the weights of a
    device's record, and what instance types have.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        defaults: Mapping[str, Rule],
        *,
        ladders: Mapping[str, EscalationPolicy],
        stories: CorrelationRules,
        lemon: LemonScoring,
        instances: Mapping[str, InstanceType],
        profile: str,
    ) -> None:
        self.rules = rules
        self.escalation_policies = ladders
        self.correlation = stories
        self.lemon = lemon
        self.instances = instances  # by their names
        self.profile = profile
        self._defaults = defaults
        self._serving = {
            ladder.serves: ladder for ladder in ladders.values() if ladder.serves is not None
        }
        self._unlisted: dict[str, Rule] = {}
        self._witnesses: dict[tuple[str, ComponentKind], tuple[str, ...]] = {}

    def find_rule(self, code: str) -> Rule:
        """The rule for `xid/79`. A code that is not listed gets its kind's default: unknown is
        said, never dropped.
        """
        rule = self.rules.get(code) or self._unlisted.get(code)
        if rule is not None:
            return rule
        kind, _, number = code.partition("/")
        default = self._defaults.get(kind, _UNLISTED)
        if len(self._unlisted) >= _UNLISTED_KEPT:
            self._unlisted.clear()
        made = replace(
            default, code=code, kind=kind, fault=code, title=default.title.replace("{code}", number)
        )
        return self._unlisted.setdefault(code, made)

    def find_instance(self, name: str) -> InstanceType:
        """What an instance type has: nothing, of one that is not listed."""
        return self.instances.get(name, InstanceType())

    def find_policy(self, rule: Rule, action: Action) -> EscalationPolicy:
        """The ladder that a fault climbs: its entry's, or, where something else is asked for, the
        one that serves that.
        """
        own = self.escalation_policies[rule.escalation]
        return (
            own
            if action is rule.action or rule.driver_recommendation
            else self._serving.get(action, own)
        )

    def find_thresholds(self, kind: str) -> tuple[ThresholdGroup, ...]:
        """What to look for in the readings of a source."""
        own = (rule for rule in self.rules.values() if rule.kind == kind and rule.thresholds)
        return tuple(
            ThresholdGroup(
                code=rule.code,
                component=rule.component,
                thresholds=rule.thresholds,
                state=rule.state,
            )
            for rule in own
        )

    def find_witnesses(self, code: str, kind: ComponentKind) -> tuple[str, ...]:
        """Which kinds of codes, that are no lines of a log, would bear it out of such a component:
        of its stories, or its fault by another name.
        """
        known = self._witnesses.get((code, kind))
        if known is None:
            stories = [place.rule for place in self.correlation.find_roles(code)]
            told = {
                name
                for story in stories
                for name in (*story.causes, *story.consequences, *story.echoes)
            }
            fault = self.find_rule(code).fault
            same = (rule.code for rule in self.rules.values() if rule.fault == fault)
            seen = [
                one
                for one in (*told, *same)
                if not self._is_line(one) and _may_speak_of(self.rules[one], kind)
            ]
            kinds = {one.partition("/")[0] for one in seen} | (
                {"nvml"} if code.startswith("xid/") else set()
            )  # it tells of Xids itself
            known = tuple(sorted(kinds))
            if len(self._witnesses) < _UNLISTED_KEPT:
                self._witnesses[code, kind] = known
        return known

    def _is_line(self, name: str) -> bool:
        """Whether it is read from a log: its grammar is code, or shapes of its own; or it is no
        fault.
        """
        kind, _, code = name.partition("/")
        rule = self.rules.get(name)
        return (
            kind in _GRAMMARS
            or code == "*"
            or rule is None
            or bool(rule.match)
            or rule.action is Action.NONE
        )

    def list_kinds(self) -> set[str]:
        return {rule.kind for rule in self.rules.values()}


def _may_speak_of(rule: Rule, kind: ComponentKind) -> bool:
    """Whether a component of this kind may be what the rule is about, or a part of it, or at the
    other end of its links.
    """
    wide = (ComponentKind.NODE, ComponentKind.PCI)
    return (
        kind in wide
        or rule.component in (*wide, kind)
        or (kind is ComponentKind.NVSWITCH and rule.component is ComponentKind.GPU)
    )


_UNLISTED_KEPT = 4096
_GRAMMARS = ("xid", "sxid")  # kinds of lines whose grammar is code
_UNLISTED = Rule(
    code="",
    kind="",
    title="{code}: not in the catalogue",
    meaning="This code is not in the catalogue, so nothing is known about it but its line.",
    fault_class=FaultClass.UNKNOWN,
    action=Action.INSPECT,
    clears=Clears(reboot=True),
    escalation="none",
    source="not listed",
)
