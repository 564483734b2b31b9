"""What the collector knows of the node's GPUs, and the batches that report it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vitald.collectors.nvml.client import InFlight
from vitald.collectors.nvml.exclusions import Exclusions
from vitald.collectors.nvml.node import GONE, NAME, GpuNode
from vitald.collectors.nvml.pci_gpus import PciGpus
from vitald.collectors.nvml.release import Releases
from vitald.model import NODE, Batch, Event, Position, SourceState

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
            text = f"{release.gpu_names} looked at again{early}: {changed}"
            events.append(self.node.create_event(RETURNED, NODE, fields, text))
        return events
