"""
Notices: what is worth knowing about the work on the node, and is no fault of it.

A notice is no finding. Status, flags, exit codes and what root does are the same with and without
it; what its codes mean is in `catalog/application.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from vitald.model.component import Component
from vitald.model.event import Fields

# Code, component, subject: at most one notice is open for each
NoticeKey: TypeAlias = "tuple[str, Component, str]"

WAITING = "nvml/waiting"  # the GPUs that work only wait
JOB_STALLED = "job/stalled"  # no step for too long
JOB_RESUMED = "job/resumed"
JOB_COLLECTIVE = "job/collective"  # NCCL says which rank holds up the others
JOB_SLOW = "job/slow"  # steps take longer than they did
JOB_STRAGGLER = "job/straggler"  # a rank is slower than the others
JOB_NOT_FINITE = "job/not_finite"  # NaN or infinity in a loss or gradient
JOB_CHECKPOINT_FAILED = "job/checkpoint_failed"
JOB_CHECKPOINT = "job/checkpoint"
JOB_ERROR = "job/error"
JOB_RANK_ENDED = "job/rank_ended"  # without a goodbye

NOTICE_CODES = (
    WAITING,
    JOB_STALLED,
    JOB_RESUMED,
    JOB_COLLECTIVE,
    JOB_SLOW,
    JOB_STRAGGLER,
    JOB_NOT_FINITE,
    JOB_CHECKPOINT_FAILED,
    JOB_CHECKPOINT,
    JOB_ERROR,
    JOB_RANK_ENDED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One open notice. Times are in seconds since the epoch; `last` is when it was observed last,
    and `count` how often, as its producer counts.

    `subject` distinguishes notices with the same code and component: `slurm:1234 rank 3`. `text`
    is for operators; what it quotes of a job is printable.
    """

    code: str
    component: Component
    since: float
    last: float
    text: str
    count: int = 1
    subject: str = ""
    fields: Fields = field(default_factory=dict)

    @property
    def key(self) -> NoticeKey:
        return self.code, self.component, self.subject
