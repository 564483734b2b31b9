"""NCCL RAS: its answers, what two of them mean, and how seldom it is asked."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nccl_ras_server import RasServer, communicator, document, missing, rank
from vitald.core.job_reports import STALLED, ReportedJob
from vitald.core.node_state import NodeState
from vitald.core.waiting import Waiting
from vitald.model import Batch, Trust
from vitald.model.notice import JOB_COLLECTIVE
from vitald.nccl_ras.comparison import Kind, find_suspicion
from vitald.nccl_ras.document import parse_answer
from vitald.nccl_ras.protocol import RasError, ask_for_status, find_listener
from vitald.nccl_ras.report_text import list_problems
from vitald.nccl_ras.watch import (
    MAX_JSON_RANKS,
    MAX_QUERIES,
    WAITING_S,
    RasWatch,
    SuspectedJob,
    list_suspected,
)

pytestmark = pytest.mark.anyio

PROC = Path("/proc")
# 31 ranks wait in the operation that rank 12 has not launched.
BEHIND = communicator(
    [rank(number, {"AllReduce": 6649 if number == 12 else 6650}) for number in range(32)]
)
FROZEN = communicator([rank(number, {"AllReduce": 6650}) for number in range(32)])
SILENT = communicator(
    [rank(number, {"AllReduce": 7}) for number in range(32) if number != 21], [missing(21)]
)
DEAD = communicator(
    [rank(number, {"AllReduce": 7}) for number in range(32) if number != 21],
    [missing(21, dead=True)],
)
MOVED = communicator([rank(number, {"AllReduce": 6651}) for number in range(32)])
# NCCL user guide, "RAS", "Sample Output": a process that was stopped.
STOPPED = b"""\
NCCL version 2.30.7 compiled with CUDA 13.0

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data
"""


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (BEHIND, Kind.BEHIND, "rank 12 (GPU 4 of 172.16.64.210) at AllReduce 6649, 31 others"),
        (FROZEN, Kind.FROZEN, "all 32 ranks have launched the same operations (AllReduce 6650)"),
        (SILENT, Kind.UNRESPONSIVE, "rank 21 (GPU 5 of 172.16.64.213) did not answer, 31 others"),
        (DEAD, Kind.DEAD, "rank 21 (GPU 5 of 172.16.64.213) cannot be reached any more"),
    ],
)
def test_two_equal_answers(answer: dict[str, object], kind: Kind, text: str) -> None:
    communicators = parse_answer(document(answer))
    suspicion = find_suspicion(communicators, communicators)
    assert suspicion is not None and suspicion.kind is kind
    assert suspicion.text.startswith(text)


@pytest.mark.parametrize("former", [BEHIND, FROZEN])
def test_a_job_that_moves_is_not_suspected(former: dict[str, object]) -> None:
    assert find_suspicion(parse_answer(document(former)), parse_answer(document(MOVED))) is None


def test_progress_of_another_communicator_is_progress() -> None:
    other = {**FROZEN, "hash": "0x1"}
    moved = {**MOVED, "hash": "0x1"}
    former, latest = document(BEHIND, other), document(BEHIND, moved)
    assert find_suspicion(parse_answer(former), parse_answer(latest)) is None


def test_nothing_is_known_of_a_job_whose_operations_are_not_counted() -> None:
    idle = parse_answer(document(communicator([rank(0, {}), rank(1, {})])))
    assert find_suspicion(idle, idle) is None
    assert find_suspicion((), ()) is None


def test_a_missing_comma_is_put_back() -> None:
    """NCCL 2.28.7 and 2.28.9: jsonWriteMissingRank."""
    answer = document(SILENT, version="2.28.9")
    broken = re.sub(rb'("nvml_dev": 5),(\n\s*"status": \{\n\s*"unresponsive")', rb"\1\2", answer)
    assert broken != answer
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    assert parse_answer(broken) == parse_answer(answer)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"size": 32', b'"size": -1', "communicators[0].size: expected a whole number"),
        (b'"rank": 3,', b'"rank": "x",', "communicators[0].ranks[3].rank: expected"),
        (b'"AllReduce": 6650', b'"AllReduce": 1e99', "ranks[0].collective_counts.AllReduce"),
        (b'"host": "172.16.64.210"', b'"host": "a\\u001b[31m"', "ranks[0].host: expected one"),
        (b'"communicators": [', b'"communicators": [null, ', "communicators[0]: expected an obj"),
        (b"{", b"", "no JSON: "),
    ],
)
def test_a_wrong_answer_is_refused_with_the_place(old: bytes, new: bytes, said: str) -> None:
    wrong = document(FROZEN).replace(old, new, 1)
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_answer(wrong)


DOCUMENTS = st.recursive(st.none() | st.integers() | st.text(), st.lists)


@given(st.binary(max_size=400) | DOCUMENTS.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_answer(answer)


def test_the_problems_of_a_report_in_words() -> None:
    assert list_problems(STOPPED) == (
        "INCOMPLETE",
        "Missing communicator data from 1 job process",
        "Process 3487984 on node 172.16.64.213 managing GPU 5",
        "#0-0 (cf264af53edbe986) INCOMPLETE",
        "Missing communicator data from 1 rank",
        "The missing rank: 21",
    )
    assert list_problems(STOPPED.partition(b"Errors\n")[0]) == ()


# --- asking


async def test_the_exchange() -> None:
    async with RasServer(lambda: document(FROZEN)) as server:
        assert await ask_for_status(server.port) == document(FROZEN)
    assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"]


async def test_an_older_nccl_has_no_json() -> None:
    async with RasServer(lambda: b"", knows_json=False) as server:
        with pytest.raises(RasError, match="expected 'OK', found 'ERROR: Unknown command SET"):
            await ask_for_status(server.port)


async def test_silence_has_an_end() -> None:
    async with RasServer(lambda: b"x" * (17 << 20)) as server:
        with pytest.raises(RasError, match="more than 16 MiB"):
            await ask_for_status(server.port)
    with pytest.raises(RasError, match=f"127.0.0.1:{server.port}: "):
        await ask_for_status(server.port)


async def test_whose_process_listens() -> None:
    async with RasServer(lambda: b"") as server:
        assert find_listener(server.port, PROC) == os.getuid()
    assert find_listener(server.port, PROC) is None


class Watched:
    """A watch whose clock stands still until it is set."""

    def __init__(self, server: RasServer, uid: int = os.getuid(), world: int = 32) -> None:
        self.now = 1000.0
        self.suspected = [SuspectedJob("slurm job 1234", uid, world)]
        self.stored: list[Batch] = []
        self.state = NodeState("boot-a", 0.0, device_reset=False)
        self.watch = RasWatch(
            self.state,
            lambda: self.suspected,
            self._store,
            server.port,
            PROC,
            clock=lambda: self.now,
        )

    async def _store(self, batch: Batch) -> None:
        self.stored.append(batch)

    async def look(self, after_s: float = 60.0) -> list[str]:
        """The texts of the notices."""
        self.now += after_s
        await self.watch.look()
        return [notice.text for notice in self.state.notices.notices]


async def test_a_job_is_asked_twice_before_anything_is_said() -> None:
    async with RasServer(lambda: document(BEHIND)) as server:
        watched = Watched(server)
        assert await watched.look() == []
        assert await watched.look(59.0) == []
        assert server.commands.count("STATUS") == 1, "not within a minute"
        [text] = await watched.look(1.0)
        assert text.startswith("rank 12 (GPU 4 of 172.16.64.210) at AllReduce 6649")
        assert [text] == await watched.look()
    [event] = [event for batch in watched.stored for event in batch.events]
    assert (event.code, event.trust, event.raw) == (JOB_COLLECTIVE, Trust.JOB, text)
    [notice] = watched.state.notices.notices
    assert (notice.subject, notice.count) == ("slurm job 1234", 2)
    watched.suspected = []
    assert await watched.look() == []


def make_job(name: str, activity: str, led_world: int | None) -> ReportedJob:
    return ReportedJob(
        name=name,
        slurm="",
        pod="",
        claimed=name,
        uid=1000,
        user="",
        ranks=8,
        step=7,
        step_seconds=1.0,
        last_step=0.0,
        activity=activity,
        loss=None,
        led_world=led_world,
        saved=None,
    )


@pytest.mark.parametrize(
    ("waiting", "suspected"),
    [
        (None, ["a"]),
        (Waiting(), ["a"]),
        ((0.0, WAITING_S), ["a"]),
        ((0.0, WAITING_S + 1.0), ["a", "b"]),
        ((600.0, WAITING_S + 1.0), ["a"]),  # looked at ten minutes ago
    ],
)
def test_which_jobs_are_suspected(
    waiting: tuple[float, float] | Waiting | None, suspected: list[str], monkeypatch: Any
) -> None:
    """`waiting`: how old the last look is, and for how long the GPUs had waited then."""
    monkeypatch.setattr(time, "monotonic", lambda: 10_000.0)
    state = NodeState("boot-a", 0.0, device_reset=False)
    if isinstance(waiting, tuple):
        looked = 10_000.0 - waiting[0]
        waiting = Waiting(time=looked, since=looked - waiting[1])
    state.waiting = waiting
    state.job_reports.jobs = (
        make_job("a", STALLED, 64),
        make_job("b", "train", 64),
        make_job("ended", "", 64),
        make_job("led elsewhere", STALLED, None),
    )
    assert [job.subject for job in list_suspected(state)] == suspected


async def test_a_job_is_not_asked_for_ever() -> None:
    async with RasServer(lambda: document(FROZEN)) as server:
        watched = Watched(server)
        for _ in range(MAX_QUERIES + 5):
            await watched.look()
        assert server.commands.count("STATUS") == MAX_QUERIES
        assert len(watched.state.notices.notices) == 1, "it still holds"


async def test_another_users_word_is_not_taken() -> None:
    async with RasServer(lambda: document(FROZEN)) as server:
        watched = Watched(server, uid=os.getuid() + 1)
        assert [await watched.look() for _ in range(3)] == [[], [], []]
        assert server.commands == []


async def test_a_large_job_is_asked_for_a_report_in_words() -> None:
    async with RasServer(lambda: STOPPED) as server:
        watched = Watched(server, world=MAX_JSON_RANKS + 1)
        assert await watched.look() == []
        [text] = await watched.look()
    assert text.endswith("The missing rank: 21")
    assert "SET FORMAT json" not in server.commands


@pytest.mark.parametrize("answer", [b"", b"{", b'{"communicators": 1}'])
async def test_an_answer_that_is_none_is_no_news(answer: bytes) -> None:
    async with RasServer(lambda: answer) as server:
        watched = Watched(server)
        assert [await watched.look() for _ in range(3)] == [[], [], []]
    assert watched.stored == []


def test_an_answer_of_512_ranks_is_read_in_a_moment() -> None:
    answer = document(communicator([rank(number, {"AllReduce": 5}) for number in range(512)]))
    begun = time.perf_counter()
    parse_answer(answer)
    print(f"\n{len(answer)} bytes in {(time.perf_counter() - begun) * 1e3:.0f} ms")
    assert len(answer) < 1 << 20
