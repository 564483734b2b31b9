"""
One worker process attached to the driver: sends commands and enforces their deadlines.

A command that gets no answer ends the session: the caller learns why from `GaveUp` and starts
another worker.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from vitald.collectors.nvml.client import InFlight, WorkerGone, WorkerProcess, list_thread_states
from vitald.collectors.nvml.inbox import Inbox
from vitald.collectors.nvml.settings import NvmlSettings

# A daemon that was stopped and continues finds the deadline passed before it reads the answer that
# is already in the pipe.
_GRACE_S = 0.2

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """Why a command got no answer. Without `call`, a release was requested meanwhile."""

    call: InFlight | None = None  # the call that does not return, or in which the worker ended
    error: str = ""  # how the worker ended by itself; empty if it still runs


class Session:
    """Commands to one worker, one at a time."""

    def __init__(
        self,
        worker: WorkerProcess,
        settings: NvmlSettings,
        inbox: Inbox,
        report_hang: Callable[[InFlight, str], Awaitable[None]],
    ) -> None:
        """`report_hang` is awaited when a command passes its deadline, with the call in flight and
        the state of the worker's threads; the answer may still come after that.
        """
        self.worker = worker
        self._settings = settings
        self._inbox = inbox
        self._report_hang = report_hang

    async def ask_worker(self, command: Mapping[str, Any]) -> Union[Answer, GaveUp]:
        """The worker's answer to a command, or why there is none.

        `look` and `work` have one deadline as a whole: on a dying GPU every call may be slow.
        `attach` initialises one GPU after the other if nothing keeps them initialised, so the
        deadline applies to each call.
        """
        answer = self.worker.send_command(command)
        began, reported = time.monotonic(), False
        while not answer.done():
            if self._inbox.is_release_requested():
                return GaveUp()
            call = self.worker.in_flight
            if command["do"] == "attach" and call is not None:
                began = time.monotonic() - call.seconds
            took = time.monotonic() - began
            left = self._limit_s(reported=reported) - took
            if left > 0:
                await self._inbox.wait_for(answer, min(left, self._settings.deadline_s / 4))
            elif reported:
                return GaveUp(call=call or _between_calls(self._settings.give_up_s))
            else:
                await self._inbox.wait_for(answer, _GRACE_S)
                if not answer.done():
                    reported = True
                    await self._report_hang(
                        call or _between_calls(took), list_thread_states(self.worker.pid)
                    )
        try:
            return answer.result()
        except WorkerGone as error:
            return GaveUp(call=self.worker.in_flight or _between_calls(0.0), error=str(error))

    def _limit_s(self, *, reported: bool) -> float:
        deadline_s = self._settings.deadline_s
        return max(self._settings.give_up_s, deadline_s) if reported else deadline_s


def _between_calls(seconds: float) -> InFlight:
    return InFlight(call="the worker process", gpu="", seconds=seconds)
