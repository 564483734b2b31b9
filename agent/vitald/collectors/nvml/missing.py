"""GPUs that are missing, as readings: from the round that misses them until one finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vitald.collectors.device_registry import MISSED
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.nvml.devices import KnownGpu
from vitald.model import Component, ComponentKind, Readings


class MissingGpus:
    """The GPUs that were reported missing. `memory`: their addresses by UUID."""

    def __init__(self, memory: Mapping[str, str] | None = None) -> None:
        self.memory = dict(memory if memory is not None else {})

    def derive_readings(self, missing: Sequence[KnownGpu], *, simulated: bool) -> list[Readings]:
        """`missing` of each GPU that is missing now, and of each that no longer is."""
        readings = [
            derive_readings(gpu.component, {"missing": 1.0}, MISSED + gpu.uuid, simulated=simulated)
            for gpu in missing
        ]
        still_missing = {gpu.uuid for gpu in missing}
        for uuid in [uuid for uuid in self.memory if uuid not in still_missing]:
            slot = Component(ComponentKind.GPU, self.memory.pop(uuid))
            readings.append(
                derive_readings(slot, {"missing": 0.0}, MISSED + uuid, simulated=simulated)
            )
        self.memory |= {gpu.uuid: gpu.address for gpu in missing}
        return readings
