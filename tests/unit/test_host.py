"""The host: memory, processors, drives and file systems, from trees that stand for /sys and
/proc.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.looking import Looking, polled, told
from tests.trees import Tree
from vitald.collectors.host.clock import Timex
from vitald.collectors.host.collector import Host
from vitald.collectors.host.settings import HostSettings
from vitald.model.source import Position, SourceState
from vitald.topology.fstab import Fstab

KINDS = ("host", "edac", "thermal", "fs", "nvme", "clock", "unit")
EDAC = "sys/devices/system/edac/mc"
ROOT = "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw,errors=remount-ro"
MEMINFO = (
    "MemTotal:       2097152000 kB\nMemAvailable:   1048576000 kB\nHardwareCorrupted:     {} kB"
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A bare-metal node: two memory controllers, two packages, a local drive and a volume."""
    tree = Tree(tmp_path)
    for controller in (0, 1):
        folder = f"{EDAC}/mc{controller}"
        for name in ("ce_count", "ce_noinfo_count", "ue_count", "ue_noinfo_count"):
            tree.write(f"{folder}/{name}", 0)
        for dimm in (0, 1):
            plain = {
                "ce_count": 0,
                "ue_count": 0,
                "label": f"CPU_SrcID#{controller}_MC#0_Chan#{dimm}_DIMM#0",
                "location": f"channel {dimm} slot 0",
            }
            for name, value in plain.items():
                tree.write(f"{folder}/dimm{dimm}/dimm_{name}", value)
    for cpu in range(4):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        tree.write(f"{folder}/topology/physical_package_id", cpu // 2)
        tree.write(f"{folder}/thermal_throttle/package_throttle_count", 0)
        tree.write(f"{folder}/thermal_throttle/package_throttle_total_time_ms", 0)
    tree.write("sys/devices/system/cpu/online", "0-3")
    drive(tree, "nvme0", "Amazon EC2 NVMe Instance Storage", "AWS22DD0011AABBCC")
    drive(tree, "nvme1", "Amazon Elastic Block Store", "vol0123456789abcdef0")
    tree.link("sys/dev/block/259:1", "sys/class/nvme/nvme0/nvme0n1/nvme0n1p1")
    (tree.root / "sys/class/nvme/nvme0/nvme0n1/nvme0n1p1").mkdir(parents=True)
    tree.write("proc/1/mountinfo", ROOT)
    tree.write("proc/meminfo", MEMINFO.format(0))
    tree.write("proc/loadavg", "0.20 0.18 0.12 1/800 11206")
    tree.write("proc/1/stat", "1 (systemd) S 0 1 1 0 -1 4194560 0")
    return tree


def drive(tree: Tree, name: str, model: str, serial: str, state: str = "live") -> None:
    who = {
        "model": f"{model}    ",
        "serial": serial,
        "firmware_rev": "0",
        "transport": "pcie",
        "address": "0000:00:1f.0",
        "state": state,
    }
    for file, value in who.items():
        tree.write(f"sys/class/nvme/{name}/{file}", value)
    tree.write(f"sys/class/nvme/{name}/hwmon3/temp1_input", 38850)
    tree.write(f"sys/class/nvme/{name}/hwmon3/temp1_alarm", 0)


def statvfs(*, free: float = 0.5, inodes: float = 0.5, files: int = 1000) -> os.statvfs_result:
    return os.statvfs_result(
        (
            4096,
            4096,
            1000,
            int(1000 * free),
            int(1000 * free),
            files,
            int(files * inodes),
            int(files * inodes),
            0,
            255,
        )
    )


def host(tree: Tree, *mounts: str) -> Host:
    settings, fstab = HostSettings(mounts=mounts or ("/",)), Fstab(tree.root / "etc/fstab")
    subject = Host(tree.root / "sys", tree.root / "proc", Path("/var/lib/vitald"), settings, fstab)
    subject.filesystems.statvfs = lambda _: statvfs()
    subject.clock.adjtimex = lambda: Timex(maxerror=1000)
    return subject


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    yield Clock(monkeypatch)


class Clock:
    """The monotonic clock of the source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("vitald.collectors.polling.time.monotonic", lambda: self.now)

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def test_a_healthy_host_is_read_and_says_nothing(tree: Tree) -> None:
    with Looking(polled(host(tree, "/", "/var/log"), *KINDS)) as looking:
        assert told(looking.look(3)) == set()
        assert looking.last.state is SourceState.OK
        names = {one.component.name for one in looking.last.readings}
        assert names >= {
            "dimm/MC0",
            "dimm/MC1.dimm1",
            "cpu/package0",
            "cpu/package1",
            "disk/nvme0",
            "disk/nvme0n1p1",
            "node/memory",
        }
        assert looking.readings("disk/nvme0").values == {
            "state": "live",
            "temperature_celsius": 38.85,
            "temperature_alarm": 0.0,
            "needed": 1,
            "volume": 0,
        }
        assert "root" in looking.readings("disk/nvme0").missing["wear"]
        assert looking.readings("disk/nvme0n1p1").values["free_ratio"] == 0.5
        assert looking.readings("node/memory").values["memory_available_bytes"] == 1048576000 * 1024


# --- memory


def test_an_uncorrected_error_names_its_dimm_and_its_controller(tree: Tree) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.write(f"{EDAC}/mc1/dimm1/dimm_ue_count", 1)
        tree.write(f"{EDAC}/mc1/ue_count", 1)
        (event,) = looking.look()
        assert (event.code, event.component.name) == ("edac/uncorrected_counted", "dimm/MC1.dimm1")
        assert event.fields["label"] == "CPU_SrcID#1_MC#0_Chan#1_DIMM#0"
        assert event.fields["port"] == "MC1"
        assert "CPU_SrcID#1_MC#0_Chan#1_DIMM#0" in event.raw
        assert looking.look() == []


def test_errors_of_no_known_dimm_are_their_controllers(tree: Tree) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.write(f"{EDAC}/mc0/ue_noinfo_count", 2)
        assert told(looking.look()) == {("edac/uncorrected_counted", "dimm/MC0")}


@pytest.mark.parametrize("gone", ["dimm0/dimm_ce_count", "dimm0"])
def test_a_controller_without_counting_dimms_counts_itself(tree: Tree, gone: str) -> None:
    for dimm in ("dimm0", "dimm1"):
        tree.remove(f"{EDAC}/mc0/{gone.replace('dimm0', dimm, 1)}")
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.write(f"{EDAC}/mc0/ue_count", 1)
        assert told(looking.look()) == {("edac/uncorrected_counted", "dimm/MC0")}


def test_what_was_counted_before_a_restart_is_not_told_again_and_a_boot_begins_anew(
    tree: Tree,
) -> None:
    tree.write(f"{EDAC}/mc0/dimm0/dimm_ue_count", 3)
    with Looking(polled(host(tree), *KINDS)) as looking:
        assert told(looking.look()) == {("edac/uncorrected_counted", "dimm/MC0.dimm0")}
        position = looking.position
    assert isinstance(position, Position)
    with Looking(polled(host(tree), *KINDS), position) as looking:
        assert told(looking.look()) == set()
    tree.write(f"{EDAC}/mc0/dimm0/dimm_ue_count", 1)
    with Looking(polled(host(tree), *KINDS, boot_id="boot-2"), position) as looking:
        assert told(looking.look()) == {("edac/uncorrected_counted", "dimm/MC0.dimm0")}


@pytest.mark.parametrize(("errors", "often"), [(50, False), (51, True)])
def test_corrected_errors_matter_by_the_day(
    tree: Tree, clock: Clock, errors: int, often: bool
) -> None:
    tree.write(f"{EDAC}/mc0/dimm0/dimm_ce_count", 1000)  # of before
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        clock.pass_(3600)
        tree.write(f"{EDAC}/mc0/dimm0/dimm_ce_count", 1000 + errors)
        assert told(looking.look()) == (
            {("edac/corrected_often", "dimm/MC0.dimm0")} if often else set()
        )


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    with Looking(polled(host(Tree(tmp_path)), *KINDS)) as looking:
        assert told(looking.look(2)) == set()
        assert looking.last.state is SourceState.OK
        missing = {one.component.name: one.missing for one in looking.last.readings}
        assert "EDAC" in missing["dimm"]["uncorrected_errors"]
        assert "virtual machine" in missing["cpu"]["package_throttles"]
        assert "memory_available_bytes" in missing["node/memory"]
        assert "load" in missing["node/processes"]
        assert "read_only" in missing["disk//"]


def test_pages_taken_out_of_use_and_memory_that_runs_out(tree: Tree, clock: Clock) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.write("proc/meminfo", MEMINFO.format(4))
        assert told(looking.look()) == {("host/memory_corrupted", "node/memory")}
        tree.write("proc/meminfo", "MemAvailable: 90000 kB")
        looking.look()
        clock.pass_(60)
        assert told(looking.look()) == {("host/memory_low", "node/memory")}
        assert (
            "HardwareCorrupted" in looking.readings("node/memory").missing["memory_corrupted_bytes"]
        )


# --- processors


@pytest.mark.parametrize(("ms", "slow"), [(59_000, False), (61_000, True)])
def test_a_package_that_is_slowed_down_for_a_fifth_of_the_time(
    tree: Tree, clock: Clock, ms: int, slow: bool
) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        clock.pass_(290)
        for cpu in (2, 3):
            tree.write(
                f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/package_throttle_total_time_ms",
                ms,
            )
        assert told(looking.look()) == (
            {("thermal/throttled_long", "cpu/package1")} if slow else set()
        )


def test_cpus_that_go_offline_are_no_surprise(tree: Tree) -> None:
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        tree.remove("sys/devices/system/cpu/cpu0/thermal_throttle")
        tree.write("sys/devices/system/cpu/online", "1-3")
        looking.look()
        assert looking.readings("cpu/package0").values["package_throttles"] == 0.0
        assert looking.readings("cpu/package0").missing == {}
