"""What happened to findings, in the daemon's log."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from vitald.judge.verdict import DescribeComponent, compute_status
from vitald.model import Finding, Status, Transition
from vitald.timestamps import format_rfc3339

log = structlog.get_logger("findings")

_LATE_S = 10.0


def log_transitions(
    transitions: Sequence[Transition], now: float, describe: DescribeComponent
) -> None:
    """One line for each decision; none where only counts changed. One that is about earlier than
    `now`, such as a fault before the start, says when that was. `describe`: as for a verdict.
    """
    for transition in transitions:
        if not transition.cause:
            continue
        finding = transition.finding
        emit = log.info
        if finding.is_open:
            emit = log.error if compute_status([finding]) is Status.UNHEALTHY else log.warning
        change = _name_change(transition)
        late = now - transition.time > _LATE_S
        at = format_rfc3339(transition.time, "seconds") if late else ""
        emit(
            f"finding_{change}",
            message=f"finding #{finding.id} {change}: {_describe_transition(transition, describe)}"
            + (f" (at {at})" if late else ""),
            id=finding.id,
            component=finding.component.name,
            code=finding.code,
            action=finding.action.value,
            cause=transition.cause,
            raw=finding.raw,
            simulated=finding.is_simulated,
            **({"at": at} if late else {}),
            **({} if finding.is_open else {"level": "notice"}),
        )


def _name_change(transition: Transition) -> str:
    if transition.opened:
        return "opened"
    return "changed" if transition.finding.is_open else "cleared"


def _describe_transition(transition: Transition, describe: DescribeComponent) -> str:
    """`gpu/0000:65:00.0 (GPU 3): GPU has fallen off the bus (xid/79): reboot the node: NVRM ...`"""
    finding = transition.finding
    mark = "SIMULATED: " if finding.is_simulated else ""
    text = f"{mark}{describe(finding)}: {finding.title} ({finding.code})"
    if not finding.is_open:
        return f"{text}: {transition.cause}"
    doubt = _describe_doubt(finding) if finding.action.makes_unfit else ""
    why = finding.raw if transition.opened else transition.cause
    return f"{text}: {finding.instruction}{doubt}: {why}"


def _describe_doubt(finding: Finding) -> str:
    if finding.is_confirmed:
        return ""
    return " (unconfirmed, written by a process)" if finding.is_hearsay else " (unconfirmed)"
