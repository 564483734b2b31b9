"""
What NVML's answers mean: from what the worker read to readings, and to the events that are worth
telling.

Owns     what is known of this node's GPUs and what was said of them, across restarts.
Refuses  processes and waiting: answers come in, events go out. Thresholds are the catalogue's
         watches.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitald.catalog import Catalog
from vitald.collectors.device_registry import MISSED
from vitald.collectors.event_factory import EventFactory, derive_readings
from vitald.collectors.nvml.devices import Devices, Known
from vitald.collectors.nvml.links import Links, fabric_differs
from vitald.collectors.nvml.memory_errors import LifetimeErrors
from vitald.collectors.nvml.tiers import MISSING, NOT_SUPPORTED, TIER_OF
from vitald.collectors.thresholds import Crossing, ThresholdEvaluator
from vitald.model import NODE, Component, ComponentKind, Event, Fields, Readings, Sample, Value

NAME = "nvml"
HUNG, UNAVAILABLE, IDENTITY, RESET = (
    "nvml/hung",
    "nvml/unavailable",
    "device/identity",
    "device/reset",
)
GONE = -1  # besides NVML's own codes: the worker process ended

_SIMULATED_S = 86400.0  # findings from a simulated library end after this, like a drill's
_LOOKUP = {
    -2: "excluded",  # by the driver's configuration: not NVML's code but the worker's
    4: "no_permission",
    6: "not_initialised",
    8: "insufficient_power",
    10: "lost",
    11: "irq_issue",
    14: "corrupted_inforom",
    15: "lost",
    16: "reset_required",
    999: "lost",  # at a look-up: very often a dead GPU
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
_OUT_OF_REACH = {
    "lost",
    "not_initialised",
    "irq_issue",
    "reset_required",
    "excluded",
}  # that a GPU answers nothing is known of these
_RETRIES = 3
_REACH = ("failing_calls", "no_call_succeeds", "lookup_failed", "lookup_code")
_UNUSABLE = ("lookup_failed", "no_call_succeeds")
_ASKED_OFTEN = ("fast", "slow")
_SINCE_LOAD = (
    "energy_joules",
    "power_capped_seconds",
)  # begin at zero when the GPU was reset or the driver loaded
# What is worked out from readings, and from which.
_DERIVED = {
    "nvlink_down": "nvlinks",
    "nvlinks_expected": "nvlinks",
    "nvlink_to_switch": "nvlinks",
    "nvlinks_absent": "nvlinks",
    "fabric_differs": "fabric_state",
    "c2c_links_expected": "c2c_links",
    "ecc_uncorrected_missed": "ecc_uncorrected_lifetime",
    "sram_uncorrected_parity_missed": "sram_uncorrected_parity_lifetime",
    "sram_uncorrected_secded_missed": "sram_uncorrected_secded_lifetime",
}
_PLACE = ("chassis_serial", "chassis_slot", "tray_index", "host_id")  # in a rack
_WHO = (
    "name",
    "serial",
    "uuid",
    "vbios",
    "part_number",
    "inforom",
    "board_id",
    "module_id",
    "minor",
    *_PLACE,
)  # stays true of a lost GPU


class GpuNode:
    """The GPUs of this node as NVML shows them."""

    def __init__(
        self,
        catalog: Catalog,
        boot_id: str,
        *,
        expected: int,
        told: int,
        vbios: Sequence[str] = (),
        overdue_s: Mapping[str, float] | None = None,
    ) -> None:
        """`expected`: how many GPUs there should be, 0 where nobody knows; `told`: the same, where
        the site said it itself. `vbios`: the versions that they may have, where it said that.
        `overdue_s`: by tier, how old a reading may be that is current.
        """
        self.boot_id = boot_id
        self.simulated = False
        self.switched = False  # there are NVSwitches on PCI
        self.slots: Mapping[str, str] = {}  # physical slots by address without function
        self._catalog = catalog
        self._expected = expected
        self._told = told
        self._vbios = ",".join(vbios)
        self._overdue_s = overdue_s or {}
        self._facts = EventFactory(NAME, boot_id)
        self._begin()

    def _begin(self) -> None:
        """With nothing remembered."""
        catalog = self._catalog
        self.read: dict[str, Readings] = {}  # by address: all that is known now
        self._devices, self._watcher = Devices(), ThresholdEvaluator(catalog.watched(NAME))
        self._counted: dict[
            str, dict[str, float]
        ] = {}  # by UUID: what began when the driver was loaded
        self._refused: dict[
            str,
            int,
            # By address: how many look-ups in succession failed with a code of no certain meaning
        ] = {}
        self._read_at: dict[
            str, dict[str, float]
        ] = {}  # by address and reading: when it was read, on the monotonic clock
        self._links = Links()
        self._lifetime = LifetimeErrors()
        self._hung: dict[
            str, Fields
        ] = {}  # components at which a call hangs, and what was said of it
        self.holding: tuple[Event, ...] = ()
        self.calm: frozenset[tuple[Component, str]] = frozenset()
        self._missed: dict[
            str, str
        ] = {}  # by UUID: GPUs that were said to be missing, and from which slot
        self._driver: dict[str, Sample] = {}

    def configure(self, catalog: Catalog) -> None:
        """The catalogue was reloaded."""
        self._catalog = catalog
        self._watcher.configure(catalog.watched(NAME))

    # --- what is remembered

    def unreadable(self, gpus: Iterable[str]) -> list[str]:
        """Those of these GPUs of which nothing can be said, and why. Not where that is a
        finding.
        """
        read = [self.read[gpu] for gpu in gpus if gpu in self.read]
        return [
            f"{one.component.name}: {one.blind}"
            for one in read
            if one.blind and not any(one.values.get(name) for name in _UNUSABLE)
        ]

    @property
    def memory(self) -> str:
        """For the next start: baselines, who was here, what was said."""
        remembered = {
            "gpus": self._devices.memory,
            "watch": self._watcher.memory,
            "counted": self._counted,
            "links": self._links.memory,
            "lifetime": self._lifetime.memory,
            "hung": self._hung,
            "missed": self._missed,
            "simulated": self.simulated,
        }
        return json.dumps(remembered, separators=(",", ":"))

    def recall(self, memory: str, boot_id: str) -> None:
        """What is remembered of another boot still says who was here; what lasted begins anew.
        Raises ValueError for what is none of ours.
        """
        try:
            stored = json.loads(memory)
            devices, links, missed = (
                Devices(stored["gpus"]),
                Links(stored["links"]),
                dict(stored["missed"]),
            )
            lifetime = LifetimeErrors(stored.get("lifetime", {}))
            watcher = ThresholdEvaluator(self._catalog.watched(NAME), stored["watch"])
            counted, simulated = dict(stored["counted"]), bool(stored["simulated"])
            said = stored["hung"]  # a former version stored the names alone
            hung: dict[str, Fields] = (
                {str(name): {} for name in said} if isinstance(said, list) else dict(said)
            )
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        self._devices, self._watcher, self._links, self._missed, self._hung = (
            devices,
            watcher,
            links,
            missed,
            hung,
        )
        self._lifetime = lifetime
        self.simulated = simulated
        if boot_id == self.boot_id:
            self._counted = counted
        else:
            watcher.forget_all()
            lifetime.boot()

    # --- answers

    def library(self, *, simulated: bool) -> None:
        """Which library answers. What is remembered of simulated GPUs says nothing of real ones."""
        if self.simulated is not simulated:
            self._begin()
            self.simulated = simulated

    def attached(self, answer: Mapping[str, Any], on_pci: set[str]) -> None:
        """A worker took hold of the driver. What is not on PCI any more has no present values."""
        self.read = {address: one for address, one in self.read.items() if address in on_pci}
        self._driver = {
            "unavailable": 0.0,
            "driver": str(answer["driver"]),
            "nvml": str(answer["nvml"]),
        }
        self._devices.attached()

    def unavailable(self, code: int, why: str, on_pci: set[str]) -> list[Event]:
        """The driver cannot be asked at all. `code` is NVML's, GONE, or 0 where there is nothing to
        ask it about.
        """
        self._driver = {"unavailable": float(code)}
        self._devices.attached()  # whoever was met may be gone
        self.read = {}
        said = f"{'SIMULATED ' if self.simulated else ''}NVML: {why}"
        return [
            replace(event, raw=said) if event.code == UNAVAILABLE else event
            for event in self._signs([], on_pci)
        ]

    def digest(self, answers: Mapping[str, Mapping[str, Any]], on_pci: set[str]) -> list[Event]:
        """Who is there, was it reset, and what the watches say."""
        now = time.time()
        events: list[Event] = []
        for address, answer in answers.items():
            values: dict[str, Sample] = {
                name: tuple(map(float, value)) if isinstance(value, list) else value
                for name, value in answer.get("values", {}).items()
            }
            component = Component(ComponentKind.GPU, address)
            if "uuid" in values:
                events += self._met(address, values)
            identity = self._devices.identity(address)
            if self._was_reset(identity, values):
                text = (
                    f"{self._who(address)} was reset, or the driver loaded: its counters began anew"
                )
                events.append(self.event(RESET, component, {}, text, now))
                self._watcher.forget(identity, counters=True)
                self._lifetime.began_anew(identity)
            if values and component.name in self._hung:
                del self._hung[component.name]
                events.append(
                    self.event(
                        HUNG, component, {"recovered": True}, f"{self._who(address)} answers again"
                    )
                )
            self.read[address] = self._readings(component, identity, values, answer, now)
        if self._driver.get("unavailable") == 0 and NODE.name in self._hung:
            del self._hung[NODE.name]
            events.append(self.event(HUNG, NODE, {"recovered": True}, "the driver answers again"))
        return [*events, *self._signs(answers, on_pci)]

    def hangs(
        self, gpu: str, call: str, seconds: float, state: str, *, unkillable: bool = False
    ) -> Event:
        """A call does not return. `gpu` may be empty: a call into the driver that is about
        no GPU.
        """
        component = Component(ComponentKind.GPU, gpu) if gpu else NODE
        fields: dict[str, Value] = {"call": call, "seconds": round(seconds, 1), "state": state}
        if unkillable:
            fields["unkillable"] = True
        self._hung[component.name] = fields
        about = f": {self._who(gpu)}" if gpu else ""
        return self.event(
            HUNG, component, fields, f"{call} has not answered for {seconds:.1f} s [{state}]{about}"
        )

    def xid(self, gpu: str, number: int, moment: float) -> Event:
        """An Xid that NVML told of. It counts with the kernel log's line about the same one, not
        beside it.
        """
        fields: dict[str, Value] = {"number": number, "witness": NAME}
        return self.event(
            f"xid/{number}",
            Component(ComponentKind.GPU, gpu),
            fields,
            f"event: Xid {number} on {self._who(gpu)}",
            moment,
        )

    def event(
        self,
        code: str,
        component: Component,
        fields: Fields,
        text: str,
        moment: float | None = None,
    ) -> Event:
        """One fact of this source. What comes from a simulated library is a drill, and its text
        says so.
        """
        raw = f"{'SIMULATED ' if self.simulated else ''}NVML: {text}"
        until = time.time() + _SIMULATED_S if self.simulated else None
        return self._facts.event(code, component, fields, raw, moment=moment, simulated_until=until)

    def minors(self, gpus: Iterable[str]) -> list[int]:
        """The numbers of their device files."""
        values = (self.read[gpu].values.get("minor") for gpu in gpus if gpu in self.read)
        return [int(value) for value in values if isinstance(value, (int, float))]

    # --- readings

    def _readings(
        self,
        component: Component,
        identity: str,
        values: Mapping[str, Sample],
        answer: Mapping[str, Any],
        now: float,
    ) -> Readings:
        """The new values over those of other looks that are still current. What these calls should
        have given and did not is not known any more. Of a GPU that does not answer only what stays
        true is still known.
        """
        before = self.read.get(component.id)
        if before is not None and before.identity != identity:
            before = None
        lookup = answer.get("lookup")
        failing = dict(answer.get("failing", {}))
        faults = {*answer.get("faults", ()), *([_LOOKUP[lookup]] if lookup in _LOOKUP else ())}
        missing = self._missing_readings(component.id, before, values, answer, faults)
        known = {
            name: value
            for name, value in (before.values if before is not None else {}).items()
            if name in _WHO or name not in missing
        }
        missing = {name: why for name, why in missing.items() if name not in known}
        if isinstance(version := self._driver.get("driver"), str):
            known["driver_version"] = version
            known |= _branch(version)
        if (
            "vbios" in values
            # Where none is expected, its own is right: that ends what was said by another
            # configuration
        ):
            known["vbios_expected"] = self._vbios or values["vbios"]
        # A fault is over only where the GPU has answered something; elsewhere nothing is known of
        # its other faults.
        known = {
            name: value
            for name, value in known.items()
            if name not in _FAULTS and name not in _REACH
        }
        fresh = dict(values) | {
            name: float(name in faults) for name in _FAULTS if name in faults or values
        }
        if values or failing:
            fresh["failing_calls"] = float(len(failing))
            fresh |= _no_call_succeeds(known, values, failing)
        fresh |= self._lookup_failed(component.id, values, faults, lookup)
        derived = self._lifetime.look(identity, values)
        derived |= self._compared(
            {**known, **fresh}, component.id, identity, values, answer.get("missing", {})
        )
        missing = {name: why for name, why in missing.items() if name not in derived}
        for name, of in _DERIVED.items():
            if (
                name not in derived
                and (of in values or of in missing)
                and known.pop(name, None) is not None
            ):
                missing[name] = missing.get(of, "not comparable now")
        fresh |= derived
        return Readings(
            component=component,
            identity=identity,
            time=now,
            looked=time.monotonic(),
            values={**known, **fresh},
            fresh=frozenset(fresh),
            missing=missing,
            simulated=self.simulated,
            blind=(
                ""
                if _often({**known, **values}) or faults & _OUT_OF_REACH
                else self._unreadable(faults, failing, lookup, missing)
            ),
        )

    def _missing_readings(
        self,
        address: str,
        before: Readings | None,
        values: Mapping[str, Sample],
        answer: Mapping[str, Any],
        faults: set[str],
    ) -> dict[str, str]:
        """What is not observable of this GPU, by reading, and why. What no call of this look is
        about stays as it was.
        """
        read_at, moment = self._read_at.setdefault(address, {}), time.monotonic()
        read_at |= dict.fromkeys(values, moment)
        if "lookup" in answer or "lost" in faults:
            asked = {*before.values, *before.missing} if before is not None else set()
            reason = (
                ", ".join(sorted(faults)).replace("_", " ")
                or f"the look-up fails with NVML error {answer['lookup']}"
            )
            return dict.fromkeys(
                (name for name in asked & TIER_OF.keys() or TIER_OF.keys() if name not in _WHO),
                reason,
            )
        former = dict(before.missing) if before is not None else {}
        missing = {name: why for name, why in former.items() if name not in values} | dict(
            answer.get("missing", {})
        )
        for name in before.values if before is not None else ():
            limit = self._overdue_s.get(TIER_OF.get(name, ""), math.inf)
            if name not in _WHO and (age := moment - read_at.get(name, moment)) > limit:
                missing.setdefault(name, f"not read for {age:.0f} s")
        return missing

    def _lookup_failed(
        self, address: str, values: Mapping[str, Sample], faults: set[str], lookup: int | None
    ) -> dict[str, Sample]:
        """Whether the GPU cannot be looked up. A code that says nothing certain of the GPU, such as
        "not ready", is tried again.
        """
        if values:
            self._refused.pop(address, None)
            return {"lookup_failed": 0.0}
        if lookup is None or faults & _OUT_OF_REACH:
            return {}  # the latter have findings of their own
        self._refused[address] = self._refused.get(address, 0) + 1
        return (
            {"lookup_failed": 1.0, "lookup_code": float(lookup)}
            if faults or self._refused[address] >= _RETRIES
            else {}
        )

    def _compared(
        self,
        known: Mapping[str, Sample],
        address: str,
        identity: str,
        values: Mapping[str, Sample],
        missing: Mapping[str, str],
    ) -> dict[str, Sample]:
        """What a reading of this look comes to beside the same of other GPUs of this model, and of
        this GPU's own past.
        """
        siblings = [
            one.values
            for other, one in self.read.items()
            if other != address and one.values.get("name") == known.get("name")
        ]
        found: dict[str, Sample] = {}
        if "c2c_links" in values:
            counts = [one["c2c_links"] for one in (known, *siblings) if "c2c_links" in one]
            found["c2c_links_expected"] = max(
                float(count) for count in counts if isinstance(count, (int, float))
            )
        if missing.get("mig_mode") not in (None, *MISSING.values()):
            return found  # it failed: with MIG on, the links may be off
        if "nvlinks" in values:
            found |= self._links.compare(identity, known, siblings, switched=self.switched)
        if "fabric_state" in values or missing.get("fabric_state") == NOT_SUPPORTED:
            found |= fabric_differs(known, siblings, outside="fabric_state" not in values)
        return found

    def _unreadable(
        self,
        faults: Iterable[str],
        failing: Mapping[str, int],
        lookup: int | None,
        missing: Mapping[str, str],
    ) -> str:
        """Why nothing can be said of a GPU of which no reading is current but who it is."""
        said = [fault.replace("_", " ") for fault in sorted(faults)]
        said += (
            [f"the look-up fails with NVML error {lookup}"]
            if lookup is not None and not said
            else []
        )
        said += [f"{call} fails with NVML error {code}" for call, code in sorted(failing.items())][
            :1
        ]
        said += [
            f"{name}: {missing[name]}"
            for name in ("temperature_celsius", "power_watts")
            if name in missing
        ]
        return (
            f"NVML answers nothing about it: {said[0]}" if said else "NVML answers nothing about it"
        )

    def _met(self, address: str, values: Mapping[str, Sample]) -> list[Event]:
        module, uuid = values.get("module_id"), str(values["uuid"])
        former = self._devices.known(uuid) or Known(
            address=address, uuid=uuid
        )  # for what it does not say this time
        simulated = " (simulated)" if self.simulated else ""
        known = Known(
            address=address,
            uuid=uuid,
            name=f"{values['name']}{simulated}" if "name" in values else former.name or simulated,
            serial=str(values.get("serial", former.serial)),
            module=str(int(module)) if isinstance(module, (int, float)) else former.module,
            slot=self.slots.get(address.rpartition(".")[0], ""),
            place=_place(values) or former.place,
        )
        if self._devices.at(address) is None:  # until now it went by its address
            self._watcher.rename(address, known.uuid)
            if address in self._counted:
                self._counted[known.uuid] = self._counted.pop(address)
            self._links.rename(address, known.uuid)
            self._lifetime.rename(address, known.uuid)
        if not self._devices.met(known):
            return []
        said: dict[str, Value] = {
            "uuid": known.uuid,
            **({"serial": known.serial} if known.serial else {}),
        }
        return [self.event(IDENTITY, known.component, said, known.words)]

    def _was_reset(self, identity: str, values: Mapping[str, Sample]) -> bool:
        """What counts since the driver was loaded has fallen, and the driver asks for nothing: the
        GPU was initialised afresh.
        """
        counts = {
            name: float(value)
            for name in _SINCE_LOAD
            if isinstance(value := values.get(name), (int, float))
        }
        before = self._counted.setdefault(identity, {})
        fell = next(
            (
                counts[name] < before[name]
                for name in _SINCE_LOAD
                if name in counts and name in before
            ),
            False,
        )
        if fell and values.get("recovery", 0) != 0:
            return False  # it was tried, and the driver is not content: said once it is
        before |= counts
        return fell

    # --- signs

    def _signs(self, looked: Iterable[str], on_pci: set[str]) -> list[Event]:
        """What the watches say of these GPUs, of those that should be there and are not, and of the
        node.
        """
        missing = self._missing(on_pci)
        readings = [self.read[address] for address in looked]
        readings += [
            derive_readings(
                one.component, {"missing": 1.0}, MISSED + one.uuid, simulated=self.simulated
            )
            for one in missing
        ]
        for uuid in [uuid for uuid in self._missed if uuid not in {one.uuid for one in missing}]:
            slot = Component(ComponentKind.GPU, self._missed.pop(uuid))
            readings.append(
                derive_readings(slot, {"missing": 0.0}, MISSED + uuid, simulated=self.simulated)
            )
        self._missed |= {one.uuid: one.address for one in missing}
        whole = {**self._driver, "gpus": float(len(on_pci) + len(missing))}
        if self._expected:
            whole["gpus_expected"] = float(self._expected)
        if versions := self._firmware():
            whole["vbios_versions"] = float(max(map(len, versions.values())))
        readings.append(derive_readings(NODE, whole, simulated=self.simulated))
        told = [
            self._signed(sign)
            for sign in self._watcher.look(readings, time.monotonic(), tuple(self.read.values()))
        ]
        self.holding = tuple(self._signed(sign) for sign in self._watcher.holding)
        self.calm = frozenset(self._watcher.calm)
        return told

    def take_holding(self, on_pci: set[str]) -> tuple[Event, ...]:
        """What the last look found to hold still, once, and what hangs still. What is not on PCI
        any more hangs no more.
        """
        holding, self.holding = self.holding, ()
        hanging = [Component.parse(name) for name in sorted(self._hung)]
        return *holding, *(
            self._hangs_still(one) for one in hanging if one == NODE or one.id in on_pci
        )

    def _hangs_still(self, component: Component) -> Event:
        about = self._who(component.id) if component != NODE else "the driver"
        return self.event(
            HUNG, component, dict(self._hung[component.name]), f"{about} has not answered again"
        )

    def _firmware(self) -> dict[str, set[str]]:
        """The VBIOS versions of each model."""
        versions: dict[str, set[str]] = {}
        for one in self.read.values():
            if "vbios" in one.values:
                versions.setdefault(str(one.values.get("name")), set()).add(
                    str(one.values["vbios"])
                )
        return versions

    def _missing(self, on_pci: set[str]) -> list[Known]:
        """Not where the site says how many there should be, and so many are here: what is gone was
        taken out on purpose.
        """
        return [] if self._told and len(on_pci) >= self._told else self._devices.missing(on_pci)

    def _signed(self, sign: Crossing) -> Event:
        fields: dict[str, Value] = dict(sign.fields)
        who = sign.component.name
        if sign.component.kind is ComponentKind.GPU:
            uuid = sign.identity.removeprefix(MISSED)
            known = self._devices.known(uuid)
            who = f"GPU {sign.component.id}" if known is None else known.words
            if known is not None:
                fields |= {
                    name: value
                    for name, value in (
                        ("uuid", uuid),
                        ("serial", known.serial),
                        ("slot", known.slot),
                    )
                    if value
                }
        return self.event(sign.code, sign.component, fields, f"{sign.text}: {who}")

    def _who(self, address: str) -> str:
        known = self._devices.at(address)
        return known.words if known is not None else f"GPU {address}"


def _no_call_succeeds(
    known: Mapping[str, Sample], values: Mapping[str, Sample], failing: Mapping[str, int]
) -> dict[str, Sample]:
    """Whether none of the calls succeeds that are made every minute. Empty while a slow one may,
    whose turn it was not.
    """
    if _often(values):
        return {"no_call_succeeds": 0.0}
    return {"no_call_succeeds": 1.0} if failing and not _often(known) else {}


def _often(names: Iterable[str]) -> bool:
    """Whether one of these is read every minute or more often."""
    return any(TIER_OF.get(name) in _ASKED_OFTEN for name in names)


def _place(values: Mapping[str, Sample]) -> str:
    """Where in the rack a person finds the GPU; empty where the board does not say it."""
    said = {
        "chassis": values.get("chassis_serial"),
        "chassis slot": values.get("chassis_slot"),
        "tray": values.get("tray_index"),
    }
    return " ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in said.items()
        if value is not None
    )


def _branch(version: str) -> dict[str, Sample]:
    """The driver's release branch: 580 of 580.95.05."""
    first = version.partition(".")[0]
    return {"driver_branch": float(first)} if first.isascii() and first.isdigit() else {}
