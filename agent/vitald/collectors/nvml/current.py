"""
The current readings of each GPU: what the worker's answers mean, merged with earlier readings.

A reading that a call should give and does not is no longer known. Of a GPU that does not answer,
only its identity is still known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from vitald.collectors.nvml.codes import EXCLUDED, MISSING, UNSUPPORTED
from vitald.collectors.nvml.gpu_history import GpuHistory
from vitald.collectors.nvml.links import compare_errors, compare_fabric, compare_links
from vitald.collectors.nvml.readings import RACK_LOCATION
from vitald.collectors.pci.slots import count_lacking
from vitald.model.component import Component
from vitald.model.source import Readings, Sample

# The fault that each NVML error code of a failed look-up means.
_LOOKUP_FAULTS = {
    EXCLUDED: "excluded",
    4: "no_permission",
    6: "not_initialised",
    8: "insufficient_power",
    10: "lost",
    11: "irq_issue",
    14: "corrupted_inforom",
    15: "lost",
    16: "reset_required",
    999: "lost",  # returned by a look-up: most often a dead GPU
}
_FAULTS = (
    "lost",
    "reset_required",
    "corrupted_inforom",
    "irq_issue",
    "insufficient_power",
    "not_initialised",
    "no_permission",
    "excluded",
)
# With one of these faults, that a GPU gives no readings needs no other explanation.
_UNREACHABLE_FAULTS = {"lost", "not_initialised", "irq_issue", "reset_required", "excluded"}
_MAX_FAILED_LOOKUPS = 3
_REACHABILITY = ("failing_calls", "no_call_succeeds", "lookup_failed", "lookup_code")
_UNUSABLE = ("lookup_failed", "no_call_succeeds")
_FREQUENT_TIERS = ("fast", "slow")
# Derived readings, and the reading that each is derived from.
_DERIVED = {
    "nvlink_down": "nvlinks",
    "nvlinks_expected": "nvlinks",
    "nvlink_to_switch": "nvlinks",
    "nvlinks_absent": "nvlinks",
    "nvlink_recoveries_apart": "nvlink_recoveries",
    "nvlink_replays_apart": "nvlink_replays",
    "fabric_differs": "fabric_state",
    "c2c_links_expected": "c2c_links",
    "ecc_uncorrected_missed": "ecc_uncorrected_lifetime",
    "sram_uncorrected_parity_missed": "sram_uncorrected_parity_lifetime",
    "sram_uncorrected_secded_missed": "sram_uncorrected_secded_lifetime",
}
# Still true of a lost GPU.
_IDENTITY = (
    "name",
    "serial",
    "uuid",
    "vbios",
    "part_number",
    "inforom",
    "board_id",
    "module_id",
    "minor",
    *RACK_LOCATION,
)


class CurrentReadings:
    """The readings by PCI address. `history`, `switched` (there are NVSwitches on PCI) and
    `tier_of` (by reading, as the worker declares them) are set by the owner.
    """

    def __init__(self, vbios: str, nvlinks: int, overdue_s: Mapping[str, float]) -> None:
        """`vbios`: the allowed versions, separated by commas; empty allows any. `nvlinks`: how many
        links of each GPU should be active, 0 if that is not configured. `overdue_s`: by
        tier, the age at which a reading is no longer current.
        """
        self.switched = False
        self.tier_of: Mapping[str, str] = {}
        self.by_gpu: dict[str, Readings] = {}
        self.history = GpuHistory()
        self.vbios = vbios
        self.nvlinks = nvlinks
        self._overdue_s = overdue_s
        # By address: look-ups that failed in succession with a code of no definite meaning.
        self._failed_lookups: dict[str, int] = {}
        # By address and reading: when it was read, on the monotonic clock.
        self._read_at: dict[str, dict[str, float]] = {}

    def list_unreadable(self, gpus: Iterable[str]) -> list[str]:
        """Those of these GPUs whose state is unknown, and why. Without those for which that is a
        finding.
        """
        found = [self.by_gpu[gpu] for gpu in gpus if gpu in self.by_gpu]
        return [
            f"{readings.component.name}: {readings.unknown_reason}"
            for readings in found
            if readings.unknown_reason and not any(readings.values.get(name) for name in _UNUSABLE)
        ]

    def list_minors(self, gpus: Iterable[str]) -> list[int]:
        """The minor numbers of the GPUs' device files."""
        found = (self.by_gpu[gpu].values.get("minor") for gpu in gpus if gpu in self.by_gpu)
        return [int(minor) for minor in found if isinstance(minor, (int, float))]

    def count_missing_modules(self, on_pci: set[str]) -> int | None:
        """Free numbers between those of a board's modules. None if that cannot be said: a GPU on
        PCI gives no number, or there are several boards.

        A virtual machine without NVSwitches may have any modules of a board, but a power of two of
        them.
        """
        numbers = [
            self.by_gpu[address].values.get("module_id") if address in self.by_gpu else None
            for address in sorted(on_pci)
        ]
        modules = {int(number) for number in numbers if isinstance(number, (int, float))}
        if not modules or 0 in modules or len(modules) < len(numbers):
            return None
        is_whole_machine = self.switched or count_lacking(len(modules)) > 0
        return max(modules) - min(modules) + 1 - len(modules) if is_whole_machine else 0

    def group_vbios_versions(self) -> dict[str, set[str]]:
        """The VBIOS versions of each model."""
        versions: dict[str, set[str]] = {}
        for readings in self.by_gpu.values():
            if "vbios" in readings.values:
                model = str(readings.values.get("name"))
                versions.setdefault(model, set()).add(str(readings.values["vbios"]))
        return versions

    def update_gpu(
        self,
        component: Component,
        identity: str,
        values: Mapping[str, Sample],
        answer: Mapping[str, Any],
        driver: str | None,
        identifying: Mapping[str, Sample],
    ) -> None:
        """Merges `values`, the readings in the worker's answer. `driver`: its version, None if
        unknown. `identifying`: what is remembered of the GPU, for one that gives nothing any more.
        """
        address = component.id
        former = self.by_gpu.get(address)
        if former is not None and former.identity != identity:
            former = None
        lookup, failing = answer.get("lookup"), dict(answer.get("failing", {}))
        faults = {*answer.get("faults", ())}
        if lookup in _LOOKUP_FAULTS:
            faults.add(_LOOKUP_FAULTS[lookup])
        missing = self._find_missing(address, former, values, answer, faults)
        known = {**identifying, **_keep_known(former, missing)}
        missing = {name: why for name, why in missing.items() if name not in known}
        self._complete_known(known, values, driver)
        updated = dict(values) | {
            name: float(name in faults) for name in _FAULTS if name in faults or values
        }
        if values or failing:
            updated["failing_calls"] = float(len(failing))
            updated |= self._derive_no_call_succeeds(known, values, failing)
        updated |= self._derive_lookup_failed(address, values, faults, lookup)
        updated |= self._derive_readings(
            known, updated, component, identity, values, missing, answer
        )
        blind = ""
        if not self._has_frequent({**known, **values}) and not faults & _UNREACHABLE_FAULTS:
            blind = _describe_unreadable(faults, failing, lookup, missing)
        self.by_gpu[address] = Readings(
            component=component,
            identity=identity,
            time=time.time(),
            polled_at=time.monotonic(),
            values={**known, **updated},
            fresh=frozenset(updated),
            missing=missing,
            simulated=self.history.simulated,
            unknown_reason=blind,
        )

    def _complete_known(
        self, known: dict[str, Sample], values: Mapping[str, Sample], driver: str | None
    ) -> None:
        # A fault ends only when the GPU gives a reading; until then its other faults are unknown.
        for name in (*_FAULTS, *_REACHABILITY):
            known.pop(name, None)
        if driver is not None:
            known["driver_version"] = driver
            known |= _parse_branch(driver)
        if "vbios" in values:
            # If any version is allowed, its own is the expected one: that resolves a finding of an
            # earlier configuration.
            known["vbios_expected"] = self.vbios or values["vbios"]

    def _derive_readings(
        self,
        known: dict[str, Sample],
        updated: Mapping[str, Sample],
        component: Component,
        identity: str,
        values: Mapping[str, Sample],
        missing: dict[str, str],
        answer: Mapping[str, Any],
    ) -> dict[str, Sample]:
        """The readings derived from `values`. Those that cannot be derived now move from `known` to
        `missing`.
        """
        derived = self.history.find_missed_errors(identity, values)
        derived |= self._compare_gpus(
            {**known, **updated}, component.id, identity, values, answer.get("missing", {})
        )
        for name in derived:
            missing.pop(name, None)
        for name, source in _DERIVED.items():
            if name in derived or (source not in values and source not in missing):
                continue
            if known.pop(name, None) is not None:
                missing[name] = missing.get(source, "not comparable now")
        return derived

    def _find_missing(
        self,
        address: str,
        former: Readings | None,
        values: Mapping[str, Sample],
        answer: Mapping[str, Any],
        faults: set[str],
    ) -> dict[str, str]:
        """Which readings of this GPU are not observable, and why. Readings whose calls were not
        made this time stay as they were.
        """
        read_at, now = self._read_at.setdefault(address, {}), time.monotonic()
        read_at |= dict.fromkeys(values, now)
        if "lookup" in answer or "lost" in faults:
            reason = _describe_faults(faults) or _describe_lookup(answer["lookup"])
            polled = {*former.values, *former.missing} if former is not None else set()
            names = polled & self.tier_of.keys() or {
                name for name, tier in self.tier_of.items() if tier != "profiling"
            }
            return dict.fromkeys((name for name in names if name not in _IDENTITY), reason)
        before = former.missing if former is not None else {}
        missing = {name: why for name, why in before.items() if name not in values}
        missing |= answer.get("missing", {})
        for name in former.values if former is not None else ():
            limit = self._overdue_s.get(self.tier_of.get(name, ""), math.inf)
            if name not in _IDENTITY and (age := now - read_at.get(name, now)) > limit:
                missing.setdefault(name, f"not read for {age:.0f} s")
        return missing

    def _derive_lookup_failed(
        self, address: str, values: Mapping[str, Sample], faults: set[str], lookup: int | None
    ) -> dict[str, Sample]:
        """Whether the GPU cannot be looked up. A code of no definite meaning, such as "not ready",
        counts only after some failures in succession.
        """
        if values:
            self._failed_lookups.pop(address, None)
            return {"lookup_failed": 0.0}
        if lookup is None or faults & _UNREACHABLE_FAULTS:
            return {}  # these faults have findings of their own
        self._failed_lookups[address] = self._failed_lookups.get(address, 0) + 1
        if faults or self._failed_lookups[address] >= _MAX_FAILED_LOOKUPS:
            return {"lookup_failed": 1.0, "lookup_code": float(lookup)}
        return {}

    def _derive_no_call_succeeds(
        self,
        known: Mapping[str, Sample],
        values: Mapping[str, Sample],
        failing: Mapping[str, int],
    ) -> dict[str, Sample]:
        """Whether all calls of the frequent tiers fail. Empty if a slow one, not made this time,
        may succeed.
        """
        if self._has_frequent(values):
            return {"no_call_succeeds": 0.0}
        return {"no_call_succeeds": 1.0} if failing and not self._has_frequent(known) else {}

    def _has_frequent(self, names: Iterable[str]) -> bool:
        """Whether one of these is read every minute or more often."""
        return any(self.tier_of.get(name) in _FREQUENT_TIERS for name in names)

    def _compare_gpus(
        self,
        known: Mapping[str, Sample],
        address: str,
        identity: str,
        values: Mapping[str, Sample],
        missing: Mapping[str, str],
    ) -> dict[str, Sample]:
        """Compares new readings with those of other GPUs of this model, and with this GPU's
        past.
        """
        siblings = [
            readings.values
            for other, readings in self.by_gpu.items()
            if other != address and readings.values.get("name") == known.get("name")
        ]
        found: dict[str, Sample] = {}
        if "c2c_links" in values:
            counts = [gpu["c2c_links"] for gpu in (known, *siblings) if "c2c_links" in gpu]
            found["c2c_links_expected"] = max(
                float(count) for count in counts if isinstance(count, (int, float))
            )
        if missing.get("mig_mode") not in (None, *MISSING.values()):
            return found  # the call failed: with MIG on, the links may be off
        if "nvlinks" in values:
            ever = self.history.links.setdefault(identity, set())
            found |= compare_links(ever, known, siblings, switched=self.switched)
            expected = 0 if known.get("mig_mode") else self.nvlinks
            found["nvlinks_configured"] = float(expected)
        if "nvlink_recoveries" in values or "nvlink_replays" in values:
            found |= compare_errors(known, siblings)
        if "fabric_state" in values or missing.get("fabric_state") == UNSUPPORTED:
            outside = "fabric_state" not in values
            found |= compare_fabric(known, siblings, outside=outside)
        return found


def _keep_known(former: Readings | None, missing: Mapping[str, str]) -> dict[str, Sample]:
    """The former values that are still valid."""
    if former is None:
        return {}
    return {
        name: value
        for name, value in former.values.items()
        if name in _IDENTITY or name not in missing
    }


def _describe_faults(faults: Iterable[str]) -> str:
    return ", ".join(sorted(faults)).replace("_", " ")


def _describe_lookup(code: int) -> str:
    return f"the look-up fails with NVML error {code}"


def _describe_unreadable(
    faults: Iterable[str],
    failing: Mapping[str, int],
    lookup: int | None,
    missing: Mapping[str, str],
) -> str:
    """Why no reading of a GPU is current but its identity."""
    reasons = [fault.replace("_", " ") for fault in sorted(faults)]
    if lookup is not None:
        reasons.append(_describe_lookup(lookup))
    reasons += [f"{call} fails with NVML error {code}" for call, code in sorted(failing.items())]
    reasons += [
        f"{name}: {missing[name]}"
        for name in ("temperature_celsius", "power_watts")
        if name in missing
    ]
    suffix = f": {reasons[0]}" if reasons else ""
    return f"NVML answers nothing about it{suffix}"


def _parse_branch(version: str) -> dict[str, Sample]:
    """The driver's release branch: 580 of 580.95.05."""
    first = version.partition(".")[0]
    return {"driver_branch": float(first)} if first.isascii() and first.isdigit() else {}
