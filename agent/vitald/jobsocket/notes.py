"""What is reported of a job: one note for each transition."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.jobsocket.checkpoints import Checkpoint
from vitald.model import Fields
from vitald.model.notice import (
    JOB_CHECKPOINT_FAILED,
    JOB_ERROR,
    JOB_NOT_FINITE,
    JOB_RANK_ENDED,
    JOB_SLOW,
    JOB_STALLED,
    JOB_STRAGGLER,
)

# Whose notice ends after a while: they are moments, not states
MOMENTS = (JOB_CHECKPOINT_FAILED, JOB_ERROR, JOB_RANK_ENDED)
# That open a notice
NOTICED = (JOB_STALLED, JOB_SLOW, JOB_STRAGGLER, JOB_NOT_FINITE, *MOMENTS)


@dataclass(frozen=True, slots=True)
class JobNote:
    """`code` of its event, empty if there is none; `subject`: the part of the job that it is about;
    `closes`: the code of the notice of that subject that ends.
    """

    code: str
    text: str
    fields: Fields
    subject: str = ""
    closes: str = ""
    checkpoint: Checkpoint | None = None
