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

from agent.model import Action, ComponentKind, Fields, When


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

    def words(self) -> list[str]:
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
            said.append(f"{hours:g} h without another" if hours >= 1 else f"{self.quiet_s / 60:g} min without another")
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung of a ladder: returned `after` times within `within_s` seconds although the remedy was completed."""

    after: int
    within_s: float
    action: Action


Scalar = Union[str, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Context in the line that changes the action. Every field of `where` must hold one of its values.

    A field that is a list (status bits) holds if one of its values does. `NAME_not` holds if the field has a value that is
    none of those listed: a bit that no table knows.
    """

    where: Mapping[str, tuple[Scalar, ...]]
    action: Action | None = None  # replaces the rule's action
    at_least: Action | None = None  # only raises it
    when: When | None = None
    title: str | None = None
    advice: str | None = None

    def holds(self, fields: Fields) -> bool:
        for name, wanted in self.where.items():
            field = name.removesuffix("_not")
            value = fields.get(field)
            values = value if isinstance(value, list) else [] if value is None else [value]
            # True == 1 in Python, but a flag is not a number here.
            listed = [any(type(v) is type(w) and v == w for w in wanted) for v in values]
            if not any(listed) if field == name else all(listed):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule says about one event."""

    action: Action
    when: When
    title: str
    advice: str
    clears: Clears


# What closes a finding whose action came from a case: it follows the action, not the table's entry.
_CLEARS_OF = {
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
    advice: str = ""
    mnemonic: str = ""
    cases: tuple[Case, ...] = ()
    state: bool = False  # each event replaces the former action, and `none` closes the finding
    component: ComponentKind = ComponentKind.NODE
    fatal: bool | None = None  # for a line that says so in words
    match: tuple[str, ...] = ()  # line shapes, for the kinds whose grammar is data
    starts: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    origin: str = ""  # file that holds the entry

    @property
    def known(self) -> bool:
        return self.fault_class is not FaultClass.UNKNOWN

    def rule_on(self, fields: Fields) -> Ruling:
        """The strongest matching case replaces the action; `at_least` cases then raise what stands."""
        ruling = Ruling(self.action, self.when, self.title, self.advice, self.clears)
        matching = [case for case in self.cases if case.holds(fields)]
        replacing = [case for case in matching if case.action is not None]
        if replacing:
            ruling = _by_case(ruling, max(replacing, key=lambda case: _strength(case, self.when)))
        for case in matching:
            if case.at_least is not None and case.at_least.rank > ruling.action.rank:
                ruling = _by_case(ruling, case)
        return ruling


def _strength(case: Case, default: When) -> tuple[int, bool]:
    """Of two cases with one action, the one that is due now is the stronger."""
    return (case.action or Action.NONE).rank, (case.when or default) is When.NOW


def _by_case(ruling: Ruling, case: Case) -> Ruling:
    action = case.action or case.at_least or ruling.action
    return replace(
        ruling,
        action=action,
        clears=ruling.clears if action is ruling.action else _CLEARS_OF.get(action, ruling.clears),
        when=case.when or ruling.when,
        title=case.title or ruling.title,
        advice=case.advice or ruling.advice,
    )


class Catalog:
    """All rules by code, the default rule of each kind, and the ladders."""

    def __init__(
        self, rules: Mapping[str, Rule], defaults: Mapping[str, Rule], ladders: Mapping[str, tuple[Step, ...]], profile: str
    ) -> None:
        self.rules = rules
        self.ladders = ladders
        self.profile = profile
        self._defaults = defaults

    def rule(self, code: str) -> Rule:
        """The rule for `xid/79`. A code that is not listed gets its kind's default: unknown is said, never dropped."""
        rule = self.rules.get(code)
        if rule is not None:
            return rule
        kind, _, number = code.partition("/")
        default = self._defaults.get(kind, _UNLISTED)
        return replace(default, code=code, kind=kind, title=default.title.replace("{code}", number))

    def kinds(self) -> set[str]:
        return {rule.kind for rule in self.rules.values()}


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
