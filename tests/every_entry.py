"""
Runs every entry of the catalogue through the judge, in the ways in which it could cost a node:

    python -m tests.every_entry     what breaks a rule, how many stories, how long

A story is one node on which one entry, with the fields of one of its cases, is seen once, on all
devices at once, after reboots and remedies, beside a witness, or before the configuration changes.
After each event the rules of docs/judgement.md ("What may cost a node") are checked for all open
findings. They are stated here once more, by the catalogue's data, without the judge's own code.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial

from tests import remedies_page
from tests.unit.builders import act, booted, event
from vitald.catalog import PROFILES, Catalog, Evidence, FaultClass, Rule, load_catalog
from vitald.catalog.correlation import Reach
from vitald.judge.engine import Judge
from vitald.judge.lifecycle import is_carried
from vitald.judge.repairs import find_due_repairs
from vitald.model.component import NODE, Component
from vitald.model.event import (
    ALIKE,
    CLEARED,
    DOUBTED,
    SETTLING,
    SIBLINGS,
    TOO_MANY,
    UNDATED,
    VOUCHED,
    Event,
    Fields,
    Trust,
)
from vitald.model.finding import Finding
from vitald.model.words import Action, ComponentKind, When

DEVICES = ("0000:18:00.0", "0000:3b:00.0", "0000:5d:00.0", "0000:9b:00.0")
SOFTWARE = (FaultClass.APPLICATION, FaultClass.DRIVER, FaultClass.INFORMATIONAL)
REMEDIES = (Action.RESET_DEVICE, Action.REBOOT_NODE)
MONTH_S = 31 * 86400.0
_STEP_S = 60.0  # between two events


@dataclass(frozen=True, slots=True)
class Subject:
    """An entry, with fields that one of its cases matches, and what it requires for them."""

    rule: Rule
    fields: Fields
    action: Action
    is_line: bool

    def name_component(self, number: int = 0) -> Component:
        """A device that it may be about; an entry of PCI functions is about a GPU."""
        kind = self.rule.component
        if kind is ComponentKind.NODE:
            return NODE
        return Component(ComponentKind.GPU if kind is ComponentKind.PCI else kind, DEVICES[number])


def list_subjects(catalog: Catalog) -> list[Subject]:
    """Each entry that requires something, once for each different requirement of its cases."""
    subjects: dict[object, Subject] = {}
    for rule in remedies_page.list_rules(catalog):
        for fields in ({}, *map(remedies_page.make_fields, rule.cases)):
            action, is_line = rule.apply_to(fields).action, catalog.is_line(rule.code)
            subject = Subject(rule, fields, action, is_line)
            if action is not Action.NONE:
                subjects.setdefault(_describe(catalog, subject), subject)
    return list(subjects.values())


def list_of_profile(profile: str) -> list[Subject]:
    """The subjects of the first profile; of another one, those in which it differs from that."""
    subjects = list_subjects(load(profile))
    if profile == PROFILES[0]:
        return subjects
    first = load(PROFILES[0])
    known = {_describe(first, subject) for subject in list_subjects(first)}
    return [subject for subject in subjects if _describe(load(profile), subject) not in known]


def _describe(catalog: Catalog, subject: Subject) -> object:
    """What tells one subject from others."""
    rule, ruling = subject.rule, subject.rule.apply_to(subject.fields)
    policy = catalog.find_policy(rule, subject.fields)
    return rule.code, rule.fault_class, ruling.requirement, ruling.escalation, policy.steps


class Node:
    """A judge, and what was seen and done on its node."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.judge = catalog, Judge(catalog)
        self.now, self.boots, self.events = 0.0, 0, 0
        self.observed: list[Event] = []  # by collectors
        # Remedies that a finding required and that closed it, by component and fault
        self.carried_out: dict[tuple[Component, str], list[Action]] = defaultdict(list)
        self.strongest: dict[str, Action] = {}  # that findings required, by code
        self.mistakes: list[str] = []
        self.boot()

    # What happens

    def see(self, subject: Subject, number: int = 0, **more: object) -> None:
        """The fault of a device: a line, or what a collector observes."""
        self.see_on(subject.name_component(number), subject, **more)

    def see_on(self, component: Component, subject: Subject, **more: object) -> None:
        if subject.rule.shared_cause and component != NODE:
            more[SIBLINGS] = ",".join(other for other in DEVICES if other != component.id)
        trust = Trust.KERNEL if subject.is_line else Trust.DAEMON
        self.report(subject.rule.code, component, trust, {**subject.fields, **more})

    def report(
        self, code: str, component: Component, trust: Trust, fields: dict[str, object]
    ) -> None:
        self.events += 1
        name, boot = f"event {self.events}", f"boot-{self.boots}"
        self.apply(
            event(code, component, self.now, identity=name, boot=boot, trust=trust, fields=fields)
        )

    def boot(self) -> None:
        self.boots += 1
        self.apply(booted(f"boot-{self.boots}", self.now))

    def load_driver(self) -> None:
        for code in ("driver/loaded", "driver/neuron_loaded"):
            self.report(code, NODE, Trust.KERNEL, {"version": f"{self.events}.1"})

    def carry_out(self, finding: Finding) -> None:
        if finding.action is Action.REBOOT_NODE:
            self.boot()
        else:
            self.report("device/reset", finding.component, Trust.DAEMON, {})

    def clear_all(self) -> None:
        for finding in self.judge.open_findings:
            self.apply(act(CLEARED, finding, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.judge.expire_findings(self.now)
        self.check(f"after {seconds:.0f} s")

    def apply(self, one: Event) -> None:
        before = self.judge.open_findings
        self.judge.apply_event(one)
        self._note_remedies(before, self.catalog.find_rule(one.code).evidence)
        if one.trust is Trust.DAEMON:
            self.observed.append(one)
        self.check(one.code)
        self.now += _STEP_S

    def _note_remedies(self, before: tuple[Finding, ...], done: Evidence | None) -> None:
        """What was required before, and what the event closed of it by being its remedy."""
        if done not in (Evidence.REBOOT, Evidence.DEVICE_RESET):
            return
        left = {finding.id for finding in self.judge.open_findings}
        for finding in before:
            if finding.id not in left and finding.action in REMEDIES:
                fault = self.catalog.find_rule(finding.code).fault
                remedy = finding.action if done is Evidence.REBOOT else Action.RESET_DEVICE
                self.carried_out[finding.component, fault].append(remedy)

    def reload(self, catalog: Catalog) -> None:
        """Another catalogue, at a reload; the start after it changes nothing more."""
        self.catalog = catalog
        self.judge.reload_catalog(catalog, self.now)
        self.check("reload")
        self.restart()

    def restart(self) -> None:
        self.judge = Judge(self.catalog, self.judge.memory)
        for change in self.judge.reload_catalog(self.catalog, self.now):
            self.note_mistake(f"a restart changes {change.finding.code}: {change.cause}")

    # What must be so

    def find(self, subject: Subject) -> Finding | None:
        """The finding of the subject's code, if there is one."""
        return next(iter(self.list_of(subject)), None)

    def list_of(self, subject: Subject) -> list[Finding]:
        code = subject.rule.code
        return [finding for finding in self.judge.open_findings if finding.code == code]

    def note_mistake(self, mistake: str) -> None:
        if mistake not in self.mistakes:
            self.mistakes.append(mistake)

    def check(self, after: str) -> None:
        opened = self.judge.open_findings
        for finding in opened:
            so_far = self.strongest.get(finding.code, Action.NONE)
            self.strongest[finding.code] = Action.find_strongest((so_far, finding.action))
            for mistake in self.list_mistakes(finding):
                self.note_mistake(f"{after}: {finding.code} {finding.component.name}: {mistake}")
        for finding in find_due_repairs(opened, device_reset=False, idle=True).values():
            if not self.is_observed(finding):
                self.note_mistake(f"{after}: {finding.code}: a repair on the text of a log alone")

    def list_mistakes(self, finding: Finding) -> Iterator[str]:
        """The rules that the finding breaks."""
        rule = self.catalog.find_rule(finding.code)
        action = finding.action
        escalation = finding.escalation
        before = finding.requirement_before_escalation.action
        if is_carried(finding) or not (finding.has_failed_remedy or before.rank < action.rank):
            escalation = None  # another layer decides
        if escalation is not None and rule.apply_to(finding.fields).escalation == "none":
            yield f"escalation none, and yet {escalation.action.value}, as {escalation.reason}"
        if action is Action.REPLACE_NODE and rule.fault_class in SOFTWARE:
            yield f"class {rule.fault_class.value} replaces the node"
        if escalation is not None:
            yield from self._list_mistakes_of_escalation(finding, rule, escalation.action)
        steps = self.catalog.find_policy(rule, finding.fields).steps
        failed = self.carried_out[finding.component, rule.fault]
        if action in failed and any(step.of is action for step in steps):
            yield f"{action.value} is required again, though it failed"
        if finding.driver is None and action.rank > find_most(self.catalog, rule.code).rank:
            yield f"{action.value} is more than the table of docs/judgement.md says"
        if is_port(rule) and action.makes_unfit:
            yield f"a port requires {action.value}"
        costs = action.makes_unfit and finding.when is not When.MAINTENANCE
        if costs and not {SETTLING, UNDATED, DOUBTED}.isdisjoint(finding.fields):
            yield f"weak evidence requires {action.value}"
        if costs and any(
            name.endswith("_proven") and not finding.fields[name] for name in finding.fields
        ):
            yield f"a number that only the configuration says requires {action.value}"
        if ALIKE in finding.fields:
            alike = (finding.component, finding.action, finding.unusable, finding.escalation)
            if alike != (NODE, *find_alike_requirement(rule), None):
                yield f"devices alike: {alike}"

    def _list_mistakes_of_escalation(
        self, finding: Finding, rule: Rule, action: Action
    ) -> Iterator[str]:
        if action is Action.REPLACE_NODE and rule.fault_class is not FaultClass.HARDWARE:
            yield f"class {rule.fault_class.value} climbs to a replacement"
        policy = self.catalog.find_policy(rule, finding.fields)
        needed = [step.of for step in policy.steps if step.action is action]
        done = self.carried_out[finding.component, rule.fault]
        if not any(
            of is None or of.rank <= one.rank for of in needed for one in (*done, Action.NONE)
        ):
            yield f"{action.value}, and no remedy that it required was carried out"

    def is_observed(self, finding: Finding) -> bool:
        """Whether the fault itself was observed, or one that requires as much."""
        rules = [(self.catalog.find_rule(one.code), one) for one in self.observed]
        fault = self.catalog.find_rule(finding.code).fault
        own = any(rule.fault == fault for rule, _ in rules)
        asked = [rule.apply_to(one.fields).action for rule, one in rules]
        codes = {rule.code for rule, _ in rules}
        asked += [one.action for one in self.judge.open_findings if one.code in codes]
        return own or finding.action.rank <= Action.find_strongest(asked).rank


def is_port(rule: Rule) -> bool:
    return any(threshold.of == "link" for threshold in rule.thresholds)


@cache
def find_most(catalog: Catalog, code: str) -> Action:
    """The strongest action that the table says."""
    rule = catalog.find_rule(code)
    own = [
        rule.apply_to(fields).action for fields in ({}, *map(remedies_page.make_fields, rule.cases))
    ]
    climbed = (action for _, path in remedies_page.find_paths(catalog, rule) for action in path)
    steps = (step.action for step in catalog.find_policy(rule, {}).steps if step.of is None)
    return Action.find_strongest((*own, *climbed, *steps))


def find_alike_requirement(rule: Rule) -> tuple[Action, bool]:
    """What several devices alike require, and whether they are unusable."""
    if rule.shared_cause:
        return Action.INSPECT, True
    if rule.fault_class is FaultClass.HARDWARE:
        return rule.action, False
    return Action.OBSERVE, False


# --- stories

Story = Callable[[Node, Subject], None]


def see_once(node: Node, subject: Subject) -> None:
    """It requires what its entry says, and a line is not confirmed."""
    node.see(subject)
    found = node.find(subject)
    if found is None or found.action is not subject.action:
        node.note_mistake(f"it requires {found and found.action.value}")
    elif found.is_confirmed is subject.is_line and found.code != TOO_MANY:
        node.note_mistake(f"confirmed by {found.confirmed_by!r}")


def see_on_all_devices(node: Node, subject: Subject) -> None:
    """At once, boot after boot."""
    if subject.rule.component is ComponentKind.NODE:
        return
    for _ in range(3):
        for number in range(len(DEVICES)):
            node.see(subject, number)
        is_one = subject.rule.shared_cause or subject.rule.of_peers
        if is_one and len(node.list_of(subject)) != 1:
            node.note_mistake(f"{len(node.list_of(subject))} findings of devices alike")
        node.boot()


def see_after_planned_reboots(node: Node, subject: Subject) -> None:
    """A reboot that nothing required is no remedy that failed."""
    for _ in range(3):
        node.see(subject)
        node.clear_all()
        node.boot()
    see_once(node, subject)


def see_after_reboots(node: Node, subject: Subject) -> None:
    """Whatever it requires."""
    for _ in range(4):
        node.see(subject)
        node.boot()
    node.see(subject)


def see_after_its_remedies(node: Node, subject: Subject) -> None:
    """As long as it requires one."""
    for _ in range(5):
        node.see(subject)
        found = node.find(subject)
        if found is None or found.action not in REMEDIES:
            return
        node.carry_out(found)


def see_after_resets_of_other_cases(node: Node, subject: Subject) -> None:
    """Another case of the entry did not require the reset."""
    for fields in ({}, *map(remedies_page.make_fields, subject.rule.cases)):
        node.see(replace(subject, fields=fields))
        node.report("device/reset", subject.name_component(), Trust.DAEMON, {})
        node.see(subject)
        node.clear_all()


def see_another_case(node: Node, subject: Subject) -> None:
    """After its remedies failed; each case has its own policy, also after a restart."""
    for fields in ({}, *map(remedies_page.make_fields, subject.rule.cases)):
        see_after_its_remedies(node, subject)
        node.see(replace(subject, fields=fields))
        node.restart()
        node.clear_all()


def see_after_driver_loads(node: Node, subject: Subject) -> None:
    for _ in range(4):
        node.see(subject)
        node.load_driver()
    node.see(subject)
    node.boot()
    node.see(subject)


def see_often(node: Node, subject: Subject) -> None:
    """In many processes; then it waits for maintenance."""
    for number in range(10):
        node.see(subject, pid=100 + number, process="train", gpc=1, tpc=2)
    node.wait(MONTH_S)


def see_weakly(node: Node, subject: Subject) -> None:
    """States since the start; lines without a date, perhaps forged, or of a process."""
    weak = (UNDATED, DOUBTED, VOUCHED) if subject.is_line else (SETTLING,) * 3
    for name in weak:
        node.see(subject, **{name: name != VOUCHED})
        node.boot()


def see_too_late(node: Node, subject: Subject) -> None:
    """A line of the boot before: history, where a reboot ends the fault."""
    node.boot()
    node.boots -= 1
    node.see(subject)
    node.boots += 1
    ruling = subject.rule.apply_to(subject.fields)
    if subject.is_line and ruling.clears.reboot and node.find(subject) is not None:
        node.note_mistake("a line of the former boot opens a finding")


def see_beside_its_company(node: Node, subject: Subject) -> None:
    """Co-occurrence changes what it requires, before and after its remedy."""
    roles = node.catalog.correlation.find_roles(subject.rule.code)
    changed = [
        one for role in roles for one in role.rule.cooccurrences if one.code == subject.rule.code
    ]
    for one in changed:
        for code in one.beside:
            node.report(code, subject.name_component(), Trust.KERNEL, {})
            node.now -= _STEP_S
            see_after_its_remedies(node, subject)


def see_moved(node: Node, subject: Subject) -> None:
    """The board is moved to another slot, after its remedies."""
    see_after_its_remedies(node, subject)
    for number in (0, 1):
        component = subject.name_component(number)
        if component != NODE:
            node.report(
                "device/identity", component, Trust.DAEMON, {"uuid": "GPU-1", "serial": "1"}
            )


SINGLE: tuple[Story, ...] = (
    see_once,
    see_on_all_devices,
    see_after_planned_reboots,
    see_after_reboots,
    see_after_its_remedies,
    see_after_resets_of_other_cases,
    see_another_case,
    see_after_driver_loads,
    see_often,
    see_weakly,
    see_too_late,
    see_beside_its_company,
    see_moved,
)


@dataclass(slots=True)
class Outcome:
    """What some stories came to."""

    stories: int = 0
    mistakes: list[str] = field(default_factory=list)
    strongest: dict[str, Action] = field(default_factory=dict)  # by code of the subject
    confirmed_by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def run(self, catalog: Catalog, name: str, subject: Subject, story: Story) -> Node:
        node = Node(catalog)
        story(node, subject)
        node.restart()
        self.stories += 1
        code = subject.rule.code
        so_far = self.strongest.get(code, Action.NONE)
        self.strongest[code] = Action.find_strongest((so_far, node.strongest.get(code, so_far)))
        where = f"{name}: {code} {dict(subject.fields)}"
        self.mistakes += [f"{where}: {mistake}" for mistake in node.mistakes]
        return node


@cache
def load(profile: str, change: str = "") -> Catalog:
    """The catalogue of a profile, as shipped, or with a change to each of its entries."""
    shipped = load_catalog(profile)
    changed = {
        code: {**CHANGES[change], **({"clears": ["reboot"]} if not rule.action.rank else {})}
        for code, rule in shipped.rules.items()
        if change
    }
    return load_catalog(profile, changed) if changed else shipped


# What a site may change for any entry
CHANGES: dict[str, dict[str, object]] = {
    "no escalation": {"escalation": "none"},
    "inspect": {"action": "inspect", "cases": [], "also": []},
    "off": {"action": "none", "cases": [], "also": []},
    "another cause": {"class": "fabric"},
}


@cache
def run_story(profile: str, story: Story) -> Outcome:
    outcome = Outcome()
    for subject in list_of_profile(profile):
        outcome.run(load(profile), story.__name__, subject, story)
    return outcome


@cache
def run_change(profile: str, change: str) -> Outcome:
    """The configuration changes after it was seen and its remedies failed; then it is seen again."""

    def see(node: Node, subject: Subject) -> None:
        see_after_its_remedies(node, subject)
        node.reload(load(profile, change))
        node.see(subject)
        node.boot()
        node.see(subject)

    outcome = Outcome()
    for subject in list_of_profile(profile):
        outcome.run(load(profile), f"changed to {change}", subject, see)
    return outcome


@cache
def run_witnesses(profile: str) -> Outcome:
    """A line, and each thing that could be observed with it: after it, before it, and after a
    remedy of it failed.
    """
    outcome, catalog = Outcome(), load(profile)
    observed: dict[str, list[Subject]] = defaultdict(list)
    for subject in list_subjects(catalog):
        observed[subject.rule.code].append(subject)
    for line in list_of_profile(profile):
        if not line.is_line:
            continue
        for code in catalog.list_witness_codes(line.rule.code, line.rule.component):
            for witness in observed[code]:
                for order in ORDERS if line.action in REMEDIES else ORDERS[:2]:
                    for component in _list_components(catalog, line):
                        in_order = partial(order, component, witness)
                        node = outcome.run(catalog, f"{order.__name__} {code}", line, in_order)
                        found = node.find(line)
                        if found is None or found.confirmed_by:
                            outcome.confirmed_by[line.rule.code].add(code.partition("/")[0])
    return outcome


def _list_components(catalog: Catalog, line: Subject) -> set[Component]:
    """The device, and the node for lines that name none."""
    roles = catalog.correlation.find_roles(line.rule.code)
    of_node = any(role.rule.reach is Reach.NODE for role in roles)
    return {line.name_component(), NODE} if of_node else {line.name_component()}


def _observe(node: Node, component: Component, witness: Subject) -> None:
    """The witness, about the line's device if it may be."""
    kind = witness.rule.component
    same = kind in (component.kind, ComponentKind.PCI) and component != NODE
    node.see_on(component if same else witness.name_component(), witness)


def see_then_observe(component: Component, witness: Subject, node: Node, line: Subject) -> None:
    node.see_on(component, line)
    node.now -= _STEP_S - 1
    _observe(node, component, witness)


def observe_then_see(component: Component, witness: Subject, node: Node, line: Subject) -> None:
    _observe(node, component, witness)
    node.now -= _STEP_S - 1
    node.see_on(component, line)


def see_again_then_observe(
    component: Component, witness: Subject, node: Node, line: Subject
) -> None:
    see_after_its_remedies(node, line)
    node.now -= _STEP_S - 1
    _observe(node, line.name_component(), witness)


ORDERS = (see_then_observe, observe_then_see, see_again_then_observe)


def main() -> None:
    begun, stories = time.perf_counter(), 0
    for profile in PROFILES:
        for outcome in (
            *(run_story(profile, story) for story in SINGLE),
            *(run_change(profile, change) for change in CHANGES),
            run_witnesses(profile),
        ):
            stories += outcome.stories
            for mistake in outcome.mistakes:
                print(f"{profile}: {mistake}")
    print(f"{stories} stories in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
