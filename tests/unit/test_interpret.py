"""From a record to an event: who wrote it, which device it is about, and what it continues."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import AMAZON, Tree
from tests.unit.builders import catalogue, interpreter
from tests.unit.test_pci import device
from vitald.collectors.host.filesystems import FileSystems
from vitald.collectors.kernel_log.drills import WINDOW_S, DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter, escape_unprintable, make_lost_event
from vitald.collectors.kernel_log.record import unescape
from vitald.model.component import NODE, Component
from vitald.model.event import Event, Fields, Trust
from vitald.model.words import Action, ComponentKind
from vitald.topology.fstab import Fstab
from vitald.topology.pci_inventory import PciInventory

XID = "NVRM: Xid (PCI:0000:65:00): 79, pid=7, name=x, GPU has fallen off the bus."
PORT = "pcieport 0000:80:01.0: AER:"
BDF = "neuron:neuron_pci_get_device_id_v3: ** BDF: a0:1b.0 => nd[15] (routing id: 12)"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0):"


def read(
    known: Interpreter,
    text: str | bytes,
    facility: int | None = 0,
    time: float = 100.0,
    identity: str = "id",
    doubt: str = "",
) -> Event:
    raw = text if isinstance(text, bytes) else text.encode()
    parsed = known.parse_record(raw)
    assert parsed is not None, text
    return known.make_event(
        *(parsed, raw, facility),
        identity=identity,
        time=time,
        boot_id="boot-a",
        usec=42,
        doubt=doubt,
    )


def test_an_event_holds_what_the_line_says() -> None:
    seen = read(interpreter(), XID)
    assert (seen.identity, seen.time, seen.source, seen.kind, seen.code, seen.boot_id) == (
        "id",
        100.0,
        "kernel_log",
        "xid",
        "xid/79",
        "boot-a",
    )
    assert seen.component == Component(ComponentKind.GPU, "0000:65:00.0")
    assert (seen.raw, seen.trust, seen.follows, seen.is_simulated) == (
        XID,
        Trust.KERNEL,
        None,
        False,
    )
    assert seen.fields == {
        "message": "GPU has fallen off the bus.",
        "number": 79,
        "pci": "0000:65:00.0",
        "pid": 7,
        "process": "x",
        "usec": 42,
    }


# --- who wrote it


@pytest.mark.parametrize(
    ("facility", "userspace", "trust", "said"),
    [
        (0, "ignore", Trust.KERNEL, {}),
        (None, "ignore", Trust.KERNEL, {}),  # a file that the operator named keeps no facility
        (1, "ignore", Trust.UNTRUSTED, {"facility": 1}),
        (1, "unconfirmed", Trust.ACCEPTED, {"facility": 1, "vouched": False}),
        (16, "confirmed", Trust.ACCEPTED, {"facility": 16, "vouched": True}),
        (0, "confirmed", Trust.KERNEL, {}),
    ],
)
def test_only_facility_zero_is_the_kernel(
    facility: int | None, userspace: str, trust: Trust, said: Fields
) -> None:
    known = interpreter(userspace=userspace)
    event = read(known, XID, facility)
    assert event.trust is trust
    assert {
        name: event.fields[name] for name in ("facility", "vouched") if name in event.fields
    } == said
    assert (event.is_hearsay, event.vouched_by) == (
        said.get("vouched") is False,
        "[kernel_log] userspace" if said.get("vouched") else "",
    )
    assert known.counters.untrusted == (trust is Trust.UNTRUSTED)


@pytest.mark.parametrize("userspace", ["unconfirmed", "confirmed"])
def test_an_old_drill_is_no_fault(userspace: str) -> None:
    """Where a ledger was lost, the log is read again: nobody announces the drills in it any
    more.
    """
    known = interpreter(userspace=userspace)
    assert read(known, XID.replace("name=x", "name=vitald-drill"), 1).trust is Trust.UNTRUSTED


@pytest.mark.parametrize("userspace", ["unconfirmed", "confirmed"])
def test_what_may_be_no_record_of_its_own_is_hearsay(userspace: str) -> None:
    """A name with a newline, which any user may choose, makes a line of its own in a crash log."""
    known = interpreter(userspace=userspace)
    for facility in (0, 1, None):
        event = read(known, XID, facility, doubt="it follows a newline")
        assert (event.is_hearsay, event.fields["doubted"]) == (True, "it follows a newline")
        assert event.vouched_by == ""


def test_a_drill_takes_the_very_text_once_and_soon() -> None:
    known = interpreter()
    made = known.drills.announce_drill(XID, 100.0, 60.0)
    assert read(known, XID.replace("65", "66"), 1).trust is Trust.UNTRUSTED
    taken = read(known, XID, 1, time=101.0, identity="mine")
    assert (taken.trust, taken.simulated_until) == (Trust.ANNOUNCED, 160.0)
    kept = known.drills.get_drill(made.id)
    assert kept is not None
    assert kept.event_identity == "mine"
    assert read(known, XID, 1, time=102.0).trust is Trust.UNTRUSTED
    assert read(known, XID, 1, time=900.0, identity="mine").trust is Trust.ANNOUNCED, (
        "a record that is read again is the same drill"
    )


def test_an_announcement_is_good_for_its_window() -> None:
    trusts = {
        99.9: Trust.UNTRUSTED,
        100.0: Trust.ANNOUNCED,
        100.0 + WINDOW_S: Trust.ANNOUNCED,
        100.1 + WINDOW_S: Trust.UNTRUSTED,
    }
    for time, trust in trusts.items():
        known = interpreter()
        known.drills.announce_drill(XID, 100.0, 60.0)
        assert read(known, XID, 1, time=time).trust is trust, time


def test_a_genuine_record_is_never_taken_for_a_drill() -> None:
    known = interpreter()
    made = known.drills.announce_drill(XID, 100.0, 60.0)
    assert read(known, XID, 0).trust is Trust.KERNEL
    kept = known.drills.get_drill(made.id)
    assert kept is not None
    assert kept.event_identity is None


def test_drills_are_bounded() -> None:
    drills = DrillRegistry()
    first = drills.announce_drill("x", 0.0, 1.0)
    for _ in range(64):
        drills.announce_drill("x", 0.0, 1.0)
    assert drills.get_drill(first.id) is None


def test_a_drill_is_compared_as_the_kernel_escapes_it() -> None:
    known = interpreter()
    text = "NVRM: Xid (PCI:0000:65:00): 79, pid=7, name=café, GPU has fallen off the bus."
    known.drills.announce_drill(text, 100.0, 60.0)
    assert read(known, text.replace("é", r"\xc3\xa9"), 1).trust is Trust.ANNOUNCED


# --- which device


def test_the_component_is_what_the_line_is_about() -> None:
    components = {
        XID: "gpu/0000:65:00.0",
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, Contained: SM. RST: No, D-RST: No": (
            "gpu/0000:01:00.0"
        ),
        f"{SWITCH} 20034, Fatal, Link 30 LTSSM Fault Up": "nvswitch/0000:c1:00.0",
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.": "gpu/0000:18:00.0",
        "NVRM: rm_init_adapter failed": "node",  # no address in it
        # blamed, not the port
        f"{PORT} Uncorrected (Fatal) error received: 0000:81:00.0": "pci/0000:81:00.0",
        f"{PORT} device recovery failed": "pci/0000:80:01.0",
        "mlx5_core 0000:5c:00.0 enp92s0np0: Link down": "nic/0000:5c:00.0",
        "NETDEV WATCHDOG: enp92s0np0 (mlx5_core): transmit queue 3 timed out": "nic/enp92s0np0",
        "infiniband rdmap79s0: Wait for completion (polling) timeout": "nic/rdmap79s0",
        "EXT4-fs (nvme0n1p1): Remounting filesystem read-only": "disk/nvme0n1p1",
        (
            "EDAC MC0: 1 CE memory read error on D (channel:1 slot:0 page:0x1 offset:0x0 grain:32"
            " syndrome:0x0)"
        ): "dimm/MC0",
        (
            "CPU3: Package temperature is above threshold, cpu clock is throttled (total events ="
            " 12)"
        ): "cpu/3",
        "Out of memory: Killed process 1 (x) total-vm:1kB": "node",
        "NEURON_HW_ERR=DMA_ERROR nd-id=3": "neuron/3",
    }
    assert {line: read(interpreter(), line).component.name for line in components} == components


def test_an_inventory_says_what_stands_at_an_address(tmp_path: Path) -> None:
    device(tmp_path, "0000:81:00.0", 0x10DE, 0x2330, 0x030200)
    inventory = PciInventory(tmp_path)
    inventory.scan_bus()
    known = Interpreter(catalogue(), DrillRegistry(), inventory, userspace="ignore")
    aer = read(known, f"{PORT} Uncorrected (Fatal) error received: 0000:81:00.0")
    assert (aer.component.name, aer.fields["on_pci"]) == ("gpu/0000:81:00.0", True)
    gone = read(known, XID)
    assert (gone.component.name, gone.fields["on_pci"]) == ("gpu/0000:65:00.0", False)
    assert "on_pci" not in read(known, "Out of memory: Killed process 1 (x) total-vm:1kB").fields


def test_a_line_that_names_an_interface_is_about_its_adapter(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    folder = tree.pci("0000:4f:00.0", AMAZON, 0xEFA2, 0x020000, "efa")
    tree.link("class/infiniband/rdmap79s0", f"{folder}/infiniband/rdmap79s0")
    tree.link(f"{folder}/infiniband/rdmap79s0/device", folder)
    inventory = PciInventory(tmp_path)
    inventory.scan_bus()
    known = Interpreter(catalogue(), DrillRegistry(), inventory, userspace="ignore")
    assert (
        read(known, "infiniband rdmap79s0: Admin queue is closed").component.name
        == "nic/0000:4f:00.0"
    )
    assert (
        read(known, "infiniband rdmap80s0: Admin queue is closed").component.name == "nic/rdmap80s0"
    )
    assert [inventory.find_address(name) for name in ("../../..", "..", "", "a/b", "x" * 99)] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("line", "driver", "vendor", "pci_class", "model"),
    [
        (XID, "nvidia", 0x10DE, 0x030200, 0x2330),
        (f"{SWITCH} 20034, Fatal, Link 38", "nvidia", 0x10DE, 0x068000, 0x22A3),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=3", "neuron", AMAZON, 0x088000, 0x7164),
    ],
)
def test_a_line_about_an_accelerator_that_cannot_be_here(
    tmp_path: Path, line: str, driver: str, vendor: int, pci_class: int, model: int
) -> None:
    """It is not judged if a process wrote it. Where one is on PCI, or was, or its driver is loaded,
    an address that is not listed may be a spelling. The kernel knows what it writes about.
    """
    device(tmp_path, "0000:01:00.0", 0x15B3, 0x1021, 0x020700)
    inventory = PciInventory(tmp_path)
    known = Interpreter(catalogue(), DrillRegistry(), inventory, userspace="unconfirmed")

    def judge(facility: int | None = 1) -> Trust:
        return read(known, line, facility).trust

    assert judge() is Trust.ACCEPTED  # the bus has not been read yet
    inventory.scan_bus()
    assert (judge(), judge(0), judge(None)) == (Trust.UNTRUSTED, Trust.KERNEL, Trust.KERNEL)
    seen = read(known, line, 1)
    assert str(seen.fields["untrusted"]).startswith("this node has no ")
    known.configure(catalogue(), userspace="confirmed")  # to test the whole chain
    assert judge() is Trust.ACCEPTED
    known.configure(catalogue(), userspace="unconfirmed")
    loaded = tmp_path / "module" / driver
    loaded.mkdir(parents=True)
    assert judge() is Trust.ACCEPTED
    loaded.rmdir()
    device(tmp_path, "0000:02:00.0", vendor, model, pci_class)
    inventory.scan_bus()
    assert judge() is Trust.ACCEPTED
    rmtree(tmp_path / "bus/pci/devices/0000:02:00.0")
    inventory.scan_bus()
    assert judge() is Trust.ACCEPTED


def test_a_drill_may_be_on_a_device_that_is_not_here(tmp_path: Path) -> None:
    device(tmp_path, "0000:01:00.0", 0x15B3, 0x1021, 0x020700)
    inventory = PciInventory(tmp_path)
    inventory.scan_bus()
    drills = DrillRegistry()
    drills.announce_drill(XID, 100.0, 60.0)
    known = Interpreter(catalogue(), drills, inventory, userspace="unconfirmed")
    assert read(known, XID, 1).trust is Trust.ANNOUNCED


def test_a_neuron_device_is_found_where_the_driver_said_it_sits() -> None:
    known = interpreter()
    read(known, BDF)
    assert read(known, "NEURON_HW_ERR=DMA_ERROR nd-id=15").component.name == "neuron/0000:a0:1b.0"
    assert read(known, "NEURON_HW_ERR=DMA_ERROR nd-id=14").component.name == "neuron/14"


@pytest.mark.parametrize(
    ("facility", "doubt"), [(1, ""), (0, "for a reason")], ids=["a process", "no record"]
)
def test_what_is_not_the_kernels_does_not_say_where_a_neuron_device_sits(
    facility: int, doubt: str
) -> None:
    known = interpreter()
    event = read(known, BDF, facility, doubt=doubt)
    assert not event.is_trusted or event.is_hearsay
    assert read(known, "NEURON_HW_ERR=DMA_ERROR nd-id=15").component.name == "neuron/15"


def test_whether_the_node_needs_a_file_system(tmp_path: Path) -> None:
    """By the mounts of process 1: the root file system is needed, a pod's volume is not."""
    tree = Tree(tmp_path)
    tree.write(
        "proc/1/mountinfo",
        "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw\n90 27 259:9 / /pods/a rw - ext4"
        " /dev/nvme9n1 rw",
    )
    fstab = Fstab(tree.root / "etc/fstab")
    disks = FileSystems(tmp_path, tmp_path / "proc", ("/", "/var/lib/vitald"), fstab).list_disks
    known = Interpreter(catalogue(), DrillRegistry(), None, userspace="ignore", needed=disks)
    rule = catalogue().find_rule("fs/shutdown")
    root, pod = (
        read(known, f"Aborting journal on device {disk}-8.") for disk in ("nvme0n1p1", "nvme9n1")
    )
    assert (root.component.name, root.fields["needed"], rule.apply_to(root.fields).action) == (
        "disk/nvme0n1p1",
        True,
        Action.REBOOT_NODE,
    )
    assert (pod.component.name, pod.fields["needed"], rule.apply_to(pod.fields).action) == (
        "disk/nvme9n1",
        False,
        Action.INSPECT,
    )


def test_the_node_needs_the_local_disks_of_fstab(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("etc/fstab", "LABEL=scratch /scratch xfs defaults 0 2\n")
    mounted = "91 27 9:127 / /scratch rw,noatime - xfs /dev/md127 rw"
    tree.write("proc/1/mountinfo", f"27 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n{mounted}")
    fstab = Fstab(tree.root / "etc/fstab")
    fstab.read_table()
    disks = FileSystems(tmp_path, tmp_path / "proc", ("/",), fstab).list_disks
    known = Interpreter(catalogue(), DrillRegistry(), None, userspace="ignore", needed=disks)
    event = read(known, "XFS (md127): Filesystem has been shut down due to log error (0x2).")
    assert (event.component.name, event.fields["needed"]) == ("disk/md127", True)
    assert catalogue().find_rule(event.code).apply_to(event.fields).action is Action.REBOOT_NODE


def test_a_log_of_another_machine_does_not_say_what_the_node_needs() -> None:
    event = read(interpreter(), "EXT4-fs (nvme0n1p1): Remounting filesystem read-only")
    assert "needed" not in event.fields
    assert catalogue().find_rule(event.code).apply_to(event.fields).action is Action.INSPECT


def test_an_iommu_fault_of_an_accelerator_weighs_more(tmp_path: Path) -> None:
    device(tmp_path, "0000:81:00.0", 0x10DE, 0x2330, 0x030200)
    device(tmp_path, "0000:0b:00.0", 0x8086, 0x1234, 0x0C0330)
    inventory = PciInventory(tmp_path)
    inventory.scan_bus()
    known = Interpreter(catalogue(), DrillRegistry(), inventory, userspace="ignore")
    line = (
        "DMAR: [DMA Read NO_PASID] Request device [{}:00.0] fault addr 0x1187a9000 [fault reason"
        " 0x06] PTE Read access is not set"
    )
    gpu, usb = (read(known, line.format(bus)) for bus in ("81", "0b"))
    rule = catalogue().find_rule("iommu/fault")
    assert (gpu.component.name, rule.apply_to(gpu.fields).action) == (
        "gpu/0000:81:00.0",
        Action.INSPECT,
    )
    assert (usb.component.name, rule.apply_to(usb.fields).action) == (
        "pci/0000:0b:00.0",
        Action.OBSERVE,
    )


def test_the_port_that_reported_is_kept() -> None:
    event = read(interpreter(), f"{PORT} Uncorrected (Fatal) error received: 0000:81:00.0")
    assert event.fields["reporter"] == "0000:80:01.0"


def test_without_an_inventory_nothing_is_said_about_presence() -> None:
    assert "on_pci" not in read(interpreter(), XID).fields


# --- what it continues


def test_follow_up_records_of_an_sxid_name_their_head() -> None:
    known = interpreter()
    head = read(known, f"{SWITCH} 20034, Fatal, Link 30 LTSSM Fault Up", identity="head")
    severity = read(
        known,
        f"{SWITCH} 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        time=100.1,
        identity="two",
    )
    data = read(known, f"{SWITCH} 20034, Data {{0x1, 0x2}}", time=104.9, identity="three")
    assert (head.follows, severity.follows, data.follows) == (None, "head", "head")


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (f"{SWITCH} 20034, Data {{0x1}}", 105.1),  # too late
        (f"{SWITCH} 20033, Data {{0x1}}", 100.0),  # another code
        ("nvidia-nvswitch1: SXid (PCI:0000:c2:00.0): 20034, Data {0x1}", 100.0),  # another switch
    ],
)
def test_a_follow_up_of_something_else_stands_alone(line: str, time: float) -> None:
    known = interpreter()
    read(known, f"{SWITCH} 20034, Fatal, Link 30 LTSSM Fault Up", identity="head")
    assert read(known, line, time=time).follows is None


def test_a_new_head_takes_the_follow_ups_over() -> None:
    known = interpreter()
    read(known, f"{SWITCH} 20034, Fatal, Link 30 x", identity="one")
    read(known, f"{SWITCH} 20034, Fatal, Link 31 x", identity="two")
    assert read(known, f"{SWITCH} 20034, Data {{0x1}}").follows == "two"


def test_switches_do_not_mix() -> None:
    known = interpreter()
    other = SWITCH.replace("c1", "c2")
    read(known, f"{SWITCH} 20034, Fatal, Link 30 x", identity="one")
    read(known, f"{other} 20034, Fatal, Link 30 x", identity="two")
    assert read(known, f"{SWITCH} 20034, Data {{0x1}}").follows == "one"
    assert read(known, f"{other} 20034, Data {{0x1}}").follows == "two"


def test_what_a_process_wrote_comes_not_between_a_head_and_its_follow_up() -> None:
    known = interpreter()
    read(known, f"{SWITCH} 20034, Fatal, Link 30 x", identity="head")
    read(known, f"{SWITCH} 20033, Fatal, Link 30 x", facility=1, identity="forged")
    assert read(known, f"{SWITCH} 20034, Data {{0x1}}").follows == "head"


def test_a_reload_keeps_drills_and_takes_new_rules() -> None:
    known = interpreter()
    known.drills.announce_drill(XID, 100.0, 60.0)
    known.configure(catalogue("hyperpod"), userspace="confirmed")
    assert read(known, XID, 1).trust is Trust.ANNOUNCED
    assert read(known, XID, 1, identity="another").trust is Trust.ACCEPTED


# --- what is shown
@given(st.binary(max_size=60))
def test_shown_text_is_plain_and_nothing_is_lost(raw: bytes) -> None:
    shown = escape_unprintable(raw)
    assert shown.isascii()
    assert shown == "" or shown.isprintable()
    assert unescape(shown.encode()) == unescape(raw)


def test_lost_records_are_an_event() -> None:
    for count in (3, None):
        lost = make_lost_event(
            identity="i", time=1.0, boot_id="b", count=count, fields={"first_seq": 4}
        )
        assert (lost.code, lost.component, lost.trust, lost.fields) == (
            "vitald/records_lost",
            NODE,
            Trust.DAEMON,
            {"first_seq": 4, "count": count},
        )
        assert ("3" if count else "unknown number") in lost.raw
