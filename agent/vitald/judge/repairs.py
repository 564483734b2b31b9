"""
Which repair of the node is due: what publishers request of those who repair nodes.

A flag of the verdict says that a repair is required. It is due only if it is certain and may happen
now: for a confirmed, real finding whose remedy nobody has begun, and not while a job runs that it
should wait for.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitald.model.finding import Finding, FindingState
from vitald.model.words import Repair, When


def find_due_repairs(
    findings: Iterable[Finding], *, device_reset: bool, idle: bool, drills: bool = False
) -> dict[Repair, Finding]:
    """For each repair that is due, the first finding that requires it.

    `device_reset`: the site resets devices itself. `idle`: nothing uses the node, so that what
    waits for the running job may be done. `drills`: simulated findings count as real and confirmed.
    """
    due: dict[Repair, Finding] = {}
    for finding in findings:
        repair = find_due_repair(finding, device_reset=device_reset, idle=idle, drills=drills)
        if repair is not None:
            due.setdefault(repair, finding)
    return due


def find_due_repair(
    finding: Finding, *, device_reset: bool, idle: bool, drills: bool = False
) -> Repair | None:
    """The repair that is due for this finding, if one is. Parameters as of find_due_repairs."""
    if not _may_repair(finding, idle=idle, drills=drills):
        return None
    return finding.action.choose_repair(device_reset=device_reset)


def waits_for_idle(findings: Iterable[Finding], *, device_reset: bool) -> bool:
    """Whether a repair would be due if the node were idle; drills count, for those who ask for
    them.
    """
    listed = list(findings)
    now, idle = (
        find_due_repairs(listed, device_reset=device_reset, idle=idle, drills=True)
        for idle in (False, True)
    )
    return now.keys() != idle.keys()


def _may_repair(finding: Finding, *, idle: bool, drills: bool) -> bool:
    if finding.is_deferred or finding.state is not FindingState.OPEN:
        return False
    if finding.is_simulated and not drills:
        return False
    is_certain = finding.is_confirmed or finding.is_simulated
    return is_certain and (finding.when is When.NOW or (idle and finding.when is When.AFTER_JOB))
