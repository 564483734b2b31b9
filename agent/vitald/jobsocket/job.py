"""
One job on this node: its ranks, and what becomes of their progress.

    no step for long ─► stalled, resumed      slower than before ─► slow
    not finite       ─► not_finite            one rank busy for longer ─► straggler
    checkpoints, errors, a rank that ends without a goodbye ─► one note each

Owns     when something becomes a note. Each is one transition; what only goes on makes none.
Refuses  the clock, which the caller gives, and storing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from vitald.core.job_reports import REDONE, STALLED
from vitald.jobsocket.checkpoints import Checkpoint, Checkpoints
from vitald.jobsocket.notes import JobNote
from vitald.jobsocket.pace import Comparison, Pace, Sustained, find_stragglers
from vitald.jobsocket.packets import CheckpointReport, ErrorReport, PhaseReport, Progress
from vitald.jobsocket.rank import RankIdentity, RankProgress, find_median
from vitald.model import Value
from vitald.model.job_page import CheckpointTier, Phase
from vitald.model.notice import (
    JOB_CHECKPOINT,
    JOB_CHECKPOINT_FAILED,
    JOB_ERROR,
    JOB_NOT_FINITE,
    JOB_RANK_ENDED,
    JOB_RESUMED,
    JOB_SLOW,
    JOB_STALLED,
    JOB_STRAGGLER,
)
from vitald.text import join_ranges

_FINITE_S = 60.0  # without a step that is not finite, until that is over


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job, as it is shown. Times on the clock of the caller of `JobProgress`."""

    ranks: int
    step: int | None  # the last that all ranks have made
    step_seconds: float | None
    moved_at: float | None  # the last step of the rank that made none for longest
    activity: str
    loss: float | None
    led_world: int | None  # how many ranks the job has, if its rank 0 is here
    saved_at: float | None  # its last checkpoint that a boot leaves was finished then


@dataclass(slots=True)
class _Finite:
    """Whether the job's numbers are finite."""

    is_open: bool = False
    last: float = 0.0  # when one was not


class JobProgress:
    """The ranks of one job, by a key of the caller's: the connection."""

    def __init__(self) -> None:
        self.ranks: dict[Hashable, RankProgress] = {}
        self.pace = Pace()
        self.checkpoints = Checkpoints()
        self.is_stalled = False
        self._saved_at: float | None = None
        self._stragglers: dict[Hashable, Sustained] = {}
        self._finite = _Finite()
        self._attempt = 0
        self._moved = False  # since the last judgement
        self._max_step = 0
        self._redo_until = 0

    # --- what is reported

    def add_rank(self, key: Hashable, identity: RankIdentity, now: float) -> None:
        if not self.ranks:
            self._redo_until = self._max_step
        if identity.attempt != self._attempt:
            self._attempt = identity.attempt
            self.pace.restart()
        self.ranks[key] = RankProgress(identity, now)

    def take_progress(self, key: Hashable, progress: Progress, now: float) -> None:
        rank = self.ranks[key]
        self._moved |= rank.take_progress(progress, now)
        self._max_step = max(self._max_step, progress.step)

    def take_phase(self, key: Hashable, report: PhaseReport, now: float) -> None:
        self.ranks[key].take_phase(report, now)

    def take_checkpoint(self, key: Hashable, report: CheckpointReport, now: float) -> None:
        self.checkpoints.take_report(key, report, now)

    def take_error(self, key: Hashable, report: ErrorReport) -> JobNote:
        return note_error(report, self.ranks[key].identity.number)

    def remove_rank(self, key: Hashable, now: float, *, is_left: bool = False) -> list[JobNote]:
        """Its connection has ended. Without a goodbye, the rank has died; not if `is_left`: it was
        held without a connection.
        """
        rank = self.ranks.pop(key)
        self.checkpoints.forget_rank(key)
        notes = list(self._close_straggler(key, rank))
        if not rank.said_goodbye and not is_left:
            notes.append(_note_end(rank, now))
        return notes

    # --- what becomes of it

    def judge(self, now: float) -> list[JobNote]:
        """What has changed since the last judgement."""
        return [
            *self._judge_stall(now),
            *self._judge_pace(now),
            *self._judge_stragglers(now),
            *self._judge_finite(now),
            *map(_note_checkpoint, self._finish_checkpoints(now)),
        ]

    def _finish_checkpoints(self, now: float) -> list[Checkpoint]:
        finished = self.checkpoints.take_finished(now)
        if any(not each.failed and each.tier is not CheckpointTier.MEMORY for each in finished):
            self._saved_at = now
        return finished

    def summarize(self) -> JobSummary:
        ranks = self.ranks.values()
        steps = [rank.step for rank in ranks if rank.step is not None]
        moved = [rank.moved_at for rank in ranks if rank.step is not None and not rank.said_goodbye]
        losses = [rank.loss for rank in ranks if rank.loss is not None]
        return JobSummary(
            ranks=len(ranks),
            step=min(steps, default=None),
            step_seconds=self._find_step_seconds(),
            moved_at=min(moved, default=None),
            activity=self.activity,
            loss=losses[0] if losses else None,
            led_world=next(
                (rank.identity.world for rank in ranks if rank.identity.number == 0), None
            ),
            saved_at=self._saved_at,
        )

    @property
    def activity(self) -> str:
        """What the job's time is spent on: a word of ACTIVITIES; empty if it has no rank."""
        phases = Counter(rank.phase for rank in self.ranks.values() if not rank.said_goodbye)
        if not phases:
            return ""
        phase = phases.most_common(1)[0][0]
        if self.is_stalled:
            return STALLED
        is_redone = phase is Phase.TRAIN and any(
            rank.step is not None and rank.step < self._redo_until for rank in self.ranks.values()
        )
        return REDONE if is_redone else phase.word

    def _find_step_seconds(self) -> float | None:
        times = [rank.step_times.median for rank in self.ranks.values()]
        return find_median([seconds for seconds in times if seconds is not None])

    def _judge_stall(self, now: float) -> Iterator[JobNote]:
        stalled = [rank for rank in self.ranks.values() if rank.is_stalled(now)]
        if bool(stalled) == self.is_stalled:
            return
        self.is_stalled = bool(stalled)
        if not stalled:
            yield self._note_resumed()
            return
        idle_s = max(rank.idle_s(now) for rank in stalled)
        steps = sorted({rank.step for rank in self.ranks.values() if rank.step is not None})
        numbers = join_ranges(rank.identity.number for rank in stalled)
        last = f"last {steps[0]}" if len(steps) == 1 else f"last {steps[0]} to {steps[-1]}"
        yield JobNote(
            JOB_STALLED,
            f"no step for {_format_seconds(idle_s)}, {last}"
            f" ({len(stalled)} of {len(self.ranks)} ranks on this node: {numbers})",
            {"ranks": numbers, "step": steps[0], "seconds": round(idle_s, 1)},
        )

    def _note_resumed(self) -> JobNote:
        """Not where the ranks that made no step have gone: then nothing has resumed."""
        if not any(rank.steps for rank in self.ranks.values()):
            return JobNote("", "", {}, closes=JOB_STALLED)
        step = self.summarize().step
        return JobNote(
            JOB_RESUMED, f"makes steps again: {step}", {"step": step}, closes=JOB_STALLED
        )

    def _judge_pace(self, now: float) -> Iterator[JobNote]:
        if self._moved:
            last = [rank.step_times.last for rank in self.ranks.values()]
            seconds = find_median([value for value in last if value is not None])
            if seconds is not None:
                self.pace.add(seconds)
        self._moved = False
        if not self.pace.judge(now):
            return
        if not self.pace.slow.is_open:
            yield JobNote("", "", {}, closes=JOB_SLOW)
            return
        own, best = self.pace.median or 0.0, self.pace.best or 0.0
        yield JobNote(
            JOB_SLOW,
            f"a step takes {own:.3g} s, and took {best:.3g} s at best",
            {"seconds": round(own, 6), "best": round(best, 6)},
        )

    def _judge_stragglers(self, now: float) -> Iterator[JobNote]:
        slow = find_stragglers({key: rank.busy_times for key, rank in self.ranks.items()})
        for key, rank in self.ranks.items():
            if key not in slow and key not in self._stragglers:
                continue
            state = self._stragglers.setdefault(key, Sustained())
            if not state.update(now, holds=key in slow):
                continue
            if state.is_open:
                yield _note_straggler(rank, slow[key])
            else:
                yield from self._close_straggler(key, rank, was_open=True)

    def _close_straggler(
        self, key: Hashable, rank: RankProgress, *, was_open: bool = False
    ) -> Iterator[JobNote]:
        state = self._stragglers.pop(key, None)
        if was_open or (state is not None and state.is_open):
            subject = f"rank {rank.identity.number}"
            yield JobNote("", "", {}, subject=subject, closes=JOB_STRAGGLER)

    def _judge_finite(self, now: float) -> Iterator[JobNote]:
        wrong = [rank for rank in self.ranks.values() if not rank.is_finite]
        if wrong:
            self._finite.last = now
        if wrong and not self._finite.is_open:
            self._finite.is_open = True
            numbers = join_ranges(rank.identity.number for rank in wrong)
            steps = [rank.step for rank in wrong if rank.step is not None]
            yield JobNote(
                JOB_NOT_FINITE,
                f"the loss is not finite at step {max(steps, default=0)} (rank {numbers})",
                {"ranks": numbers, "step": max(steps, default=0)},
            )
        elif self._finite.is_open and not wrong and now - self._finite.last >= _FINITE_S:
            self._finite.is_open = False
            yield JobNote("", "", {}, closes=JOB_NOT_FINITE)


def note_error(report: ErrorReport, number: int | None = None) -> JobNote:
    """`number`: of the rank; None if the error was found in the job's output."""
    who = "the job's output shows" if number is None else f"rank {number} reports"
    tail = f": {report.text}" if report.text else ""
    fields: dict[str, Value] = {"what": report.what.value, "error": report.text}
    if number is not None:
        fields = {"rank": number, **fields}
    return JobNote(
        JOB_ERROR,
        f"{who} an error ({report.what.value}){tail}",
        fields,
        subject="output" if number is None else f"rank {number}",
    )


def _note_end(rank: RankProgress, now: float) -> JobNote:
    identity = rank.identity
    pid = f" (pid {identity.pid})" if identity.pid else ""
    after = "before its first step"
    if rank.step is not None:
        after = f"after step {rank.step}, made {_format_seconds(now - rank.moved_at)} before"
    fields: dict[str, Value] = {"rank": identity.number, "step": rank.step}
    if identity.pid:
        fields["pid"] = identity.pid
    text = f"rank {identity.number}{pid} ended without a goodbye {after}"
    return JobNote(JOB_RANK_ENDED, text, fields, subject=f"rank {identity.number}")


def _note_straggler(rank: RankProgress, compared: Comparison) -> JobNote:
    number = rank.identity.number
    return JobNote(
        JOB_STRAGGLER,
        f"rank {number} is busy for {compared.own:.3g} s of each step, its siblings on this node"
        f" for {compared.others:.3g} s",
        {"rank": number, "busy": round(compared.own, 6), "median": round(compared.others, 6)},
        subject=f"rank {number}",
    )


def _note_checkpoint(done: Checkpoint) -> JobNote:
    fields: Mapping[str, Value] = {
        "step": done.step,
        "tier": done.tier.value,
        "ranks": done.ranks,
        "bytes": done.bytes,
        "seconds": round(done.seconds, 3),
    }
    where = f"checkpoint of step {done.step} ({done.tier.value})"
    if done.failed:
        return JobNote(
            JOB_CHECKPOINT_FAILED,
            f"{where} failed on {done.failed} of {done.ranks} ranks of this node",
            {**fields, "failed": done.failed},
            checkpoint=done,
        )
    size = f"{done.bytes / 1e9:.3g} GB in " if done.bytes else ""
    text = f"{where}: {size}{done.seconds:.3g} s by {done.ranks} ranks of this node"
    return JobNote(JOB_CHECKPOINT, text, fields, closes=JOB_CHECKPOINT_FAILED, checkpoint=done)


def _format_seconds(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 600.0 else f"{max(0.0, seconds):.0f} s"
