"""Who may connect to the job socket, and how much of a pass of the loop its clients get."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from tests.pace import patient
from vitald.core.node_state import NodeState
from vitald.jobsocket.access_list import deny_users
from vitald.jobsocket.admission import MAX_CONNECTIONS, MAX_PER_USER, Admission
from vitald.jobsocket.server import JobSocket
from vitald.jobsocket.telemetry import JobTelemetry
from vitald.model import Batch
from vitald.worker_thread import WorkerThread

ALICE, BOB = 1000, 1001


def count_admitted(admission: Admission, uid: int, attempts: int, now: float = 0.0) -> int:
    return sum(admission.admit(uid, now) for _ in range(attempts))


def test_a_user_has_so_many_connections_and_all_users_have() -> None:
    admission = Admission()
    assert count_admitted(admission, ALICE, 100) == MAX_PER_USER
    others = sum(count_admitted(admission, uid, 100) for uid in range(BOB, BOB + 10))
    assert others == MAX_CONNECTIONS - MAX_PER_USER
    admission.release(ALICE)
    assert admission.admit(ALICE, 0.0) and not admission.admit(ALICE, 0.0)


def test_who_connects_without_end_is_barred_alone_for_longer_each_time() -> None:
    admission, now = Admission(), 0.0
    lasted = []
    for _ in range(7):
        while not admission.barred:
            admission.admit(ALICE, now)
        assert admission.barred == {ALICE} and not admission.admit(ALICE, now)
        assert admission.admit(BOB, now)
        admission.release(BOB)
        began = now
        while admission.barred:
            now += 1.0
            admission.forget(now)
        lasted.append(now - began)
    assert lasted == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    admission.forget(now + 600.0)
    while not admission.barred:
        admission.admit(ALICE, now + 600.0)
    admission.forget(now + 610.0)
    assert not admission.barred, "forgotten after ten minutes"


def test_a_user_with_many_ranks_is_not_barred() -> None:
    """128 ranks that try again every 30 s."""
    admission = Admission()
    count_admitted(admission, ALICE, 128)
    for attempt in range(1, 100):
        admission.forget(30.0 * attempt)
        count_admitted(admission, ALICE, 64, 30.0 * attempt)
        assert not admission.barred


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_kernel_keeps_out_who_is_on_the_list(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(16)
        assert [connect_as(uid, path) for uid in (ALICE, BOB)] == [0, 0]
        deny_users(path, [ALICE])
        assert [connect_as(uid, path) for uid in (ALICE, BOB)] == [13, 0]
        deny_users(path, [])
        assert [connect_as(uid, path) for uid in (ALICE, BOB)] == [0, 0]


def connect_as(uid: int, path: Path) -> int:
    """The error number of connect(2), in a child; 0 for none."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chdir(path.parent)
    os.setresuid(uid, uid, uid)
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path.name)
    except OSError as error:
        os._exit(error.errno or 255)
    os._exit(0)


# --- passes of the loop


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Path, NodeState]]:
    state = NodeState("boot-a", 0.0, device_reset=False)

    async def store(batch: Batch) -> None:
        raise AssertionError(batch)

    path, thread = folder / "job/job.sock", WorkerThread("job-identity")
    served = JobSocket(path, JobTelemetry(state, store), Path("/proc"), thread)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.run)
        while not path.exists():
            await anyio.sleep(0.01)
        yield path, state
        tasks.cancel_scope.cancel()
    thread.close()


async def find_steps(read: Callable[[], int], until: int) -> list[int]:
    """How much a number grew in each pass of the loop, until it is there."""
    end, grown, before = time.monotonic() + patient(20.0), [], read()
    while before < until:
        assert time.monotonic() < end
        await asyncio.sleep(0)
        now = read()
        grown.append(now - before)
        before = now
    return grown


def connect_many(path: Path, number: int) -> list[socket.socket]:
    made = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(number)]
    for sock in made:
        sock.connect(str(path))
    return made


def test_a_pass_of_the_loop_accepts_few(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as (path, state):
            clients = connect_many(path, 240)
            steps = await find_steps(lambda: state.job_reports.refused, 240 - MAX_PER_USER)
            assert max(steps) <= 8
            for client in clients:
                client.close()

    asyncio.run(main())


def test_a_pass_of_the_loop_reads_few_packets(tmp_path: Path) -> None:
    """Of all connections together, however many of them have some."""

    async def main() -> None:
        async with served(tmp_path) as (path, state):
            clients = connect_many(path, 60)
            for client in clients:
                with suppress(BlockingIOError):
                    for _ in range(9):
                        client.send(b"{", socket.MSG_DONTWAIT)
            steps = await find_steps(lambda: state.job_reports.wrong, 60 * 9)
            assert max(steps) < 64 + 16
            for client in clients:
                client.close()

    asyncio.run(main())
