"""
What this node should have, held against what is here: accelerators, adapters, drives, and versions.

Owns     how many there should be, and who says so: the configuration, a person, the instance type,
         or what was the same at several healthy boots. What the catalogue's watches make of a
         difference is theirs.
Refuses  single devices. Which of them is gone is said by the source that looks at it.

A count is told once three looks in a row have found it: a driver that is loaded again takes its
devices away for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitald.catalog.rules import InstanceType
from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.inventory.readings import READINGS
from vitald.collectors.inventory.settings import SECTION, ExpectSettings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.pci.inventory import PciInventory, machine_type
from vitald.collectors.small_files import Files, RawReadings, describe_error, list_names, read_text
from vitald.model import NODE, Component, ComponentKind, Readings

NAME = "expect"
KINDS = {
    "gpus": "GPUs",
    "neuron": "Neuron devices",
    "efa": "EFA adapters",
    "nics": "InfiniBand and RoCE adapters",
    "nvme": "NVMe drives",
}
VERSIONS = ("gpu_driver", "neuron_driver", "efa_driver", "kernel")

_LOOKS = 3  # so often a count is found before it is told
_HEALTHY_S = 600.0  # what fails early has failed by then, and slow drivers are up
_AMAZON, _EFA = 0x1D0F, range(0xEFA0, 0xEFA4)
# Volumes that come over the network are attached and detached while a node works. The models of
# AWS, Azure and Google.
_VOLUMES = ("Amazon Elastic Block Store", "MSFT NVMe Accelerator", "nvme_card-pd")


class Unsettled(Exception):
    """The counts cannot be confirmed now; the text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many there should be. `confirmed`: to have fewer is a fault; else somebody may want to
    know.
    """

    count: int
    confirmed: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What is remembered of one kind. `rival`: another count that healthy boots had since, and how
    many in a row.
    """

    count: int
    boots: int = 0  # healthy boots in a row that had it
    boot: str = ""  # the last healthy boot that was counted
    rival: int = -1
    rivals: int = 0
    by: str = ""  # who confirmed it
    reason: str = ""
    at: float = 0.0

    def confirmed(self, enough: int) -> bool:
        return bool(self.by) or 0 < enough <= self.boots


def learn(before: Learned | None, count: int, boot: str, enough: int) -> Learned:
    """What is remembered after one more healthy boot, which had so many.

    More than before is learned as the first count was. Fewer is too, as long as nothing was
    confirmed; after that it is a fault, and only a person says otherwise.
    """
    if before is None:
        return Learned(count=count, boots=1, boot=boot)
    if count == before.count:
        return replace(before, boots=before.boots + 1, boot=boot, rival=-1, rivals=0)
    confirmed = before.confirmed(enough)
    if count < before.count and confirmed:
        return replace(before, boot=boot, rival=-1, rivals=0)
    rivals = before.rivals + 1 if count == before.rival else 1
    if rivals >= enough or (count > before.count and not confirmed):
        return Learned(count=count, boots=rivals, boot=boot)
    return replace(
        before, boots=before.boots if confirmed else 0, boot=boot, rival=count, rivals=rivals
    )


def _remembered(stored: object) -> Learned | None:
    """As far as it is understood: another version may have written it."""
    if not isinstance(stored, dict) or not isinstance(stored.get("count"), int):
        return None
    like = Learned(count=0)
    return Learned(
        **{
            name: stored[name]
            for name in Learned.__slots__
            if isinstance(stored.get(name), type(getattr(like, name)))
        }
    )


class Expected:
    """A subject of `Polled`. Its one device is the node."""

    name = NAME

    def __init__(
        self,
        sysfs: Path,
        procfs: Path,
        inventory: PciInventory,
        catalog_instances: Mapping[str, InstanceType],
        boot_id: str,
        settings: ExpectSettings,
        gpus: int,
        healthy: Callable[[], bool],
        *,
        nvml: bool = True,
        healthy_s: float = _HEALTHY_S,
    ) -> None:
        """`inventory` is read anew at each look. `gpus`: how many the site says there are, 0 where
        it does not; `nvml`: its source tells of those that are missing, so this one does not.
        `healthy`: whether this node is as it should be, asked `healthy_s` after the start.
        """
        self.memory: dict[str, Any] = {}
        self.machine = ""  # the instance type, where there is one
        self.here: dict[str, int] = {}  # what is told: counts that have settled
        self.unseen: dict[str, str] = {}  # why a count is not told
        self.versions: dict[str, str] = {}
        self.enough = settings.boots
        self._sysfs = sysfs
        self._pci = inventory
        self._instances = catalog_instances
        self._boot_id = boot_id
        self._configured = {
            "gpus": gpus,
            "neuron": settings.neuron,
            "efa": settings.efa,
            "nics": settings.nics,
            "nvme": settings.nvme,
        }
        self._may_run = {name: tuple(getattr(settings, name)) for name in VERSIONS}
        self._version_files = {
            "gpu_driver": sysfs / "module/nvidia/version",
            "neuron_driver": sysfs / "module/neuron/version",
            "efa_driver": sysfs / "module/efa/version",
            "kernel": procfs / "sys/kernel/osrelease",
        }
        self._healthy = healthy
        self._healthy_at = time.monotonic() + healthy_s
        self.judged = tuple(
            kind for kind in KINDS if kind != "gpus" or not nvml
        )  # the others are another source's
        self._files = Files()
        self._counted: dict[
            str, tuple[int, int]
        ] = {}  # the last count, and how many looks in a row found it
        self._identity = ""
        self._rdma: frozenset[str] | None = (
            None  # PCI functions of RDMA adapters, once they were looked at
        )

    # --- looking, in a thread

    def find_devices(self) -> Found:
        if not self._identity:
            self.machine = machine_type(self._sysfs)
            tag = (
                self._files.read_text(
                    RawReadings(), "tag", self._sysfs / "class/dmi/id/board_asset_tag"
                )
                or ""
            )  # on EC2 the instance's id
            self._identity = f"{self.machine} {tag}".strip()
        return Found([PolledDevice(NODE, self._look)])

    def _look(self) -> RawReadings:
        look = RawReadings()
        self._pci.read()
        for kind, count in self._counts(look).items():
            before, times = self._counted.get(kind, (count, 0))
            self._counted[kind] = count, times + 1 if count == before else 1
            if self._counted[kind][1] < _LOOKS:
                look.missing[kind] = f"{count} counted so far: told once {_LOOKS} looks agree"
                continue
            look.values[kind] = float(count)
        for name, path in self._version_files.items():
            self._files.read_text(look, name, path)
        # Where nothing is expected, what is here is right: that ends what was said by another
        # configuration.
        look.values |= {
            f"{name}_expected": ",".join(self._may_run[name]) or look.values.get(name, "")
            for name in VERSIONS
        }
        for kind in self.judged:
            wanted = self.wanted(kind) or Wanted(0, False, "")
            look.values[f"{kind}_expected"] = float(wanted.count)
            look.values[f"{kind}_confirmed"] = float(wanted.confirmed)
        most = self._instances.get(self.machine, InstanceType()).efa
        if (
            most and look.values.get("efa") and look.values.get("efa_confirmed") != 1.0
        ):  # without any, nobody wants to use them
            look.values["efa_most"] = float(most)
        return look

    def _counts(self, look: RawReadings) -> dict[str, int]:
        """What is here at this moment, of each kind that can be counted."""
        counts: dict[str, int] = {}
        if self._pci.error:
            look.missing |= dict.fromkeys(("gpus", "neuron", "efa", "nics"), self._pci.error)
        else:
            devices = self._pci.devices.values()
            counts["gpus"] = sum(device.kind is ComponentKind.GPU for device in devices)
            counts["neuron"] = sum(device.kind is ComponentKind.NEURON for device in devices)
            counts["efa"] = sum(
                device.vendor == _AMAZON and device.device in _EFA for device in devices
            )
        for kind, count in (("nics", self._adapters), ("nvme", self._drives)):
            if kind in look.missing:
                continue
            try:
                counts[kind] = count()
            except OSError as error:
                look.missing[kind] = f"{error.filename}: {describe_error(error)}"
        return counts

    def _adapters(self) -> int:
        """PCI functions that have, or once had, an RDMA device. It may have been lent to a
        container's network namespace since.

        Functions that another one made (SR-IOV) come and go as somebody sets them up.
        """
        root = self._sysfs / "class/infiniband"
        seen = {(root / name / "device").resolve().name for name in list_names(root)}
        known = seen | (set(self._had_rdma()) if self._same_machine() else set())
        own = {
            address
            for address in known
            if (device := self._pci.devices.get(address)) is not None and device.driver != "efa"
        }
        self._rdma = found = frozenset(
            one
            for one in own
            if not (self._sysfs / "bus/pci/devices" / one / "physfn").is_symlink()
        )
        return len(found)

    def _drives(self) -> int:
        root = self._sysfs / "class/nvme"
        return sum(
            read_text(root / name / "transport") == "pcie"
            and not read_text(root / name / "model").startswith(_VOLUMES)
            for name in list_names(root)
        )

    # --- what should be here

    def wanted(self, kind: str) -> Wanted | None:
        """How many of a kind there should be; None where nobody knows. A person's word on this node
        outranks the instance type's.
        """
        if configured := self._configured[kind]:
            return Wanted(
                configured,
                True,
                "configuration:"
                f" {'[nvml] expected_gpus' if kind == 'gpus' else f'[expect] {kind}'}",
            )
        known = self._known(kind) if kind in self.judged else None
        if known is not None and known.by:
            day = time.strftime("%Y-%m-%d", time.localtime(known.at))
            return Wanted(known.count, True, f"confirmed by {known.by} on {day}: {known.reason}")
        if firm := self._firm(kind):
            return Wanted(firm, True, f"instance type {self.machine}")
        if known is None or not self.enough:
            return None
        if known.confirmed(self.enough):
            return Wanted(known.count, True, f"the same at {known.boots} healthy boots in a row")
        return Wanted(
            known.count,
            False,
            f"learned, not confirmed yet: seen at {known.boots} of {self.enough} healthy boots in"
            " a row",
        )

    def enough_of(self, *kinds: str) -> bool:
        """Whether the site itself, by configuration or a person, said how many of these there
        should be, and so many are here.
        """
        said = {kind: self._said(kind) for kind in kinds}
        return any(said.values()) and all(
            self._counted.get(kind, (0, 0))[0] >= count for kind, count in said.items()
        )

    def _said(self, kind: str) -> int:
        known = self._known(kind) if kind in self.judged else None
        return self._configured[kind] or (known.count if known is not None and known.by else 0)

    def may_run(self, name: str) -> tuple[str, ...]:
        """The versions that the configuration allows; none where it says nothing."""
        return self._may_run[name]

    def _firm(self, kind: str) -> int:
        """What every instance of this type has. How many EFA adapters it has is said when it is
        launched.
        """
        instance = self._instances.get(self.machine, InstanceType())
        return {"gpus": instance.gpus, "neuron": instance.neuron}.get(kind, 0)

    def _same_machine(self) -> bool:
        """Whether what is remembered was learned here. A disk, or a copy of it, may have come from
        another machine.
        """
        return not self._identity or self.memory.get("machine", self._identity) == self._identity

    def _had_rdma(self) -> list[str]:
        stored = self.memory.get("rdma")
        return [one for one in stored if isinstance(one, str)] if isinstance(stored, list) else []

    def _known(self, kind: str) -> Learned | None:
        counts = self.memory.get("counts") if self._same_machine() else None
        return _remembered(counts.get(kind)) if isinstance(counts, dict) else None

    # --- learning, on the loop

    def combine_readings(
        self,
        read: Mapping[Component, Readings],
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """No further readings: what was seen is remembered."""
        one = read.get(NODE)
        if one is None or one.blind:
            return ()
        self.here = {
            kind: int(count) for kind in KINDS if isinstance(count := one.values.get(kind), float)
        }
        self.unseen = {kind: reason for kind, reason in one.missing.items() if kind in KINDS}
        self.versions = {name: str(one.values[name]) for name in VERSIONS if name in one.values}
        if not self._same_machine():
            self.memory = {}
        counts = {kind: known for kind in self.judged if (known := self._known(kind)) is not None}
        # A person said that fewer are right; now all are here that the type has, so that was for a
        # time.
        counts = {
            kind: one
            for kind, one in counts.items()
            if not one.by or not one.count < self._firm(kind) <= self.here.get(kind, 0)
        }
        new = [
            kind
            for kind in self.here
            if kind in self.judged and (kind not in counts or counts[kind].boot != self._boot_id)
        ]
        if new and self.enough and time.monotonic() >= self._healthy_at and self._healthy():
            counts |= {
                kind: learn(counts.get(kind), self.here[kind], self._boot_id, self.enough)
                for kind in new
            }
        self._remember(counts)
        return ()

    def confirm(self, by: str, reason: str) -> dict[str, int]:
        """A person says that what is here now is right. Returns what was confirmed: not what the
        configuration says, nor what another source judges. Raises Unsettled.
        """
        if not self.here:
            raise Unsettled("nothing has been counted yet")
        if waiting := [
            kind for kind in self.judged if kind in self._counted and kind in self.unseen
        ]:
            raise Unsettled(f"{KINDS[waiting[0]]}: {self.unseen[waiting[0]]}")
        meant = {
            kind: count
            for kind, count in self.here.items()
            if kind in self.judged and not self._configured[kind]
        }
        now = time.time()
        said = {
            kind: Learned(count=count, boot=self._boot_id, by=by, reason=reason, at=now)
            for kind, count in meant.items()
        }
        counts = {kind: known for kind in self.judged if (known := self._known(kind)) is not None}
        self._remember(counts | said)
        return meant

    def _remember(self, counts: Mapping[str, Learned]) -> None:
        self.memory = {
            "machine": self._identity,
            "counts": {kind: asdict(one) for kind, one in counts.items()},
            "rdma": sorted(self._rdma if self._rdma is not None else self._had_rdma()),
        }

    @property
    def counted_boot(self) -> bool:
        """Whether this boot has been counted as a healthy one."""
        return any(
            known is not None and known.boot == self._boot_id for known in map(self._known, KINDS)
        )


def _build(context: CollectorContext) -> Expected:
    paths, nvml = context.paths, context.settings[NvmlSettings]
    return Expected(
        paths.sysfs,
        paths.procfs,
        PciInventory(paths.sysfs),  # one of its own: it looks at other times
        context.catalog.instances,
        context.boot_id,
        context.settings[ExpectSettings],
        nvml.expected_gpus,
        context.is_healthy,
        nvml=nvml.enabled,
    )


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=(NAME,),
    subsystems=("pci", "infiniband", "nvme"),
    build_collector=_build,
    every_s=60.0,
    deadline_s=10.0,
)
