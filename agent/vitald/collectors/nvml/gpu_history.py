"""
What is remembered of the node's GPUs between rounds and over restarts, besides who they are
(`known_gpus`) and which thresholds they have crossed.

A GPU is known by its identity: its UUID, or its address until that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitald.collectors.device_registry import MISSED
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.nvml.known_gpus import KnownGpu
from vitald.model.component import NODE, Component
from vitald.model.event import Fields
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind

# Counters that begin at zero when the driver initialises the GPU; the first that is there decides
_SINCE_LOAD = ("energy_joules", "power_capped_seconds")
# Lifetime counters, and the same since the driver was loaded (volatile).
_PAIRS = {
    "ecc_uncorrected_lifetime": "ecc_uncorrected",
    "sram_uncorrected_parity_lifetime": "sram_uncorrected_parity",
    "sram_uncorrected_secded_lifetime": "sram_uncorrected_secded",
}
_NUMBERS = ("minor", "index")  # of a GPU, until the next boot


@dataclass(slots=True, kw_only=True)
class GpuHistory:
    """The past of all GPUs.

    `links`: the NVLinks of each GPU that were ever active. `counts`: its last counts of those that
    begin at zero when the driver initialises it. `lifetime`: by lifetime counter its first count,
    the growth of the volatile count since, the last volatile count, and the errors that were
    missed. `numbers`: those of the device file and of nvidia-smi, of this boot. `hung`: by the name
    of a component on which a call does not return, the fields of the event that reported it.
    `missing`: the addresses of the GPUs that were reported missing, by UUID. `most`: how many GPUs
    were here together. `simulated`: they are not real.
    """

    links: dict[str, set[int]] = field(default_factory=dict)
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    lifetime: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)
    hung: dict[str, Fields] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    most: int = 0
    simulated: bool = False

    def to_memory(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "counted": self.counts,
            "links": {identity: sorted(links) for identity, links in self.links.items()},
            "lifetime": self.lifetime,
            "hung": self.hung,
            "missed": self.missing,
            "most": self.most,
            "numbers": self.numbers,
            "simulated": self.simulated,
        }

    @classmethod
    def from_memory(cls, stored: Mapping[str, Any], *, same_boot: bool) -> GpuHistory:
        """Raises TypeError, KeyError, AttributeError or ValueError for anything else than what
        `to_memory` returned.
        """
        history = cls(
            links={name: set(map(int, links)) for name, links in stored["links"].items()},
            counts={name: _to_floats(counts) for name, counts in stored["counted"].items()},
            lifetime={
                name: {counter: list(map(float, counts)) for counter, counts in counters.items()}
                for name, counters in stored["lifetime"].items()
            },
            numbers={name: _to_floats(numbers) for name, numbers in stored["numbers"].items()},
            hung={str(name): dict(fields) for name, fields in stored["hung"].items()},
            missing={str(uuid): str(address) for uuid, address in stored["missed"].items()},
            most=int(stored["most"]),
            simulated=bool(stored["simulated"]),
        )
        lifetimes = [counts for own in history.lifetime.values() for counts in own.values()]
        if any(len(counts) != 4 for counts in lifetimes):
            raise ValueError("lifetime counters: expected four numbers each")
        if not same_boot:
            history.counts, history.numbers = {}, {}
            for identity in history.lifetime:
                history.note_reset(identity)
        return history

    def rename_gpu(self, former: str, identity: str) -> None:
        """A GPU known by its address has given its UUID."""
        by_gpu: tuple[dict[str, Any], ...] = (self.links, self.counts, self.lifetime)
        for known in by_gpu:
            if former in known:
                known[identity] = known.pop(former)

    def note_numbers(self, uuid: str, values: Mapping[str, Sample]) -> None:
        """A number belongs to the GPU that gave it last: where one is lost, the driver may number
        the others anew.
        """
        own = _select_numbers(values, _NUMBERS)
        for numbers in self.numbers.values():
            for name, number in own.items():
                if numbers.get(name) == number:
                    del numbers[name]
        self.numbers[uuid] = {**self.numbers.get(uuid, {}), **own}

    # --- resets, and errors that no reading showed

    def detect_reset(self, identity: str, values: Mapping[str, Sample]) -> bool:
        """True if the GPU was initialised again since its last readings. Not while the driver
        recommends a recovery action: the reset was tried and has not succeeded yet.
        """
        counts = _select_numbers(values, _SINCE_LOAD)
        former = self.counts.setdefault(identity, {})
        common = [name for name in _SINCE_LOAD if name in counts and name in former]
        fell = bool(common) and counts[common[0]] < former[common[0]]
        if fell and values.get("recovery", 0) != 0:
            return False
        former |= counts
        return fell

    def note_reset(self, identity: str) -> None:
        """The GPU was reset, or the driver loaded: its volatile counters began at zero."""
        for counts in self.lifetime.get(identity, {}).values():
            counts[2] = 0.0

    def find_missed_errors(self, identity: str, values: Mapping[str, Sample]) -> dict[str, Sample]:
        """The number of uncorrectable memory errors that no reading showed since the GPU is known,
        for each pair of counters in `values`.

        Volatile counters are lost at a reboot. An error between the last reading and the reboot
        appears in the lifetime counter only, which then has grown more than the volatile one. It
        may lag behind the volatile one, so the number never falls.
        """
        found: dict[str, Sample] = {}
        for name, volatile in _PAIRS.items():
            total, now = values.get(name), values.get(volatile)
            if not isinstance(total, (int, float)) or not isinstance(now, (int, float)):
                continue
            counts = self.lifetime.setdefault(identity, {}).setdefault(name, [total, 0.0, now, 0.0])
            first, counted, last, missed = counts
            if total < first:  # another InfoROM, or a counter that was cleared
                first, counted, last, missed = total, 0.0, now, 0.0
            counted += now - last if now >= last else now
            missed = max(missed, total - first - counted)
            counts[:] = [first, counted, now, missed]
            found[name.replace("_lifetime", "_missed")] = missed
        return found

    # --- what was reported and is not over

    def end_hang(self, component: Component) -> bool:
        """True if the component was hung."""
        return self.hung.pop(component.name, None) is not None

    def list_hanging(self, on_pci: set[str]) -> list[tuple[Component, Fields]]:
        """Without GPUs that are no longer on PCI."""
        hung = [Component.parse_name(name) for name in sorted(self.hung)]
        return [
            (component, dict(self.hung[component.name]))
            for component in hung
            if component == NODE or component.id in on_pci
        ]

    def derive_missing(self, missing: Sequence[KnownGpu]) -> list[Readings]:
        """`missing` of each GPU that is missing now, and of each that no longer is."""
        readings = [
            derive_readings(
                gpu.component, {"missing": 1.0}, MISSED + gpu.uuid, simulated=self.simulated
            )
            for gpu in missing
        ]
        still_missing = {gpu.uuid: gpu.address for gpu in missing}
        readings += [
            derive_readings(
                Component(ComponentKind.GPU, address),
                {"missing": 0.0},
                MISSED + uuid,
                simulated=self.simulated,
            )
            for uuid, address in self.missing.items()
            if uuid not in still_missing
        ]
        self.missing = still_missing
        return readings


def _to_floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _select_numbers(values: Mapping[str, Sample], names: Sequence[str]) -> dict[str, float]:
    """Those of these readings that are there."""
    return {
        name: float(value) for name in names if isinstance(value := values.get(name), (int, float))
    }
