"""
Detects uncorrectable memory errors that no reading of the volatile counters showed.

Volatile counters are lost at a reboot. An error between the last reading and the reboot appears in
the lifetime counter only, which then has grown more than the volatile one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitald.model import Sample

# Lifetime counters, and the same since the driver was loaded (volatile).
_PAIRS = {
    "ecc_uncorrected_lifetime": "ecc_uncorrected",
    "sram_uncorrected_parity_lifetime": "sram_uncorrected_parity",
    "sram_uncorrected_secded_lifetime": "sram_uncorrected_secded",
}


class LifetimeErrors:
    """Counts of each GPU across boots, by its identity and lifetime counter."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        """Raises ValueError for a memory of another format."""
        # The first lifetime count, the growth of the volatile count since, the last volatile count,
        # and the errors that were missed.
        self._known: dict[str, dict[str, list[float]]] = {
            identity: {
                name: [float(value) for value in counts] for name, counts in counters.items()
            }
            for identity, counters in (memory or {}).items()
        }
        if any(
            len(counts) != 4 for counters in self._known.values() for counts in counters.values()
        ):
            raise ValueError("lifetime counters: expected four numbers each")

    @property
    def memory(self) -> dict[str, dict[str, list[float]]]:
        return self._known

    def rename_gpu(self, former: str, identity: str) -> None:
        """A GPU known by its address has given its UUID."""
        if former in self._known:
            self._known[identity] = self._known.pop(former)

    def note_boot(self) -> None:
        """The node was booted: all volatile counters began at zero."""
        for identity in self._known:
            self.note_reset(identity)

    def note_reset(self, identity: str) -> None:
        """The GPU was reset, or the driver loaded: its volatile counters began at zero."""
        for counts in self._known.get(identity, {}).values():
            counts[2] = 0.0

    def find_missed(self, identity: str, values: Mapping[str, Sample]) -> dict[str, Sample]:
        """The number of missed errors since the GPU is known, for each pair of counters in
        `values`.

        The lifetime counter may lag behind the volatile one, so the number never falls.
        """
        found: dict[str, Sample] = {}
        for name, volatile in _PAIRS.items():
            total, now = values.get(name), values.get(volatile)
            if not isinstance(total, (int, float)) or not isinstance(now, (int, float)):
                continue
            counts = self._known.setdefault(identity, {}).setdefault(name, [total, 0.0, now, 0.0])
            first, counted, last, missed = counts
            if total < first:  # another InfoROM, or a counter that was cleared
                first, counted, last, missed = total, 0.0, now, 0.0
            counted += now - last if now >= last else now
            missed = max(missed, total - first - counted)
            counts[:] = [first, counted, now, missed]
            found[name.replace("_lifetime", "_missed")] = missed
        return found
