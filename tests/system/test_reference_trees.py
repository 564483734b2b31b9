"""Whole machines of the reference's generator, looked at by every source at once: healthy ones are
told nothing of, and each fault is told of its own device, with the words that are documented for
it, and of nobody else.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.looking import told
from tests.waiting import until
from tests.whole_tree import Clock, Proc, Watching, believed
from vitald.model import ComponentKind, SourceState, Trust

OLD, NEW = "2.24.7.0", "2.30.2.0"
TYPES = (
    *(
        "trn1.2xlarge",
        "trn1.32xlarge",
        "trn1n.32xlarge",
        "inf2.xlarge",
        "inf2.8xlarge",
        "inf2.24xlarge",
        "inf2.48xlarge",
    ),
    *("trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3.48xlarge"),
)

MACHINES = [
    (type_, driver)
    for type_ in TYPES
    for driver in (OLD, NEW)
    if (type_, driver) != ("trn3.48xlarge", OLD)
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where that can be: a machine is up to 24000 files."""
    made = Path(
        mkdtemp(prefix="vitald-trees-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    )
    yield made
    shutil.rmtree(made)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


Make = Callable[..., Any]  # a machine of the generator


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return {}


@pytest.fixture
def make(generator: ModuleType, folder: Path, built: dict[str, Any]) -> Iterator[Make]:
    """A machine of one's own: a copy of one that was built before with the same settings. What
    changes a file replaces it.
    """
    copies: list[Path] = []

    def machine(instance: str, **settings: object) -> Any:
        key = f"{instance} {sorted(settings.items())}"
        if key not in built:
            built[key] = generator.build(folder / f"built{len(built)}", instance, **settings)
            if instance == "none":  # else it says that it is one with eight GPUs
                generator.poke(
                    built[key].root / "devices/virtual/dmi/id/product_name", "Rack Server 9000\n"
                )
        copies.append(Path(mkdtemp(dir=folder)))
        root = copies[-1] / "sys"
        subprocess.run(["cp", "-al", str(built[key].root), str(root)], check=True)
        for config in root.glob("devices/pci*/*/config"):  # the one file that is written in place
            content = config.read_bytes()
            config.unlink()
            config.write_bytes(content)
        same = built[key]
        return replace(
            same,
            root=root,
            bdf_of=dict(same.bdf_of),
            rdma_bdf=dict(same.rdma_bdf),
            kmsg=list(same.kmsg),
        )

    yield machine
    for copy in copies:
        shutil.rmtree(copy)


# --- all is well

LARGE = {
    "trn1.32xlarge",
    "trn1n.32xlarge",
    "inf2.48xlarge",
    "trn2.48xlarge",
    "trn2u.48xlarge",
    "trn3.48xlarge",
}  # thousands of files
ADAPTERS: list[dict[str, object]] = [{}, {"mlx5": 8}, {"mlx5": 8, "roce": True}]


@pytest.mark.parametrize(("instance", "driver"), [*MACHINES, ("none", NEW)])
def test_a_healthy_machine_is_told_nothing_of(
    generator: ModuleType, folder: Path, proc: Proc, clock: Clock, instance: str, driver: str
) -> None:
    """With every kind of AER file, of EFA counters, of adapters and of memory controllers; a large
    machine with two of the six mixtures, others than the machine before it: what is beside the
    Neuron devices has nothing to do with how many there are.
    """
    rest = cycle((adapters, edac) for edac in (0, 2) for adapters in ADAPTERS)
    mixtures = [
        {"aer": aer, "efa_old_counters": old}
        for aer in ("none", "old", "new")
        for old in (False, True)
    ]
    settings_of = [
        {**mixture, "edac": edac, **adapters} for mixture, (adapters, edac) in zip(mixtures, rest)
    ]
    if instance in LARGE:
        first = 2 * [*MACHINES].index((instance, driver)) % len(settings_of)
        settings_of = settings_of[first : first + 2]
    for settings in settings_of:
        machine = generator.build(folder / "healthy", instance, driver=driver, **settings)
        if instance == "none":
            generator.poke(
                machine.root / "devices/virtual/dmi/id/product_name", "Rack Server 9000\n"
            )
        with Watching(machine.root, proc, clock) as watching:
            assert told(watching.kernel(machine.kmsg)) == set(), settings
            assert told(watching.rounds(0, 31, 31, 400, 4000)) == set(), settings
            assert watching.well, (settings, watching.states)
            wanted = {f"neuron/{address}" for address in machine.bdf_of.values()}
            assert wanted <= {
                one.component.name for one in watching.looking["neuron"].last.readings
            }
        with Watching(machine.root, proc, clock, watching, boot_id="boot-2") as watching:
            assert told(watching.rounds(0, 31, 400)) == set(), settings
            assert watching.well, (settings, watching.states)


def test_every_type_of_the_reference_is_tried(generator: ModuleType) -> None:
    assert set(generator.INSTANCES) == set(TYPES)
    assert set(generator.DRIVERS) == {OLD, NEW}


# --- one fault, and nothing else


@dataclass(frozen=True)
class Case:
    """A fault of the generator and what is told of it: codes with blanks between, of the device
    that has it; `node:` before what is the node's. `before`: what is told where it was there before
    vitald was; the same, if not said. `only`: machines that it is for.
    """

    fault: str  # {nd} Neuron index, {nc} its last core, {name} RDMA device, {slot} PCI slot
    told: str
    before: str | None = None
    # OLD or NEW drivers, `health` where the firmware tells of its parts, `table` where AWS
    # publishes the addresses
    only: str = ""
    gaps: tuple[float, ...] = (
        0,
        31,
        35,
        310,
    )  # seconds before each look: more than five minutes in all

    @property
    def name(self) -> str:
        return self.fault.partition(":")[0]


FUNCTION = [  # of any PCI function
    Case("aer:{slot}:correctable:RxErr:10", ""),
    Case("aer:{slot}:correctable:BadTLP:11", "pci/corrected_errors", ""),
    Case("aer:{slot}:nonfatal:UnsupReq", "pci/nonfatal_errors", ""),
    Case("aer:{slot}:fatal:DLP:2", "pci/fatal_errors", ""),
    Case("link:{slot}:4", "pci/link_width"),
    Case("link:{slot}:16:2.5", "pci/link_speed"),
]
COUNTED = [
    Case("counter:{nd}:0:hw_error", "neuron/hw_error"),
    Case("counter:{nd}:{nc}:hw_collectives_error:3", "neuron/collectives"),
    Case("counter:{nd}:{nc}:hw_hbm_ue_error", "neuron/runtime_hbm"),
    Case("counter:{nd}:0:hw_nc_ue_error", "neuron/runtime_sram"),
    Case("counter:{nd}:0:hw_dma_abort_error", "neuron/dma_abort"),
    Case("counter:{nd}:{nc}:hw_dma_abort_error:2", "neuron/dma_abort neuron/dma_aborts"),
    Case("counter:{nd}:0:hw_repairable_hbm_ue_error", "neuron/runtime_repairable"),
    Case("counter:{nd}:0:timeout", "neuron/timeout"),
    Case("counter:{nd}:{nc}:timeout:4", "neuron/timeout neuron/timeouts", "neuron/timeout"),
    *(Case(f"counter:{{nd}}:0:{name}:9", "") for name in ("failure", "execute_sw_sequencer_fatal")),
]
NEURON = [
    Case("sram_ue:{nd}", "neuron/sram_ecc"),
    Case("sram_ue:{nd}:70", "neuron/sram_ecc"),
    Case("hbm_ue:{nd}", "neuron/hbm_ecc"),
    Case("hbm_ue:{nd}:4096", "neuron/hbm_ecc", only=NEW),
    Case("hbm_ue:{nd}:4096", "neuron/hbm_ecc_unclear", only=OLD),
    Case("hbm_repairable:{nd}", "neuron/hbm_ecc_repairable"),
    Case("sram_ce:{nd}:5000", "", only=NEW),
    Case("hbm_ce:{nd}:5000", "", only=NEW),
    Case(
        "missing:{nd}", "neuron/not_initialised pci/unbound node:neuron/init_failed", only="several"
    ),
    Case(
        "missing:{nd}",
        "neuron/not_initialised pci/unbound node:neuron/init_failed",
        "neuron/not_initialised node:neuron/init_failed",
        only="one",
    ),
    Case(
        "unplugged:{nd}",
        "neuron/missing pci/removed node:expect/neuron",
        "neuron/missing node:expect/neuron",
        only="table",
    ),
    Case(
        "unplugged:{nd}",
        "neuron/missing pci/removed node:expect/neuron",
        "node:expect/neuron",
        only="no table",
    ),
    Case("lost:{nd}", "neuron/lost pci/dead"),
    Case("resetting:{nd}", "", gaps=(0, 31, 31)),
    Case("stuck:{nd}", "neuron/reset_invalid neuron/reset_failures neuron/reset_failed"),
    Case("unhealthy:{nd}:sram", "neuron/unhealthy neuron/unhealthy_confirmed", only="health"),
    Case(
        "unhealthy:{nd}:hbm+link_efa",
        "neuron/unhealthy neuron/unhealthy_confirmed neuron/unhealthy_outside",
        only="health",
    ),
    Case("unhealthy:{nd}:link_switch", "neuron/unhealthy_outside", only="health"),
    Case("unreachable:{nd}", "neuron/unreachable", only="health"),
    Case("hw_err:{nd}:{nc}:SRAM_UNCORRECTABLE_ERROR", "neuron/sram_uncorrectable_error"),
    Case("hw_err:{nd}:0:HBM_UNCORRECTABLE_ERROR:RESTART", "neuron/hbm_uncorrectable_error"),
    Case("hw_err:{nd}:0:DMA_ERROR", "neuron/dma_error"),
    Case("hw_err:{nd}:0:HANG_ON_COLLECTIVES", "neuron/hang_on_collectives"),
    Case("forged:{nd}", ""),
    *COUNTED,
    *FUNCTION,
]
EFA = [
    Case("rdma_gone:{name}", "network/missing", ""),
    Case("rdma_counter:{name}:no_completion_cmds", "efa/not_answering"),
    Case("rdma_counter:{name}:cmds_err:500", ""),
    Case("rdma_counter:{name}:rx_drops:10000", "efa/drops", ""),
    Case("rdma_counter:{name}:rdma_write_wr_err:10000", "efa/request_errors", ""),
    Case("rdma_counter:{name}:retrans_timeout_events:10000", "efa/path", ""),
    Case("rdma_counter:{name}:unresponsive_remote_events:50", "", ""),
    Case("efa_stuck:{name}", "efa/not_answering efa/admin_queue"),
    *FUNCTION,
]
IB = [
    Case("rdma_gone:{name}", "network/missing", ""),
    Case("ib_down:{name}", "ib/port_down ib/port_failed", "", gaps=(0, 31, 35, 60, 60, 60, 60)),
    Case("ib_init:{name}", "ib/port_waiting ib/no_subnet_manager"),
    Case("ib_flap:{name}:2", "", ""),
    Case("ib_flap:{name}:3", "ib/flapping", ""),
    Case("rdma_counter:{name}:symbol_error:200", "ib/symbol_errors", ""),
    Case("rdma_counter:{name}:local_link_integrity_errors", "ib/link_errors", ""),
    Case("rdma_counter:{name}:excessive_buffer_overrun_errors:5", "ib/buffer_overruns", ""),
    Case("rdma_counter:{name}:port_rcv_remote_physical_errors:9999", "", ""),  # marked bad upstream
    *FUNCTION,
]
MEMORY = [
    Case("edac_ue:{mc}", "edac/uncorrected_counted"),
    Case("edac_ce:{mc}:50", "", ""),
    Case("edac_ce:{mc}:51", "edac/corrected_often", ""),
]


@dataclass(frozen=True)
class Place:
    """Where a fault is put: the component, and what the generator calls it."""

    component: str
    words: dict[str, str]


def slot(address: str) -> str:
    return address[5:-2].replace(":", "-")


def places(machine: Any, kind: str) -> list[Place]:
    """The first, the middle and the last of a kind."""
    if kind == "neuron":
        cores = len(list(machine.neuron(0).glob("neuron_core*")))
        found = [
            Place(
                f"neuron/{address}", {"nd": str(index), "nc": str(cores - 1), "slot": slot(address)}
            )
            for index, address in machine.bdf_of.items()
        ]
    elif kind == "memory":
        found = [
            Place(f"dimm/MC{mc.name[2:]}.dimm0", {"mc": mc.name[2:]})
            for mc in sorted(machine.root.glob("devices/system/edac/mc/mc*"))
        ]
    else:
        found = [
            Place(f"nic/{address}", {"name": name, "slot": slot(address)})
            for name, address in machine.rdma_bdf.items()
            if name.startswith("rdmap") == (kind == "efa")
        ]
    return [found[number] for number in sorted({0, len(found) // 2, len(found) - 1})]


def wanted(codes: str, place: Place) -> set[tuple[str, str]]:
    return {
        (code.removeprefix("node:"), "node" if code.startswith("node:") else place.component)
        for code in codes.split()
    }


def serials(watching: Watching) -> dict[str, str]:
    return {
        one.component.name: one.identity
        for one in watching.looking["neuron"].last.readings
        if "/" not in one.identity
    }


def each_fault(
    generator: ModuleType, machine: Any, case: Case, kind: str, proc: Proc, clock: Clock
) -> None:
    """On one device after the other while they are watched; after a restart; and as a daemon finds
    it that comes later.
    """
    standing: set[tuple[str, str]] = set()  # of the node, told once
    with Watching(machine.root, proc, clock) as watching:
        watching.kernel(machine.kmsg)
        assert watching.rounds(0, 31, 31) == []
        assert watching.well
        serial = serials(watching)
        for place in places(machine, kind):
            before = list(machine.kmsg)
            generator.apply_fault(machine, case.fault.format(**place.words))
            lines = watching.kernel(machine.kmsg[sum(line in machine.kmsg for line in before) :])
            events = watching.rounds(*case.gaps)
            expected = wanted(case.told, place)
            assert told(events + believed(lines)) == expected - {
                one for one in standing if one[0].startswith("expect/")
            }
            assert len(events) == len(told(events)), "each is said once"
            standing |= {one for one in expected if one[1] == "node"}
            for event in events if kind == "neuron" else ():
                if event.source == "neuron":
                    assert event.fields["serial"] == serial[place.component]
                    assert event.fields["pci"] == place.component.partition("/")[2]
            if case.name == "forged":
                assert [(line.trust, line.component.name) for line in lines] == [
                    (Trust.UNTRUSTED, place.component)
                ]
    with Watching(machine.root, proc, clock, watching) as watching:
        assert watching.rounds(0, 31, 31) == [], "a restart tells nothing twice"
    with Watching(machine.root, proc, clock) as watching:
        lines = watching.kernel(machine.kmsg)
        events = watching.rounds(*case.gaps)
        codes = case.told if case.before is None else case.before
        assert told(events + believed(lines)) == set().union(
            *(wanted(codes, place) for place in places(machine, kind))
        )


def runs(
    machines: dict[str, dict[str, object]],
    cases: list[Case],
    suits: Callable[[str, dict[str, object], Case], bool],
) -> list[Any]:
    return [
        pytest.param(name.partition(" ")[0], settings, case, id=f"{name} {case.fault}")
        for name, settings in machines.items()
        for case in cases
        if suits(name, settings, case)
    ]


TABLES = ("trn1.32xlarge", "trn2.48xlarge")


def suits_neuron(name: str, settings: dict[str, object], case: Case) -> bool:
    several = "xlarge" in name and name.partition(" ")[0] not in ("trn1.2xlarge", "trn2.3xlarge")
    driver = str(settings["driver"])
    if (case in FUNCTION and not name.startswith("trn1.32")) or (
        case in COUNTED and not name.startswith(("inf2", "trn2.3"))
    ):
        return False  # these are the same everywhere
    if name.startswith(TABLES) and case not in FUNCTION and case.only in ("", "several"):
        return False  # tried with the same driver on a machine of fewer files
    return {
        "": True,
        OLD: driver == OLD,
        NEW: driver == NEW,
        "health": driver == NEW and name.startswith(("trn2", "trn3")),
        "several": several,
        "one": not several,
        "table": name.startswith(TABLES),
        "no table": not name.startswith(TABLES),
    }[case.only]


NEURON_MACHINES: dict[str, dict[str, object]] = {
    "trn1.32xlarge old": {"driver": OLD},
    "trn2.48xlarge new": {"driver": NEW, "aer": "new"},
    "inf2.24xlarge new": {"driver": NEW},
    "trn2.3xlarge old": {"driver": OLD},
}


@pytest.mark.parametrize(
    ("instance", "settings", "case"), runs(NEURON_MACHINES, NEURON, suits_neuron)
)
def test_a_fault_of_a_neuron_device(
    generator: ModuleType,
    make: Make,
    proc: Proc,
    clock: Clock,
    instance: str,
    settings: dict[str, object],
    case: Case,
) -> None:
    each_fault(generator, make(instance, **settings), case, "neuron", proc, clock)


ADAPTER_MACHINES: dict[str, dict[str, dict[str, object]]] = {
    "efa": {
        "trn1.32xlarge efa": {"driver": OLD, "edac": 0},
        "trn2.3xlarge efa": {"driver": NEW, "aer": "new"},
        "none efa": {"efa": 16},
    },
    "ib": {
        "none ib": {"mlx5": 8},
        "trn2.3xlarge roce": {"driver": NEW, "mlx5": 4, "roce": True, "aer": "new"},
    },
    "memory": {"none memory": {"edac": 4}, "trn1.2xlarge memory": {"driver": NEW, "edac": 1}},
}
_CASES = {"efa": EFA, "ib": IB, "memory": MEMORY}


def suits_adapter(name: str, settings: dict[str, object], case: Case) -> bool:
    """A machine without Neuron devices tries all; beside devices, whose files take most of the
    time, what is the adapter's own.
    """
    if name.startswith("trn1.32xlarge"):
        return case.name in ("rdma_gone", "efa_stuck")
    return case not in FUNCTION or name.startswith("none")


@pytest.mark.parametrize(
    ("kind", "instance", "settings", "case"),
    [
        pytest.param(kind, *run.values, id=str(run.id))
        for kind, machines in ADAPTER_MACHINES.items()
        for run in runs(machines, _CASES[kind], suits_adapter)
    ],
)
def test_a_fault_of_an_adapter_or_of_memory(
    generator: ModuleType,
    make: Make,
    proc: Proc,
    clock: Clock,
    kind: str,
    instance: str,
    settings: dict[str, object],
    case: Case,
) -> None:
    each_fault(generator, make(instance, **settings), case, kind, proc, clock)


def test_every_fault_of_the_generator_is_tried(generator: ModuleType) -> None:
    """A new one must be thought about."""
    tried = {case.name for case in (*NEURON, *EFA, *IB, *MEMORY)} | {
        "moved",
        "hang",
        "unreadable",
        "set",
    }
    assert tried == set(generator.FAULTS)


# --- what is no fault, and what takes its time


@pytest.mark.parametrize(("instance", "driver"), [("trn1.32xlarge", OLD), ("trn2.3xlarge", NEW)])
def test_a_layout_that_nobody_knows_is_not_health(
    generator: ModuleType, make: Make, proc: Proc, clock: Clock, instance: str, driver: str
) -> None:
    machine = make(instance, driver=driver)
    with Watching(machine.root, proc, clock) as watching:
        watching.rounds(0, 31, 31)
        generator.apply_fault(machine, "moved")
        assert watching.rounds(31, 31, 400) == []
        assert watching.states["neuron"][0] is SourceState.FAILED
        assert "a layout that is not known here" in watching.states["neuron"][1]
        assert all(
            watching.readings("neuron", f"neuron/{address}").unknown_reason
            for address in machine.bdf_of.values()
        )
    with Watching(machine.root, proc, clock) as watching:
        assert watching.rounds(0, 31, 31) == []
        assert watching.states["neuron"][0] is SourceState.FAILED


def test_a_reset_that_does_not_end(
    generator: ModuleType, make: Make, proc: Proc, clock: Clock
) -> None:
    machine = make("trn2.3xlarge", driver=NEW)
    with Watching(machine.root, proc, clock) as watching:
        watching.rounds(0)
        generator.apply_fault(machine, "resetting:0")
        assert watching.rounds(0, 290) == []
        assert watching.well, "a reset is no reason not to know a device that was well"
        assert told(watching.rounds(11)) == {("neuron/reset_lasts", f"neuron/{machine.bdf_of[0]}")}


@pytest.mark.parametrize("driver", [OLD, NEW])
def test_counters_that_begin_anew_are_told_nothing_of(
    generator: ModuleType, make: Make, proc: Proc, clock: Clock, driver: str
) -> None:
    """A driver was loaded again, or somebody cleared them; and work goes on, which healthy hardware
    counts too.
    """
    machine = make("trn2.3xlarge", driver=driver, mlx5=2)
    counters = [
        path
        for pattern in (
            *(
                "devices/virtual/neuron_device/neuron0/stats/hardware/*_ecc_*",
                "devices/virtual/neuron_device/neuron0/neuron_core*/stats/*/*/total",
            ),
            *(
                "devices/pci*/*/infiniband/*/hw_counters/*",
                "devices/pci*/*/infiniband/*/ports/1/*counters/*",
                "devices/pci*/*/net/*/carrier*count",
            ),
            "devices/system/edac/mc/mc0/**/*e_count",
        )
        for path in sorted(machine.root.glob(pattern))
        if path.name not in ("lifespan", "no_completion_cmds")
        and (path.name != "mem_ecc_repairable_uncorrected" or driver == OLD)
    ]
    assert len(counters) > 200
    for path in counters:
        generator.poke(path, f"{int(path.read_text()) + 3}\n")
    with Watching(machine.root, proc, clock) as watching:
        standing = told(watching.rounds(0, 31, 31))
        for path in counters:
            generator.poke(path, "0\n")
        assert watching.rounds(31, 31, 31) == []
        assert watching.well, watching.states
    assert {code for code, _ in standing} >= {
        "neuron/sram_ecc",
        "neuron/runtime_sram",
        "edac/uncorrected_counted",
    }


def test_line_and_counters_are_of_one_device(
    generator: ModuleType, make: Make, proc: Proc, clock: Clock
) -> None:
    """The kernel's line names an index, sysfs a folder, PCI an address: the driver's own line joins
    them, where no table does.
    """
    machine = make("inf2.24xlarge", driver=NEW)
    with Watching(machine.root, proc, clock) as watching:
        watching.kernel(machine.kmsg)
        watching.rounds(0)
        generator.apply_fault(machine, "hw_err:4:1:HBM_UNCORRECTABLE_ERROR")
        generator.apply_fault(machine, "counter:4:1:hw_hbm_ue_error")
        generator.apply_fault(machine, "lost:4")
        events = watching.kernel(machine.kmsg[-2:]) + watching.rounds(0, 31, 31)
        assert {event.component.name for event in events} == {f"neuron/{machine.bdf_of[4]}"}
        assert {event.code for event in events} == {
            "neuron/hbm_uncorrectable_error",
            "neuron/lost",
            "pci/dead",
        }
        (line,) = [event for event in events if event.source == "kernel_log"]
        assert line.fields["serial"] == serials(watching)[line.component.name]


# --- files that hang, that cannot be read, and that hold nonsense

_recording: list[str] | None = None


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _recording is not None and isinstance(arguments[0], str):
        _recording.append(arguments[0])


sys.addaudithook(_record)


@contextmanager
def opened() -> Iterator[list[str]]:
    """The paths that are opened meanwhile."""
    global _recording
    paths: list[str] = []
    _recording = paths
    try:
        yield paths
    finally:
        _recording = None


@pytest.fixture
def pair(generator: ModuleType, make: Make) -> Any:
    """Two or more of each kind, so that one can be sick alone: a machine of no known type."""
    machine = make("trn2.48xlarge", driver=NEW, devices=2, efa=2, mlx5=3, edac=2)
    generator.poke(machine.root / "devices/virtual/dmi/id/product_name", "trn9.test\n")
    return machine


Readers = dict[str, set[str]]  # by path below the tree: the sources that read it


def read_in_looks(machine: Any, watching: Watching) -> Readers:
    """Which files are read by looks at devices, and not to find them. Of cores that are all alike,
    only the first and the last.
    """
    root = str(machine.root.resolve())
    found: Readers = {}
    for name, looking in watching.looking.items():
        subject = looking.source.collector
        with opened() as finding:
            devices = [
                device
                for device in subject.find_devices().devices
                if device.component.kind is not ComponentKind.NODE
            ]
        with opened() as looks:
            for device in devices:
                device.read()
        for path in {os.path.realpath(path) for path in looks} - {
            os.path.realpath(path) for path in finding
        }:
            if path.startswith(root) and not re.search(r"neuron_core[1-6]/", path):
                found.setdefault(path[len(root) + 1 :], set()).add(name)
    return found


def sick(machine: Any, watching: Watching, kind: str) -> list[tuple[str, str, set[str]]]:
    """The files that are read of one device of a kind: path, component, and who reads it."""
    if kind == "memory":
        folders = {"devices/system/edac/mc/mc1/dimm0/": "dimm/MC1.dimm0"}
    elif kind == "neuron":
        address = machine.bdf_of[1]
        folders = dict.fromkeys(
            ("devices/virtual/neuron_device/neuron1/", f"devices/pci{address[:7]}/{address}/"),
            f"neuron/{address}",
        )
    else:
        address = next(
            address for name, address in machine.rdma_bdf.items() if name.startswith(kind)
        )
        folders = {f"devices/pci{address[:7]}/{address}/": f"nic/{address}"}
    return [
        (path, component, by)
        for path, by in sorted(read_in_looks(machine, watching).items())
        for folder, component in folders.items()
        if path.startswith(folder) and (machine.root / path).is_file()
    ]


KINDS = ["neuron", "rdmap", "mlx5_1", "memory"]


@contextmanager
def changed(generator: ModuleType, machine: Any, fault: str, path: str) -> Iterator[None]:
    """A fault of one file, and the file as it was."""
    file = machine.root / path
    content, mode = file.read_bytes(), file.stat().st_mode
    generator.apply_fault(machine, fault)
    yield
    # Whoever waits for a FIFO reads an end of file, once there is a file to be read again.
    writing = os.open(file, os.O_WRONLY | os.O_NONBLOCK) if file.is_fifo() else None
    if writing is not None:
        file.unlink()
    generator.drop(file)
    file.write_bytes(content)
    file.chmod(mode)
    if writing is not None:
        os.close(writing)


def is_well(watching: Watching, path: str) -> bool:
    """Where it is not yet, after another round, in which nothing is reported."""
    if not watching.well:
        assert watching.rounds(31) == [], path
    return watching.well


def count_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_hangs_is_its_devices_affair(
    generator: ModuleType, pair: Any, proc: Proc, clock: Clock, kind: str
) -> None:
    with Watching(pair.root, proc, clock) as watching:
        watching.kernel(pair.kmsg)
        watching.rounds(0, 31, 31)
        for looking in watching.looking.values():
            looking.source._poller.readers._soon_s = 0.03
        files = sick(pair, watching, kind)
        assert len(files) > 2
        for path, component, by in files:
            with changed(generator, pair, f"hang:{path}", path):
                watching.hanging = {component}
                assert watching.rounds(31) == [], path
                before = clock.monotonic()
                assert told(watching.rounds(31)) == {
                    (f"{source}/hung", component) for source in by
                }, path
                assert watching.rounds(31, of=by) + watching.rounds(31) == [], "it is said once"
                watching.settle()
                for source in by:
                    assert list(watching.looking[source].source._poller.readers.under_way) == [
                        component
                    ]
                    until(
                        lambda source=source: count_threads(source) <= 1,
                        "no second read to be under way",
                    )
                for source, looking in watching.looking.items():
                    late = {
                        one.component.name
                        for one in looking.last.readings
                        if one.polled_at < before
                    }
                    unseen = {
                        one.component.name for one in looking.last.readings if one.unknown_reason
                    }
                    assert late - unseen == set(), (path, source)
                    assert unseen == ({component} if source in by else set()), path
                    # hwmon has nothing to read on these machines.
                    well = SourceState.OK if looking.last.readings else SourceState.ABSENT
                    assert looking.last.state is (SourceState.FAILED if source in by else well), (
                        path
                    )
            watching.hanging.clear()
            until(
                lambda path=path: is_well(watching, path),
                lambda path=path: f"{path} to be read: {watching.states}",
            )


@pytest.mark.parametrize(
    "file",
    ["info/serial_number", "info/architecture/device_name", "stats/hardware/mem_ecc_uncorrected"],
)
def test_a_file_that_hangs_at_the_first_look(
    generator: ModuleType, pair: Any, proc: Proc, clock: Clock, file: str
) -> None:
    path = f"devices/virtual/neuron_device/neuron1/{file}"
    component = f"neuron/{pair.bdf_of[1]}"
    with Watching(pair.root, proc, clock) as watching:
        watching.kernel(pair.kmsg)
        with changed(generator, pair, f"hang:{path}", path):
            watching.hanging = {component}
            assert told(watching.rounds(0, 31)) == {("neuron/hung", component)}
            assert watching.states["neuron"][0] is SourceState.FAILED
            assert not watching.readings("neuron", f"neuron/{pair.bdf_of[0]}").unknown_reason
        watching.hanging.clear()
        assert watching.rounds(31, 31, 31) == []
        assert watching.well, watching.states
        assert component in serials(watching)


# Files without which nothing can be said of a device's health, by the source that says so.
ESSENTIAL = {
    "neuron": ("sram_ecc_uncorrected", "mem_ecc_uncorrected"),
    "network": ("/ports/1/state", "/phys_state"),
    "pci": ("/config",),
    "host": ("/ue_count", "_ue_count", "/ue_noinfo_count"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_read_is_no_fault(
    generator: ModuleType, pair: Any, proc: Proc, clock: Clock, kind: str
) -> None:
    """Unless it could be read before, and says that a network adapter answers no more."""
    with Watching(pair.root, proc, clock) as watching:
        watching.kernel(pair.kmsg)
        watching.rounds(0, 31, 31)
        for path, component, by in sick(pair, watching, kind):
            port = re.search(r"/ports/1/(hw_)?counters/", path)
            expected = (
                {("efa/not_answering" if kind == "rdmap" else "ib/counters_unreadable", component)}
                if port
                else set()
            )
            with changed(generator, pair, f"unreadable:{path}", path):
                assert told(watching.rounds(31, 31, 31, of=by) + watching.rounds(31)) == expected, (
                    path
                )
                blind = {source for source in by if path.endswith(ESSENTIAL[source])}
                for source in by:
                    assert bool(watching.readings(source, component).unknown_reason) == (
                        source in blind
                    ), (
                        source,
                        path,
                    )
                failed = {
                    source
                    for source, (state, _) in watching.states.items()
                    if state is SourceState.FAILED
                }
                assert failed == blind, (path, watching.states)
                if not path.endswith(
                    ("fw_ver", "node_guid", "link_layer")
                ):  # words for people, and what was said before
                    assert any(watching.readings(source, component).missing for source in by), path
            assert watching.rounds(31, 31, of=by) + watching.rounds(31) == [], path
            assert watching.well, (path, watching.states)


NO_NUMBERS = (
    "",
    "letters",
    "NaN",
    "-inf",
    "-1",
    "-18446744073709551616",
    "1e400",
    "9" * 400,
    "0x",
    "1 2",
    "1_0",
    "²",
    "٣",
    "\x00",
)
NUMBERS = ("65535", "18446744073709551616", "0")


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_in_a_file_breaks_nothing(
    generator: ModuleType, pair: Any, proc: Proc, clock: Clock, kind: str
) -> None:
    """What is no number is neither an error nor its end. What is one counts, however large."""
    words = ("unhealthy_components",)  # a part that nobody knows is a part that is not well
    with Watching(pair.root, proc, clock) as watching, capture_logs() as logs:
        watching.kernel(pair.kmsg)
        watching.rounds(0, 31, 31)
        files = sick(pair, watching, kind)
        for path, component, by in sorted(
            files, key=lambda one: "heartbeat" in one[0]
        ):  # once it has moved it must go on
            for value in (*NO_NUMBERS, *NUMBERS):
                text = f"RxErr {value}\nTOTAL_ERR_COR {value}" if "aer_dev" in path else value
                with changed(generator, pair, f"set:{path}={text}", path):
                    events = watching.rounds(31, of=by)
                    for source in by:
                        for name, read in watching.readings(source, component).values.items():
                            values = read if isinstance(read, tuple) else (read,)
                            assert all(
                                isinstance(one, str) or math.isfinite(one) for one in values
                            ), (path, text, name)
                events += watching.rounds(31, of=by)
                if value in NO_NUMBERS and not path.endswith(words):
                    assert events == [], (path, text)
        assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []
        for looking in watching.looking.values():
            assert looking.position is not None
            json.loads(looking.position.cursor, parse_constant=pytest.fail)
