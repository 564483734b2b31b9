"""
The node's verdict: a fold over its open findings, and over how fresh its sources are.

Owns     the order of the states, and what raises the two flags.
Refuses  clocks, devices and the ledger: everything comes in as an argument.

A verdict never improves by age. An Xid 79 that left the kernel's ring is still a GPU off the bus.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.model import Action, Finding, SourceHealth, SourceState, Status, Verdict, When


def fold(findings: Sequence[Finding], sources: Sequence[SourceHealth], monotonic: float, *, device_reset: bool = False) -> Verdict:
    """`monotonic` is the present moment on the clock that the sources' looks were taken by.

    `device_reset`: the site resets devices itself, so a reset alone does not ask for a reboot.
    """
    stale = [source for source in sources if not source.fresh(monotonic)]
    status = status_of(findings)
    if stale and status is not Status.UNHEALTHY:
        status = Status.UNKNOWN
    reboot = {Action.REBOOT_NODE} if device_reset else {Action.REBOOT_NODE, Action.RESET_DEVICE}
    return Verdict(
        status=status,
        action=Action.strongest(finding.action for finding in findings),
        reboot_required=any(finding.action in reboot for finding in findings),
        replacement_required=any(finding.action is Action.REPLACE_NODE for finding in findings),
        simulated=any(finding.simulated for finding in findings),
        reasons=(*map(_reason, by_strength(findings)), *map(_silence, stale)),
    )


def status_of(findings: Sequence[Finding]) -> Status:
    """What findings alone say, of a node or of one component."""
    if any(finding.action.unfit and finding.when is When.NOW for finding in findings):
        return Status.UNHEALTHY
    return Status.DEGRADED if findings else Status.HEALTHY


def by_strength(findings: Sequence[Finding]) -> list[Finding]:
    """What must be done first comes first; of equals, the older."""
    return sorted(findings, key=lambda finding: (-finding.action.rank, finding.when is not When.NOW, finding.since, finding.id))


def _reason(finding: Finding) -> str:
    drill = "SIMULATED: " if finding.simulated else ""
    when = " after the running job" if finding.when is When.AFTER_JOB else ""
    return f"{drill}{finding.component.name}: {finding.title} ({finding.code}): {finding.action.words}{when}"


def _silence(source: SourceHealth) -> str:
    return f"source {source.name} is not being read: {source.detail or ('no look within its deadline' if source.state is SourceState.OK else source.state.value)}"
