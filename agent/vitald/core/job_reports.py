"""
What jobs report of themselves over the job socket: the last state of each, and counts.

Kept in memory only: a job that runs reports again after a start of the daemon. All of it is the
jobs' own claim, and no finding comes from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vitald.model.job_page import CheckpointTier, Phase

STALLED, REDONE = "stalled", "redone"
# What the time of a job is spent on; `redone`: steps that an earlier attempt had made already
ACTIVITIES = (*(phase.word for phase in Phase if phase is not Phase.END), STALLED, REDONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedJob:
    """One job with ranks. `slurm` and `pod` are the kernel's word, `claimed` the job's own.

    `step` is the last that all of its ranks here have made, `last_step` when the rank that made
    none for longest made one, in seconds since the epoch. `activity`: a word of ACTIVITIES, empty
    if all ranks are ending. `led_world`: how many ranks it has on all nodes, by its own word, if
    its rank 0 is on this one. None: not reported.
    """

    name: str  # for texts
    slurm: str
    pod: str
    claimed: str
    uid: int
    user: str
    ranks: int
    step: int | None
    step_seconds: float | None
    last_step: float | None
    activity: str
    loss: float | None
    led_world: int | None
    saved: float | None  # when it finished a checkpoint last, seconds since the epoch


@dataclass(slots=True)
class CheckpointCount:
    """Checkpoints of one tier."""

    complete: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class JobReports:
    """`error`: why no job can connect; empty while the socket is open. What is counted, is since
    the daemon started: `dropped` packets over the rate of their connection, `wrong` ones, `refused`
    connections, `unstored` events over the rate of their user, and the `seconds` of jobs by what
    they were spent on.
    """

    error: str = "it is switched off ([job] enabled)"
    connections: int = 0
    jobs: tuple[ReportedJob, ...] = ()
    dropped: int = 0
    wrong: int = 0
    refused: int = 0
    unstored: int = 0
    not_finite: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))
    checkpoints: dict[CheckpointTier, CheckpointCount] = field(
        default_factory=lambda: {tier: CheckpointCount() for tier in CheckpointTier}
    )
