"""A whole machine, polled by every source at once: nothing is reported of a healthy one; a fault is
reported of its own device, by the sources that it concerns, and of no other; a file that hangs,
that cannot be read or that holds nonsense concerns its own device alone.

What each fault is reported as is tested beside its collector. Here the sources are together.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.looking import told
from tests.network_tree import EFA, MLX5
from tests.neuron_tree import TRN2
from tests.waiting import until
from tests.whole_tree import Clock, Watching, WholeTree, believed
from vitald.model.event import Trust
from vitald.model.source import SourceState
from vitald.model.words import ComponentKind

Records = list[tuple[int, str]]  # of /dev/kmsg: priority and text

# Places of its Neuron devices that no table knows
INF2 = [f"0000:{bus}:1f.0" for bus in ("10", "18", "20", "a0", "a8", "b0")]
MACHINES: dict[str, dict[str, Any]] = {
    "trn2": {"efa": [f"0000:{bus:02x}:19.0" for bus in range(16)]},  # as many as the type has
    "inf2": {
        "addresses": INF2,
        "family": "Inf2",
        "driver": "2.24.7.0",
        "machine": "inf2.24xlarge",
    },
    "none": {"addresses": [], "machine": "Rack Server 9000"},
}
Make = Callable[[str], WholeTree]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda name: WholeTree(tmp_path, **MACHINES[name])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def watch(
    tree: WholeTree, clock: Clock, after: Watching | None = None, boot_id: str = "boot-1"
) -> Watching:
    return Watching(tree.root, tree.proc, clock, after, boot_id=boot_id)


def records_of_boot(tree: WholeTree) -> Records:
    """What the Neuron driver prints when it is loaded: the index of each address."""
    return [
        (3, f"neuron:neuron_pci_probe: ** BDF: {address[5:]} => nd[{index}] (routing id: 0)")
        for index, address in enumerate(tree.neuron.addresses)
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_nothing_is_reported_of_a_healthy_machine(make: Make, clock: Clock, name: str) -> None:
    tree = make(name)
    with watch(tree, clock) as watching:
        assert watching.kernel(records_of_boot(tree)) == []
        assert told(watching.rounds(0, 31, 31, 400, 4000)) == set()
        assert watching.well, watching.states
        found = {one.component.name for one in watching.looking["neuron"].last.readings}
        assert found - {"node"} == {f"neuron/{address}" for address in tree.neuron.addresses}
    with watch(tree, clock, watching, boot_id="boot-2") as watching:
        assert told(watching.rounds(0, 31, 400)) == set()
        assert watching.well, watching.states


# --- one fault


@dataclass(frozen=True)
class Place:
    """A device, as each source names it."""

    component: str
    index: int  # of its kind
    address: str = ""  # on PCI
    serial: str = ""
    name: str = ""  # of an RDMA device


def places(tree: WholeTree, kind: str) -> list[Place]:
    """The first and the last of a kind."""
    if kind == "memory":
        return [Place(f"dimm/MC{number}.dimm0", number) for number in (0, 1)]
    if kind == "neuron":
        last = len(tree.neuron.addresses) - 1
        return [find_neuron(tree, index) for index in (0, last)]
    names = [name for name in tree.network.rdma if name.startswith("mlx5") == (kind == "ib")]
    chosen = [(index, names[index], tree.network.rdma[names[index]]) for index in (0, -1)]
    return [Place(f"nic/{address}", index, address, name=name) for index, name, address in chosen]


def find_neuron(tree: WholeTree, index: int) -> Place:
    address = tree.neuron.addresses[index]
    return Place(f"neuron/{address}", index, address, tree.neuron.serial(index))


@dataclass(frozen=True)
class Fault:
    """What happens, what the kernel's log says of it, and what is reported: codes with blanks
    between, of the device that has it; `node:` before what is the node's.
    """

    name: str
    apply: Callable[[WholeTree, Place], object]
    codes: str
    before: str | None = None  # where it was there before vitald was; None: the same
    gaps: tuple[float, ...] = (0, 31, 35, 310)  # seconds before each round: five minutes in all
    line: str = ""
    facility: int = 0  # who wrote the line: 0 the kernel, 1 a user

    def records(self, place: Place) -> Records:
        text = self.line.format(**asdict(place))
        return [((self.facility << 3) | 3, text)] if text else []


def fail_reset(tree: WholeTree, at: Place) -> None:
    tree.neuron.reset(at.index, 2)
    for core in (0, 1):
        tree.neuron.put(at.index, f"neuron_core{core}/stats/other_info/reset_fail_count/total", 1)


def count_aer(tree: WholeTree, at: Place, severity: str, name: str, count: int) -> None:
    """PCIe errors of a function: of one name, and the total."""
    path = f"{tree.function(at.address)}/aer_dev_{severity}"
    text = (tree.root / path).read_text()
    tree.neuron.write(path, re.sub(rf"^({name}|TOTAL\w+) 0$", rf"\1 {count}", text, flags=re.M))


def train_link(tree: WholeTree, at: Place, file: str, value: object) -> None:
    tree.neuron.write(f"{tree.function(at.address)}/current_link_{file}", value)


def close_admin_queue(tree: WholeTree, at: Place) -> None:
    """The device's counters can still be read, those of its port no more."""
    tree.network.count(f"infiniband/{at.name}/hw_counters/no_completion_cmds")
    for file in (tree.root / tree.network.path(at.name) / "ports/1/hw_counters").iterdir():
        file.unlink()
        file.mkdir()


def lose_link(tree: WholeTree, at: Place) -> None:
    tree.network.down(at.name)
    (interface,) = (tree.root / tree.function(at.address) / "net").iterdir()
    tree.network.net(
        interface.name, operstate="down", carrier=0, carrier_down_count=2, carrier_changes=3
    )


def ecc(kind: str) -> Callable[[WholeTree, Place], object]:
    return lambda tree, at: tree.neuron.ecc(at.index, f"{kind}_uncorrected", 1)


def report_unhealthy(parts: str) -> Callable[[WholeTree, Place], object]:
    file = "stats/hardware/health_status/unhealthy_components"
    return lambda tree, at: tree.neuron.put(at.index, file, parts)


def aer(severity: str, name: str, count: int) -> Callable[[WholeTree, Place], object]:
    return lambda tree, at: count_aer(tree, at, severity, name, count)


def count(path: str, by: int = 1) -> Callable[[WholeTree, Place], object]:
    """A counter of an RDMA device rises."""
    return lambda tree, at: tree.network.count(f"infiniband/{at.name}/{path}", by)


def memory_errors(kind: str, errors: int) -> Callable[[WholeTree, Place], object]:
    file = f"dimm0/dimm_{kind}_count"
    return lambda tree, at: tree.neuron.write(f"{tree.edac(at.index)}/{file}", errors)


RUNTIME_LINE = (
    "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-1 hostname=h nd-id={index} nc-id=1"
    " serial-num={serial} action=TERMINATE_INSTANCE"
)
FUNCTION = [
    Fault("a few corrected errors", aer("correctable", "RxErr", 10), ""),
    Fault("corrected errors", aer("correctable", "BadTLP", 11), "pci/corrected_errors", ""),
    Fault("a nonfatal error", aer("nonfatal", "UnsupReq", 1), "pci/nonfatal_errors", ""),
    Fault("fatal errors", aer("fatal", "DLP", 2), "pci/fatal_errors", ""),
    Fault("a narrow link", lambda tree, at: train_link(tree, at, "width", 4), "pci/link_width"),
    Fault(
        "a slow link",
        lambda tree, at: train_link(tree, at, "speed", "2.5 GT/s PCIe"),
        "pci/link_speed",
    ),
]
REMOVED = Fault(
    "removed",
    lambda tree, at: tree.neuron.unplug(at.index),
    "neuron/missing pci/removed node:expect/neuron",
    "node:expect/neuron",
)
NOT_INITIALISED = Fault(
    "not initialised",
    lambda tree, at: tree.neuron.unprobe(at.index),
    "neuron/not_initialised pci/unbound node:neuron/init_failed",
    line="neuron:neuron_pci_get_device_id_v3: Could not retrieve device index (read timeout)",
)
NEURON = [
    REMOVED,
    NOT_INITIALISED,
    Fault("SRAM", ecc("sram_ecc"), "neuron/sram_ecc"),
    Fault("HBM", ecc("mem_ecc"), "neuron/hbm_ecc"),
    Fault("HBM, repairable", ecc("mem_ecc_repairable"), "neuron/hbm_ecc_repairable"),
    Fault(
        "a hardware error of a core",
        lambda tree, at: tree.neuron.count(at.index, 1, "hw_error", 1),
        "neuron/hw_error",
    ),
    Fault("lost", lambda tree, at: tree.neuron.lose(at.index), "neuron/lost pci/dead"),
    Fault("in reset", lambda tree, at: tree.neuron.reset(at.index, 0), "", gaps=(0, 31, 31)),
    Fault("failed reset", fail_reset, "neuron/reset_invalid neuron/reset_failures"),
    Fault(
        "the runtime's line",
        lambda tree, at: None,
        "neuron/sram_uncorrectable_error",
        line=RUNTIME_LINE,
    ),
    Fault("a user's line", lambda tree, at: None, "", line=RUNTIME_LINE, facility=1),
]
TRN2_ONLY = [
    replace(REMOVED, before="neuron/missing node:expect/neuron"),  # AWS publishes its addresses
    NOT_INITIALISED,
    Fault("unhealthy", report_unhealthy("sram"), "neuron/unhealthy neuron/unhealthy_confirmed"),
    Fault("unreachable", report_unhealthy("device_unreachable"), "neuron/unreachable"),
]
ADAPTER = [
    Fault(
        "driver gone", lambda tree, at: tree.network.without_rdma(at.name), "network/missing", ""
    ),
    Fault(
        "off the bus",
        lambda tree, at: tree.network.off_the_bus(at.address),
        "network/missing pci/removed",
        "",
    ),
    *FUNCTION,
]
EFA_ONLY = [
    Fault("command lost", count("hw_counters/no_completion_cmds"), "efa/not_answering"),
    Fault("drops", count("ports/1/hw_counters/rx_drops", 10_000), "efa/drops", ""),
    Fault(
        "admin queue",
        close_admin_queue,
        "efa/not_answering efa/admin_queue",
        line="efa {address} {name}: Admin queue is closed",
    ),
]
IB_ONLY = [
    Fault("down", lose_link, "ib/port_down ib/port_failed", "", gaps=(0, 31, 35, 60, 60, 60, 60)),
    Fault(
        "no subnet manager",
        lambda tree, at: tree.network.port(at.name, state="2: INIT"),
        "ib/port_waiting ib/no_subnet_manager",
    ),
    Fault("two falls", count("ports/1/counters/link_downed", 2), "", ""),
    Fault("three falls", count("ports/1/counters/link_downed", 3), "ib/flapping", ""),
]
MEMORY = [
    Fault("uncorrected", memory_errors("ue", 1), "edac/uncorrected_counted"),
    Fault("corrected", memory_errors("ce", 51), "edac/corrected_often", ""),
]
FAULTS = {
    ("inf2", "neuron"): [*NEURON, *FUNCTION],
    ("trn2", "neuron"): TRN2_ONLY,
    ("none", "efa"): [*ADAPTER, *EFA_ONLY],
    ("none", "ib"): [*ADAPTER, *IB_ONLY],
    ("none", "memory"): MEMORY,
}


def wanted(codes: str, place: Place) -> set[tuple[str, str]]:
    return {
        (code.removeprefix("node:"), "node" if code.startswith("node:") else place.component)
        for code in codes.split()
    }


@pytest.mark.parametrize(
    ("name", "kind", "fault"),
    [
        pytest.param(name, kind, fault, id=f"{name} {kind} {fault.name}")
        for (name, kind), faults in FAULTS.items()
        for fault in faults
    ],
)
def test_a_fault_is_reported_of_its_device_alone(
    make: Make, clock: Clock, name: str, kind: str, fault: Fault
) -> None:
    """On one device after the other while they are watched; after a restart; and as a daemon finds
    it that comes later.
    """
    tree = make(name)
    records = records_of_boot(tree)
    standing: set[tuple[str, str]] = set()  # of the node, reported once
    with watch(tree, clock) as watching:
        watching.kernel(records)
        assert watching.rounds(0, 31, 31) == []
        assert watching.well
        for place in places(tree, kind):
            fault.apply(tree, place)
            records += fault.records(place)
            lines = watching.kernel(fault.records(place))
            events = watching.rounds(*fault.gaps)
            expected = wanted(fault.codes, place)
            once = {one for one in standing if one[0].startswith("expect/")}
            assert told(events + believed(lines)) == expected - once
            assert len(events) == len(told(events)), "each is reported once"
            standing |= {one for one in expected if one[1] == "node"}
            for event in events:
                if event.source == "neuron":
                    assert event.fields["serial"] == place.serial
                    assert event.fields["pci"] == place.address
            if fault.facility:
                assert [(line.trust, line.component.name) for line in lines] == [
                    (Trust.UNTRUSTED, place.component)
                ]
    with watch(tree, clock, watching) as watching:
        assert watching.rounds(0, 31, 31) == [], "a restart reports nothing twice"
    with watch(tree, clock) as watching:
        lines = watching.kernel(records)
        events = watching.rounds(*fault.gaps)
        codes = fault.codes if fault.before is None else fault.before
        assert told(events + believed(lines)) == set().union(
            *(wanted(codes, place) for place in places(tree, kind))
        )


def test_line_and_counters_are_of_one_device(make: Make, clock: Clock) -> None:
    """The kernel's line names an index, sysfs a folder, PCI an address: the driver's own line joins
    them, where no table does.
    """
    tree = make("inf2")
    with watch(tree, clock) as watching:
        watching.kernel(records_of_boot(tree))
        watching.rounds(0)
        place = find_neuron(tree, 4)
        lines = watching.kernel([(3, RUNTIME_LINE.format(**asdict(place)))])
        tree.neuron.count(4, 1, "hw_nc_ue_error", 1)
        tree.neuron.lose(4)
        assert told(lines + watching.rounds(0, 31, 31)) == wanted(
            "neuron/sram_uncorrectable_error neuron/lost pci/dead", place
        )
        assert [line.fields["serial"] for line in lines] == [place.serial]


def test_nothing_is_reported_of_counters_that_begin_anew(make: Make, clock: Clock) -> None:
    """A driver was loaded again, or a person cleared them."""
    tree = make("trn2")
    counters = [
        path.relative_to(tree.root)
        for pattern in (
            "devices/virtual/neuron_device/neuron0/stats/hardware/*_ecc_uncorrected",
            "devices/virtual/neuron_device/neuron0/neuron_core*/stats/*/*/total",
            "devices/pci*/*/infiniband/*/hw_counters/*",
            "devices/pci*/*/infiniband/*/ports/1/*counters/*",
            "devices/pci*/*/net/*/carrier*count",
            "devices/system/edac/mc/mc0/**/*e_count",
        )
        for path in sorted(tree.root.glob(pattern))
        if path.name not in ("lifespan", "no_completion_cmds")
    ]
    assert len(counters) > 200
    for path in counters:
        tree.neuron.write(path, int((tree.root / path).read_text()) + 3)
    with watch(tree, clock) as watching:
        standing = told(watching.rounds(0, 31, 31))
        for path in counters:
            tree.neuron.write(path, 0)
        assert watching.rounds(31, 31, 31) == []
        assert watching.well, watching.states
    assert {code for code, _ in standing} >= {
        "neuron/sram_ecc",
        "neuron/runtime_sram",
        "edac/uncorrected_counted",
    }


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
def pair(tmp_path: Path) -> WholeTree:
    """Two or more of each kind, so that one can be sick alone: a machine of no known type."""
    return WholeTree(tmp_path, TRN2[:2], machine="trn9.test")


Readers = dict[str, set[str]]  # by path below the tree: the sources that read it


def read_in_looks(tree: WholeTree, watching: Watching) -> Readers:
    """Which files are read of devices, and not to find them. Of cores that are all alike, only the
    first and the last.
    """
    root = str(tree.root.resolve())
    found: Readers = {}
    for name, looking in watching.looking.items():
        subject = looking.source.collector
        with opened() as finding:
            devices = [
                device
                for device in subject.find_devices().devices
                if device.component.kind is not ComponentKind.NODE
            ]
        with opened() as reading:
            for device in devices:
                device.read()
        for path in {os.path.realpath(path) for path in reading} - {
            os.path.realpath(path) for path in finding
        }:
            if path.startswith(root) and not re.search(r"neuron_core[1-6]/", path):
                found.setdefault(path[len(root) + 1 :], set()).add(name)
    return found


# The device that is sick, by kind: its component, and the folders of its files.
SICK = {
    "neuron": (f"neuron/{TRN2[1]}", ["devices/virtual/neuron_device/neuron1", TRN2[1]]),
    "efa": (f"nic/{EFA[0]}", [EFA[0]]),
    "ib": (f"nic/{MLX5[1]}", [MLX5[1]]),
    "memory": ("dimm/MC1.dimm0", ["devices/system/edac/mc/mc1/dimm0"]),
}


def files_of(tree: WholeTree, watching: Watching, kind: str) -> list[tuple[str, set[str]]]:
    """The files that are read of the device of a kind: path, and who reads it."""
    folders = [f"{tree.function(one) if one.startswith('0000') else one}/" for one in SICK[kind][1]]
    found = [
        (path, by)
        for path, by in sorted(read_in_looks(tree, watching).items())
        if path.startswith(tuple(folders)) and (tree.root / path).is_file()
    ]
    assert len(found) >= 2
    return found


@contextmanager
def changed(tree: WholeTree, path: str, change: Callable[[], object]) -> Iterator[None]:
    """A change of one file, and the file as it was."""
    content = (tree.root / path).read_bytes()
    change()
    yield
    file = tree.root / path
    # Whoever waits for a FIFO reads an end of file, once there is a file to be read again.
    writing = os.open(file, os.O_WRONLY | os.O_NONBLOCK) if file.is_fifo() else None
    tree.neuron.remove(path)
    tree.neuron.write(path, content)
    if writing is not None:
        os.close(writing)


def make_unreadable(tree: WholeTree, path: str) -> None:
    """A read fails with an OSError: it is a folder."""
    tree.neuron.remove(path)
    (tree.root / path).mkdir()


def is_well(watching: Watching, path: str) -> bool:
    """Where it is not yet, after another round, in which nothing is reported."""
    if not watching.well:
        assert watching.rounds(31) == [], path
    return watching.well


def count_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


@pytest.mark.parametrize("kind", SICK)
def test_a_file_that_hangs_is_its_devices_affair(pair: WholeTree, clock: Clock, kind: str) -> None:
    component, _ = SICK[kind]
    with watch(pair, clock) as watching:
        watching.kernel(records_of_boot(pair))
        watching.rounds(0, 31, 31)
        for looking in watching.looking.values():
            looking.source._poller.readers._soon_s = 0.03
        for path, by in files_of(pair, watching, kind):
            with changed(pair, path, lambda path=path: pair.neuron.hang(path)):
                watching.hanging = {component}
                assert watching.rounds(31) == [], path
                before = clock.monotonic()
                assert told(watching.rounds(31)) == {
                    (f"{source}/hung", component) for source in by
                }, path
                assert watching.rounds(31, of=by) + watching.rounds(31) == [], "it is said once"
                watching.settle()
                for source in by:
                    readers = watching.looking[source].source._poller.readers
                    assert list(readers.under_way) == [component]
                    until(
                        lambda source=source: count_threads(source) <= 1,
                        "no second read to be under way",
                    )
                for source, looking in watching.looking.items():
                    readings = looking.last.readings
                    unknown = {one.component.name for one in readings if one.unknown_reason}
                    late = {one.component.name for one in readings if one.polled_at < before}
                    assert late <= unknown, (path, source)
                    assert unknown == ({component} if source in by else set()), path
                    well = SourceState.OK if readings else SourceState.ABSENT  # hwmon has nothing
                    state = SourceState.FAILED if source in by else well
                    assert looking.last.state is state, path
            watching.hanging.clear()
            until(
                lambda path=path: is_well(watching, path),
                lambda path=path: f"{path} to be read: {watching.states}",
            )


@pytest.mark.parametrize(
    "file",
    ["info/serial_number", "info/architecture/device_name", "stats/hardware/mem_ecc_uncorrected"],
)
def test_a_file_that_hangs_at_the_first_look(pair: WholeTree, clock: Clock, file: str) -> None:
    component, path = f"neuron/{TRN2[1]}", pair.neuron.path(1, file)
    with watch(pair, clock) as watching:
        watching.kernel(records_of_boot(pair))
        with changed(pair, path, lambda: pair.neuron.hang(path)):
            watching.hanging = {component}
            assert told(watching.rounds(0, 31)) == {("neuron/hung", component)}
            assert watching.states["neuron"][0] is SourceState.FAILED
            assert not watching.readings("neuron", f"neuron/{TRN2[0]}").unknown_reason
        watching.hanging.clear()
        assert watching.rounds(31, 31, 31) == []
        assert watching.well, watching.states
        assert watching.readings("neuron", component).identity == pair.neuron.serial(1)


# Files without which nothing can be said of a device's health, by the source that says so.
ESSENTIAL = {
    "neuron": ("sram_ecc_uncorrected", "mem_ecc_uncorrected"),
    "network": ("/ports/1/state", "/phys_state"),
    "pci": ("/config",),
    "host": ("/ue_count", "_ue_count", "/ue_noinfo_count"),
}


@pytest.mark.parametrize("kind", SICK)
def test_a_file_that_cannot_be_read_is_no_fault(pair: WholeTree, clock: Clock, kind: str) -> None:
    """Unless it could be read before, and says that a network adapter answers no more."""
    component, _ = SICK[kind]
    unanswered = {"efa": "efa/not_answering", "ib": "ib/counters_unreadable"}
    with watch(pair, clock) as watching:
        watching.kernel(records_of_boot(pair))
        watching.rounds(0, 31, 31)
        for path, by in files_of(pair, watching, kind):
            of_port = re.search(r"/ports/1/(hw_)?counters/", path)
            expected = {(unanswered[kind], component)} if of_port else set()
            with changed(pair, path, lambda path=path: make_unreadable(pair, path)):
                events = watching.rounds(31, 31, 31, of=by) + watching.rounds(31)
                assert told(events) == expected, path
                blind = {source for source in by if path.endswith(ESSENTIAL[source])}
                for source in by:
                    unknown = watching.readings(source, component).unknown_reason
                    assert bool(unknown) == (source in blind), (source, path)
                failed = {
                    source
                    for source, (state, _) in watching.states.items()
                    if state is SourceState.FAILED
                }
                assert failed == blind, (path, watching.states)
                # Words for people, and what was read before, are not missed.
                if not path.endswith(("fw_ver", "node_guid", "link_layer")):
                    assert any(watching.readings(source, component).missing for source in by), path
            assert watching.rounds(31, 31, of=by) + watching.rounds(31) == [], path
            assert watching.well, (path, watching.states)


NO_NUMBERS = (
    *("", "letters", "NaN", "-inf", "-1", "-18446744073709551616", "1e400", "9" * 400),
    *("0x", "1 2", "1_0", "²", "٣", "\x00"),
)
NUMBERS = ("65535", "18446744073709551616", "0")


@pytest.mark.parametrize("kind", SICK)
def test_nonsense_in_a_file_breaks_nothing(pair: WholeTree, clock: Clock, kind: str) -> None:
    """What is no number is neither an error nor its end. What is one counts, however large."""
    component, _ = SICK[kind]
    words = ("unhealthy_components",)  # a part that nobody knows is a part that is not well
    with watch(pair, clock) as watching, capture_logs() as logs:
        watching.kernel(records_of_boot(pair))
        watching.rounds(0, 31, 31)
        files = files_of(pair, watching, kind)
        # A heartbeat comes last: once it has moved it must go on.
        for path, by in sorted(files, key=lambda one: "heartbeat" in one[0]):
            for value in (*NO_NUMBERS, *NUMBERS):
                text = f"RxErr {value}\nTOTAL_ERR_COR {value}" if "aer_dev" in path else value
                with changed(
                    pair, path, lambda path=path, text=text: pair.neuron.write(path, text)
                ):
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
