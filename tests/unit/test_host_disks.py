"""Drives and file systems of the host."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.looking import CATALOG, Looking, polled, told
from tests.trees import Tree
from tests.unit.test_host import KINDS, ROOT, Clock, clock, drive, host, statvfs, tree
from vitald.collectors.host.filesystems import Mount, _parse_mount
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.model.event import Event
from vitald.model.words import Action
from vitald.topology.fstab import Fstab, parse_fstab

__all__ = ["clock", "tree"]  # fixtures


# --- file systems


def test_read_only_by_the_kernels_own_decision(tree: Tree) -> None:
    gave_up = {
        ("rw,relatime", "rw,errors=remount-ro"): False,
        ("rw,relatime", "ro,errors=remount-ro"): True,
        ("rw,relatime", "rw,emergency_ro"): True,
        ("rw,relatime", "rw,shutdown"): True,
        ("ro,relatime", "ro"): False,  # mounted so
        ("ro,relatime", "rw"): False,  # a read-only view of a writable one
        ("ro,relatime", "rw,emergency_ro"): True,
    }
    found = {}
    for options, superblock in gave_up:
        with Looking(polled(host(tree), *KINDS)) as looking:
            looking.look()
            tree.write(
                "proc/1/mountinfo", f"27 1 259:1 / / {options} - ext4 /dev/nvme0n1p1 {superblock}"
            )
            said = told(looking.look())
            tree.write("proc/1/mountinfo", ROOT)
            over = [event.fields["recovered"] for event in looking.look()]
        found[options, superblock] = (said, over)
    assert found == {
        case: ({("fs/remounted_readonly", "disk/nvme0n1p1")}, [True]) if ill else (set(), [])
        for case, ill in gave_up.items()
    }


def test_without_the_mounts_of_process_1_our_own_must_do(tree: Tree) -> None:
    tree.remove("proc/1/mountinfo")
    tree.write(
        "proc/self/mountinfo", ROOT.replace("rw,relatime", "ro,relatime")
    )  # as ProtectSystem=strict shows it
    with Looking(polled(host(tree), *KINDS)) as looking:
        assert told(looking.look()) == set()
        assert looking.readings("disk/nvme0n1p1").values["free_ratio"] == 0.5


def test_what_nobody_writes_to_cannot_fill_up(tree: Tree) -> None:
    tree.write("proc/1/mountinfo", "27 1 259:1 / / ro,relatime - squashfs /dev/nvme0n1p1 ro")
    subject = host(tree)
    subject.filesystems.statvfs = lambda _: statvfs(free=0.0)
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        assert looking.readings("disk/nvme0n1p1").values == {"read_only": 0.0}


def test_a_file_system_that_fills_up(tree: Tree, clock: Clock) -> None:
    subject = host(tree, "/", "/var/log")
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        subject.filesystems.statvfs = lambda _: statvfs(free=0.04)
        looking.look()
        clock.pass_(300)
        (event,) = looking.look()
        assert (event.code, event.component.name, event.fields["mount"]) == (
            "fs/space_low",
            "disk/nvme0n1p1",
            "/",
        )
        subject.filesystems.statvfs = lambda _: statvfs(free=0.5, inodes=0.001)
        looking.look()
        clock.pass_(60)
        assert ("fs/full", "disk/nvme0n1p1") in told(looking.look())


def test_each_path_belongs_to_the_mount_that_holds_it(tree: Tree) -> None:
    lines = [
        "20 1 0:9 / / rw - rootfs rootfs rw",
        ROOT,
        "28 27 253:0 / /var rw shared:3 - xfs /dev/mapper/vg-var rw",
        "29 28 0:44 / /var/lib rw - overlay overlay rw,lowerdir=/a",
        "30 28 0:45 / /var/lo rw - tmpfs tmpfs rw",
        "31 27 0:46 / /with\\040blank rw - nfs4 server:/with\\040blank rw",
        "nonsense",
    ]
    tree.write("proc/1/mountinfo", "\n".join(lines))
    tree.link("sys/dev/block/253:0", "sys/devices/virtual/block/dm-0")
    with Looking(polled(host(tree, "/", "/var/log", "/with blank"), *KINDS)) as looking:
        looking.look()
        mounts = {
            one.component.name
            for one in looking.last.readings
            if one.component.name.startswith("disk/") and "free_ratio" in one.values
        }
        assert mounts == {
            "disk/nvme0n1p1",
            "disk/dm-0",
            "disk/overlay:/var/lib",
            "disk/nfs4:/with blank",
        }


def test_without_the_block_device_in_sysfs_its_source_names_it(tree: Tree) -> None:
    tree.remove("sys/dev/block/259:1")
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        assert looking.readings("disk/nvme0n1p1").values["read_only"] == 0.0


def test_a_folder_that_cannot_be_asked_is_not_observed(tree: Tree) -> None:
    def refuse(_: str) -> os.statvfs_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    subject = host(tree)
    subject.filesystems.statvfs = refuse
    with Looking(polled(subject, *KINDS)) as looking:
        assert told(looking.look()) == set()
        assert "free_bytes" in looking.readings("disk/nvme0n1p1").missing


def test_inodes_that_are_made_as_needed_are_not_counted(tree: Tree) -> None:
    subject = host(tree)
    subject.filesystems.statvfs = lambda _: statvfs(files=0)
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        assert (
            "ext4 makes inodes" in looking.readings("disk/nvme0n1p1").missing["free_inodes_ratio"]
        )


def test_a_line_of_mountinfo() -> None:
    found = _parse_mount(
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root"
        " rw,errors=continue"
    )
    assert found == Mount(
        "/mnt2",
        "98:0",
        "ext3",
        "/dev/root",
        frozenset({"rw", "noatime"}),
        frozenset({"rw", "errors=continue"}),
    )
    assert found.contains_path("/mnt2/log")
    assert not found.contains_path("/mnt22")


# --- the local disks of fstab

FSTAB = """\
# /etc/fstab: static file system information.
UUID=0a1f  /               ext4  errors=remount-ro  0 1
UUID=77-AB /boot/efi       vfat  umask=0077         0 1
LABEL=b    /boot           ext4  defaults           0 2
/dev/md127 /scratch        xfs   defaults,noatime   0 2
/dev/disk/by-id/nvme-a /local\\040data  auto
LABEL=c    /cache          ext4  defaults,nofail    0 2
LABEL=d    /archive        ext4  noauto,user        0 0
/dev/sdz   /san            xfs   _netdev            0 0
files:/a   /home           nfs4  defaults           0 0
tmpfs      /run/x          tmpfs size=1g            0 0
/swapfile  none            swap  sw                 0 0
/dev/vg/s  swap            swap  sw                 0 0
/img/a.img /mnt/image      ext4  loop               0 0
/scratch   /srv            none  bind               0 0
/dev/sr0   /media/cdrom    iso9660 ro               0 0
UUID=9 relative ext4 defaults 0 0
UUID=8
"""


def test_which_local_disks_fstab_says_the_node_needs() -> None:
    assert parse_fstab(FSTAB) == {"/", "/scratch", "/local data"}


def test_an_fstab_of_nonsense_names_nothing(tmp_path: Path) -> None:
    cut = ["", "\0" * 300, "UUID=1", "\n" * 70000]
    for text in (*cut, "/dev/a /\\000 ext4", "\\777 \\777 ext4"):
        (tmp_path / "fstab").write_text(text)
        fstab = Fstab(tmp_path / "fstab")
        fstab.read_table()
        assert fstab.points == frozenset(), text[:30]


def test_an_fstab_without_end_is_bounded(tmp_path: Path) -> None:
    lines = [f"/dev/sd{number} /disk{number:05} ext4 defaults 0 2" for number in range(100000)]
    (tmp_path / "fstab").write_text("\n".join(lines))
    fstab = Fstab(tmp_path / "fstab")
    fstab.read_table()
    assert len(fstab.points) == 64
    filler = "#" * 65500 + "\n"
    (tmp_path / "fstab").write_text(filler + "/dev/sda /data/of/somebody ext4 defaults 0 2\n")
    fstab.read_table()
    fstab.read_table()
    assert fstab.points == frozenset()  # and not the half of a path


def test_a_torn_fstab_forgets_nothing_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fstab"
    fstab = Fstab(path)
    fstab.read_table()
    assert fstab.points == frozenset()
    path.write_text(FSTAB)
    fstab.read_table()
    path.write_text(FSTAB[:90])
    fstab.read_table()
    assert "/scratch" in fstab.points
    fstab.read_table()
    assert fstab.points == {"/"}
    path.unlink()
    os.mkfifo(path)
    fstab.read_table()  # and does not wait for somebody to write
    fstab.read_table()
    assert fstab.points == {"/"}
    path.unlink()
    fstab.read_table()
    fstab.read_table()
    assert fstab.points == frozenset()


def test_a_local_disk_of_fstab_is_watched_for_being_read_only(tree: Tree) -> None:
    """Not for space: jobs may fill it."""
    scratch = "40 27 9:127 / /scratch rw,noatime - xfs /dev/md127 rw"
    image = "41 27 7:3 / /local\\040data rw - ext4 /dev/loop3 rw"
    tree.write("etc/fstab", FSTAB)
    tree.write("proc/1/mountinfo", f"{ROOT}\n{scratch}\n{image}")
    subject = host(tree)
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        assert subject.filesystems.list_disks() == {"nvme0n1p1", "md127"}
        assert looking.readings("disk/md127").values == {"read_only": 0.0}
        assert "may fill it" in looking.readings("disk/md127").missing["free_ratio"]
        tree.write("proc/1/mountinfo", f"{ROOT}\n{scratch.removesuffix('rw')}rw,shutdown\n{image}")
        assert told(looking.look()) == {("fs/remounted_readonly", "disk/md127")}


def test_what_can_be_pulled_out_is_not_the_nodes(tree: Tree) -> None:
    tree.write("etc/fstab", "LABEL=stick /scratch ext4 defaults 0 2")
    tree.write("proc/1/mountinfo", f"{ROOT}\n40 27 8:17 / /scratch rw - ext4 /dev/sdb1 rw")
    tree.link("sys/dev/block/8:17", "sys/devices/usb/block/sdb/sdb1")
    tree.write("sys/devices/usb/block/sdb/removable", 1)
    subject = host(tree)
    subject.find_devices()
    assert subject.filesystems.list_disks() == {"nvme0n1p1"}
    tree.write("sys/devices/usb/block/sdb/removable", 0)
    assert {one.component.name for one in subject.filesystems.list_devices()} == {
        "disk/nvme0n1p1",
        "disk/sdb1",
    }


# --- drives


def test_a_drive_that_died(tree: Tree) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.write("sys/class/nvme/nvme0/state", "dead")
        (event,) = looking.look()
        assert (event.code, event.component.name, event.fields["pci"]) == (
            "nvme/lost",
            "disk/nvme0",
            "0000:00:1f.0",
        )
        assert "dead" in looking.readings("disk/nvme0").missing["temperature_celsius"]


def mounted(
    tree: Tree, *disks: str, kind: str = "ext4", beneath: dict[str, list[str]] | None = None
) -> None:
    """The root file system, and further ones under /data0, /data1, ...; which disks lie beneath
    which.
    """
    points = ["/", *(f"/data{number}" for number in range(len(disks)))]
    lines = [
        f"{30 + n} 1 0:{50 + n} / {p} rw - {kind} /dev/{d} rw"
        for n, (p, d) in enumerate(zip(points, disks))
    ]
    tree.write("proc/1/mountinfo", "\n".join(lines))
    for disk, slaves in (beneath or {}).items():
        for slave in slaves:
            (tree.root / f"sys/class/block/{disk}/slaves/{slave}").mkdir(parents=True)


LINES = {
    "name": "nvme nvme1: Disabling device after reset failure: -19",
    "address": "nvme 0000:00:1f.1: Removing after probe failure status: -19",
}


EBS, STORE = "Amazon Elastic Block Store", "Amazon EC2 NVMe Instance Storage"
RAID = {"dm-0": ["md127"], "md127": ["nvme2n1", "nvme1n1p3"]}


@pytest.mark.parametrize(
    ("seen", "model", "disks", "kind", "beneath", "action"),
    [
        ("state", EBS, ["nvme0n1p1", "nvme1n1"], "ext4", {}, Action.OBSERVE),
        ("name", EBS, ["nvme0n1p1", "nvme1n1"], "ext4", {}, Action.OBSERVE),
        ("state", STORE, ["nvme0n1p1", "nvme1n1"], "ext4", {}, Action.REBOOT_NODE),
        ("address", STORE, ["nvme0n1p1", "nvme1n1"], "ext4", {}, Action.REBOOT_NODE),
        ("state", EBS, ["nvme1n1p1"], "ext4", {}, Action.REBOOT_NODE),
        ("address", EBS, ["dm-0"], "xfs", RAID, Action.REBOOT_NODE),
        ("name", EBS, ["dm-0"], "xfs", {"dm-0": ["nvme2n1"]}, Action.OBSERVE),
        ("state", EBS, ["root"], "zfs", {}, Action.REBOOT_NODE),  # nobody knows
        ("state", "nvme_card-pd", ["vda1", "nvme1n1"], "ext4", {}, Action.OBSERVE),
    ],
)
def test_what_is_asked_for_where_a_drive_is_lost(
    tree: Tree,
    seen: str,
    model: str,
    disks: list[str],
    kind: str,
    beneath: dict[str, list[str]],
    action: Action,
) -> None:
    """A volume of a storage service may be detached by force: that is a fault of the node's where
    it needs a file system on it.
    """
    drive(tree, "nvme1", model, "vol0123456789abcdef0")
    tree.write("sys/class/nvme/nvme1/address", "0000:00:1f.1")
    mounted(tree, *disks, kind=kind, beneath=beneath)
    subject = host(tree)
    rule = CATALOG.find_rule("nvme/lost")
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        if seen == "state":
            tree.write("sys/class/nvme/nvme1/state", "dead")
            (fields,) = [event.fields for event in looking.look() if event.code == "nvme/lost"]
        else:
            tree.remove("sys/class/nvme/nvme1")
            known = Interpreter(
                CATALOG,
                DrillRegistry(),
                None,
                userspace="ignore",
                drive=subject.drives.describe_drive,
            )
            event = read_line(known, LINES[seen])
            assert event.code == "nvme/lost"
            fields = event.fields
    assert rule.apply_to(fields).action is action


def test_a_btrfs_file_system_over_two_drives(tree: Tree) -> None:
    mounted(tree, "nvme0n1", kind="btrfs")
    for disk in ("nvme0n1", "nvme1n1"):
        tree.write(f"sys/fs/btrfs/0123-4567/devices/{disk}", "")
    assert host(tree).filesystems.list_drives() == {"nvme0", "nvme1"}


def test_a_drive_that_was_never_seen_is_taken_for_the_machines_own(tree: Tree) -> None:
    known = Interpreter(
        CATALOG, DrillRegistry(), None, userspace="ignore", drive=host(tree).drives.describe_drive
    )
    event = read_line(known, "nvme nvme7: Disabling device after reset failure: -19")
    assert CATALOG.find_rule(event.code).apply_to(event.fields).action is Action.REBOOT_NODE


def read_line(known: Interpreter, text: str) -> Event:
    sighting = known.parse_record(text.encode())
    assert sighting is not None
    return known.make_event(sighting, text.encode(), 0, identity="1", time=1.0, boot_id="b", usec=1)


def test_a_reset_that_does_not_end(tree: Tree, clock: Clock) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.write("sys/class/nvme/nvme0/state", "resetting")
        assert looking.look() == []
        clock.pass_(299)
        assert looking.look() == []
        clock.pass_(1)
        assert told(looking.look()) == {("nvme/not_live", "disk/nvme0")}


def test_a_drive_of_the_machine_is_missed_and_a_volume_is_not(tree: Tree) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.remove("sys/class/nvme/nvme0")
        tree.remove("sys/class/nvme/nvme1")
        assert told(looking.look(3)) == {("nvme/missing", "disk/nvme0")}
        drive(tree, "nvme2", STORE, "AWS22DD0011AABBCC")  # back, under another name
        assert any(
            event.fields.get("recovered")
            for event in looking.look()
            if event.code == "nvme/missing"
        )


def test_a_hot_drive(tree: Tree, clock: Clock) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        tree.write("sys/class/nvme/nvme0/hwmon3/temp1_alarm", 1)
        looking.look()
        clock.pass_(60)
        assert told(looking.look()) == {("nvme/hot", "disk/nvme0")}


def test_two_paths_to_one_drive_are_told_apart_by_name(tree: Tree) -> None:
    for name in ("nvme2", "nvme3"):
        drive(tree, name, "QEMU NVMe Ctrl", "deadbeef")
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        assert looking.readings("disk/nvme2").identity == "disk/nvme2"
        assert looking.readings("disk/nvme0").identity == "AWS22DD0011AABBCC"


def test_a_drive_without_a_sensor(tree: Tree) -> None:
    tree.remove("sys/class/nvme/nvme0/hwmon3")
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        assert "no sensor" in looking.readings("disk/nvme0").missing["temperature_celsius"]


def test_a_drive_that_does_not_answer_is_named(tree: Tree) -> None:
    tree.hang("sys/class/nvme/nvme0/hwmon3/temp1_input")
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.expect_hang()
        looking.until(lambda batch: any(event.code == "host/hung" for event in batch.events))
        (event,) = [event for event in looking.events if event.code == "host/hung"]
        assert event.component.name == "disk/nvme0"
        assert looking.readings("disk/nvme1").values["state"] == "live"
        with (tree.root / "sys/class/nvme/nvme0/hwmon3/temp1_input").open("w") as file:
            file.write("38850\n")
