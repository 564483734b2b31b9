"""
One attachment to the driver: starts a worker process, sends it commands with deadlines, polls it in
rounds, and ends it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union
from zlib import crc32

import structlog

from vitald.collectors.nvml.gpu_node import GONE
from vitald.collectors.nvml.gpu_state import GpuState
from vitald.collectors.nvml.inbox import Inbox
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.nvml.worker_process import (
    InFlight,
    WorkerGone,
    WorkerProcess,
    list_thread_states,
)
from vitald.model.source import Batch

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvml")

Emit = Callable[[Batch], Awaitable[None]]
# A daemon that was stopped and continues finds the deadline passed before it reads the answer that
# is already in the pipe.
_GRACE_S = 0.2
Answer = Mapping[str, Any]
Command = Mapping[str, Sequence[str]]  # addresses of the GPUs to read, by tier
LIBRARY = "libnvidia-ml.so.1"
LOADERS_CHOICE = ""  # the loader's own search
_LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)


class _Failed(Exception):
    """The driver gives no answer. A batch has reported why."""


class Attachment:
    """One worker process, from its start until it ends or has to be given up.

    `is_serving`: it is attached and polled in rounds. `had_readings`: a batch had readings.
    """

    def __init__(self, settings: NvmlSettings, state: GpuState, inbox: Inbox, emit: Emit) -> None:
        self.is_serving = False
        self.had_readings = False
        self._settings = settings
        self._state = state
        self._inbox = inbox
        self._emit_to_pipeline = emit

    async def run_worker(self) -> bool:
        """True if it ended in order: for a release, because other GPUs are to be polled, or because
        the driver's handles are stale. False if the driver gave no answer.
        """
        try:
            worker = WorkerProcess(find_library(self._settings), self._receive_message)
        except OSError as error:
            await self._emit_batch(
                self._state.build_unavailable_batch(
                    GONE, f"no process can be started: {error.strerror}"
                )
            )
            return False
        try:
            in_order = await self._serve_rounds(worker)
            if not worker.ended:
                await self._end_worker(worker)
            return in_order
        finally:
            worker.kill_process()  # a task that is cancelled must not wait

    async def _serve_rounds(self, worker: WorkerProcess) -> bool:
        session = Session(worker, self._settings, self._inbox, self._report_hang)
        gpus = self._state.list_polled()
        try:
            await self._attach_worker(session, gpus)
            self.is_serving = True
            await self._poll_rounds(session, gpus)
        except _Failed:
            return False
        finally:
            if self.is_serving:
                self.is_serving = False
                self._inbox.process_request.send_answer({})
        return True

    async def _attach_worker(self, session: Session, gpus: Sequence[str]) -> None:
        profiling = self._settings.profiling
        command = {"do": "attach", "gpus": gpus, "profiling": profiling}
        answer = await self._ask_worker(session, command)
        if "error" in answer:
            code, detail = int(answer["error"]), str(answer.get("detail", ""))
            await self._emit_batch(self._state.build_unavailable_batch(code, detail))
            raise _Failed
        node, pci = self._state.node, self._state.pci
        node.note_attached(answer, pci.list_usable(), switched=pci.has_nvswitches())
        node.find_slot = pci.find_slot
        log.info(
            "nvml_attached",
            driver=answer["driver"],
            gpus=len(gpus),
            failed=answer["failed"],
            events=len(answer["events"]),
            simulated=node.simulated,
        )

    # --- rounds

    async def _poll_rounds(self, session: Session, gpus: Sequence[str]) -> None:
        """The first round reads everything."""
        rounds = Rounds(self._settings, self._state.boot_id, gpus)
        self._inbox.take_urgent_gpus(gpus)
        commands, first = rounds.list_first_commands(), True
        while True:
            answers: dict[str, Answer] = {}
            for command in commands:
                answers |= (await self._ask_worker(session, {"do": "look", **command}))["gpus"]
            await self._report_round(answers, gpus, first=first)
            if any(answer.get("stale") for answer in answers.values()):
                log.warning("nvml_handles_stale", effect="a new process takes hold of the driver")
                self._state.node.note_driver_left()
                return
            first = False
            if not await self._wait_for_round(session, rounds, gpus):
                return
            commands = await self._plan_round(rounds, gpus)

    async def _wait_for_round(self, session: Session, rounds: Rounds, gpus: Sequence[str]) -> bool:
        """Answers requests for processes meanwhile. False if this attachment has to end."""
        while True:
            await self._inbox.sleep_until(rounds.due)
            if self._inbox.is_release_requested() or self._state.list_polled() != gpus:
                return False
            if not self._inbox.process_request.is_pending:
                return True
            answer = await self._ask_worker(session, {"do": "work", "gpus": gpus})
            self._inbox.process_request.send_answer(answer["gpus"])
            if self._inbox.has_urgent_gpus or rounds.is_due():
                return True

    async def _plan_round(self, rounds: Rounds, gpus: Sequence[str]) -> list[Command]:
        urgent = self._inbox.take_urgent_gpus(gpus)
        if not rounds.is_due():
            return rounds.list_urgent_commands(urgent)
        commands = rounds.list_next_commands(urgent)
        if rounds.is_inventory_round:
            await self._state.pci.scan_bus()
        return commands

    async def _report_round(
        self, answers: Mapping[str, Answer], gpus: Sequence[str], *, first: bool
    ) -> None:
        state, node = self._state, self._state.node
        events = node.process_answers(answers, state.pci.list_all())
        state.exclusions.clear_gpus([gpu for gpu in answers if answers[gpu].get("values")])
        if first:
            events += state.take_returned(events)
        events += [node.report_xid(*xid) for xid in self._inbox.xids.take_due()]
        await self._emit_batch(state.build_round_batch(events, gpus))

    # --- the worker

    async def _ask_worker(self, session: Session, command: Mapping[str, Any]) -> Answer:
        """Raises _Failed."""
        answer = await session.ask_worker(command)
        if isinstance(answer, GaveUp):
            await self._report_failure(session.worker, answer)
            raise _Failed
        return answer

    async def _report_failure(self, worker: WorkerProcess, failure: GaveUp) -> None:
        call = failure.call
        if call is None:
            return  # a release is requested
        if failure.error:
            if call.gpu:
                self._state.exclusions.exclude_gpu(
                    call.gpu, f"{call.call} ended the worker process"
                )
            await self._emit_batch(self._state.build_unavailable_batch(GONE, failure.error))
            return
        if call.gpu:
            self._state.exclusions.exclude_gpu(call.gpu, f"{call.call} did not return")
        await self._emit_batch(await self._end_hanging(worker, call))

    async def _end_hanging(self, worker: WorkerProcess, call: InFlight) -> Batch:
        stuck = await worker.end_process()
        if stuck is None:
            log.error(
                "nvml_worker_ended",
                call=call.call,
                gpu=call.gpu,
                next_step="another one is started, without that GPU",
            )
            return self._state.build_hang_batch(call, "it could be ended")
        self._state.exclusions.add_stuck(stuck)
        log.error(
            "nvml_worker_stuck", pid=stuck.pid, call=call.call, gpu=call.gpu, state=stuck.state
        )
        return self._state.build_hang_batch(call, stuck.state, unkillable=True)

    async def _end_worker(self, worker: WorkerProcess) -> None:
        stuck = await worker.end_process()
        if stuck is not None:
            self._state.exclusions.add_stuck(stuck)

    def _receive_message(self, message: Mapping[str, Any]) -> None:
        """A message of the worker that answers no command."""
        if "simulated" in message:
            self._state.node.note_library(simulated=message["simulated"] is True)
        elif (deaf := message.get("deaf")) is not None:
            log.warning("nvml_events_not_heard", gpu=deaf["gpu"], code=deaf["code"])
        else:
            self._inbox.add_nvml_event(message["event"])

    async def _report_hang(self, call: InFlight, state: str) -> None:
        await self._emit_batch(self._state.build_hang_batch(call, state))

    async def _emit_batch(self, batch: Batch) -> None:
        self.had_readings = self.had_readings or bool(batch.readings)
        await self._emit_to_pipeline(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """Why a command got no answer. Without `call`, a release was requested meanwhile."""

    call: InFlight | None = None  # the call that does not return, or in which the worker ended
    error: str = ""  # how the worker ended by itself; empty if it still runs


class Session:
    """Commands to one worker, one at a time. One that gets no answer ends the session: the caller
    learns why from `GaveUp` and starts another worker.
    """

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


class Rounds:
    """When the worker reads which GPUs: fast readings of all in each round, slow ones of a few.
    `due`: when the next round begins, on the monotonic clock.
    """

    def __init__(self, settings: NvmlSettings, boot_id: str, gpus: Sequence[str]) -> None:
        """Nodes that boot together start their rounds at different times."""
        self._fast_s = settings.fast_s
        self._gpus = gpus
        self._rounds_per_turn = {
            "slow": max(1, round(settings.slow_s / settings.fast_s)),
            "inventory": max(1, round(settings.inventory_s / settings.fast_s)),
        }
        self._round = 0
        self.due = time.monotonic() + settings.fast_s * (crc32(boot_id.encode()) % 1000 / 1000)

    @property
    def is_inventory_round(self) -> bool:
        return self._round % self._rounds_per_turn["inventory"] == 0

    def is_due(self) -> bool:
        return time.monotonic() >= self.due

    def list_first_commands(self) -> list[Command]:
        """All readings, of one GPU after the other: each command has a deadline of its own."""
        return [{tier: [gpu] for tier in ("fast", "slow", "inventory")} for gpu in self._gpus]

    def list_urgent_commands(self, urgent: Sequence[str]) -> list[Command]:
        """Between two rounds: GPUs that reported an event."""
        return [{"fast": urgent, "slow": urgent, "inventory": []}]

    def list_next_commands(self, urgent: Sequence[str]) -> list[Command]:
        """The round that is due now. A round that comes late does not hurry the next one."""
        self._round += 1
        turns = {
            tier: _select_turn(self._gpus, self._round, rounds)
            for tier, rounds in self._rounds_per_turn.items()
        }
        following, now = self.due + self._fast_s, time.monotonic()
        self.due = following if following > now else now + self._fast_s
        return [
            {
                "fast": self._gpus,
                "slow": sorted({*turns["slow"], *urgent}),
                "inventory": turns["inventory"],
            }
        ]


def _select_turn(gpus: Sequence[str], round_number: int, rounds: int) -> list[str]:
    """The GPUs whose turn it is in this round: spread as evenly as their number allows."""
    return [
        gpu
        for index, gpu in enumerate(gpus)
        if round_number % rounds == index * rounds // len(gpus)
    ]


def find_library(settings: NvmlSettings) -> str:
    """Which libnvidia-ml.so.1 is loaded: the configured one, else that of the driver's tree, else
    LOADERS_CHOICE. The tree may come and go while vitald runs.

    Where the NVIDIA GPU Operator installs the driver, its whole tree is below `/run/nvidia/driver`,
    and the node itself has none. It comes first: it belongs to the driver that runs now, while a
    library that the NVIDIA runtime put into a container is that of the container's start, and the
    operator may have upgraded the driver since.

    Only the library's own path is given to the loader. A search path (LD_LIBRARY_PATH) would find
    the tree's other libraries too, and its C library is of another system.

    Source: NVIDIA GPU Operator, value `hostPaths.driverInstallDir`; folders as NVIDIA's DRA driver
    searches them (github.com/NVIDIA/k8s-dra-driver-gpu, cmd/gpu-kubelet-plugin/root.go).
    """
    if settings.library is not None:
        return str(settings.library)
    for folder in _LIBRARY_FOLDERS:
        path = settings.driver_root / folder / LIBRARY
        try:
            if path.is_file():
                return str(path)
        except OSError:  # on its way out, or not for this user
            continue
    return LOADERS_CHOICE
