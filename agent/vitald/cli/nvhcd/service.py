"""
The gRPC service: asks the daemon for its verdict, and answers.

Requests that wait at the same time share a question: the daemon gets one at a time, and an answer
is never older than the request. A daemon that does not answer is an unknown state, on which the
configuration decides.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

from vitald.cli import client
from vitald.cli.nvhcd.answer import HealthAnswer, build_answer
from vitald.cli.nvhcd.messages import METHOD
from vitald.worker_thread import ThreadStuck, WorkerThread

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvhcd")

# With one question before it, a request waits twice as long: well below the client's 60 s.
_DAEMON_S, _THREAD_S = 10.0, 12.0

Ask = Callable[[], "schema.NodeStatus"]


def ask_daemon(socket: Path) -> schema.NodeStatus:
    """The verdict for a job about to begin. Raises NoAnswer, DaemonRefused."""
    arguments = argparse.Namespace(socket=socket, timeout=_DAEMON_S)
    return client.read_status(arguments, work="prolog")


class VerdictReader:
    """The daemon's verdicts, one question at a time."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._thread = WorkerThread("nvhcd")
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._verdict: schema.NodeStatus | None = None
        self._problem = ""

    async def read_verdict(self) -> schema.NodeStatus | None:
        """One that the daemon was asked for after this call; None if it gives none."""
        loop = asyncio.get_running_loop()
        called_at = loop.time()
        async with self._lock:
            if self._asked_at < called_at:
                asked_at = loop.time()
                self._verdict = await self._ask_in_thread()
                self._asked_at = asked_at
            return self._verdict

    async def _ask_in_thread(self) -> schema.NodeStatus | None:
        verdict, problem = None, ""
        try:
            verdict = await self._thread.call(self._ask, _THREAD_S)
        except (client.NoAnswer, client.DaemonRefused, ThreadStuck) as error:
            problem = str(error)
        if problem != self._problem:
            log.info("daemon_answers") if not problem else log.error("no_verdict", error=problem)
            self._problem = problem
        return verdict


class HealthCheckService:
    """`nvhcd.HealthCheckService`. `answered`: requests since the start."""

    def __init__(self, verdicts: VerdictReader, unknown: str) -> None:
        self._verdicts = verdicts
        self._unknown = unknown
        self._last: HealthAnswer | None = None
        self.answered = 0

    async def answer_request(self, stream: Stream[None, HealthAnswer]) -> None:
        await stream.recv_message()
        answer = build_answer(await self._verdicts.read_verdict(), self._unknown)
        if answer != self._last:  # a line for each change: many may ask, often
            log.info("answer", success=answer.success, output=answer.output)
            self._last = answer
        await stream.send_message(answer)
        self.answered += 1

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods, as grpclib asks for them."""
        handler = Handler(self.answer_request, Cardinality.UNARY_UNARY, type(None), HealthAnswer)
        return {METHOD: handler}
