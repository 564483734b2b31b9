"""A job that stalls, whose NCCL RAS answers a real daemon. It is asked twice, a minute apart."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from tests.harness import Json, Node, free_port
from tests.job_rank import RankProcess
from tests.nccl_ras_server import RasServer, communicator, document, rank
from vitald.nccl_ras.watch import ASK_EVERY_S

BEHIND = communicator([rank(number, {"AllReduce": 6650 - (number == 1)}) for number in range(2)])


@contextmanager
def answering(server: RasServer) -> Iterator[None]:
    """In a thread, as a job's own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(5.0)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(5.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _has_made_steps(node: Node) -> bool:
    """Both ranks, read from their pages a few times."""
    [job] = cast("list[Json]", node.status()["reportedJobs"]) or [{"ranks": 0}]
    return job["ranks"] == 2 and job["step"] is not None and int(str(job["step"])) > 200


def test_the_rank_that_holds_up_the_others_is_named(tmp_path: Path) -> None:
    server = RasServer(lambda: document(BEHIND), port=free_port())
    extra = f"[job]\nnccl_ras = {server.port}\n"
    with answering(server), Node(tmp_path, extra=extra) as node:
        path = node.runtime / "job/job.sock"
        node.until(path.exists, 10.0, "the job socket")
        first, second = (RankProcess(path, rank=n, job="7", step_limit_s=2) for n in (0, 1))
        try:
            node.until(lambda: _has_made_steps(node), 10.0, "the job's steps")
            second.signal(signal.SIGSTOP)
            node.until(
                lambda: node.events("&code=job/collective"), ASK_EVERY_S + 40.0, "the notice"
            )
            [event] = node.events("&code=job/collective")
            assert str(event["raw"]).startswith("rank 1 (GPU 1 of 172.16.64.210) at AllReduce 6649")
            assert event["trust"] == "job"
            assert server.commands.count("STATUS") == 2
            assert event["raw"] in node.cli("status").stdout
            assert (node.status()["status"], node.findings()) == ("healthy", [])
            second.signal(signal.SIGCONT)
            node.until(
                lambda: "job/collective" not in str(node.status()["notices"]), 20.0, "its end"
            )
        finally:
            for process in (first, second):
                process.end()
