"""
What the health service answers, as a function of the daemon's verdict.

Any local user may ask, so an answer names hardware, codes and titles of the catalogue only: no
path, no user, no text of a log.

Source: NVIDIA/nvidia-resiliency-ext 0.7.0, shared_utils/health_check.py. The client takes the node
for unhealthy if `success` is false, or if `output` is no JSON object whose `fail_count` is 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitald import __version__
from vitald.cli import render
from vitald.cli.check import EXIT

if TYPE_CHECKING:
    from vitald.server import schema

# Kinds of components whose id is an address or a position. That of the others may be the mount
# point of a file system, or the name of a service.
_HARDWARE = frozenset({"gpu", "nvswitch", "neuron", "nic", "pci", "cpu", "dimm"})
_MAX_CHECKS = 16
_UNKNOWN_CHECK = "vitald: the state of the node is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAnswer:
    """The fields of a HealthCheckResponse. `error` stays empty: a check that could not be made has
    an answer, too, by the configuration.
    """

    success: bool
    exit_code: int
    output: str
    error: str = ""


def build_answer(verdict: schema.NodeStatus | None, unknown: str) -> HealthAnswer:
    """`verdict`: that for a job about to begin; None if the daemon gives none. `unknown`: the
    setting of that name.
    """
    status = "unknown" if verdict is None else str(verdict["status"])
    failed: list[str] = []
    if verdict is not None and status == "unhealthy":
        failed = list_failed_checks(verdict["findings"])
    elif status == "unknown" and unknown == "refuse":
        failed = [_UNKNOWN_CHECK]
    output = {
        "fail_count": len(failed),
        "failed_checks": failed[:_MAX_CHECKS],
        "vitald": {
            "version": __version__,
            "status": status,
            "answers": verdict is not None,
            "simulated": verdict is not None and verdict["simulated"],
        },
    }
    return HealthAnswer(
        success=not failed, exit_code=EXIT[status] if failed else 0, output=json.dumps(output)
    )


def list_failed_checks(findings: Sequence[schema.ApiFinding]) -> list[str]:
    """A line for each finding that makes the node unfit, and one line where none of those shown
    does.
    """
    lines = [
        f"{_name_component(finding['component'])}: {finding['title']} ({finding['code']})"
        for finding in findings
        if _makes_unfit(finding)
    ]
    return lines or ["vitald: the node is unhealthy"]


def _makes_unfit(finding: schema.ApiFinding) -> bool:
    """As `Finding.makes_unfit` of the model, for a job about to begin."""
    is_deferred = finding["accepted"] is not None or (
        finding["when"] == "maintenance" and not finding["unusable"]
    )
    return not is_deferred and (finding["unusable"] or render.makes_unfit(finding["action"]))


def _name_component(name: str) -> str:
    kind = name.partition("/")[0]
    return name if kind in _HARDWARE else kind
