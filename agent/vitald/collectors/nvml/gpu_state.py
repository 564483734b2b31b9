"""
What the collector knows of the node's GPUs, and the batches that report it: which GPUs PCI shows,
which of them NVML can be asked about, and which are not polled because a call on them hung.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import structlog

from vitald.backoff import Backoff
from vitald.collectors.nvml.gpu_node import GONE, NAME, GpuNode
from vitald.collectors.nvml.release import Releases
from vitald.collectors.nvml.worker_process import InFlight, StuckWorker
from vitald.model.component import NODE
from vitald.model.event import Event
from vitald.model.source import Batch, Position, SourceState
from vitald.model.words import ComponentKind
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvml")

BACKOFF = Backoff(60.0, 1800.0)  # until a GPU on which a call hung is polled again
_MAX_STUCK = 2  # with so many worker processes that do not end, no other is started
RELEASED, RETURNED = "nvml/released", "nvml/returned"
_REASONS = {
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
_DRIVER = "nvidia"


@dataclass(frozen=True, slots=True)
class _Exclusion:
    """`until` is on the monotonic clock; `retries` have hung before, in succession."""

    until: float
    retries: int
    reason: str


class Exclusions:
    """Excludes a GPU with exponential back-off, and for as long as its worker is stuck."""

    def __init__(self) -> None:
        self._exclusions: dict[str, _Exclusion] = {}
        self._stuck: list[StuckWorker] = []

    @property
    def stuck_pids(self) -> tuple[int, ...]:
        return tuple(stuck.pid for stuck in self._stuck if not stuck.is_gone)

    @property
    def is_driver_stuck(self) -> bool:
        """True if another worker would most likely hang too."""
        return len(self.stuck_pids) >= _MAX_STUCK

    def exclude_gpu(self, gpu: str, reason: str) -> None:
        former = self._exclusions.get(gpu)
        retries = former.retries + 1 if former is not None else 0
        until = time.monotonic() + BACKOFF.delay_s(retries)
        self._exclusions[gpu] = _Exclusion(until, retries, reason)

    def add_stuck(self, stuck: StuckWorker) -> None:
        self._stuck = [former for former in self._stuck if not former.is_gone] + [stuck]

    def is_excluded(self, gpu: str) -> bool:
        exclusion = self._exclusions.get(gpu)
        if exclusion is None:
            return False
        return time.monotonic() < exclusion.until or any(
            stuck.where.gpu == gpu and not stuck.is_gone for stuck in self._stuck
        )

    def clear_gpus(self, answered: Collection[str]) -> None:
        """These GPUs gave readings."""
        for gpu in answered:
            self._exclusions.pop(gpu, None)

    def list_reasons(self) -> list[str]:
        """Why readings are incomplete. A GPU stays in the list until it has answered."""
        return [
            f"gpu/{gpu} is not polled: {exclusion.reason}"
            for gpu, exclusion in self._exclusions.items()
        ]

    def describe_stuck_driver(self) -> str:
        pids = ", ".join(map(str, self.stuck_pids))
        return (
            f"{self._stuck[-1].where} does not return, and processes {pids} cannot be ended: the"
            " driver is stuck, and only a reboot helps"
        )


@dataclass(slots=True, kw_only=True)
class GpuState:
    """`node` is replaced when the collector starts again."""

    boot_id: str
    node: GpuNode
    pci: PciGpus
    releases: Releases
    exclusions: Exclusions = field(default_factory=Exclusions)
    committed_memory: str = ""  # the node's memory in the last position that was handed over

    def list_polled(self) -> list[str]:
        """Addresses of the GPUs that the worker polls."""
        return sorted(
            gpu
            for gpu in self.pci.list_usable()
            if not self.exclusions.is_excluded(gpu) and gpu not in self.releases.gpus
        )

    # --- batches

    def build_batch(self, events: Iterable[Event], state: SourceState, detail: str) -> Batch:
        """All that is known now, with these events, the GPUs released since the last batch, and
        a position if anything has to be remembered.
        """
        node = self.node
        events = (*self._take_released(), *events)
        reported = {(event.component, event.code) for event in events}
        holding = tuple(
            event
            for event in node.take_holding(self.pci.list_all())
            if (event.component, event.code) not in reported
        )
        position = None
        memory = node.memory
        if events or memory != self.committed_memory:
            position, self.committed_memory = Position(NAME, self.boot_id, memory), memory
        released = set(node.current.by_gpu) if self.releases.covers_all else self.releases.gpus
        return Batch(
            NAME,
            events,
            position,
            caught_up=True,
            state=state,
            detail=detail,
            readings=tuple(
                found for gpu, found in node.current.by_gpu.items() if gpu not in released
            ),
            devices=node.list_devices(),
            simulated=node.simulated,
            holding=holding,
            calm=node.calm,
        )

    def build_released_batch(self) -> Batch:
        self.node.note_driver_left()
        return self.build_batch([], SourceState.RELEASED, self.releases.description)

    def build_failed_batch(self, reason: str) -> Batch:
        """No GPU can be read, and the reason is not a fault of one of them."""
        return self.build_batch([], SourceState.FAILED, reason)

    def build_absent_batch(self) -> Batch:
        """There is no GPU here that NVML can be asked about."""
        reason = self.pci.describe_absence()
        events = self.node.report_unavailable(0, reason, self.pci.list_all())
        return self.build_batch(events, SourceState.ABSENT, reason)

    def build_unavailable_batch(self, code: int, detail: str) -> Batch:
        """The driver cannot be asked. `code`: NVML's, or GONE."""
        reason = _REASONS.get(code, f"NVML error {code}")
        if detail:
            reason = f"{reason}: {detail}"
        events = self.node.report_unavailable(code, reason, self.pci.list_all())
        return self.build_batch(events, SourceState.FAILED, reason)

    def build_hang_batch(self, call: InFlight, state: str, *, unkillable: bool = False) -> Batch:
        """`state`: what the worker's threads wait for, or what became of the worker."""
        event = self.node.report_hang(
            call.gpu, call.call, call.seconds, state, unkillable=unkillable
        )
        detail = f"{call} has not answered for {call.seconds:.0f} s"
        return self.build_batch([event], SourceState.FAILED, detail)

    def build_round_batch(self, events: Iterable[Event], polled: Iterable[str]) -> Batch:
        """After a round over the `polled` GPUs."""
        return self.build_batch(events, *self._describe_completeness(polled))

    def _describe_completeness(self, polled: Iterable[str]) -> tuple[SourceState, str]:
        """A GPU that is not polled, or gives no readings, makes what is known incomplete."""
        if self.releases.gpus:
            return SourceState.RELEASED, self.releases.description
        reasons = [*self.exclusions.list_reasons(), *self.node.current.list_unreadable(polled)]
        if self.pci.error:
            reasons.append(self.pci.describe_error())
        if reasons:
            return SourceState.FAILED, "; ".join(reasons)
        return SourceState.OK, "SIMULATED: no real GPU" if self.node.simulated else ""

    # --- releases

    def _take_released(self) -> list[Event]:
        return [
            self.node.create_event(
                RELEASED,
                NODE,
                {"by": release.by, "reason": release.reason, "gpus": release.gpu_names},
                f"{release.gpu_names} released, requested by {release.by}: {release.reason}",
            )
            for release in self.releases.take_begun()
        ]

    def take_returned(self, changes: Iterable[Event]) -> list[Event]:
        """The releases that ended. `changes`: events of the first round after them."""
        changed = "; ".join(event.raw for event in changes) or "nothing has changed"
        events = []
        for release in self.releases.take_ended():
            early = f", taken back by {release.ended_by}" if release.ended_by else ""
            fields = {
                "by": release.ended_by or release.by,
                "reason": release.reason,
                "gpus": release.gpu_names,
            }
            text = f"{release.gpu_names} polled again{early}: {changed}"
            events.append(self.node.create_event(RETURNED, NODE, fields, text))
        return events


class PciGpus:
    """Scans PCI in a thread. If the bus cannot be read, the last scan stays valid: the failure is
    no reason to report a GPU missing.
    """

    def __init__(self, inventory: PciInventory, thread: WorkerThread) -> None:
        self._inventory = inventory
        self._thread = thread
        self._scanned = -math.inf
        self._changed = False

    @property
    def error(self) -> str:
        """Why the last scan failed; empty if it did not."""
        return self._inventory.error

    def find_slot(self, address: str) -> str:
        return self._inventory.find_slot(address)

    def note_change(self) -> None:
        """The kernel announced that a device came or went."""
        self._changed = True

    def is_scan_due(self, every_s: float) -> bool:
        failed = bool(self._inventory.error)
        return self._changed or failed or time.monotonic() - self._scanned >= every_s

    async def scan_bus(self) -> None:
        self._scanned, self._changed = time.monotonic(), False
        try:
            await self._thread.call(self._inventory.scan_bus)
        except ThreadStuck as error:
            self._inventory.error = str(error)
        if self._inventory.error:
            log.error(
                "pci_not_read",
                error=self._inventory.error,
                effect="GPUs that come or go are not noticed",
            )

    def list_all(self) -> set[str]:
        """Addresses of all NVIDIA GPUs, whatever their driver: one that was passed to a virtual
        machine is not missing.
        """
        devices = self._inventory.devices.values()
        return {device.address for device in devices if device.kind is ComponentKind.GPU}

    def list_usable(self) -> set[str]:
        """Addresses of the GPUs that NVML's driver has, or none. Others belong to virtual machines,
        or drive a display.
        """
        return {
            device.address
            for device in self._inventory.devices.values()
            if device.kind is ComponentKind.GPU and device.driver in (None, _DRIVER)
        }

    def has_nvswitches(self) -> bool:
        devices = self._inventory.devices.values()
        return any(device.kind is ComponentKind.NVSWITCH for device in devices)

    def describe_error(self) -> str:
        return (
            f"PCI cannot be read, so it is not known which GPUs there are: {self._inventory.error}"
        )

    def describe_absence(self) -> str:
        """Why no GPU is usable."""
        devices = self._inventory.devices.values()
        drivers = {device.driver or "" for device in devices if device.kind is ComponentKind.GPU}
        if not drivers:
            return "no NVIDIA GPU on PCI"
        names = ", ".join(sorted(drivers))
        return f"the NVIDIA GPUs on PCI belong to another driver ({names})"
