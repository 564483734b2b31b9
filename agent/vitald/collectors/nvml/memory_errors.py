"""
Uncorrectable errors that nobody saw: what lifetime counters grew by, beyond what was counted since
the driver was loaded.

A volatile counter is lost at a reboot. An error after the last look before it shows in the lifetime
counter alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitald.model import Sample

# The counter over the board's lifetime, and the same since the driver was loaded.
_PAIRS = {
    "ecc_uncorrected_lifetime": "ecc_uncorrected",
    "sram_uncorrected_parity_lifetime": "sram_uncorrected_parity",
    "sram_uncorrected_secded_lifetime": "sram_uncorrected_secded",
}


class LifetimeErrors:
    """What was counted of each GPU, by its identity and lifetime counter, across boots."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        # The lifetime count when it was first seen, the growth of the volatile one since, where
        # that stood last, and what was missed.
        self._known: dict[str, dict[str, list[float]]] = {
            identity: {name: [float(value) for value in kept] for name, kept in counters.items()}
            for identity, counters in (memory or {}).items()
        }
        if any(len(kept) != 4 for counters in self._known.values() for kept in counters.values()):
            raise ValueError("lifetime counters: expected four numbers each")

    @property
    def memory(self) -> dict[str, dict[str, list[float]]]:
        return self._known

    def rename(self, former: str, identity: str) -> None:
        """A GPU that went by its address has said its UUID."""
        if former in self._known:
            self._known[identity] = self._known.pop(former)

    def boot(self) -> None:
        """The node was booted: every volatile counter began at zero."""
        for identity in self._known:
            self.began_anew(identity)

    def began_anew(self, identity: str) -> None:
        """The GPU was reset, or the driver loaded: its volatile counters began at zero."""
        for kept in self._known.get(identity, {}).values():
            kept[2] = 0.0

    def look(self, identity: str, values: Mapping[str, Sample]) -> dict[str, Sample]:
        """The errors that were missed, where these values tell it. What a counter stands at when it
        is first seen is nothing.

        The lifetime counter may follow the volatile one later, so only what is more than ever was
        missed.
        """
        found: dict[str, Sample] = {}
        for name, volatile in _PAIRS.items():
            total, now = values.get(name), values.get(volatile)
            if not isinstance(total, (int, float)) or not isinstance(now, (int, float)):
                continue
            kept = self._known.setdefault(identity, {}).setdefault(name, [total, 0.0, now, 0.0])
            first, counted, stood, missed = kept
            if total < first:  # another InfoROM, or cleared by a person
                first, counted, stood, missed = total, 0.0, now, 0.0
            counted += now - stood if now >= stood else now
            missed = max(missed, total - first - counted)
            kept[:] = [first, counted, now, missed]
            found[name.replace("_lifetime", "_missed")] = missed
        return found
