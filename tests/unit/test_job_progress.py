"""When a job stalls, becomes slow, has a straggler, and what is noted of it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from vitald.jobsocket.job import JobProgress
from vitald.jobsocket.notes import JobNote
from vitald.jobsocket.packets import CheckpointReport, ErrorReport, PhaseReport, Progress
from vitald.jobsocket.rank import RankIdentity
from vitald.jobsocket.token_bucket import TokenBucket
from vitald.model.job_page import CheckpointState, CheckpointTier, ErrorKind, Phase


class Job:
    """A job of some ranks on a clock of the test's own; a judgement every second."""

    def __init__(self, ranks: int = 2, step_limit_s: float = 0.0) -> None:
        self.job = JobProgress()
        self.now = 1000.0
        self.notes: list[JobNote] = []
        for number in range(ranks):
            identity = RankIdentity(number=number, pid=100 + number, step_limit_s=step_limit_s)
            self.job.add_rank(number, identity, self.now)
        self.next_step = 1

    def train(
        self,
        steps: int,
        seconds: float = 1.0,
        busy: dict[int, float] | None = None,
        without: tuple[int, ...] = (),
        *,
        finite: bool = True,
    ) -> None:
        for _ in range(steps):
            for number in self.job.ranks:
                if number in without:
                    continue
                step_busy = (busy or {}).get(int(str(number)))
                progress = Progress(
                    step=self.next_step, seconds=seconds, busy=step_busy, is_finite=finite
                )
                self.job.take_progress(number, progress, self.now)
            self.next_step += 1
            self.wait(seconds)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.notes += self.job.judge(self.now)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.wait(1.0)

    @property
    def codes(self) -> list[str]:
        return [note.code or f"-{note.closes}" for note in self.notes]


def test_a_stall_is_noted_once_and_its_end() -> None:
    job = Job()
    job.train(10)
    job.pass_time(118.0)
    assert job.codes == []
    job.pass_time(5.0)
    job.pass_time(600.0)
    assert job.codes == ["job/stalled"]
    (note,) = job.notes
    assert note.text == "no step for 121 s, last 10 (2 of 2 ranks on this node: 0-1)"
    assert job.job.activity == "stalled"
    job.train(1)
    assert job.codes == ["job/stalled", "job/resumed"]
    assert job.notes[1].closes == "job/stalled" and job.job.activity == "train"


def test_long_steps_are_no_stall() -> None:
    job = Job()
    job.train(10, seconds=100.0)
    job.pass_time(390.0)
    assert job.codes == []
    job.pass_time(20.0)
    assert job.codes == ["job/stalled"]


def test_it_is_armed_after_three_steps() -> None:
    job = Job()
    job.train(2)
    job.pass_time(500.0)
    assert job.codes == []


def test_a_job_may_name_its_own_limit() -> None:
    job = Job(step_limit_s=2.0)
    job.train(5, seconds=0.1)
    job.pass_time(3.0)
    assert job.codes == ["job/stalled"]


def test_a_phase_with_a_limit_is_no_stall_before_it() -> None:
    job = Job(ranks=1)
    job.train(5)
    job.job.take_phase(0, PhaseReport(phase=Phase.CHECKPOINT, limit_s=600.0), job.now)
    job.pass_time(595.0)
    job.job.take_phase(0, PhaseReport(phase=Phase.TRAIN), job.now)
    job.pass_time(100.0)
    assert job.codes == []
    job.pass_time(30.0)
    assert job.codes == ["job/stalled"]
    again = Job(ranks=1)
    again.train(5)
    again.job.take_phase(0, PhaseReport(phase=Phase.CHECKPOINT, limit_s=600.0), again.now)
    again.pass_time(605.0)
    assert again.codes == ["job/stalled"]


def test_the_last_step_of_all_ranks() -> None:
    job = Job()
    job.train(5)
    job.train(3, without=(1,))
    job.pass_time(130.0)
    (note,) = job.notes
    assert "last 5 to 8" in note.text and note.fields["step"] == 5


def test_a_slow_job_and_its_end() -> None:
    job = Job()
    job.train(100)
    job.train(400, seconds=1.25)
    assert job.codes == []
    job.train(600, seconds=1.4)
    assert job.codes == ["job/slow"]
    assert job.notes[0].text == "a step takes 1.4 s, and took 1 s at best"
    job.train(100)
    assert job.codes == ["job/slow", "-job/slow"]


def test_one_long_step_is_not_slow() -> None:
    job = Job()
    job.train(100)
    job.train(1, seconds=90.0)
    job.train(700)
    assert job.codes == []


def test_a_straggler() -> None:
    job = Job(ranks=8)
    even = {number: 0.7 + number / 1000 for number in range(8)}
    job.train(100, busy=even)
    job.train(700, busy={**even, 3: 0.95})
    assert job.codes == ["job/straggler"]
    assert job.notes[0].subject == "rank 3" and job.notes[0].fields["rank"] == 3
    job.train(100, busy=even)
    assert job.codes == ["job/straggler", "-job/straggler"]


def test_two_ranks_have_no_straggler() -> None:
    job = Job(ranks=2)
    job.train(800, busy={0: 0.1, 1: 0.9})
    assert job.codes == []


def test_a_loss_that_is_not_finite() -> None:
    job = Job()
    job.train(5)
    job.train(3, finite=False)
    assert job.codes == ["job/not_finite"]
    assert job.notes[0].fields == {"ranks": "0-1", "step": 6}
    job.train(70)
    assert job.codes == ["job/not_finite", "-job/not_finite"]


def test_the_ranks_of_a_checkpoint_make_one_line() -> None:
    job = Job(ranks=3)

    def report(rank: int, state: CheckpointState, seconds: float = 0.0) -> None:
        report_ = CheckpointReport(
            state=state,
            step=200,
            bytes=10**9 if state is CheckpointState.END else 0,
            seconds=seconds,
            tier=CheckpointTier.GLOBAL,
        )
        job.job.take_checkpoint(rank, report_, job.now)

    for rank in range(3):
        report(rank, CheckpointState.BEGIN)
    report(0, CheckpointState.END, 3.0)
    job.pass_time(30.0)
    assert job.codes == [] and job.job.summarize().saved_at is None
    report(1, CheckpointState.END, 12.5)
    report(2, CheckpointState.END, 4.0)
    job.pass_time(3.0)
    assert job.codes == ["job/checkpoint"]
    assert job.notes[0].text == (
        "checkpoint of step 200 (global): 3 GB in 12.5 s by 3 ranks of this node"
    )
    saved_at = job.job.summarize().saved_at
    assert saved_at is not None
    for rank in range(3):
        report(rank, CheckpointState.BEGIN)
        report(rank, CheckpointState.FAILED if rank == 1 else CheckpointState.END)
    job.pass_time(3.0)
    assert job.codes == ["job/checkpoint", "job/checkpoint_failed"]
    assert job.job.summarize().saved_at == saved_at, "a failed one saves nothing"
    assert "failed on 1 of 3 ranks" in job.notes[1].text


def test_an_end_without_a_goodbye() -> None:
    job = Job()
    job.train(5)
    job.job.take_phase(0, PhaseReport(phase=Phase.END), job.now)
    job.job.take_phase(0, PhaseReport(phase=Phase.TRAIN), job.now)  # nothing follows a goodbye
    assert job.job.remove_rank(0, job.now) == []
    (note,) = job.job.remove_rank(1, job.now)
    assert note.code == "job/rank_ended"
    assert note.text == ("rank 1 (pid 101) ended without a goodbye after step 5, made 1 s before")
    assert note.fields == {"rank": 1, "step": 5, "pid": 101}


def test_a_stall_ends_with_the_ranks_that_stalled() -> None:
    job = Job()
    job.train(5)
    job.pass_time(130.0)
    for rank in (0, 1):
        job.job.remove_rank(rank, job.now)
    job.wait(1.0)
    assert job.codes == ["job/stalled", "-job/stalled"]


def test_steps_of_an_earlier_attempt_are_redone() -> None:
    job = Job(ranks=1)
    job.train(100)
    job.job.remove_rank(0, job.now)
    job.job.add_rank("again", RankIdentity(number=0, attempt=1), job.now)
    for step, activity in ((90, "redone"), (99, "redone"), (100, "train"), (101, "train")):
        job.job.take_progress("again", Progress(step=step), job.now)
        assert job.job.activity == activity, step


REPORTS = st.one_of(
    st.builds(
        Progress,
        step=st.integers(0, 2**53 - 1),
        seconds=st.none() | st.floats(0.0, 86400.0),
        busy=st.none() | st.floats(0.0, 86400.0),
        loss=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        is_finite=st.booleans(),
    ),
    st.builds(PhaseReport, phase=st.sampled_from(Phase), limit_s=st.floats(0.0, 86400.0)),
    st.builds(
        CheckpointReport,
        state=st.sampled_from(CheckpointState),
        step=st.integers(0, 3),
        bytes=st.integers(0, 2**60),
        seconds=st.floats(0.0, 86400.0),
        tier=st.sampled_from(CheckpointTier),
    ),
    st.builds(ErrorReport, what=st.sampled_from(ErrorKind), text=st.text(max_size=5)),
)


@given(st.lists(st.tuples(st.integers(0, 4), REPORTS, st.floats(0.0, 4000.0)), max_size=60))
def test_no_reports_break_the_judgement(
    reports: list[tuple[int, Progress | PhaseReport | CheckpointReport | ErrorReport, float]],
) -> None:
    """Transitions alternate: what is open is not opened again before it was closed."""
    job = Job(ranks=5)
    for rank, report, seconds in reports:
        if isinstance(report, Progress):
            job.job.take_progress(rank, report, job.now)
        elif isinstance(report, PhaseReport):
            job.job.take_phase(rank, report, job.now)
        elif isinstance(report, CheckpointReport):
            job.job.take_checkpoint(rank, report, job.now)
        else:
            assert job.job.take_error(rank, report).code == "job/error"
        job.wait(seconds)
        summary = job.job.summarize()
        assert summary.step_seconds is None or math.isfinite(summary.step_seconds)
    for code in ("job/stalled", "job/slow", "job/not_finite"):
        turns = [note.code == code for note in job.notes if code in (note.code, note.closes)]
        assert turns == [number % 2 == 0 for number in range(len(turns))]


def test_a_bucket() -> None:
    bucket = TokenBucket(20.0, 40.0, 0.0)
    assert sum(bucket.take(0.0) for _ in range(100)) == 40
    assert sum(bucket.take(1.0) for _ in range(100)) == 20
    assert not bucket.take(0.5)  # a clock that is set back gives nothing
    assert bucket.is_full(10.0)
