"""Whether a line is about this node: its memory controllers, disks and network devices, now and
earlier in this boot.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.examples import get_answer
from tests.trees import NVIDIA, Tree
from tests.unit.builders import catalogue
from vitald.catalog.rules import DeviceListing
from vitald.cli import finding_text
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.model.event import Event, Trust
from vitald.model.words import Action
from vitald.server import endpoints
from vitald.topology.listed_devices import ListedDevices
from vitald.topology.pci_inventory import PciInventory

UE = (
    "EDAC {}: 1 UE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#0_DIMM#1 (channel:0 slot:1"
    " page:0x8a1 offset:0x0 grain:32)"
)
MEDIUM = (
    "critical medium error, dev {}, sector 81920 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2"
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    for name in (
        "devices/system/edac/mc/mc0",
        "class/block/nvme0n1",
        "class/block/sda",
        "class/block/dm-0",
        "class/nvme/nvme0",
        "class/net/eth0",
    ):
        (tmp_path / name).mkdir(parents=True)
    return made


def read(
    listed: ListedDevices | None,
    line: str,
    *,
    live: bool = True,
    facility: int | None = 0,
    drills: DrillRegistry | None = None,
    inventory: PciInventory | None = None,
) -> Event:
    known = Interpreter(
        *(catalogue(), drills or DrillRegistry(), inventory), userspace="confirmed", listed=listed
    )
    parsed = known.parse_record(line.encode())
    assert parsed is not None
    return known.make_event(
        *(parsed, line.encode(), facility),
        identity="i",
        time=100.0,
        boot_id="b",
        usec=None,
        live=live,
    )


@pytest.mark.parametrize(
    ("line", "code", "why"),
    [
        (UE.format("MC7"), "edac/uncorrected", "no memory controller MC7 on this node"),
        (MEDIUM.format("nvme3n1"), "fs/medium_error", "no disk nvme3n1 on this node"),
        (
            "EXT4-fs (sdz1): Remounting filesystem read-only",
            "fs/readonly",
            "no disk sdz1 on this node",
        ),
    ],
)
def test_a_line_about_what_is_not_here_is_shown_and_not_judged(
    tree: Tree, line: str, code: str, why: str
) -> None:
    event = read(ListedDevices(tree.root), line)
    assert (event.code, event.trust, event.is_trusted) == (code, Trust.UNTRUSTED, False)
    assert (event.fields["untrusted"], event.fields["on_node"]) == (why, False)
    assert event.raw == line


def test_a_line_about_what_is_here_counts(tree: Tree) -> None:
    """A partition's disk will do: its table may have been read anew."""
    disks = ("nvme0n1", "nvme0n1p2", "nvme0c3n1", "sda", "sda4", "dm-0")
    lines = [UE.format("MC0"), *map(MEDIUM.format, disks)]
    found = {line: read(ListedDevices(tree.root), line) for line in lines}
    assert {line: (one.trust, one.fields["on_node"]) for line, one in found.items()} == (
        dict.fromkeys(lines, (Trust.KERNEL, True))
    )


def test_what_has_gone_since_it_was_seen_counts(tree: Tree) -> None:
    listed = ListedDevices(tree.root)
    listed.read_names()
    (tree.root / "class/block/sda").rmdir()
    assert read(listed, MEDIUM.format("sda")).trust is Trust.KERNEL
    assert read(ListedDevices(tree.root), MEDIUM.format("sda")).trust is Trust.UNTRUSTED, (
        "who came later has not seen it"
    )


def test_what_a_file_system_is_still_mounted_from_counts(tree: Tree) -> None:
    listed = ListedDevices(tree.root, lambda: frozenset({"sdq1"}))
    assert read(listed, "EXT4-fs (sdq1): Remounting filesystem read-only").fields["on_node"] is True


def test_what_was_written_before_we_came_counts_and_says_so(tree: Tree) -> None:
    """The device may have gone before the daemon was there."""
    event = read(ListedDevices(tree.root), UE.format("MC7"), live=False)
    assert (event.trust, event.fields["on_node"]) == (Trust.KERNEL, False)
    assert catalogue().find_rule(event.code).apply_to(event.fields).action is Action.REBOOT_NODE


@pytest.mark.parametrize(
    "line",
    [
        "nvme nvme9: Removing after probe failure status: -19",  # gone before anybody could see it
        "infiniband rdmap79s0: Wait for completion (polling) timeout",  # it may be in a namespace
    ],
)
def test_of_what_nobody_sees_all_of_a_line_counts_and_says_so(tree: Tree, line: str) -> None:
    event = read(ListedDevices(tree.root), line)
    assert (event.trust, event.fields["on_node"]) == (Trust.KERNEL, False)


def test_where_there_is_no_list_a_line_counts(tmp_path: Path) -> None:
    event = read(ListedDevices(tmp_path), MEDIUM.format("sdz"))
    assert event.trust is Trust.KERNEL
    assert "on_node" not in event.fields


def test_a_drill_may_be_about_anything(tree: Tree) -> None:
    drills = DrillRegistry()
    drills.announce_drill(UE.format("MC7"), 100.0, 60.0)
    assert (
        read(ListedDevices(tree.root), UE.format("MC7"), facility=1, drills=drills).trust
        is Trust.ANNOUNCED
    )


def test_a_saved_log_is_another_machines() -> None:
    event = read(None, UE.format("MC7"), live=False, facility=None)
    assert (event.trust, "on_node" in event.fields) == (Trust.KERNEL, False)


def test_a_name_leads_nowhere(tree: Tree) -> None:
    listed = ListedDevices(tree.root)
    names = ["../../../etc", "..", ".", "a/b", "", "x" * 65]
    assert {name: listed.has_device(DeviceListing.DISKS, name) for name in names} == (
        dict.fromkeys(names, False)
    )


def test_what_is_remembered_is_bounded(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitald.topology.listed_devices._MAX_NAMES", 2)
    listed = ListedDevices(tree.root)
    listed.read_names()
    for name in ("nvme0n1", "sda", "dm-0"):
        (tree.root / "class/block" / name).rmdir()
    disks = ("dm-0", "nvme0n1", "sda")
    assert [listed.has_device(DeviceListing.DISKS, name) for name in disks] == [False, True, True]


# --- PCI functions: one that is not here makes the line no less, and is said


def test_a_function_that_was_never_here_is_told_from_one_that_has_gone(tree: Tree) -> None:
    tree.pci("0000:65:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    inventory = PciInventory(tree.root)
    xid = "NVRM: Xid (PCI:0000:{}:00): 79, pid=7, name=x, GPU has fallen off the bus."

    def seen(bus: str) -> Event:
        return read(None, xid.format(bus), inventory=inventory)

    assert "on_node" not in seen("99").fields, "nobody has looked yet"
    inventory.scan_bus()
    shutil.rmtree(tree.root / "bus/pci/devices")
    (tree.root / "bus/pci/devices").mkdir()
    inventory.scan_bus()
    gone, never = seen("65"), seen("99")
    assert (gone.fields["on_pci"], gone.fields["on_node"]) == (False, True)
    assert (never.fields["on_pci"], never.fields["on_node"], never.trust) == (
        False,
        False,
        Trust.KERNEL,
    )
    assert catalogue().find_rule(never.code).apply_to(never.fields).action is Action.REBOOT_NODE


@pytest.mark.parametrize(
    ("fields", "trust", "mark"),
    [
        ({"on_node": False}, "kernel", "[no such device here] "),
        ({"on_node": True}, "kernel", ""),
        (
            {"on_node": False, "untrusted": "no disk sdz"},
            "untrusted",
            "[UNTRUSTED (no disk sdz, not judged)] ",
        ),
        ({}, "untrusted", "[UNTRUSTED (written by a process, not judged)] "),
    ],
)
def test_a_person_is_told(fields: dict[str, object], trust: str, mark: str) -> None:
    event = {
        "simulated": False,
        "trust": trust,
        "fields": fields,
        "time": None,
        "code": "a/b",
        "component": "node",
        "raw": "line",
    }
    assert finding_text.format_event(event).endswith(f"a/b  node  {mark}line")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, "#7 opened  gpu/0000:65:00.0  GPU has fallen off the bus (xid/79), reboot_node: why"),
        ({"change": "escalated"}, "#7 escalated  gpu/0000:65:00.0  GPU has"),
        ({"change": "in_remedy"}, "#7 in remedy  gpu/0000:65:00.0  GPU has"),
        ({"change": "other"}, "#7 changed  gpu/0000:65:00.0  GPU has"),
        ({"change": "cleared"}, "fallen off the bus (xid/79): why"),
        ({"simulated": True}, "#7 opened  gpu/0000:65:00.0  [SIMULATED] GPU has"),
        ({"cause": "a\x1b[2Jb", "code": "x\x1b/1"}, "(x\\x1b/1), reboot_node: a\\x1b[2Jb"),
    ],
)
def test_a_change_of_a_finding_on_one_line(change: dict[str, object], shown: str) -> None:
    example = get_answer(endpoints.TRANSITIONS)["transitions"][0]
    whole = {**example, "finding": 7, "component": "gpu/0000:65:00.0", "cause": "why", **change}
    assert shown in finding_text.format_transition(whole)
