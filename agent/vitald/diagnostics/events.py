"""
What a run means, as events.

Owns     which component a fault is of, what is confirmed by a second run, what a pass ends.
Refuses  deciding what to do about it: the catalogue rules, the judge decides.

A run without a verdict (it made room, was ended, could not look) changes nothing: of what it
complains of only that which says why it could not look is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Protocol

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory
from vitald.model import NODE, Component, ComponentKind, Event, Fields, Finding, Value
from vitald.model.diagnostic import Fault, Outcome, Remedy, Run

PASSED, FAILED, NOT_RUN, RAN = (
    "diagnostic/passed",
    "diagnostic/failed",
    "diagnostic/not_run",
    "diagnostic/ran",
)
NEURON_PASSED = "diagnostic/neuron_passed"
_ENGINE_DOWN = "dcgm/engine_down"
_WHY_NOT = (_ENGINE_DOWN, "dcgm_health/stalled")  # told of runs without a verdict, too
_TOO = {"dcgm_health": (_ENGINE_DOWN,)}  # codes of another kind that a check finds, and sees end
_NOT_RUN_AFTER = 3  # runs in succession that came to nothing
_JUDGED = (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG)
_RAN = ("pass", "fail", "warn")  # statuses of a test that was carried out
_ONCE_MOST = 1024


class Places(Protocol):
    """Which component is meant."""

    def gpu(self, index: int, serial: str = "") -> Component | None:
        """By a tool's number and the serial number that it printed; None where it is not known."""

    def gpus(self) -> AbstractSet[Component]:
        """All that should be tested where all are."""

    def identity(self, component: Component) -> str:
        """What stays with a device that is moved, and differs for one that is put in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """A fault that is believed only when it is found twice, and was found once."""

    check: str
    level: int
    test: str
    code: str
    who: str  # the identity of its device
    device: str = ""


@dataclass(slots=True)
class Seen:
    """What the runs before this one found, to be remembered: for a fault to be found twice, and for
    runs that come to nothing.
    """

    once: set[Once] = field(default_factory=set)
    vain: dict[str, int] = field(
        default_factory=dict
    )  # by `dcgm level 2`: runs without a verdict, in succession

    @property
    def memory(self) -> dict[str, object]:
        once = sorted(
            [one.check, one.level, one.test, one.code, one.who, one.device] for one in self.once
        )
        return {"once": once, "vain": self.vain}

    @staticmethod
    def recall(memory: Mapping[str, object]) -> Seen:
        """Raises TypeError, ValueError, AttributeError."""
        once, vain = memory.get("once", []), memory.get("vain", {})
        if not isinstance(once, list) or not isinstance(vain, dict):
            raise TypeError("not what was stored")
        found = {
            Once(
                check=str(check),
                level=int(level),
                test=str(test),
                code=str(code),
                who=str(who),
                device=str(device),
            )
            for check, level, test, code, who, device in once
        }
        return Seen(found, {str(check): int(count) for check, count in vain.items()})

    def before(self, code: str, who: str, device: str) -> bool:
        return any((one.code, one.who, one.device) == (code, who, device) for one in self.once)


def events_of(
    run: Run,
    facts: EventFactory,
    catalog: Catalog,
    places: Places,
    seen: Seen,
    opened: Sequence[Finding],
    *,
    cut: bool = False,
) -> list[Event]:
    """The facts of one run. `cut`: it was told to end, so that it came to nothing says nothing."""
    check, level, report = run.ask.check, run.ask.level, run.report
    common: dict[str, Value] = {"level": level, "check": check, "run": run.id}
    events = [ran(run, facts)]
    judged = report.outcome in _JUDGED
    found: set[Once] = set()
    told: set[tuple[Component, str, str]] = set()
    for fault in report.faults:
        if not (judged or fault.code in _WHY_NOT):
            continue
        component = _of(fault, report.serials, places)
        if (component, fault.code, fault.device) in told:
            continue
        told.add((component, fault.code, fault.device))
        who = places.identity(component)
        if fault.confirm:
            found.add(
                Once(
                    check=check,
                    level=level,
                    test=fault.test,
                    code=fault.code,
                    who=who,
                    device=fault.device,
                )
            )
        confirmed = not fault.confirm or seen.before(fault.code, who, fault.device)
        fields = {**common, **_fields(fault), "confirmed": confirmed}
        events.append(
            facts.event(
                fault.code, component, fields, f"{run.ask.words}: {fault.text}", moment=run.ended
            )
        )
    if judged:
        tested = _tested(run, places)
        _remember(
            run, seen, found, None if tested is None else {places.identity(one) for one in tested}
        )
        events += _culprits(run, facts, common, places, opened)
        events += _passed(run, facts, common, tested)
        events += _recovered(
            run, facts, catalog, common, opened, {(component, code) for component, code, _ in told}
        )
    events += _in_vain(run, facts, common, seen, opened, cut=cut)
    return events


def confirmed(run: Run, places: Places, seen: Seen) -> Run:
    """The run as one of several: what must be found twice raises no flag of it before it was."""
    report = run.report
    if report.outcome is not Outcome.FAIL:
        return run
    faults = tuple(
        replace(
            fault,
            confirmed=seen.before(
                fault.code, places.identity(_of(fault, report.serials, places)), fault.device
            ),
        )
        if fault.confirm
        else fault
        for fault in report.faults
    )
    asked = {fault.remedy for fault in faults if fault.certain}
    return replace(
        run,
        report=replace(
            report,
            faults=faults,
            reboot_required=report.reboot_required
            and bool(asked & {Remedy.RESET_GPU, Remedy.REBOOT}),
            replacement_required=report.replacement_required and Remedy.REPLACE in asked,
        ),
    )


def ran(run: Run, facts: EventFactory) -> Event:
    """That it was run. It asks for nothing."""
    fields: Fields = {
        "level": run.ask.level,
        "check": run.ask.check,
        "run": run.id,
        "outcome": run.report.outcome.value,
        "by": run.ask.by,
    }
    return facts.event(RAN, NODE, fields, _said(run), moment=run.ended)


def _of(fault: Fault, serials: Mapping[int, str], places: Places) -> Component:
    if fault.gpu is not None:
        return places.gpu(fault.gpu, serials.get(fault.gpu, "")) or NODE
    if fault.device and "/" in fault.device:
        try:
            return Component.parse(fault.device)
        except ValueError:
            return NODE
    return NODE


def _fields(fault: Fault) -> Fields:
    fields: dict[str, Value] = {"test": fault.test, "fault": fault.remedy.value}
    fields |= {
        name: value
        for name, value in (("gpu", fault.gpu), ("errorId", fault.error_id))
        if value is not None
    }
    fields |= {
        name: value
        for name, value in (("severity", fault.severity), ("category", fault.category))
        if value is not None
    }
    return {**fields, **({"device": fault.device} if fault.device else {})}


def _tested(run: Run, places: Places) -> AbstractSet[Component] | None:
    """The GPUs that were tested; None where they were all of them, or nothing says that they were
    not.
    """
    report = run.report
    if run.ask.gpus:
        indexes = set(run.ask.gpus)
    else:
        indexes = set(report.serials) | {
            int(one) for test in report.tests for one in test.gpus if one.isdecimal()
        }
        many = len(report.device_ids)
        if not indexes or len(indexes) < many:  # it does not say which
            return None if not many or many >= len(places.gpus()) else frozenset()
    found = {places.gpu(index, report.serials.get(index, "")) for index in indexes} - {None}
    tested = frozenset(one for one in found if one is not None)
    return None if not run.ask.gpus and places.gpus() <= tested else tested


def _remember(
    run: Run, seen: Seen, found: Collection[Once], tested: Collection[str] | None
) -> None:
    """What a run could have found again and did not is forgotten: at this level, of these devices,
    by a test that was carried out.
    """
    carried_out = {
        test.name
        for test in run.report.tests
        if any(one.lower() in _RAN for one in (test.status, *test.gpus.values()))
    }
    again = {(one.code, one.who, one.device) for one in found}

    def refuted(one: Once) -> bool:
        if (one.code, one.who, one.device) in again:
            return True  # it is remembered anew, with the level that sees it
        looked = (
            run.report.outcome is Outcome.PASS or not run.report.tests or one.test in carried_out
        )
        return (
            one.check == run.ask.check
            and one.level <= run.ask.level
            and looked
            and (tested is None or one.who in tested)
        )

    seen.once = set(sorted(found, key=str)[:_ONCE_MOST]) | {
        one for one in seen.once if not refuted(one)
    }
    while len(seen.once) > _ONCE_MOST:
        seen.once.pop()


def _culprits(
    run: Run, facts: EventFactory, common: Fields, places: Places, opened: Iterable[Finding]
) -> list[Event]:
    """A failed diagnostic counts in the record of each device that is to blame: once, as long as
    what it found stands.
    """
    if run.report.outcome is not Outcome.FAIL:
        return []
    standing = {(one.component, one.code) for one in opened if not (one.simulated or one.shadow)}
    events = []
    for gpu in run.report.culprits:
        component = places.gpu(gpu, run.report.serials.get(gpu, ""))
        mine = [fault for fault in run.report.faults if fault.gpu == gpu]
        if component is None or (
            mine and all((component, fault.code) in standing for fault in mine)
        ):
            continue
        fields = {**common, "gpu": gpu, "test": ", ".join(sorted({fault.test for fault in mine}))}
        events.append(
            facts.event(
                FAILED, component, fields, f"{run.ask.words} failed on GPU {gpu}", moment=run.ended
            )
        )
    return events


def _passed(
    run: Run, facts: EventFactory, common: Fields, tested: AbstractSet[Component] | None
) -> list[Event]:
    if run.report.outcome is not Outcome.PASS:
        return []
    said = f"{run.ask.words} passed"
    if run.ask.check == "nccom":
        return [facts.event(NEURON_PASSED, NODE, {**common, "level": 3}, said, moment=run.ended)]
    if run.ask.check != "dcgm":
        return []
    # An event of the node speaks for all its GPUs, switches and slots.
    whom = [NODE] if tested is None else sorted(tested, key=lambda one: one.name)
    return [facts.event(PASSED, component, common, said, moment=run.ended) for component in whom]


def _recovered(
    run: Run,
    facts: EventFactory,
    catalog: Catalog,
    common: Fields,
    opened: Iterable[Finding],
    told: Collection[tuple[Component, str]],
) -> list[Event]:
    """What lasts until it is over, and was not found again."""
    looked = (
        run.report.outcome in (Outcome.PASS, Outcome.FAIL) or run.ask.check == "dcgm"
    )  # with wrong settings others measure nothing
    if run.ask.gpus or not looked:
        return []
    over = [
        finding
        for finding in opened
        if (
            finding.code.partition("/")[0] == run.ask.check
            or finding.code in _TOO.get(run.ask.check, ())
        )
        and not (finding.simulated or finding.shadow)
        and (finding.component, finding.code) not in told
        and catalog.rule(finding.code).state
        and (
            finding.code == _ENGINE_DOWN or level_of(finding) <= run.ask.level
        )  # any level needs the engine
    ]
    fields: Fields = {**common, "recovered": True}
    return [
        facts.event(
            one.code,
            one.component,
            fields,
            f"{run.ask.words}: not found any more",
            moment=run.ended,
        )
        for one in over
    ]


def level_of(finding: Finding) -> int:
    """At which level a diagnostic found it."""
    level = finding.fields.get("level", 0)
    return level if isinstance(level, int) else 0


def _in_vain(
    run: Run,
    facts: EventFactory,
    common: Fields,
    seen: Seen,
    opened: Iterable[Finding],
    *,
    cut: bool,
) -> list[Event]:
    """Runs that come to nothing one after the other: then nobody knows, and somebody should."""
    name = run.ask.words
    where = Component(ComponentKind.NODE, name.replace(" level ", "-"))
    if run.report.outcome in _JUDGED:
        before = seen.vain.pop(name, 0)
        stands = any(
            (one.component, one.code) == (where, NOT_RUN) and not (one.simulated or one.shadow)
            for one in opened
        )
        if before >= _NOT_RUN_AFTER or stands:
            return [
                facts.event(
                    NOT_RUN,
                    where,
                    {**common, "recovered": True},
                    f"{name} runs again",
                    moment=run.ended,
                )
            ]
        return []
    # What somebody asked for on some GPUs, or beside other work, is their own affair.
    if (
        cut
        or run.preempted
        or run.report.outcome is Outcome.NOT_APPLICABLE
        or run.ask.gpus
        or run.ask.busy
    ):
        return []
    seen.vain[name] = min(seen.vain.get(name, 0) + 1, 10**6)
    if seen.vain[name] < _NOT_RUN_AFTER:
        return []
    said = f"{name} came to nothing {seen.vain[name]} times in succession: {run.report.reason}"
    return [facts.event(NOT_RUN, where, common, said, moment=run.ended)]


def _said(run: Run) -> str:
    if run.preempted:
        return f"{run.ask.words} made room for {run.preempted}"
    reason = f": {run.report.reason}" if run.report.reason else ""
    return f"{run.ask.words}: {run.report.outcome.value}{reason}"
