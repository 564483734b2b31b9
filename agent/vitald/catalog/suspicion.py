"""
What notices raise as a suspicion: how many of them let a diagnostic run on the idle devices.

A suspicion requests one run and nothing else: it is no finding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitald import tomlfile
from vitald.checking import read_whole
from vitald.model.notice import JOB_NOT_FINITE, WAITING

# The notices that `core.suspicion` counts
SUSPICIOUS_CODES = (JOB_NOT_FINITE, WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionRule:
    """`times`: of how many users (`job/not_finite`), or in how many stalls (`nvml/waiting`), within
    `within_s`; `level`: of DCGM's diagnostic.
    """

    times: int
    within_s: float
    level: int


def read_suspicion(code: str, table: object) -> SuspicionRule:
    """The key `suspicion` of a notice. Raises ValueError."""
    if code not in SUSPICIOUS_CODES:
        raise ValueError(f"only of {' and '.join(SUSPICIOUS_CODES)}")
    keys = {field.name.removesuffix("_s") for field in fields(SuspicionRule)}
    if not isinstance(table, dict) or table.keys() != keys:
        raise ValueError(f"expected a table of {', '.join(sorted(keys))}")
    return SuspicionRule(
        times=read_whole(table["times"], 2, 100, "a whole number of times from 2 to 100"),
        within_s=tomlfile.parse_duration(table["within"]),
        level=read_whole(table["level"], 2, 3, "level 2 or 3"),
    )
