"""
A worker thread for calls that can block, so that the event loop does not.

Calls run in order. A caller may give up after a deadline, but its thread cannot be interrupted:
until the call returns, further calls are refused. The thread is a daemon thread, so one that hangs
in the kernel does not delay the end of the process. (A ThreadPoolExecutor is joined at exit.)
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_GRACE_S = 0.2


class ThreadStuck(Exception):
    """An earlier call has not returned."""


class NoThread(Exception):
    """No further thread can be started; the text names the limits that may be the reason."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises NoThread."""
    try:
        thread.start()
    except RuntimeError as error:  # Python has no exception of its own for it
        limits = (
            "the limit of processes is reached (ulimit -u, TasksMax= of the unit, or pids.max of"
            " the container)"
        )
        raise NoThread(f"no thread for {thread.name}: {error}: {limits}") from None


class WorkerThread:
    """One named thread and its queue. Raises NoThread if it cannot be started."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stuck = False
        start_thread(threading.Thread(target=self._run, name=name, daemon=True))

    async def call(self, work: Callable[[], T], deadline_s: float = 5.0) -> T:
        """The result of `work`, run in the thread. Raises ThreadStuck, or what `work` raises."""
        if self._stuck:
            raise ThreadStuck(f"{self.name}: still waiting for an earlier call")
        future: Future[T] = Future()

        def job() -> None:
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            self._stuck = False

        self._calls.put(job)
        waiting = asyncio.wrap_future(future)
        # After a process was stopped, the deadline may have passed before its thread could run:
        # hence a second, short wait.
        for seconds in (deadline_s, _GRACE_S):
            await asyncio.wait([waiting], timeout=seconds)
            if waiting.done():
                return waiting.result()
        self._stuck = not future.done()
        raise ThreadStuck(f"{self.name}: no answer within {deadline_s:g} s")

    def post(self, work: Callable[[], None]) -> None:
        """Queue `work` without waiting for it. It must not raise."""
        self._calls.put(work)

    def close(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (job := self._calls.get()) is not None:
            job()
