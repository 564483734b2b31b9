"""
What a run means, as events.

Owns     which component a fault is of, what is confirmed by a second run, what a pass ends.
Refuses  deciding what to do about it: the catalogue rules, the judge decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.catalog import Catalog
from agent.diagnostics.report import Fault, Outcome, Run
from agent.model import NODE, Component, Event, Fields, Finding, Value
from agent.sources.facts import Facts

PASSED, FAILED, NOT_RUN, RAN = "diagnostic/passed", "diagnostic/failed", "diagnostic/not_run", "diagnostic/ran"
NEURON_PASSED = "diagnostic/neuron_passed"
_NOT_RUN_AFTER = 3  # runs in succession that came to nothing
_JUDGED = (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG)  # of these, what is not complained of is well
_TOO = {"dcgm_health": ("dcgm/engine_down",)}  # codes of another kind that a check finds, and sees end
Where = Callable[[int, str], "Component | None"]


@dataclass(slots=True)
class Seen:
    """What the runs before this one found, to be remembered: for a fault to be found twice, and for runs that come to nothing."""

    faults: set[str] = field(default_factory=set)  # `dcgm/58 gpu/0000:65:00.0`, of the last run that could see
    vain: dict[str, int] = field(default_factory=dict)  # by check: runs without a verdict, in succession

    @property
    def memory(self) -> dict[str, object]:
        return {"faults": sorted(self.faults), "vain": self.vain}

    @staticmethod
    def recall(memory: Mapping[str, object]) -> Seen:
        """Raises TypeError, ValueError, AttributeError."""
        faults, vain = memory.get("faults", []), memory.get("vain", {})
        if not isinstance(faults, list) or not isinstance(vain, dict):
            raise TypeError("not what was stored")
        return Seen({str(fault) for fault in faults}, {str(check): int(count) for check, count in vain.items()})


def events_of(run: Run, facts: Facts, catalog: Catalog, where: Where, seen: Seen, opened: Iterable[Finding]) -> list[Event]:
    """The facts of one run. `where`: the component of a GPU's index and serial, as far as one is known."""
    check, level, report = run.ask.check, run.ask.level, run.report
    common: dict[str, Value] = {"level": level, "check": check, "run": run.id}
    events = [facts.event(RAN, NODE, {**common, "outcome": report.outcome.value, "by": run.ask.by}, _said(run), moment=run.ended)]
    found: set[str] = set()
    told: set[tuple[Component, str]] = set()
    for fault in report.faults:
        component = _of(fault, report.serials, where)
        key = f"{fault.code} {component.name}"
        found.add(key)
        if (component, fault.code) in told:
            continue
        told.add((component, fault.code))
        fields = {**common, **_fields(fault), "confirmed": not fault.confirm or key in seen.faults}
        events.append(facts.event(fault.code, component, fields, f"{run.ask.words}: {fault.text}", moment=run.ended))
    if report.outcome in _JUDGED:
        seen.faults = {one for one in seen.faults if not one.startswith(f"{check}/")} | found
    events += _culprits(run, facts, common, where)
    events += _passed(run, facts, common, where)
    events += _recovered(run, facts, catalog, common, opened, told)
    events += _in_vain(run, facts, common, seen)
    return events


def _of(fault: Fault, serials: Mapping[int, str], where: Where) -> Component:
    if fault.gpu is not None:
        return where(fault.gpu, serials.get(fault.gpu, "")) or NODE
    if fault.device and "/" in fault.device:
        try:
            return Component.parse(fault.device)
        except ValueError:
            return NODE
    return NODE


def _fields(fault: Fault) -> Fields:
    fields: dict[str, Value] = {"test": fault.test, "fault": fault.remedy.value}
    fields |= {name: value for name, value in (("gpu", fault.gpu), ("errorId", fault.error_id)) if value is not None}
    fields |= {name: value for name, value in (("severity", fault.severity), ("category", fault.category)) if value is not None}
    return {**fields, **({"device": fault.device} if fault.device else {})}


def _culprits(run: Run, facts: Facts, common: Fields, where: Where) -> list[Event]:
    """A failed diagnostic counts in the record of each device that is to blame."""
    if run.report.outcome is not Outcome.FAIL:
        return []
    events = []
    for gpu in run.report.culprits:
        tests = sorted({fault.test for fault in run.report.faults if fault.gpu == gpu})
        component = where(gpu, run.report.serials.get(gpu, ""))
        if component is not None:
            fields = {**common, "gpu": gpu, "test": ", ".join(tests)}
            events.append(facts.event(FAILED, component, fields, f"{run.ask.words} failed on GPU {gpu}", moment=run.ended))
    return events


def _passed(run: Run, facts: Facts, common: Fields, where: Where) -> list[Event]:
    if run.report.outcome is not Outcome.PASS:
        return []
    said = f"{run.ask.words} passed"
    if run.ask.check == "nccom":
        return [facts.event(NEURON_PASSED, NODE, {**common, "level": 3}, said, moment=run.ended)]
    if run.ask.check != "dcgm":
        return []
    # An event of the node speaks for all its GPUs.
    tested: Collection[Component | None] = [where(gpu, "") for gpu in run.ask.gpus] if run.ask.gpus else [NODE]
    return [facts.event(PASSED, component, common, said, moment=run.ended) for component in tested if component is not None]


def _recovered(
    run: Run, facts: Facts, catalog: Catalog, common: Fields, opened: Iterable[Finding], told: Collection[tuple[Component, str]]
) -> list[Event]:
    """What lasts until it is over, and was not found again."""
    if run.report.outcome not in _JUDGED or run.ask.gpus:
        return []
    over = [
        finding
        for finding in opened
        if (finding.code.partition("/")[0] == run.ask.check or finding.code in _TOO.get(run.ask.check, ()))
        and not (finding.simulated or finding.shadow)
        and (finding.component, finding.code) not in told
        and catalog.rule(finding.code).state
        and _level(finding) <= run.ask.level
    ]
    fields: Fields = {**common, "recovered": True}
    return [facts.event(one.code, one.component, fields, f"{run.ask.words}: not found any more", moment=run.ended) for one in over]


def _level(finding: Finding) -> int:
    level = finding.fields.get("level", 0)
    return level if isinstance(level, int) else 0


def _in_vain(run: Run, facts: Facts, common: Fields, seen: Seen) -> list[Event]:
    """Runs that come to nothing one after the other: then nobody knows, and somebody should."""
    check = run.ask.check
    if run.preempted:
        return []
    if run.report.outcome in _JUDGED:
        before = seen.vain.pop(check, 0)
        if before >= _NOT_RUN_AFTER:
            return [facts.event(NOT_RUN, NODE, {**common, "recovered": True}, f"{run.ask.words} runs again", moment=run.ended)]
        return []
    if run.report.outcome is Outcome.NOT_APPLICABLE:
        return []
    seen.vain[check] = seen.vain.get(check, 0) + 1
    if seen.vain[check] < _NOT_RUN_AFTER:
        return []
    said = f"{run.ask.words} came to nothing {seen.vain[check]} times in succession: {run.report.reason}"
    return [facts.event(NOT_RUN, NODE, common, said, moment=run.ended)]


def _said(run: Run) -> str:
    if run.preempted:
        return f"{run.ask.words} made room for {run.preempted}"
    reason = f": {run.report.reason}" if run.report.reason else ""
    return f"{run.ask.words}: {run.report.outcome.value}{reason}"
