"""
NVML as a source: what to ask the driver and when, and what to do when it does not answer.

The worker process asks; it alone may block. Fast readings of all GPUs come at each round, the slow
ones of a few of them, so that a node never polls everything at once. Baselines and what was said
are remembered as this source's position: committed together with the events that moved them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import structlog

from vitald.backoff import Backoff
from vitald.catalog import Catalog
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.nvml.client import InFlight, Stuck, Worker, WorkerGone, holders, states
from vitald.collectors.nvml.node import GONE, NAME, GpuNode
from vitald.collectors.nvml.readings import READINGS
from vitald.collectors.nvml.release import Releases, Report
from vitald.collectors.nvml.settings import SECTION, NvmlSettings
from vitald.collectors.pci.inventory import PciInventory, machine_type
from vitald.model import NODE, Batch, ComponentKind, Event, Position, SourceState
from vitald.worker_thread import Lane, LaneStuck

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvml")

RELEASED, RETURNED = "nvml/released", "nvml/returned"
_RETRY = Backoff(5.0, 60.0)  # a driver that cannot be asked is tried again
_LEFT_OUT = Backoff(60.0, 1800.0)  # a GPU at which a call hung is asked again
_STUCK = 2  # processes that do not end: with so many, no other is started
_CORROBORATED_S = 2.0  # the kernel log tells an Xid with its words; the event speaks only after it
_SWARM_S = 0.2  # events come in swarms
# A daemon that was stopped and goes on finds the deadline passed before the answer that lies in the
# pipe
_GRACE_S = 0.2
_XID, _XID_UNKNOWN = 0x8, 999
_DRIVER = "nvidia"

_WORDS = {
    GONE: "the NVML worker process ended",
    4: (
        "no permission to use the driver: the service needs read and write access to /dev/nvidiactl"
        " and /dev/nvidia*"
    ),
    9: "the driver is not loaded: try modprobe nvidia, and look in the kernel log for the reason",
    12: (
        "libnvidia-ml.so.1 is not there: install the driver's libraries, or in a container mount"
        " them"
    ),
    13: "the driver's library is too old to answer",
    18: (
        "library and kernel module are of different versions (the driver was upgraded on disk):"
        " reload the module, or reboot"
    ),
    28: "the driver finds no GPU",
    999: (
        "the driver answers with an unknown error: in a container, see whether it lost its access"
        " to /dev/nvidia*"
    ),
}


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """A GPU that is not asked until then, after so many times in succession, and why."""

    until: float
    times: int
    why: str


class Nvml:
    """One long-lived client of the driver, in a process of its own."""

    name = NAME

    def __init__(
        self,
        settings: NvmlSettings,
        catalog: Catalog,
        inventory: PciInventory,
        boot_id: str,
        lane: Lane,
        *,
        expected: int = 0,
        vbios: Sequence[str] = (),
    ) -> None:
        """`expected`: how many GPUs a node of this type has, 0 where nobody knows. `vbios`: the
        versions that they may have; empty: any.
        """
        self.settings = settings
        self.boot_id = boot_id
        self.deadline_s = 2 * settings.fast_s + settings.deadline_s + 5.0
        self.releases = Releases(wake=self._wake_up)
        self.expected = settings.expected_gpus or expected
        self._vbios = vbios
        self._catalog = catalog
        self._inventory = inventory
        self._lane = lane
        self._wake = asyncio.Event()
        self._node = self._fresh()
        self._noted = ""
        self._answer: Mapping[str, Any] | None = None
        self._stuck: list[Stuck] = []
        self._left_out: dict[str, _LeftOut] = {}
        self._heard: dict[
            tuple[str, int], tuple[float, float]
        ] = {}  # Xids, by GPU and number: when they speak, and their time
        self._walked = -math.inf  # when PCI was looked at
        self._announced = False  # something came or went since
        self._urgent: set[str] = set()  # GPUs that an event told of: looked at out of turn
        self._asked_for_work: asyncio.Future[Mapping[str, Sequence[float]]] | None = None
        self._serving = False  # a worker is attached and looks, round after round

    def look_now(self) -> None:
        """The kernel announced a device: a node without a GPU may have one."""
        self._announced = True
        self._wake_up()

    async def work(self, seconds: float) -> Mapping[str, Sequence[float]] | None:
        """The processes at work on each GPU, asked for now and not as old as the last look. Raises
        asyncio.TimeoutError.

        By component's name, of those GPUs that answer. None where nothing is asked of the driver at
        all.
        """
        if not self._serving or self.releases.asked:
            return None
        if self._asked_for_work is None:
            self._asked_for_work = asyncio.get_running_loop().create_future()
        self._wake_up()
        return await asyncio.wait_for(asyncio.shield(self._asked_for_work), seconds)

    def configure(self, catalog: Catalog) -> None:
        """The catalogue was reloaded."""
        self._catalog = catalog
        self._node.configure(catalog)

    async def batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled."""
        self._node, self._noted = self._fresh(), ""
        if after is not None:
            try:
                self._node.recall(after.cursor, after.boot_id)
            except ValueError as error:
                log.error("nvml_memory_not_read", error=str(error), effect="baselines begin anew")
        failures = 0  # in succession
        while True:
            due = (
                self._announced
                or self._inventory.error
                or time.monotonic() - self._walked >= self.settings.inventory_s
            )
            if due or self._gpus():
                await self._look_at_pci()
            if self.releases.asked:  # no worker runs here: nothing of ours holds anything
                self.releases.admit()
                yield self._batch([], SourceState.RELEASED, self.releases.words)
                self.releases.answer(await self._held_by())
            if self.releases.everything:
                yield self._batch([], SourceState.RELEASED, self.releases.words)
                await self._pause(min(self.releases.left_s, self.deadline_s / 3))
            elif not self._gpus() and self._inventory.error:
                yield self._batch([], SourceState.FAILED, self._blind())
                await self._pause(_RETRY.first_s)
            elif not self._gpus():
                yield self._batch(
                    self._node.unavailable(0, self._nothing(), self._on_pci()),
                    SourceState.ABSENT,
                    self._nothing(),
                )
                await self._pause(min(self.settings.inventory_s, self.deadline_s / 3))
            elif sum(not stuck.gone for stuck in self._stuck) >= _STUCK:
                yield self._batch([], SourceState.FAILED, self._given_up())
                await self._pause(_LEFT_OUT.first_s)
            else:
                answered = False
                async for batch in self._attached():
                    answered = answered or bool(batch.readings)
                    yield batch
                if self._answer is None:
                    await self._pause(_RETRY.delay_s(failures))
                failures = 0 if answered else failures + 1

    def _fresh(self) -> GpuNode:
        settings = self.settings
        periods = {
            "fast": settings.fast_s,
            "slow": settings.slow_s,
            "inventory": settings.inventory_s,
        }
        return GpuNode(
            self._catalog,
            self.boot_id,
            expected=self.expected,
            told=settings.expected_gpus,
            vbios=self._vbios,
            overdue_s={
                tier: 2 * period + settings.deadline_s + 5.0 for tier, period in periods.items()
            },
        )

    # --- one worker

    async def _attached(self) -> AsyncIterator[Batch]:
        """From the start of a worker until it has to be given up, or let go of."""
        try:
            worker = Worker(str(self.settings.library or ""), self._told)
        except OSError as error:
            self._answer = None
            yield self._unavailable(GONE, f"no process can be started: {error.strerror}")
            return
        try:
            async for batch in self._served(worker):
                yield batch
            if not worker.ended and (stuck := await worker.end()) is not None:
                self._stuck.append(stuck)
        finally:
            worker.kill()  # a cancelled generator must not wait

    async def _served(self, worker: Worker) -> AsyncIterator[Batch]:
        gpus = self._asked()
        async for batch in self._converse(worker, {"do": "attach", "gpus": gpus}):
            yield batch
        if self._answer is None:
            return
        if "error" in self._answer:
            code, detail = int(self._answer["error"]), str(self._answer.get("detail", ""))
            self._answer = None
            yield self._unavailable(code, detail)
            return
        self._node.attached(self._answer, self._gpus())
        self._node.slots = self._inventory.slots
        self._node.switched = any(
            device.kind is ComponentKind.NVSWITCH for device in self._inventory.devices.values()
        )
        failed, heard = self._answer["failed"], len(self._answer["events"])
        log.info(
            "nvml_attached",
            driver=self._answer["driver"],
            gpus=len(gpus),
            failed=failed,
            events=heard,
            simulated=self._node.simulated,
        )
        self._serving = True
        try:
            async for batch in self._rounds(worker, gpus):
                yield batch
        finally:
            self._serving = False
            self._tell_work({})

    async def _rounds(self, worker: Worker, gpus: list[str]) -> AsyncIterator[Batch]:
        """Look, again and again. The first look is a whole one; `_answer` is None where there was
        none.
        """
        settings = self.settings
        rounds = {
            "slow": max(1, round(settings.slow_s / settings.fast_s)),
            "inventory": max(1, round(settings.inventory_s / settings.fast_s)),
        }
        due = time.monotonic() + settings.fast_s * (
            crc32(self.boot_id.encode()) % 1000 / 1000
        )  # nodes that boot together part ways
        whole, turn = True, 0
        while True:
            if self._asked_for_work is not None and not whole:
                async for batch in self._converse(worker, {"do": "work", "gpus": gpus}):
                    yield batch
                if self._answer is None:
                    return
                self._tell_work(self._answer["gpus"])
                if not self._urgent and time.monotonic() < due:
                    await self._pause_until(due)
                    if self.releases.asked or self._asked() != gpus:
                        return
                    continue
            urgent, self._urgent = sorted(self._urgent & set(gpus)), set()
            if whole:  # one after the other, each with its own deadline
                commands = [{tier: [gpu] for tier in ("fast", "slow", "inventory")} for gpu in gpus]
            elif time.monotonic() < due:
                commands = [{"fast": urgent, "slow": urgent, "inventory": []}]
            else:
                turn += 1
                turns = {tier: _turn(gpus, turn, every) for tier, every in rounds.items()}
                commands = [
                    {
                        "fast": gpus,
                        "slow": sorted({*turns["slow"], *urgent}),
                        "inventory": turns["inventory"],
                    }
                ]
                due = (
                    due + settings.fast_s
                    if due + settings.fast_s > time.monotonic()
                    else time.monotonic() + settings.fast_s
                )
                if turn % rounds["inventory"] == 0:
                    await self._look_at_pci()
            answers: dict[str, Mapping[str, Any]] = {}
            for command in commands:
                async for batch in self._converse(worker, {"do": "look", **command}):
                    yield batch
                if self._answer is None:
                    return
                answers |= self._answer["gpus"]
            told = self._node.digest(answers, self._on_pci())
            self._left_out = {
                gpu: out
                for gpu, out in self._left_out.items()
                if not answers.get(gpu, {}).get("values")
            }
            if whole:
                told += self._returned(told)
            yield self._batch([*told, *self._corroborated()], *self._standing(gpus))
            if any(answer.get("stale") for answer in answers.values()):
                log.warning("nvml_handles_stale", effect="a new process takes hold of the driver")
                return
            whole = False
            await self._pause_until(due)
            if self.releases.asked or self._asked() != gpus:
                return

    def _tell_work(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        asked, self._asked_for_work = self._asked_for_work, None
        if asked is None or asked.done():
            return
        said = (
            (f"gpu/{gpu}", answer.get("values", {}).get("process_pids"))
            for gpu, answer in answers.items()
        )
        asked.set_result({name: pids for name, pids in said if pids is not None})

    async def _converse(self, worker: Worker, command: Mapping[str, Any]) -> AsyncIterator[Batch]:
        """Ask, and wait. Yields what is to be said meanwhile; the answer is in `_answer`, None
        where there is none.

        A look has its deadline as a whole: over a dying GPU every call may take its time. Attaching
        initialises one GPU after the other, where nothing keeps them so; there the deadline is each
        call's own.
        """
        self._answer = None
        asked = worker.ask(command)
        began, told = time.monotonic(), False
        while not asked.done():
            if self.releases.asked:
                return  # who wants the GPUs does not wait for one that hangs
            where = worker.in_flight
            if command["do"] == "attach" and where is not None:
                began = time.monotonic() - where.seconds
            took = time.monotonic() - began
            left = (
                max(self.settings.give_up_s, self.settings.deadline_s)
                if told
                else self.settings.deadline_s
            ) - took
            if left > 0:
                await self._either(asked, min(left, self.settings.deadline_s / 4))
            elif told:
                yield await self._give_up(worker)
                return
            else:
                await self._either(asked, _GRACE_S)
                if not asked.done():
                    told = True
                    yield self._hangs(where or _nowhere(took), states(worker.pid))
        try:
            self._answer = asked.result()
        except WorkerGone as error:
            where = worker.in_flight
            if where is not None and where.gpu:
                self._leave_out(where.gpu, f"{where.call} ended the worker process")
            yield self._unavailable(GONE, str(error))

    async def _either(self, asked: asyncio.Future[Any], seconds: float) -> None:
        """Until there is an answer, or somebody asks something of us."""
        self._wake.clear()
        waking: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait(
                {asked, waking}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waking.cancel()

    async def _give_up(self, worker: Worker) -> Batch:
        where = worker.in_flight or _nowhere(self.settings.give_up_s)
        if where.gpu:
            self._leave_out(where.gpu, f"{where.call} did not return")
        stuck = await worker.end()
        if stuck is None:
            log.error(
                "nvml_worker_ended",
                call=where.call,
                gpu=where.gpu,
                next_step="another one is started, without that GPU",
            )
            return self._hangs(where, "it could be ended")
        self._stuck = [one for one in self._stuck if not one.gone] + [stuck]
        log.error(
            "nvml_worker_stuck", pid=stuck.pid, call=where.call, gpu=where.gpu, state=stuck.state
        )
        return self._hangs(where, stuck.state, unkillable=True)

    def _leave_out(self, gpu: str, why: str) -> None:
        times = self._left_out[gpu].times + 1 if gpu in self._left_out else 0
        self._left_out[gpu] = _LeftOut(time.monotonic() + _LEFT_OUT.delay_s(times), times, why)

    # --- stepping aside

    async def _held_by(self) -> Report:
        """Who else has the released devices open."""
        alone = [] if self.releases.everything else self._node.minors(self.releases.gpus)
        found: list[tuple[int, str]] = []
        hidden = -1
        with suppress(LaneStuck, OSError):
            found, hidden = await self._lane.call(lambda: holders(alone))
        return Report(
            holders=tuple(found),
            hidden=hidden,
            stuck=tuple(one.pid for one in self._stuck if not one.gone),
        )

    def _released(self) -> list[Event]:
        return [
            self._node.event(
                RELEASED,
                NODE,
                {"by": one.by, "reason": one.reason, "gpus": one.words},
                f"{one.words} released, asked by {one.by}: {one.reason}",
            )
            for one in self.releases.take_begun()
        ]

    def _returned(self, told: Iterable[Event]) -> list[Event]:
        """What is different after a release, once the GPUs have been looked at again."""
        changed = "; ".join(event.raw for event in told) or "nothing has changed"
        events = []
        for one in self.releases.take_ended():
            early = f", taken back by {one.ended_by}" if one.ended_by else ""
            fields = {"by": one.ended_by or one.by, "reason": one.reason, "gpus": one.words}
            events.append(
                self._node.event(
                    RETURNED, NODE, fields, f"{one.words} looked at again{early}: {changed}"
                )
            )
        return events

    # --- events of NVML

    def _told(self, told: Mapping[str, Any]) -> None:
        """What the worker says unasked. An event is a reason to look now, whatever it tells."""
        if "simulated" in told:
            self._node.library(simulated=told["simulated"] is True)
            return
        if (deaf := told.get("deaf")) is not None:
            log.warning("nvml_events_not_heard", gpu=deaf["gpu"], code=deaf["code"])
            return
        event = told["event"]
        gpu = str(event["gpu"])
        if event["type"] == _XID and event["data"] != _XID_UNKNOWN:
            self._heard.setdefault(
                (gpu, int(event["data"])), (time.monotonic() + _CORROBORATED_S, time.time())
            )
        self._urgent.add(gpu)
        self._wake_up()

    def _corroborated(self) -> list[Event]:
        """Xids that NVML told of a moment ago. The kernel log has had its turn."""
        due = [xid for xid, (speaks, _) in self._heard.items() if speaks <= time.monotonic()]
        return [self._node.xid(*xid, self._heard.pop(xid)[1]) for xid in due]

    # --- batches

    def _batch(self, events: Iterable[Event], state: SourceState, detail: str) -> Batch:
        events = (*self._released(), *events)
        said = {(event.component, event.code) for event in events}
        holding = tuple(
            event
            for event in self._node.take_holding(self._on_pci())
            if (event.component, event.code) not in said
        )
        position = None
        memory = self._node.memory
        if events or memory != self._noted:
            position, self._noted = Position(NAME, self.boot_id, memory), memory
        released = set(self._node.read) if self.releases.everything else self.releases.gpus
        readings = tuple(one for gpu, one in self._node.read.items() if gpu not in released)
        return Batch(
            NAME,
            events,
            position,
            caught_up=True,
            state=state,
            detail=detail,
            readings=readings,
            simulated=self._node.simulated,
            holding=holding,
            calm=self._node.calm,
        )

    def _unavailable(self, code: int, detail: str) -> Batch:
        said = _WORDS.get(code, f"NVML error {code}") + (f": {detail}" if detail else "")
        return self._batch(
            self._node.unavailable(code, said, self._on_pci()), SourceState.FAILED, said
        )

    def _hangs(self, where: InFlight, state: str, *, unkillable: bool = False) -> Batch:
        told = self._node.hangs(where.gpu, where.call, where.seconds, state, unkillable=unkillable)
        return self._batch(
            [told], SourceState.FAILED, f"{where} has not answered for {where.seconds:.0f} s"
        )

    def _standing(self, asked: Iterable[str]) -> tuple[SourceState, str]:
        """A GPU that is not asked, or answers nothing, makes what is known of this node
        incomplete.
        """
        if self.releases.gpus:
            return SourceState.RELEASED, self.releases.words
        out = [
            f"gpu/{gpu} is not being looked at: {one.why}" for gpu, one in self._left_out.items()
        ]  # until it has answered
        out += self._node.unreadable(asked)
        if self._inventory.error:
            out.append(self._blind())
        if out:
            return SourceState.FAILED, "; ".join(out)
        return SourceState.OK, "SIMULATED: no real GPU" if self._node.simulated else ""

    # --- which GPUs

    async def _look_at_pci(self) -> None:
        """What was seen last stands where the bus cannot be read now; it is no reason to miss a
        GPU.
        """
        self._walked, self._announced = time.monotonic(), False
        try:
            await self._lane.call(self._inventory.read)
        except LaneStuck as error:
            self._inventory.error = str(error)
        if self._inventory.error:
            log.error(
                "pci_not_read",
                error=self._inventory.error,
                effect="GPUs that come or go are not noticed",
            )

    def _on_pci(self) -> set[str]:
        """All NVIDIA GPUs, whoever drives them: one that was given to a guest is not missing."""
        return {
            device.address
            for device in self._inventory.devices.values()
            if device.kind is ComponentKind.GPU
        }

    def _gpus(self) -> set[str]:
        """Those on PCI that are NVML's: its driver's, or nobody's. Others are given to guests, or
        drive a screen.
        """
        devices = self._inventory.devices.values()
        return {
            device.address
            for device in devices
            if device.kind is ComponentKind.GPU and device.driver in (None, _DRIVER)
        }

    def _blind(self) -> str:
        return f"PCI cannot be read, so nobody knows which GPUs there are: {self._inventory.error}"

    def _nothing(self) -> str:
        others = sorted(
            {
                device.driver or ""
                for device in self._inventory.devices.values()
                if device.kind is ComponentKind.GPU
            }
        )
        return (
            f"the NVIDIA GPUs on PCI belong to another driver ({', '.join(others)})"
            if others
            else "no NVIDIA GPU on PCI"
        )

    def _asked(self) -> list[str]:
        return sorted(
            gpu for gpu in self._gpus() if not self._is_out(gpu) and gpu not in self.releases.gpus
        )

    def _is_out(self, gpu: str) -> bool:
        out = self._left_out.get(gpu)
        if out is None:
            return False
        return time.monotonic() < out.until or any(
            stuck.where.gpu == gpu and not stuck.gone for stuck in self._stuck
        )

    def _given_up(self) -> str:
        pids = ", ".join(str(stuck.pid) for stuck in self._stuck if not stuck.gone)
        return (
            f"{self._stuck[-1].where} does not return, and processes {pids} cannot be ended: the"
            " driver is stuck, and only a reboot helps"
        )

    # --- waiting

    def _wake_up(self) -> None:
        self._wake.set()

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        if not self.releases.asked:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, seconds))

    async def _pause_until(self, due: float) -> None:
        """Until the next round, an event, an Xid whose turn it is to speak, or somebody who
        asks.
        """
        if not self._urgent and self._asked_for_work is None:
            await self._pause(
                min([due, *(speaks for speaks, _ in self._heard.values())]) - time.monotonic()
            )
        if self._urgent:
            await asyncio.sleep(_SWARM_S)


def _turn(gpus: list[str], turn: int, rounds: int) -> list[str]:
    """The GPUs whose turn it is in this round: spread as evenly as their number allows."""
    return [gpu for place, gpu in enumerate(gpus) if turn % rounds == place * rounds // len(gpus)]


def _nowhere(seconds: float) -> InFlight:
    return InFlight(call="the worker process", gpu="", seconds=seconds)


def _build(context: CollectorContext) -> Nvml:
    settings, catalog = context.settings, context.catalog
    return Nvml(
        settings[NvmlSettings],
        catalog,
        context.inventory,
        context.boot_id,
        Lane("nvml"),
        expected=catalog.instance(machine_type(context.paths.sysfs)).gpus,
        vbios=settings[ExpectSettings].vbios,
    )


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=(NAME,),
    subsystems=("pci",),
    build_source=_build,
)
