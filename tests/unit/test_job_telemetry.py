"""What jobs may take of the daemon: jobs, ranks without a connection, memory."""

from __future__ import annotations

import tracemalloc

import pytest

from vitald.core.node_state import NodeState
from vitald.jobsocket.identity import JobIdentity
from vitald.jobsocket.packets import CheckpointReport, Hello, Progress
from vitald.jobsocket.telemetry import (
    MAX_HELD,
    MAX_HELD_OF_JOB,
    MAX_JOBS,
    MAX_JOBS_OF_USER,
    JobTelemetry,
    RankHandle,
    TooManyJobs,
)
from vitald.model import Batch
from vitald.model.job_page import CheckpointState, CheckpointTier

HOLD_S = 3600.0


class Jobs:
    """What is known of jobs, on a clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = NodeState("boot-a", 0.0, device_reset=False)
        self.telemetry = JobTelemetry(self.state, self._store, clock=lambda: self.now)

    async def _store(self, batch: Batch) -> None:
        raise AssertionError(batch)

    def add_rank(
        self, rank: int = 0, job: str = "1", uid: int = 1000, hold_s: float = 0.0
    ) -> RankHandle:
        hello = Hello(
            rank=rank, local_rank=0, world=0, job=job, attempt=0, step_limit_s=0.0, hold_s=hold_s
        )
        return self.telemetry.add_rank(JobIdentity(uid=uid, claimed=job), hello, 0)

    def tell(self, rank: int = 0, job: str = "1", uid: int = 1000) -> None:
        """As `vitald tell` does: connect, report, and go."""
        handle = self.add_rank(rank, job, uid, HOLD_S)
        self.telemetry.take_packet(handle, Progress(step=rank))
        self.telemetry.remove_rank(handle)

    def count_ranks(self) -> dict[tuple[int, str], int]:
        self.telemetry.judge()
        return {(job.uid, job.claimed): job.ranks for job in self.state.job_reports.jobs}


def test_a_job_has_so_many_ranks_without_a_connection() -> None:
    jobs = Jobs()
    jobs.tell(job="other", uid=1001)
    for rank in range(10 * MAX_HELD_OF_JOB):
        jobs.tell(rank)
    assert jobs.count_ranks() == {(1001, "other"): 1, (1000, "1"): MAX_HELD_OF_JOB}
    assert jobs.state.job_reports.unstored == 0, "a rank that gave way has not died"


def test_a_user_has_so_many_ranks_without_a_connection() -> None:
    jobs = Jobs()
    for number in range(10 * MAX_HELD):
        jobs.tell(number, job=f"{number % 8}")
    assert sum(jobs.count_ranks().values()) == MAX_HELD
    jobs.now += HOLD_S
    assert jobs.count_ranks() == {}


def test_a_rank_that_reports_again_takes_no_further_place() -> None:
    jobs = Jobs()
    for _ in range(3):
        for rank in range(8):
            jobs.tell(rank)
    assert jobs.count_ranks() == {(1000, "1"): 8}


def test_a_user_leaves_room_for_the_jobs_of_others() -> None:
    jobs = Jobs()
    for number in range(MAX_JOBS_OF_USER):
        jobs.add_rank(job=f"{number}")
    with pytest.raises(TooManyJobs):
        jobs.add_rank(job="one more")
    for number in range(MAX_JOBS - MAX_JOBS_OF_USER):
        jobs.add_rank(job=f"{number}", uid=1001 + number)
    with pytest.raises(TooManyJobs):
        jobs.add_rank(uid=1)


def test_a_users_job_without_ranks_gives_way_to_the_next() -> None:
    jobs = Jobs()
    first = jobs.add_rank(job="0")
    for number in range(1, MAX_JOBS_OF_USER):
        jobs.add_rank(job=f"{number}")
    jobs.telemetry.remove_rank(first, is_ours=True)
    jobs.add_rank(job="next")
    assert len(jobs.count_ranks()) == MAX_JOBS_OF_USER
    assert jobs.add_rank(job="0", uid=1001).job is not first.job


def test_the_memory_of_a_job() -> None:
    """Of 8 ranks that have reported all that is kept of them."""
    jobs = Jobs()
    warm = report_all(jobs, job="warm")
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        handles = report_all(jobs, job="x" * 64)
        taken = tracemalloc.take_snapshot().compare_to(before, "filename")
    finally:
        tracemalloc.stop()
    used = sum(each.size_diff for each in taken if "tracemalloc" not in str(each.traceback))
    print(f"\n{used} bytes")
    assert len(warm) == len(handles) == 8
    assert used <= 16 * 2**10


def report_all(jobs: Jobs, job: str) -> list[RankHandle]:
    handles = [jobs.add_rank(rank, job) for rank in range(8)]
    for handle in handles:
        for step in range(200):
            jobs.telemetry.take_packet(handle, Progress(step=step, seconds=1.0, busy=0.5 + step))
            jobs.telemetry.take_packet(
                handle,
                CheckpointReport(
                    state=CheckpointState.BEGIN,
                    step=step,
                    bytes=0,
                    seconds=0.0,
                    tier=CheckpointTier.LOCAL,
                ),
            )
    return handles
