"""
Converts runs to events: which component a fault belongs to, whether a second run confirmed it,
and what a pass resolves. The catalogue and the judge decide what to do about it.

A run without a verdict (preempted, stopped, or unable to test) changes nothing: of its faults only
those are reported that explain why it could not test.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics.coverage import DeviceLookup, find_gpu, find_tested
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import Fault, Report, Run, RunRequest
from vitald.model.event import SITE_CHECK, Event, Fields, Value
from vitald.model.finding import Finding
from vitald.model.words import ComponentKind, Outcome, Remedy

PASSED, FAILED, NOT_RUN, RAN = (
    "diagnostic/passed",
    "diagnostic/failed",
    "diagnostic/not_run",
    "diagnostic/ran",
)
NEURON_PASSED = "diagnostic/neuron_passed"
_ENGINE_DOWN = "dcgm/engine_down"
_WHY_NOT = (_ENGINE_DOWN, "dcgm_health/stalled")  # reported for runs without a verdict, too
# Codes of another kind that a check reports and resolves.
_OTHER_KINDS = {"dcgm": (_ENGINE_DOWN,), "dcgm_health": (_ENGINE_DOWN,)}
_NOT_RUN_AFTER = 3  # successive runs without a verdict
_RAN = ("pass", "fail", "warn")  # statuses of a test that was carried out
_MAX_UNCONFIRMED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedFault:
    """A fault that must be found twice, and was found once."""

    check: str
    level: int
    test: str
    code: str
    identity: str  # the identity of its device
    device: str = ""


@dataclass(slots=True)
class RunMemory:
    """What is kept from one run to the next: unconfirmed faults, and runs without a verdict."""

    unconfirmed: set[UnconfirmedFault] = field(default_factory=set)
    # By `dcgm level 2`: the number of successive runs without a verdict.
    failed_runs: dict[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> dict[str, object]:
        once = sorted(
            [fault.check, fault.level, fault.test, fault.code, fault.identity, fault.device]
            for fault in self.unconfirmed
        )
        return {"once": once, "vain": self.failed_runs}

    @staticmethod
    def from_memory(memory: Mapping[str, object]) -> RunMemory:
        """Raises TypeError, ValueError, AttributeError."""
        once, vain = memory.get("once", []), memory.get("vain", {})
        if not isinstance(once, list) or not isinstance(vain, dict):
            raise TypeError("not what was stored")
        found = {
            UnconfirmedFault(
                check=str(check),
                level=int(level),
                test=str(test),
                code=str(code),
                identity=str(who),
                device=str(device),
            )
            for check, level, test, code, who, device in once
        }
        return RunMemory(found, {str(check): int(count) for check, count in vain.items()})

    def has_found(self, code: str, who: str, device: str) -> bool:
        return any(
            (fault.code, fault.identity, fault.device) == (code, who, device)
            for fault in self.unconfirmed
        )


def make_events(
    run: Run,
    facts: EventFactory,
    catalog: Catalog,
    places: DeviceLookup,
    seen: RunMemory,
    opened: Sequence[Finding],
    *,
    cut: bool = False,
) -> list[Event]:
    """The events of one run. `cut`: it was stopped, so it counts not as a run without a verdict."""
    common: dict[str, Value] = {
        "level": run.request.level,
        "check": run.request.check,
        "run": run.id,
    }
    found: set[UnconfirmedFault] = set()
    fault_events = _make_fault_events(run, facts, common, places, seen, found)
    events = [make_run_event(run, facts), *fault_events]
    if run.report.outcome.is_verdict:
        tested = find_tested(run.request, run.report, places)
        _update_memory(
            run,
            seen,
            found,
            None if tested is None else set(map(places.get_identity, tested)),
        )
        events += _make_failed_events(run, facts, common, places, opened)
        events += _make_passed_events(run, facts, common, tested)
        reported = {(event.component, event.code) for event in fault_events}
        events += _make_recovery_events(run, facts, catalog, common, opened, reported, tested)
    events += _make_not_run_events(run, facts, common, seen, opened, cut=cut)
    return events


def _make_fault_events(
    run: Run,
    facts: EventFactory,
    common: Fields,
    places: DeviceLookup,
    seen: RunMemory,
    unconfirmed: set[UnconfirmedFault],
) -> list[Event]:
    """An event for each distinct fault. Adds those that must be found twice to `unconfirmed`."""
    events: list[Event] = []
    reported: set[tuple[Component, str, str]] = set()
    for fault in run.report.faults:
        if not run.report.outcome.is_verdict and fault.code not in _WHY_NOT:
            continue
        component = _find_component(fault, run.report, places)
        if (component, fault.code, fault.device) in reported:
            continue
        reported.add((component, fault.code, fault.device))
        identity = places.get_identity(component)
        if fault.confirm:
            unconfirmed.add(
                UnconfirmedFault(
                    check=run.request.check,
                    level=run.request.level,
                    test=fault.test,
                    code=fault.code,
                    identity=identity,
                    device=fault.device,
                )
            )
        confirmed = not fault.confirm or seen.has_found(fault.code, identity, fault.device)
        fields = {**common, **_fault_fields(fault), "confirmed": confirmed}
        text = f"{run.request.label}: {fault.text}"
        events.append(facts.make_event(fault.code, component, fields, text, moment=run.ended))
    return events


def mark_confirmed(run: Run, places: DeviceLookup, seen: RunMemory) -> Run:
    """The run with confirmed faults marked. Unconfirmed ones require no reboot or replacement."""
    report = run.report
    if report.outcome is not Outcome.FAIL:
        return run
    faults = tuple(
        replace(
            fault,
            confirmed=seen.has_found(
                fault.code,
                places.get_identity(_find_component(fault, report, places)),
                fault.device,
            ),
        )
        if fault.confirm
        else fault
        for fault in report.faults
    )
    remedies = {fault.remedy for fault in faults if fault.is_certain}
    return replace(
        run,
        report=replace(
            report,
            faults=faults,
            reboot_required=report.reboot_required
            and bool(remedies & {Remedy.RESET_GPU, Remedy.REBOOT}),
            replacement_required=report.replacement_required and Remedy.REPLACE in remedies,
        ),
    )


def make_run_event(run: Run, facts: EventFactory) -> Event:
    """The event that the run took place. It requires no action."""
    fields: Fields = {
        "level": run.request.level,
        "check": run.request.check,
        "run": run.id,
        "outcome": run.report.outcome.value,
        "by": run.request.by,
    }
    return facts.make_event(RAN, NODE, fields, _describe_run(run), moment=run.ended)


def _find_component(fault: Fault, report: Report, places: DeviceLookup) -> Component:
    if fault.gpu is not None:
        return find_gpu(fault.gpu, report, places) or NODE
    if fault.device and "/" in fault.device:
        try:
            return Component.parse_name(fault.device)
        except ValueError:
            return NODE
    return NODE


def _fault_fields(fault: Fault) -> Fields:
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


def _update_memory(
    run: Run, seen: RunMemory, found: Collection[UnconfirmedFault], tested: Collection[str] | None
) -> None:
    """What a run could have found again and did not is forgotten: at this level, of these devices,
    by a test that was carried out.
    """
    carried_out = {
        test.name
        for test in run.report.tests
        if any(status.lower() in _RAN for status in (test.status, *test.gpus.values()))
    }
    again = {(fault.code, fault.identity, fault.device) for fault in found}

    def refuted(fault: UnconfirmedFault) -> bool:
        if (fault.code, fault.identity, fault.device) in again:
            return True  # remembered anew, with the level that found it
        was_tested = (
            run.report.outcome is Outcome.PASS or not run.report.tests or fault.test in carried_out
        )
        return (
            fault.check == run.request.check
            and fault.level <= run.request.level
            and was_tested
            and (tested is None or fault.identity in tested)
        )

    seen.unconfirmed = set(sorted(found, key=str)[:_MAX_UNCONFIRMED]) | {
        fault for fault in seen.unconfirmed if not refuted(fault)
    }
    while len(seen.unconfirmed) > _MAX_UNCONFIRMED:
        seen.unconfirmed.pop()


def _make_failed_events(
    run: Run, facts: EventFactory, common: Fields, places: DeviceLookup, opened: Iterable[Finding]
) -> list[Event]:
    """A failed diagnostic counts in the record of each device to blame: once, as long as the
    findings it caused are open.
    """
    if run.report.outcome is not Outcome.FAIL:
        return []
    standing = {(finding.component, finding.code) for finding in opened if not finding.is_simulated}
    events = []
    for gpu in run.report.culprits:
        component = find_gpu(gpu, run.report, places)
        faults = [fault for fault in run.report.faults if fault.gpu == gpu]
        if component is None or (
            faults and all((component, fault.code) in standing for fault in faults)
        ):
            continue
        fields = {**common, "gpu": gpu, "test": ", ".join(sorted({fault.test for fault in faults}))}
        events.append(
            facts.make_event(
                FAILED,
                component,
                fields,
                f"{run.request.label} failed on GPU {gpu}",
                moment=run.ended,
            )
        )
    return events


def _make_passed_events(
    run: Run, facts: EventFactory, common: Fields, tested: AbstractSet[Component] | None
) -> list[Event]:
    if run.report.outcome is not Outcome.PASS:
        return []
    text = f"{run.request.label} passed"
    if run.request.check == "nccom":
        return [
            facts.make_event(NEURON_PASSED, NODE, {**common, "level": 3}, text, moment=run.ended)
        ]
    if run.request.check != "dcgm":
        return []
    # An event of the node applies to all its GPUs, switches and slots.
    components = [NODE] if tested is None else sorted(tested, key=lambda component: component.name)
    return [
        facts.make_event(PASSED, component, common, text, moment=run.ended)
        for component in components
    ]


def _make_recovery_events(
    run: Run,
    facts: EventFactory,
    catalog: Catalog,
    common: Fields,
    opened: Iterable[Finding],
    reported: Collection[tuple[Component, str]],
    tested: AbstractSet[Component] | None,
) -> list[Event]:
    """Events that end lasting findings which the run did not find again, where it tested."""
    # With wrong settings only DCGM still tests the hardware.
    was_tested = run.report.outcome in (Outcome.PASS, Outcome.FAIL) or run.request.check == "dcgm"
    if run.request.gpus or not was_tested:
        return []
    over = [
        finding
        for finding in opened
        if _is_found_by(run.request.check, finding)
        and (finding.component, finding.code) not in reported
        and _was_tested(finding.component, tested)
        and catalog.find_rule(finding.code).state
        # Any level needs the engine.
        and (finding.code == _ENGINE_DOWN or level_of(finding) <= run.request.level)
    ]
    text = f"{run.request.label}: not found any more"
    return [_make_recovered_event(finding, facts, common, text, run.ended) for finding in over]


def _was_tested(component: Component, tested: AbstractSet[Component] | None) -> bool:
    return component.kind is not ComponentKind.GPU or tested is None or component in tested


def _is_found_by(check: str, finding: Finding) -> bool:
    """Whether a finding is one that the runs of a check find and resolve."""
    if finding.is_simulated:
        return False
    kind, _, name = finding.code.partition("/")
    if kind == SITE_CHECK:
        return name == check
    # A check of the site may have the name of a kind of other findings, such as `xid`.
    own = kind == check and finding.fields.get("check") == check
    return own or finding.code in _OTHER_KINDS.get(check, ())


def _make_recovered_event(
    finding: Finding, facts: EventFactory, common: Fields, text: str, moment: float | None = None
) -> Event:
    fields: Fields = {**common, "recovered": True}
    return facts.make_event(finding.code, finding.component, fields, text, moment=moment)


def make_removed_events(
    checks: Collection[str], facts: EventFactory, opened: Iterable[Finding]
) -> list[Event]:
    """Events that end what only a check resolves that is not configured any more."""
    return [
        _make_recovered_event(finding, facts, {"check": check}, f"[checks.{check}] was removed")
        for finding in opened
        if not finding.is_simulated
        and (check := _find_resolving_check(finding))
        and check not in checks
    ]


def _find_resolving_check(finding: Finding) -> str:
    """The check whose runs alone resolve it, by its code or its component; "" if others do, too."""
    kind, _, name = finding.code.partition("/")
    if kind == SITE_CHECK:
        return name
    return finding.component.id.partition("-")[0] if finding.code == NOT_RUN else ""


def level_of(finding: Finding) -> int:
    """The run level at which a diagnostic found it; 0 if none did."""
    level = finding.fields.get("level", 0)
    return level if isinstance(level, int) else 0


def _make_not_run_events(
    run: Run,
    facts: EventFactory,
    common: Fields,
    seen: RunMemory,
    opened: Iterable[Finding],
    *,
    cut: bool,
) -> list[Event]:
    """A finding after several successive runs without a verdict, and its end."""
    name, where = run.request.label, name_component(run.request)
    if run.report.outcome.is_verdict:
        before = seen.failed_runs.pop(name, 0)
        is_open = any(
            (finding.component, finding.code) == (where, NOT_RUN) and not finding.is_simulated
            for finding in opened
        )
        if before >= _NOT_RUN_AFTER or is_open:
            return [
                facts.make_event(
                    NOT_RUN,
                    where,
                    {**common, "recovered": True},
                    f"{name} runs again",
                    moment=run.ended,
                )
            ]
        return []
    # Requests for some GPUs only, or beside other work, do not count.
    if (
        cut
        or run.preempted
        or run.report.outcome is Outcome.NOT_APPLICABLE
        or run.request.gpus
        or run.request.busy
    ):
        return []
    seen.failed_runs[name] = min(seen.failed_runs.get(name, 0) + 1, 10**6)
    if seen.failed_runs[name] < _NOT_RUN_AFTER:
        return []
    text = (
        f"{name} came to nothing {seen.failed_runs[name]} times in succession: {run.report.reason}"
    )
    return [facts.make_event(NOT_RUN, where, common, text, moment=run.ended)]


def name_component(request: RunRequest) -> Component:
    """The part of the node that findings on the runs of a check and level are about."""
    return Component(ComponentKind.NODE, request.label.replace(" level ", "-"))


def _describe_run(run: Run) -> str:
    if run.preempted:
        return f"{run.request.label} made room for {run.preempted}"
    reason = f": {run.report.reason}" if run.report.reason else ""
    return f"{run.request.label}: {run.report.outcome.value}{reason}"
