"""One attachment to the driver: starts a worker, polls it in rounds, and ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from vitald.collectors.nvml.batches import GpuState
from vitald.collectors.nvml.client import InFlight, WorkerProcess
from vitald.collectors.nvml.inbox import Inbox
from vitald.collectors.nvml.library import find_library
from vitald.collectors.nvml.node import GONE
from vitald.collectors.nvml.outlet import Emit
from vitald.collectors.nvml.rounds import Command, Rounds
from vitald.collectors.nvml.session import Answer, GaveUp, Session
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.model import Batch

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvml")


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
