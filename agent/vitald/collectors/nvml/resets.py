"""Detects resets of a GPU: counters that begin at zero when the driver initialises it fall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitald.model import Sample

_PERSISTENCE = "persistence_mode"
_SINCE_LOAD = ("energy_joules", "power_capped_seconds")


class ResetDetector:
    """`memory`: the last counts by UUID. They are valid within one boot."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        self.memory: dict[str, dict[str, float]] = dict(memory or {})

    def rename_gpu(self, former: str, identity: str) -> None:
        """A GPU known by its address has given its UUID."""
        if former in self.memory:
            self.memory[identity] = self.memory.pop(former)

    def detect_reset(self, identity: str, values: Mapping[str, Sample]) -> bool:
        """True if the GPU was initialised again since its last readings. Not while the driver
        recommends a recovery action: the reset was tried and has not succeeded yet.
        """
        counts = {
            name: float(value)
            for name in _SINCE_LOAD
            if isinstance(value := values.get(name), (int, float))
        }
        former = self.memory.setdefault(identity, {})
        common = [name for name in _SINCE_LOAD if name in counts and name in former]
        fell = bool(common) and counts[common[0]] < former[common[0]]
        if fell and values.get("recovery", 0) != 0:
            return False
        former |= counts
        return fell

    def note_persistence(self, identity: str, values: Mapping[str, Sample]) -> None:
        """Notes the persistence mode; call it after `detect_reset`, as a reset may turn it off."""
        if isinstance(mode := values.get(_PERSISTENCE), (int, float)):
            self.memory.setdefault(identity, {})[_PERSISTENCE] = float(mode)

    def was_persistent(self, identity: str, values: Mapping[str, Sample]) -> bool:
        """False if persistence mode was off before these readings, or is in them where nothing is
        known from before: the driver then lets go of a GPU that nobody uses, and its counters begin
        at zero without a reset.
        """
        return self.memory.get(identity, {}).get(_PERSISTENCE, values.get(_PERSISTENCE)) != 0
