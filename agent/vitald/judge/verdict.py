"""
The node's verdict, computed from its open findings and the freshness of its sources.

Owns     the order of the states, the two flags, and what is due in which phase of a job.
Refuses  clocks, devices and the ledger: everything comes in as an argument.

A verdict never improves by age. An Xid 79 that left the kernel's ring is still a GPU off the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vitald.model.finding import Finding, FindingKey, Incident, Verdict
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import Action, Repair, Status, WorkPhase

DescribeComponent = Callable[[Finding], str]


def get_component_name(finding: Finding) -> str:
    """The component of a finding, where no other names of its device are known."""
    return finding.component.name


def compute_verdict(
    findings: Sequence[Finding],
    sources: Sequence[SourceHealth],
    monotonic: float,
    incidents: Mapping[int, Incident] | None = None,
    *,
    device_reset: bool = False,
    work: WorkPhase = WorkPhase.RUNNING,
    describe: DescribeComponent = get_component_name,
) -> Verdict:
    """The verdict at the time `monotonic`, in seconds on the clock of `SourceHealth.polled_at`.

    `device_reset`: the site resets devices itself, so a reset does not require a reboot.
    `describe`: names the component of a finding so that its device can be found.
    """
    stale = [source for source in sources if not source.is_fresh(monotonic)]
    status = compute_status(findings, work)
    if stale and status is not Status.UNHEALTHY:
        status = Status.UNKNOWN
    required: dict[Repair, list[Finding]] = {repair: [] for repair in Repair}
    for finding in findings:
        repair = finding.action.choose_repair(device_reset=device_reset)
        if repair is not None and not finding.is_deferred:
            required[repair].append(finding)
    rebooting, replacing = required[Repair.REBOOT], required[Repair.REPLACE]
    return Verdict(
        status=status,
        action=Action.find_strongest(
            Action.OBSERVE if finding.is_deferred else finding.action for finding in findings
        ),
        reboot_required=bool(rebooting),
        reboot_confirmed=any(finding.is_confirmed for finding in rebooting),
        replacement_required=bool(replacing),
        replacement_confirmed=any(finding.is_confirmed for finding in replacing),
        simulated=any(finding.is_simulated for finding in findings),
        reasons=(
            *format_reasons(findings, incidents or {}, describe),
            *map(_format_silence, stale),
        ),
    )


def compute_status(findings: Sequence[Finding], work: WorkPhase = WorkPhase.RUNNING) -> Status:
    """The status that findings alone give a node or a component."""
    if any(finding.makes_unfit(between_jobs=work is not WorkPhase.RUNNING) for finding in findings):
        return Status.UNHEALTHY
    if any(finding.unknown for finding in findings):
        return Status.UNKNOWN
    return Status.DEGRADED if findings else Status.HEALTHY


def sort_by_strength(findings: Sequence[Finding]) -> list[Finding]:
    """Findings sorted by their requirement, the strongest first; of equals, the older."""
    return sorted(findings, key=_rank_finding)


def _rank_finding(finding: Finding) -> tuple[bool, int, bool, int, float, int]:
    """Sort key: the action decides first, then whether the device is unusable, then the urgency."""
    requirement = finding.requirement
    return (
        finding.is_deferred,
        -requirement.action.rank,
        not finding.unusable,
        -requirement.when.urgency,
        finding.since,
        finding.id,
    )


def group_by_incident(
    findings: Sequence[Finding], incidents: Mapping[int, Incident]
) -> list[tuple[Finding, list[Finding]]]:
    """The findings of each incident, the strongest incident first: the head (the finding of its
    root, if that is open), and all of its findings.
    """
    together: dict[int | FindingKey, list[Finding]] = {}
    for finding in sort_by_strength(findings):
        together.setdefault(finding.incident or finding.key, []).append(finding)
    lines = []
    for own in together.values():
        incident = incidents.get(own[0].incident)
        root = incident.root if incident is not None else None
        head = next(
            (
                member
                for member in own
                if root is not None
                and (member.component, member.code) == (root.component, root.code)
            ),
            own[0],
        )
        lines.append((head, own))
    return lines


def format_reasons(
    findings: Sequence[Finding],
    incidents: Mapping[int, Incident],
    describe: DescribeComponent = get_component_name,
) -> list[str]:
    """A line for each incident: what is wrong, and its strongest requirement."""
    return [
        _format_reason(head, own, describe) for head, own in group_by_incident(findings, incidents)
    ]


def _format_reason(head: Finding, own: Sequence[Finding], describe: DescribeComponent) -> str:
    first = own[0]  # the strongest
    drill = "SIMULATED: " if head.is_simulated else ""
    top = "" if first is head or first.action is head.action else f" ({first.title}, {first.code})"
    others = [
        other.code
        if other.component == head.component
        else f"{other.code} on {other.component.name}"
        for other in own
        if other is not head
    ]
    also = f"; with {', '.join(dict.fromkeys(others))}" if others else ""
    accepted = "; accepted for now" if first.accepted is not None else ""
    fault = f"{drill}{describe(head)}: {head.title} ({head.code})"
    return f"{fault}: {first.instruction}{top}{also}{accepted}"


def _format_silence(source: SourceHealth) -> str:
    reason = source.detail
    if not reason and source.state is SourceState.OK:
        reason = "not polled within its deadline"
    return f"source {source.name} is not being read: {reason or source.state.value}"
