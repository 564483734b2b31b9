"""
The catalogue: all rules by code, and what else it holds, with the questions that are asked of it.

Refuses  files and clocks; the loader reads, and the judge decides when a rule applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vitald.catalog.correlation import CorrelationRules
from vitald.catalog.escalation import EscalationPolicy, LemonScoring
from vitald.catalog.rules import Clears, FaultClass, Rule
from vitald.catalog.threshold import ThresholdGroup
from vitald.model.event import Fields
from vitald.model.words import Action, ComponentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """Devices of a cloud's instance type. `efa` is the maximum that it can be launched with;
    `cores` are those of each Neuron device.
    """

    gpus: int = 0
    neuron: int = 0
    efa: int = 0
    cores: int = 0


class Catalog:
    """All rules by code, the default rule of each kind, the escalation policies, the correlation
    rules, the parameters of the lemon score, and the instance types.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        defaults: Mapping[str, Rule],
        *,
        escalation_policies: Mapping[str, EscalationPolicy],
        correlation: CorrelationRules,
        lemon: LemonScoring,
        instances: Mapping[str, InstanceType],
        profile: str,
        site_codes: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = rules
        self.escalation_policies = escalation_policies
        self.correlation = correlation
        self.lemon = lemon
        self.instances = instances  # by their names
        self.profile = profile
        self.site_codes = site_codes  # that the site's overrides or files added
        self._defaults = defaults
        self._policies: dict[tuple[str, str, bool, int], EscalationPolicy] = {}
        self._unlisted: dict[str, Rule] = {}
        self._witnesses: dict[tuple[str, ComponentKind], tuple[str, ...]] = {}

    def find_rule(self, code: str) -> Rule:
        """The rule for a code such as `xid/79`; the default of its kind if it is not listed."""
        rule = self.rules.get(code) or self._unlisted.get(code)
        if rule is not None:
            return rule
        kind, _, number = code.partition("/")
        default = self._defaults.get(kind, _UNLISTED)
        if len(self._unlisted) >= _KEPT:
            self._unlisted.clear()
        made = replace(
            default, code=code, kind=kind, fault=code, title=default.title.replace("{code}", number)
        )
        return self._unlisted.setdefault(code, made)

    def find_instance(self, name: str) -> InstanceType:
        """The instance type by name; one without devices if it is not listed."""
        return self.instances.get(name, InstanceType())

    def find_policy(self, rule: Rule, fields: Fields) -> EscalationPolicy:
        """The escalation policy for an event with these fields: its entry's, or its case's.

        It replaces the node only if the cause is inside the device, and has no step after a remedy
        that the entry never requires.
        """
        return self._find_policy(rule, rule.apply_to(fields).escalation)

    def _find_policy(self, rule: Rule, name: str) -> EscalationPolicy:
        inside = rule.fault_class.is_inside_device
        key = (rule.code, name, inside, rule.strongest.rank)
        policy = self._policies.get(key)
        if policy is None:
            policy = self.escalation_policies[name]
            policy = policy if inside else policy.without_replacement()
            policy = policy.limit_steps(self._find_strongest(rule))
            if len(self._policies) >= _KEPT:
                self._policies.clear()
            self._policies[key] = policy
        return policy

    def may_replace(self, rule: Rule) -> bool:
        """Whether the entry, one of its cases, or an escalation policy of these may require a
        replacement.
        """
        names = {rule.escalation, *(case.escalation or rule.escalation for case in rule.cases)}
        steps = (step for name in names for step in self._find_policy(rule, name).steps)
        return Action.REPLACE_NODE in (rule.strongest, *(step.action for step in steps))

    def _find_strongest(self, rule: Rule) -> Action:
        """The strongest action that the entry, one of its cases or co-occurrence requires."""
        roles = self.correlation.find_roles(rule.code)
        beside = (
            changed.action
            for role in roles
            for changed in role.rule.cooccurrences
            if changed.code == rule.code and changed.action is not None
        )
        return Action.find_strongest((rule.strongest, *beside))

    def find_thresholds(self, kind: str) -> tuple[ThresholdGroup, ...]:
        """The thresholds on the readings of a source."""
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
        """Kinds of codes that can confirm this one on such a component, and are no lines of a log:
        those of its correlation rules, or of the same fault.
        """
        known = self._witnesses.get((code, kind))
        if known is None:
            kinds = {name.partition("/")[0] for name in self.list_witness_codes(code, kind)}
            if code.startswith("xid/"):
                kinds.add("nvml")  # NVML reports Xids itself
            known = tuple(sorted(kinds))
            if len(self._witnesses) < _KEPT:
                self._witnesses[code, kind] = known
        return known

    def list_witness_codes(self, code: str, kind: ComponentKind) -> list[str]:
        """The codes of `find_witnesses`."""
        roles = self.correlation.find_roles(code)
        names = {name for role in roles for name in role.rule.list_partners(code)}
        fault = self.find_rule(code).fault
        names |= {rule.code for rule in self.rules.values() if rule.fault == fault}
        return [
            name
            for name in sorted(names)
            if not self.is_line(name)
            and _may_speak_of(self.rules[name], kind)
            and (self.rules[name].fault == fault or self.rules[name].may_confirm_others)
        ]

    def is_line(self, name: str) -> bool:
        """Whether it is read from a log, by a parser or by its own patterns; or is no fault."""
        _, _, code = name.partition("/")
        rule = self.rules.get(name)
        return (
            name.startswith(_PARSED)
            or code == "*"
            or rule is None
            or bool(rule.match)
            or rule.action is Action.NONE
        )

    def list_kinds(self) -> set[str]:
        return {rule.kind for rule in self.rules.values()} | self._defaults.keys()


def _may_speak_of(rule: Rule, kind: ComponentKind) -> bool:
    """Whether a component of this kind may be the rule's component, or a part of it, or linked to
    it.
    """
    wide = (ComponentKind.NODE, ComponentKind.PCI)
    return (
        kind in wide
        or rule.component in (*wide, kind)
        or (kind is ComponentKind.NVSWITCH and rule.component is ComponentKind.GPU)
    )


_KEPT = 4096  # of what was found for codes, which forged lines may invent
_PARSED = ("xid/", "sxid/", "mce/pcie_")  # lines with a parser of their own
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
