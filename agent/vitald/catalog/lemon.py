"""
Parameters of the lemon score: the weights of the marks in a device's history, and their decay.

Source of the window and of the limits for jobs: Kokolis et al., "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters" (arXiv 2410.21680): repeat offenders over 28 days; a
failed job is attributed to a finding in its last 10 minutes or in the 5 minutes after its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitald.model import MarkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonScoring:
    """`weights` are points per mark, halved every `half_life_s`, and 0 after `window_s`. `caps`:
    the most points of all marks of a kind together.
    """

    window_s: float = 28 * 86400.0
    half_life_s: float = 7 * 86400.0
    suspect: float = 5.0  # a device with at least this score is suspect
    job_before_s: float = 300.0  # a job may fail this long before the finding
    job_after_s: float = 600.0  # or this long after it
    weights: Mapping[MarkKind, float] = field(default_factory=dict)
    caps: Mapping[MarkKind, float] = field(default_factory=dict)
