"""
What makes a device suspect over weeks: how much each entry of its record weighs, and how fast it is
forgotten.

Source of the window and of the job's: Kokolis et al., "Revisiting Reliability in Large-Scale
Machine Learning Research Clusters" (arXiv 2410.21680): repeat offenders over 28 days; a failed job
is put down to a finding in its last 10 minutes or in the 5 minutes after its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitald.model import MarkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonScoring:
    """`weights` are points; a mark loses half of them in `half_life_s`, and all of them after
    `window_s`.
    """

    window_s: float = 28 * 86400.0
    half_life_s: float = 7 * 86400.0
    suspect: float = 5.0  # from this score on a device is called suspect
    job_before_s: float = 300.0  # it may have died so long before the finding
    job_after_s: float = 600.0  # or so long after it
    weights: Mapping[MarkKind, float] = field(default_factory=dict)
