"""
One rank of a job, as it reports itself: its last step, step times, phase.

Pure: the caller gives the time, in seconds on any clock that is never set back.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from vitald.jobsocket.packets import MAX_SECONDS, PhaseReport, Progress
from vitald.model.job_page import Phase

STALL_S = 120.0  # the least time without a step that is a stall
STALL_FACTOR = 5.0  # of the median step time: NVRx learns its time-outs by the same factor
ARMED_AFTER = 3  # steps
STEP_TIMES = 50  # of which the median is taken
BUSY_TIMES = 20


class Window:
    """The last numbers of a series, in little memory."""

    __slots__ = ("_size", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        if len(self._values) >= self._size:
            del self._values[0]
        self._values.append(value)

    def clear(self) -> None:
        del self._values[:]

    @property
    def median(self) -> float | None:
        return find_median(self._values)

    @property
    def last(self) -> float | None:
        return self._values[-1] if self._values else None


def find_median(values: array[float] | list[float]) -> float | None:
    """None of nothing."""
    if not values:
        return None
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """`number`, `local_rank`, `world` (how many ranks the job has) and `attempt` are claims; `pid`
    is the kernel's word, 0 if it is in another namespace.
    """

    number: int
    local_rank: int = 0
    world: int = 0
    attempt: int = 0
    pid: int = 0
    step_limit_s: float = 0.0


class RankProgress:
    """The progress of one rank. Times are those of the caller's clock."""

    __slots__ = (
        *("identity", "step", "steps", "moved_at", "phase", "phase_since", "phase_limit_s"),
        *("step_times", "busy_times", "loss", "is_finite"),
    )

    def __init__(self, identity: RankIdentity, now: float) -> None:
        self.identity = identity
        self.step: int | None = None
        self.steps = 0  # how many it has made
        self.moved_at = now  # when it was seen to have made a step
        self.phase = Phase.INIT
        self.phase_since = now
        self.phase_limit_s = 0.0
        self.step_times = Window(STEP_TIMES)
        self.busy_times = Window(BUSY_TIMES)
        self.loss: float | None = None
        self.is_finite = True

    def take_progress(self, progress: Progress, now: float) -> bool:
        """Whether it made a step."""
        self.loss, self.is_finite = progress.loss, progress.is_finite
        if progress.step == self.step:
            return False
        made = max(1, progress.step - self.step) if self.step is not None else 1
        seconds = progress.seconds
        if seconds is None and self.step is not None:
            seconds = min((now - self.moved_at) / made, MAX_SECONDS)
        if seconds is not None:
            self.step_times.add(seconds)
        if progress.busy is not None:
            self.busy_times.add(progress.busy)
        self.step, self.steps, self.moved_at = progress.step, self.steps + made, now
        if self.phase is Phase.INIT:
            self.take_phase(PhaseReport(phase=Phase.TRAIN), now)
        return True

    def take_phase(self, report: PhaseReport, now: float) -> None:
        """A phase that is only reported again goes on. Nothing follows a goodbye."""
        if self.said_goodbye:
            return
        if (report.phase, report.limit_s) != (self.phase, self.phase_limit_s):
            self.phase, self.phase_limit_s, self.phase_since = report.phase, report.limit_s, now

    @property
    def said_goodbye(self) -> bool:
        return self.phase is Phase.END

    @property
    def stall_limit_s(self) -> float:
        """The longest time without a step that is none; what the job claims is bounded."""
        least = self.identity.step_limit_s or STALL_S
        return min(max(least, STALL_FACTOR * (self.step_times.median or 0.0)), MAX_SECONDS)

    def idle_s(self, now: float) -> float:
        """For how long it has neither made a step nor begun another phase."""
        return now - max(self.moved_at, self.phase_since)

    def is_stalled(self, now: float) -> bool:
        if self.steps < ARMED_AFTER or self.said_goodbye:
            return False
        if self.phase_limit_s and now - self.phase_since < self.phase_limit_s:
            return False
        return self.idle_s(now) > self.stall_limit_s
