"""
Turns the worker's answers into events, and remembers the node's GPUs and their reported events
across restarts.

Pure apart from the clock: answers in, events out. Thresholds are the catalogue's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitald.catalog import Catalog
from vitald.collectors.device_registry import MISSED
from vitald.collectors.event_factory import EventFactory, derive_readings
from vitald.collectors.nvml.current import CurrentReadings
from vitald.collectors.nvml.gpu_history import GpuHistory
from vitald.collectors.nvml.known_gpus import GpuRegistry, KnownGpu
from vitald.collectors.thresholds import Crossing, ThresholdEvaluator
from vitald.model.component import NODE, Component, DeviceNames
from vitald.model.event import Event, Fields, Value
from vitald.model.source import Sample
from vitald.model.words import ComponentKind
from vitald.text import clean_line

NAME = "nvml"
HUNG, UNAVAILABLE = "nvml/hung", "nvml/unavailable"
IDENTITY, RESET = "device/identity", "device/reset"
GONE = -1  # besides NVML's own codes: the worker process ended

_SIMULATED_S = 86400.0  # findings from a simulated library end after this, like a drill's


class GpuNode:
    """The GPUs of this node as NVML reports them. `current`: their readings."""

    def __init__(
        self,
        catalog: Catalog,
        boot_id: str,
        *,
        of_type: int,
        configured: int,
        vbios: Sequence[str] = (),
        nvlinks: int = 0,
        overdue_s: Mapping[str, float] | None = None,
        settle_s: float = 0.0,
    ) -> None:
        """`of_type`: how many GPUs the instance type has, 0 if unknown; `configured`: the number of
        the configuration, which takes precedence. `vbios`: the allowed versions; empty allows any.
        `nvlinks`: how many of each GPU should be active, 0 if that is not configured. `overdue_s`:
        by tier, the age at which a reading is no longer current. `settle_s`: as for
        ThresholdEvaluator.
        """
        self.boot_id = boot_id
        self.find_slot: Callable[[str], str] = lambda _: ""  # as PciInventory has it
        self._catalog = catalog
        self._of_type = of_type
        self._overdue_s = overdue_s or {}
        self._settle_s = settle_s
        self._facts = EventFactory(NAME, boot_id)
        self._configured, self._vbios, self._nvlinks = configured, ",".join(vbios), nvlinks
        self._forget_all()

    def configure_expected(self, configured: int, vbios: Sequence[str], nvlinks: int) -> None:
        """Use what a reloaded configuration expects; parameters as for a new instance."""
        self._configured, self._vbios, self._nvlinks = configured, ",".join(vbios), nvlinks
        self.current.vbios, self.current.nvlinks = self._vbios, nvlinks

    def _forget_all(self) -> None:
        self.current = CurrentReadings(self._vbios, self._nvlinks, self._overdue_s)
        self._gpus = GpuRegistry()
        self._evaluator = self._create_evaluator({})
        self._may_be_new = True  # the driver, when a worker next attaches to it
        self.holding: tuple[Event, ...] = ()
        self.calm: frozenset[tuple[Component, str]] = frozenset()
        self._driver: dict[str, Sample] = {}

    def _create_evaluator(self, memory: Mapping[str, Any]) -> ThresholdEvaluator:
        groups = self._catalog.find_thresholds(NAME)
        return ThresholdEvaluator(groups, memory, settle_s=self._settle_s)

    @property
    def history(self) -> GpuHistory:
        return self.current.history

    @property
    def simulated(self) -> bool:
        return self.history.simulated

    def configure(self, catalog: Catalog) -> None:
        """Use a catalogue that was reloaded."""
        self._catalog = catalog
        self._evaluator.configure(catalog.find_thresholds(NAME))

    # --- memory

    @property
    def memory(self) -> str:
        """For the next start: known GPUs, their history, crossed thresholds."""
        remembered = {
            "gpus": self._gpus.memory,
            "watch": self._evaluator.memory,
            **self.history.to_memory(),
        }
        return json.dumps(remembered, separators=(",", ":"))

    def restore_memory(self, memory: str, boot_id: str) -> None:
        """From another boot, only the known GPUs and what outlives a boot are still valid. Raises
        ValueError for anything else than a memory of this class.
        """
        same_boot = boot_id == self.boot_id
        try:
            stored = json.loads(memory)
            gpus, evaluator = GpuRegistry(stored["gpus"]), self._create_evaluator(stored["watch"])
            history = GpuHistory.from_memory(stored, same_boot=same_boot)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if not same_boot:
            evaluator.forget_all()
        self._gpus, self._evaluator, self.current.history = gpus, evaluator, history

    # --- answers

    def note_library(self, *, simulated: bool) -> None:
        """Which library the worker loaded. A memory of simulated GPUs is not valid for real
        ones.
        """
        if self.simulated is not simulated:
            self._forget_all()
            self.history.simulated = simulated

    def note_attached(
        self, answer: Mapping[str, Any], on_pci: set[str], *, switched: bool = False
    ) -> None:
        """A worker has attached to the driver. GPUs that are no longer on PCI lose their readings.
        `switched`: there are NVSwitches on PCI.
        """
        self.current.switched = switched
        self.current.tier_of = {
            name: tier for tier, names in answer["readings"].items() for name in names
        }
        if self._may_be_new:
            self._evaluator.restart_settling()
        self._may_be_new = False
        self.current.by_gpu = {
            address: readings
            for address, readings in self.current.by_gpu.items()
            if address in on_pci
        }
        self._driver = {
            "unavailable": 0.0,
            "driver": str(answer["driver"]),
            "nvml": str(answer["nvml"]),
        }
        self._gpus.note_attached()

    def note_driver_left(self) -> None:
        """The driver may be another, or loaded again, when a worker attaches to it next."""
        self._may_be_new = True

    def report_unavailable(self, code: int, reason: str, on_pci: set[str]) -> list[Event]:
        """The driver cannot be asked. `code`: NVML's, GONE, or 0 if there is no GPU."""
        self._driver = {"unavailable": float(code)}
        self._gpus.note_attached()  # GPUs that were seen may be gone
        self._may_be_new |= code != GONE
        self.current.by_gpu = {}
        text = self._add_prefix(reason)
        return [
            replace(event, raw=text) if event.code == UNAVAILABLE else event
            for event in self._evaluate_thresholds([], on_pci)
        ]

    def process_answers(
        self, answers: Mapping[str, Mapping[str, Any]], on_pci: set[str]
    ) -> list[Event]:
        """Updates the readings. Events: GPUs that are new or moved, resets, recoveries from a hang,
        and thresholds that were crossed.
        """
        events: list[Event] = []
        for address, answer in answers.items():
            events += self._process_answer(address, answer)
        if self._driver.get("unavailable") == 0 and self.history.end_hang(NODE):
            fields: Fields = {"recovered": True}
            events.append(self.create_event(HUNG, NODE, fields, "the driver answers again"))
        return [*events, *self._evaluate_thresholds(answers, on_pci)]

    def _process_answer(self, address: str, answer: Mapping[str, Any]) -> list[Event]:
        values: dict[str, Sample] = {
            name: _parse_sample(value) for name, value in answer.get("values", {}).items()
        }
        component = Component(ComponentKind.GPU, address)
        events = self._register_gpu(address, values) if "uuid" in values else []
        identity = self._gpus.get_identity(address)
        name = self._describe_gpu(address)
        if self.history.detect_reset(identity, values):
            text = f"{name} was reset, or the driver loaded: its counters began anew"
            events.append(self.create_event(RESET, component, {}, text))
            self._evaluator.forget_component(identity, counters=True)
            self.history.note_reset(identity)
        if values and self.history.end_hang(component):
            fields: Fields = {"recovered": True}
            events.append(self.create_event(HUNG, component, fields, f"{name} answers again"))
        driver = self._driver.get("driver")
        self.current.update_gpu(
            component,
            identity,
            values,
            answer,
            driver if isinstance(driver, str) else None,
            self._list_identity(identity),
        )
        return events

    def _list_identity(self, uuid: str) -> dict[str, Sample]:
        """What is remembered of a GPU, also from before the start."""
        known = self._gpus.find_gpu(uuid)
        if known is None:
            return {}
        return {**known.values, **self.history.numbers.get(uuid, {})}

    def list_devices(self) -> tuple[DeviceNames, ...]:
        """The names of the known GPUs, the missing ones included."""
        return tuple(
            known.build_names(self.history.numbers.get(known.uuid, {}).get("index"))
            for known in self._gpus.list_gpus()
        )

    def report_hang(
        self, gpu: str, call: str, seconds: float, state: str, *, unkillable: bool = False
    ) -> Event:
        """A call does not return. `gpu`: empty for a call that is about no GPU."""
        component = Component(ComponentKind.GPU, gpu) if gpu else NODE
        fields: dict[str, Value] = {"call": call, "seconds": round(seconds, 1), "state": state}
        if unkillable:
            fields["unkillable"] = True
        self.history.hung[component.name] = fields
        about = f": {self._describe_gpu(gpu)}" if gpu else ""
        text = f"{call} has not answered for {seconds:.1f} s [{state}]{about}"
        return self.create_event(HUNG, component, fields, text)

    def report_xid(self, gpu: str, number: int, moment: float) -> Event:
        """An Xid that NVML reported at `moment` (Unix time). The kernel log line about the same Xid
        does not count again.
        """
        fields: dict[str, Value] = {"number": number, "witness": NAME}
        component = Component(ComponentKind.GPU, gpu)
        text = f"event: Xid {number} on {self._describe_gpu(gpu)}"
        return self.create_event(f"xid/{number}", component, fields, text, moment)

    def create_event(
        self,
        code: str,
        component: Component,
        fields: Fields,
        text: str,
        moment: float | None = None,
    ) -> Event:
        """An event of this collector. From a simulated library it is a drill, and marked as such in
        its text.
        """
        until = time.time() + _SIMULATED_S if self.simulated else None
        return self._facts.make_event(
            code, component, fields, self._add_prefix(text), moment=moment, simulated_until=until
        )

    def _add_prefix(self, text: str) -> str:
        return f"{'SIMULATED ' if self.simulated else ''}NVML: {text}"

    def _register_gpu(self, address: str, values: Mapping[str, Sample]) -> list[Event]:
        """Registers the GPU. An event if it is new or has moved."""
        uuid = str(values["uuid"])
        former = self._gpus.find_gpu(uuid) or KnownGpu(address=address, uuid=uuid)
        slot = self.find_slot(address)
        known = former.update_from(address, slot, values, simulated=self.simulated)
        self.history.note_numbers(uuid, values)
        if self._gpus.find_gpu_at(address) is None:  # until now its address was its identity
            self._evaluator.rename_component(address, uuid)
            self.history.rename_gpu(address, uuid)
        if not self._gpus.register_gpu(known):
            return []
        fields: dict[str, Value] = {"uuid": uuid}
        if known.serial:
            fields["serial"] = known.serial
        return [self.create_event(IDENTITY, known.component, fields, known.display_name)]

    # --- thresholds

    def _evaluate_thresholds(self, updated: Iterable[str], on_pci: set[str]) -> list[Event]:
        """Crossings of thresholds by the updated GPUs, by missing ones, and by the node."""
        readings = [self.current.by_gpu[address] for address in updated]
        missing = self._list_missing(on_pci)
        readings += self.history.derive_missing(missing)
        self.history.most = max(self.history.most, len(on_pci))
        expected = self._configured or self._of_type
        node = {
            **self._driver,
            "gpus": float(len(on_pci) + len(missing)),
            "gpus_expected": float(expected),
            "gpus_proven": float(max(self._of_type, self.history.most) >= expected),
        }
        if (modules := self.current.count_missing_modules(on_pci)) is not None:
            # Known GPUs that are missing are reported as such; if the configured number is present,
            # the others were removed on purpose
            enough = bool(self._configured) and len(on_pci) >= self._configured
            node["modules_missing"] = 0.0 if enough else max(0.0, float(modules - len(missing)))
        if versions := self.current.group_vbios_versions():
            node["vbios_versions"] = float(max(map(len, versions.values())))
        readings.append(derive_readings(NODE, node, simulated=self.simulated))
        known = tuple(self.current.by_gpu.values())
        observed = self._evaluator.evaluate_readings(readings, time.monotonic(), known)
        self.holding = tuple(map(self._report_crossing, observed.holding))
        self.calm = frozenset(observed.calm)
        return [*map(self._report_crossing, observed.crossings)]

    def take_holding(self, on_pci: set[str]) -> tuple[Event, ...]:
        """The states that still hold after the last evaluation, once, and the calls that still
        hang. A GPU that is no longer on PCI does not hang.
        """
        holding, self.holding = self.holding, ()
        hanging = self.history.list_hanging(on_pci)
        return *holding, *(self._report_still_hanging(*hang) for hang in hanging)

    def _report_still_hanging(self, component: Component, fields: Fields) -> Event:
        name = self._describe_gpu(component.id) if component != NODE else "the driver"
        return self.create_event(HUNG, component, fields, f"{name} has not answered again")

    def _list_missing(self, on_pci: set[str]) -> list[KnownGpu]:
        """None if the configured number of GPUs is present: the others were removed on purpose."""
        if self._configured and len(on_pci) >= self._configured:
            return []
        return self._gpus.list_missing(on_pci)

    def _report_crossing(self, crossing: Crossing) -> Event:
        fields: dict[str, Value] = dict(crossing.fields)
        name = crossing.component.name
        if crossing.component.kind is ComponentKind.GPU:
            uuid = crossing.identity.removeprefix(MISSED)
            known = self._gpus.find_gpu(uuid)
            name = f"GPU {crossing.component.id}"
            if known is not None:
                name = known.display_name
                details = {"uuid": uuid, "serial": known.serial, "slot": known.slot}
                fields |= {key: value for key, value in details.items() if value}
        return self.create_event(
            crossing.code, crossing.component, fields, f"{crossing.text}: {name}"
        )

    def _describe_gpu(self, address: str) -> str:
        known = self._gpus.find_gpu_at(address)
        return known.display_name if known is not None else f"GPU {address}"


def _parse_sample(value: Sample | list[float]) -> Sample:
    """A value of the worker's answer. A board chooses its texts, such as its serial number, and
    they appear on terminals and in reasons.
    """
    if isinstance(value, list):
        return tuple(map(float, value))
    return clean_line(value) if isinstance(value, str) else value
