"""The idle detector: who uses the devices, told from laid-out trees, and from real processes of
this machine.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import until
from vitald.diagnostics.idle import device_users
from vitald.diagnostics.idle.detector import (
    IdleContext,
    IdleDetector,
    Use,
    UseKind,
    find_pod,
    find_slurm_job,
    list_slurm_jobs,
)
from vitald.diagnostics.idle.device_users import DeviceUser, ProcessTable
from vitald.diagnostics.idle.harmless import PROGRAMS, KnownPrograms, RunningProgram

POD = "0b4a3c1e-55aa-4c0f-9d2e-1f2a3b4c5d6e"
KERNEL_THREAD = 0x00200000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Detector(IdleDetector):
    """With what others say at the moment, which a test changes."""

    context = IdleContext()

    def given(self, **said: Any) -> None:
        self.context = replace(self.context, **said)

    def uses(self) -> tuple[Use, ...]:
        return self.find_uses(self.context)


class Tree:
    """A node's procfs, cgroups and device files in a folder."""

    def __init__(self, folder: Path, *, gpus: int = 8, neurons: int = 0) -> None:
        self.procfs, self.cgroup, self.dev = folder / "proc", folder / "cgroup", folder / "dev"
        for one in (self.procfs, self.cgroup, self.dev):
            one.mkdir(parents=True)
        for name in (
            *(f"nvidia{index}" for index in range(gpus)),
            *(f"neuron{index}" for index in range(neurons)),
            "nvidiactl",
            "null",
        ):
            (self.dev / name).touch()
        self.clock = Clock()

    def process(
        self,
        pid: int,
        name: str = "python3",
        files: Sequence[str] = (),
        *,
        parent: int = 1,
        session: int = 1,
        flags: int = 0,
        state: str = "S",
        threads: int = 1,
        pending: int = 0,
        cgroup: str = "0::/user.slice/user-1000.slice/session-3.scope\n",
        cmdline: str = "",
        environ: str = "",
    ) -> Path:
        folder = self.procfs / str(pid)
        (folder / "fd").mkdir(parents=True)
        for number, path in enumerate(("/dev/null", "pipe:[4711]", *files)):
            self.open(pid, number, path)
        (folder / "stat").write_text(
            f"{pid} ({name}) {state} {parent} 1 {session} 0 -1 {flags} {'0 ' * 10}{threads} 0 100"
            f" {'0 ' * 8}{pending} 0\n"
        )
        (folder / "cgroup").write_text(cgroup)
        (folder / "cmdline").write_text(cmdline or f"{name}\0")
        (folder / "environ").write_text(environ)
        return folder

    def open(self, pid: int, number: int, path: str) -> None:
        target = path.replace("/dev/", f"{self.dev}/", 1) if path.startswith("/dev/") else path
        (self.procfs / str(pid) / "fd" / str(number)).symlink_to(target)

    def hide(self, pid: int) -> None:
        """Its open files are there and cannot be listed, by whoever asks."""
        shutil.rmtree(self.procfs / str(pid) / "fd")
        (self.procfs / str(pid) / "fd").symlink_to("fd")

    def job(self, path: str, *, processes: str = "4711\n") -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text(processes)

    def detector(
        self, *, own: Sequence[int] = (), ignored: Sequence[str] = (), users: bool = False
    ) -> Detector:
        """`users`: who runs this test, and so owns the tree, is an ordinary user; else an account
        of the system's.
        """
        accounts = range(0) if users else range(os.getuid() + 1)
        return Detector(
            self.procfs,
            self.cgroup,
            self.dev,
            own=own,
            ignored=ignored,
            accounts=accounts,
            proven=lambda link: True,
            clock=self.clock,
        )

    def table(self) -> ProcessTable:
        return ProcessTable(self.procfs, self.dev, lambda link: True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """To read it costs nothing: on a machine with other work a look would else be put off for what
    it took.
    """
    monkeypatch.setattr(device_users, "perf_counter", lambda: 0.0)
    return Tree(tmp_path / "node")


def words(uses: Sequence[Use]) -> list[str]:
    return [use.words for use in uses]


# --- files that are open


def test_a_process_with_a_device_open_is_a_use(tree: Tree) -> None:
    devices = (
        "nvidia0",
        "nvidia15",
        "nvidia-uvm",
        "nvidia-caps/nvidia-cap3",
        "nvidia-caps/nvidia-cap21",
        "neuron0",
        "neuron15",
    )
    for pid, device in enumerate(devices, 1):
        tree.process(pid, files=[f"/dev/{device}"])
    tree.process(9, files=["/dev/nvidia0 (deleted)"])
    assert {use.pid: use for use in tree.detector().uses()} == {
        pid: Use(
            kind=UseKind.PROCESS,
            words=f"python3 (pid {pid}) has {device} open",
            pid=pid,
            device=device,
        )
        for pid, device in (*enumerate(devices, 1), (9, "nvidia0"))
    }


def test_other_files_of_the_driver_and_files_of_such_names_are_none(tree: Tree) -> None:
    files = [
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
        "/dev/nvidia-caps/nvidia-cap1",  # MIG's configuration and its monitor
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia0.log",
        "/home/user/nvidia0",
        "/usr/lib/nvidia/nvidia0",
        "/dev/neuron",
    ]
    for pid, file in enumerate(files, 4711):
        tree.process(pid, files=[file])
    assert tree.detector().uses() == ()


def test_eight_devices_of_one_process_are_one_use(tree: Tree) -> None:
    devices = ("nvidiactl", *(f"nvidia{index}" for index in range(8)), "nvidia-uvm", "nvidia3")
    tree.process(4711, files=[f"/dev/{device}" for device in devices])
    assert words(tree.detector().uses()) == ["python3 (pid 4711) has nvidia-uvm and 8 more open"]


def test_a_process_that_only_changed_its_root_is_seen(tree: Tree) -> None:
    tree.process(4711, files=["/srv/image/dev/nvidia2"])
    assert [use.device for use in tree.detector().uses()] == ["nvidia2"]


def test_a_plain_file_that_is_called_like_a_device_is_none(tree: Tree) -> None:
    tree.process(4711, files=["/dev/nvidia0"])  # it exists, and is an ordinary file
    table = ProcessTable(tree.procfs, tree.dev)
    table.read_processes(0.0)
    assert table.device_users == []


def test_daemons_and_monitors_do_not_count(tmp_path: Path) -> None:
    """By their names only where the account is the system's: a name is anybody's to take."""
    for first in range(0, len(PROGRAMS), 10):
        tree = Tree(tmp_path / str(first))
        pids = range(first, min(first + 10, len(PROGRAMS)))
        for pid in pids:
            name = PROGRAMS[pid].path.rpartition("/")[2][:15]
            tree.process(pid, name, ["/dev/nvidia0", "/dev/nvidia-uvm"])
        assert tree.detector().uses() == ()
        assert sorted(use.pid or 0 for use in tree.detector(users=True).uses()) == [*pids]


def test_a_site_may_name_more_monitors(tree: Tree) -> None:
    tree.process(4711, "our-gpu-exporte", ["/dev/nvidia0"])
    assert len(tree.detector().uses()) == 1
    detector = tree.detector(ignored=["/opt/our/our-gpu-exporter-of-many-words"])
    assert detector.uses() == ()
    detector.given(compute={"gpu/0": [4711]})
    assert detector.uses() == ()


def test_where_a_program_can_be_looked_at_its_path_counts_and_its_name_does_not() -> None:
    there = RunningProgram("anything", 1000, "/usr/bin/nvidia-smi", file_owner=0)
    known = [
        there,
        replace(there, file_owner=998),  # some packages give their files to their own account
        RunningProgram("nvidia-smi", 0),
    ]
    unknown = [
        replace(there, file_owner=1000),  # a user's own file, in a mount namespace of his own
        replace(there, file_owner=100000),  # root's, in a user namespace
        replace(there, file_owner=None),
        RunningProgram("nvidia-smi", 0, "/home/u/nvidia-smi", file_owner=0),
        RunningProgram("nvidia-smi", 1000),
        RunningProgram("nvidia-smi"),
    ]
    monitors = KnownPrograms(["/usr/bin/nvidia-smi"])
    assert [one for one in (*known, *unknown) if monitors.matches_process(one)] == known


def test_where_distributions_put_them() -> None:
    known = KnownPrograms(one.path for one in PROGRAMS)
    paths = (
        "/usr/sbin/nvidia-cuda-mps-server",
        "/usr/bin/slurmd",
        "/usr/lib/nvidia/current/nvidia-smi",
        "/usr/sbin/slurmd-wlm",
    )
    programs = [RunningProgram("anything", 0, path, file_owner=0) for path in paths]
    assert [one for one in programs if not known.matches_process(one)] == []


def test_each_program_says_who_puts_it_there() -> None:
    assert len({one.path for one in PROGRAMS}) == len(PROGRAMS)
    assert all(one.what and one.source and one.path.startswith("/") for one in PROGRAMS)


def test_the_program_of_a_process_is_looked_at(tree: Tree) -> None:
    program = shutil.which("env")
    assert program is not None
    tree.process(4711, "nvidia-smi", ["/dev/nvidia0"])
    (tree.procfs / "4711" / "exe").symlink_to(program)
    assert len(tree.detector().uses()) == 1, "so it calls itself"
    ours = tree.detector(ignored=[program]).uses()
    assert len(ours) == (0 if Path(program).stat().st_uid == 0 else 1)


def test_an_mps_server_is_no_work_though_the_driver_lists_it(tree: Tree) -> None:
    tree.process(10, "nvidia-cuda-mps-server"[:15], ["/dev/nvidia0"])
    detector = tree.detector()
    detector.given(compute={"gpu/0": [10]})
    assert detector.uses() == ()
    tree.process(12, "train", ["/dev/nvidia0"])
    detector.given(compute={"gpu/0": [10, 12], "gpu/1": [12]})
    assert words(detector.uses()) == ["train (pid 12) has nvidia0 open"]


def test_what_is_ours_does_not_count(tree: Tree) -> None:
    tree.process(100, "vitald")
    tree.process(101, "python3", ["/dev/nvidia0"], parent=100)
    tree.process(102, "sh", parent=101)
    tree.process(103, "all_reduce_perf", ["/dev/nvidia1"], parent=102)
    tree.process(104, "nvvs", ["/dev/nvidia2", "/dev/nvidia-uvm"])
    tree.process(105, "helper", ["/dev/nvidia3"], session=103)  # an orphan
    tree.process(106, "helper", ["/dev/nvidia4"], environ="VITALD_RUN=1\0")
    assert [use.pid for use in tree.detector(own=[100]).uses()] == [106]
    assert [use.pid for use in tree.detector().uses()] == [101, 103, 105, 106]


def test_what_is_in_a_control_group_of_a_run_does_not_count(tree: Tree) -> None:
    service = "0::/system.slice/vitald.service"
    (tree.procfs / "self").mkdir(parents=True)
    (tree.procfs / "self/cgroup").write_text(f"4:memory:/\n{service}\n")
    tree.process(1, "systemd")
    tree.process(101, "helper", ["/dev/nvidia0"], cgroup=f"{service}/diagnostic-7\n")
    tree.process(
        102, "train", ["/dev/nvidia1"], cgroup=f"0::/user.slice{service[3:]}/diagnostic-7\n"
    )
    tree.process(103, "train", ["/dev/nvidia2"], cgroup="0::/user.slice/diagnostic-7\n")
    assert [use.pid for use in tree.detector(own=[100]).uses()] == [102, 103]


def test_parents_that_go_in_a_circle_end(tree: Tree) -> None:
    tree.process(100, files=["/dev/nvidia0"], parent=101)
    tree.process(101, parent=100)
    assert [use.pid for use in tree.detector(own=[5]).uses()] == [100]


def test_names_that_are_meant_to_deceive(tree: Tree) -> None:
    tree.process(1, "evil) R 1\x1b[31m\n\u202e", ["/dev/nvidia0"])
    tree.process(2, "\n" * 15, ["/dev/nvidia0"])
    assert words(tree.detector().uses()) == [
        "evil) R 1?[31m?? (pid 1) has nvidia0 open",
        f"{'?' * 15} (pid 2) has nvidia0 open",
    ]


def test_open_files_that_cannot_be_shown_do_not_matter(tree: Tree) -> None:
    folder = tree.process(4711, files=["/dev/nvidia0"])
    (folder / "fd/90").symlink_to(os.fsdecode(b"/tmp/\xff\xfe\n/dev/nvidia\xff"))
    (folder / "fd/91").symlink_to("/" + "a/dev/" * 600 + "nvidia")
    assert [use.device for use in tree.detector().uses()] == ["nvidia0"]


def test_a_young_process_is_looked_at_each_time_and_an_old_one_every_two_seconds(
    tree: Tree,
) -> None:
    tree.process(15, "old")
    detector = tree.detector()
    assert detector.uses() == ()
    tree.process(16, "new")
    assert detector.uses() == ()
    tree.open(15, 50, "/dev/nvidia1")
    tree.open(16, 50, "/dev/nvidia2")
    tree.clock.now += 0.5
    assert [use.pid for use in detector.uses()] == [16]
    tree.clock.now += 1.6
    assert [use.pid for use in detector.uses()] == [15, 16]


def test_after_a_pause_all_are_looked_at_and_then_by_turns(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no look costs much more than the others."""
    for pid in range(100, 260):
        tree.process(pid)
    table = tree.table()
    looked: list[int] = []
    real_look = table._update_process
    monkeypatch.setattr(
        table, "_update_process", lambda pid, *rest: (looked.append(pid), real_look(pid, *rest))[1]
    )
    monkeypatch.setattr(device_users, "perf_counter", lambda: 0.0)
    counts = []
    for now in (0.0, 600.0, 600.5, 601.0, 601.5, 602.0, 602.5, 603.0, 603.5):
        looked.clear()
        table.read_processes(now)
        counts.append(len(looked))
    assert counts[:2] == [160, 160]
    assert max(counts[2:]) <= 50
    assert sum(counts[2:6]) >= 160, "each at least once in two seconds"


def test_who_has_ended_or_let_go_is_no_use_any_more(tree: Tree) -> None:
    tree.process(1, files=["/dev/nvidia1"])
    folder = tree.process(2, files=["/dev/nvidia2"])
    detector = tree.detector()
    assert [use.pid for use in detector.uses()] == [1, 2]
    (tree.procfs / "1").rename(tree.procfs / "gone")
    (folder / "fd/2").unlink()
    assert [use.pid for use in detector.uses()] == [2], "it was read a moment ago"
    tree.clock.now += 2.5
    assert detector.uses() == ()


def test_a_number_that_was_given_out_again_is_another_process(tree: Tree) -> None:
    tree.process(7, "kworker/0:1", flags=KERNEL_THREAD)
    detector = tree.detector()
    assert detector.uses() == ()
    (tree.procfs / "7").rename(tree.procfs / "gone")  # its inode stays in use
    tree.process(7, "train", ["/dev/nvidia0"])
    assert [use.words for use in detector.uses()] == ["train (pid 7) has nvidia0 open"]


def test_kernel_threads_are_looked_at_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(2, 200):
        tree.process(pid, "kworker", flags=KERNEL_THREAD)
        if pid % 2:
            tree.hide(pid)  # as to anybody but root
    tree.process(300, "bash")
    table = tree.table()
    looked: list[object] = []
    real = table._open_files
    monkeypatch.setattr(
        table, "_open_files", lambda process: (looked.append(process), real(process))[1]
    )
    for second in range(10):
        table.read_processes(100.0 * second)
    assert looked.count(300) == 10
    assert len(looked) == 198 + 10
    assert table.hidden == 0


def test_a_process_that_ends_while_it_is_looked_at_is_none(tree: Tree) -> None:
    (tree.procfs / "1").mkdir()
    (tree.procfs / "2/fd").mkdir(parents=True)
    tree.open(2, 0, "/dev/nvidia0")  # and its stat is gone
    tree.process(3, state="Z")
    (tree.procfs / "4").write_text("not a folder")
    assert tree.detector().uses() == ()


def test_a_table_of_files_without_end_is_not_read_to_its_end(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_users, "_MAX_FILES", 100)
    tree.process(4711, files=[f"socket:[{number}]" for number in range(200)])
    table = tree.table()
    table.read_processes(0.0)
    assert table.hidden == 1
    assert table.unreadable_reason == "1 process could not be checked"


def test_a_table_that_takes_long_to_read_is_read_more_seldom(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.process(4711)
    table = tree.table()
    times = iter([0.0, 0.2])  # 200 ms
    monkeypatch.setattr(device_users, "perf_counter", lambda: next(times))
    table.read_processes(0.0)
    tree.open(4711, 60, "/dev/nvidia0")
    table.read_processes(9.0)
    assert table.device_users == []
    monkeypatch.setattr(device_users, "perf_counter", lambda: 0.0)
    table.read_processes(10.5)
    assert table.device_users == [DeviceUser(pid=4711, name="python3", devices=("nvidia0",))]


def test_a_thread_that_outlives_the_first_one_is_seen(tree: Tree) -> None:
    """Such as one that is stuck in the driver after the process was killed."""
    folder = tree.process(4711, "train", state="Z", threads=2)
    shutil.rmtree(folder / "fd")
    for thread in ("4711", "4712"):
        (folder / "task" / thread / "fd").mkdir(parents=True)
    (folder / "task/4712/fd/5").symlink_to(tree.dev / "nvidia6")
    assert words(tree.detector().uses()) == ["train (pid 4711) has nvidia6 open"]


# --- before a reboot


def test_a_reboot_waits_for_what_it_would_end(tree: Tree) -> None:
    """Also for tests of DCGM that no run of ours has begun, and what an earlier daemon left."""
    tree.process(1, "systemd")
    tree.process(100, "vitald", ["/dev/nvidia0"])
    tree.process(101, "vitald-nvml", ["/dev/nvidia1"], parent=100)
    tree.process(200, "nv-hostengine", ["/dev/nvidia0"])
    tree.process(300, "nvvs", ["/dev/nvidia2"])
    tree.process(400, "sleep", ["/dev/nvidia3"])
    tree.process(500, "python3", ["/dev/nvidia4"], cgroup="0::/slurmstepd.scope/job_7/step_0\n")
    detector = tree.detector(own=[100])
    assert words(detector.find_device_users()) == [
        "job 7 (slurm)",
        "nvvs (pid 300) has nvidia2 open",
        "sleep (pid 400) has nvidia3 open",
    ]


@pytest.mark.parametrize(
    ("state", "flags", "pending", "ends"),
    [
        ("D", 0, 1 << 8, True),  # SIGKILL
        ("D", 0x4, 0, True),  # PF_EXITING
        ("D", 0x400000, 0, False),
        ("D", 0, 1 << 14, False),  # SIGTERM, which it may handle
        ("T", 0, 0, False),
    ],
)
def test_a_reboot_does_not_wait_for_what_only_a_reboot_ends(
    tree: Tree, state: str, flags: int, pending: int, ends: bool
) -> None:
    """A process that was killed and is stuck in the driver. A diagnostic cannot use its devices."""
    tree.process(500, "train", ["/dev/nvidia4"], state=state, flags=flags, pending=pending)
    held = ["train (pid 500) has nvidia4 open"]
    assert words(tree.detector().find_device_users()) == ([] if ends else held)
    assert words(tree.detector().uses()) == held


@pytest.mark.parametrize(("pending", "ends"), [(0, False), (1 << 8, True)])
def test_a_killed_process_is_one_all_of_whose_threads_were_killed(
    tree: Tree, pending: int, ends: bool
) -> None:
    """The first thread has ended, which says nothing of the others."""
    folder = tree.process(500, "train", state="Z", flags=0x4, threads=2)
    (folder / "task").mkdir()
    tree.process(501, "train", ["/dev/nvidia4"], state="D", pending=pending)
    (tree.procfs / "501").rename(folder / "task/501")
    held = ["train (pid 500) has nvidia4 open"]
    assert words(tree.detector().find_device_users()) == ([] if ends else held)
    (folder / "task/501/stat").unlink()  # it cannot be read
    assert words(tree.detector().find_device_users()) == held


def test_who_is_not_seen_may_be_at_work(tree: Tree) -> None:
    tree.process(500, "train", ["/dev/nvidia4"])
    tree.hide(500)
    said = ["not known: 1 process could not be checked"]
    assert words(tree.detector().find_device_users()) == said
    shutil.rmtree(tree.procfs)
    assert "No such file" in words(tree.detector().find_device_users())[0]


# --- Slurm


def test_steps_of_slurm_name_their_jobs(tree: Tree) -> None:
    tree.process(10, "slurmstepd", cmdline="slurmstepd: [123.0]\0\0\0")
    tree.process(11, "slurmstepd", cmdline="slurmstepd: [123.batch]\0")
    tree.process(12, "slurmstepd", cmdline="slurmstepd: [4500.extern]\0")
    tree.process(13, "slurmstepd", cmdline="/usr/sbin/slurmstepd\0infinity\0")
    tree.process(14, "slurmd", ["/dev/nvidia0"], cmdline="/usr/sbin/slurmd\0-D\0")
    tree.process(15, "slurmstepd", cmdline="slurmstepd: [99.0]\0", state="Z")
    assert words(tree.detector().uses()) == ["job 123 (slurm)", "job 4500 (slurm)"]


def test_a_step_that_just_begins_counts_and_is_named_once_it_says_its_job(tree: Tree) -> None:
    detector = tree.detector()
    assert detector.uses() == ()
    folder = tree.process(10, "slurmd")
    assert detector.uses() == ()
    tree.process(11, "slurmstepd", cmdline="/usr/sbin/slurmstepd\0")
    assert words(detector.uses()) == ["a job of Slurm's (pid 11)"]
    tree.clock.now += 0.5
    (tree.procfs / "11/cmdline").write_text("slurmstepd: [77.batch]\0")
    (folder / "stat").write_text((folder / "stat").read_text().replace("slurmd", "slurmstepd"))
    (folder / "cmdline").write_text("slurmstepd: [78.batch]\0")
    assert words(detector.uses()) == ["job 78 (slurm)", "job 77 (slurm)"]


def test_cgroups_of_slurm_name_their_jobs(tree: Tree) -> None:
    for number, path in enumerate(
        (
            "system.slice/slurmstepd.scope",
            "system.slice/node1_slurmstepd.scope",
            "slurmstepd.scope",
            "unified/system.slice/slurmstepd.scope",
            "cpuset/slurm/uid_1000",
            "freezer/slurm_node1/uid_1000",
            "memory/slurm/uid_0",
        )
    ):
        tree.job(f"{path}/job_12{number}")
    tree.job("user.slice/user-1000.slice/slurm/job_9")
    tree.job("system.slice/slurmd.service/job_8")
    tree.job("system.slice/slurmstepd.scope/system")
    assert sorted(list_slurm_jobs(tree.cgroup)) == [f"12{number}" for number in range(7)]


def test_an_empty_cgroup_that_stayed_behind_is_no_job(tree: Tree) -> None:
    for job, populated in ((1, 0), (2, 1)):
        path = f"system.slice/slurmstepd.scope/job_{job}"
        tree.job(path, processes="")
        (tree.cgroup / path / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
    tree.job("cpuset/slurm/uid_1000/job_3", processes="")
    tree.job("cpuset/slurm/uid_1000/job_4", processes="")
    tree.job("cpuset/slurm/uid_1000/job_4/step_0/task_0", processes="4711\n")
    assert list_slurm_jobs(tree.cgroup) == ["2", "4"]


def test_a_job_is_told_once_whatever_names_it_and_with_its_process(tree: Tree) -> None:
    cgroup = "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n"
    tree.process(10, "slurmstepd", cmdline="slurmstepd: [123.0]\0")
    tree.process(11, "train", ["/dev/nvidia0"], cgroup=cgroup)
    tree.job("system.slice/slurmstepd.scope/job_123")
    detector = tree.detector()
    detector.given(announced=("123", "124"))
    assert detector.uses() == (
        Use(kind=UseKind.JOB, words="job 124", job="124"),
        Use(kind=UseKind.SLURM, words="job 123 (slurm)", job="123", pid=11, device="nvidia0"),
    )


# --- Kubernetes

SYSTEMD_POD = POD.replace("-", "_")


def test_a_process_of_a_pod_names_the_pod(tree: Tree) -> None:
    slice_ = f"pod{SYSTEMD_POD}.slice"
    cgroups = [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{slice_}"
        "/cri-containerd-9f2c.scope\n",
        f"0::/kubepods.slice/kubepods-{slice_}/crio-9f2c.scope\n",
        f"0::/kubepods/besteffort/pod{POD}/9f2c\n",
        f"12:devices:/kubepods/burstable/pod{POD}/9f2c\n"
        f"11:memory:/kubepods/burstable/pod{POD}/9f2c\n0::/\n",
        "1:name=systemd:/kubepods.slice/kubepods-besteffort.slice"
        f"/kubepods-besteffort-{slice_}/docker-9f2c.scope\n",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-{slice_}"
        "/cri-containerd-9f2c.scope\n",
    ]
    assert {cgroup: find_pod(cgroup) for cgroup in cgroups} == dict.fromkeys(cgroups, POD)
    tree.process(4711, "train", ["/dev/nvidia0"], cgroup=cgroups[0])
    tree.process(4712, "train", ["/dev/nvidia1"], cgroup=cgroups[0])
    tree.process(4713, "pause", cgroup=cgroups[0])
    assert tree.detector().uses() == (
        Use(
            kind=UseKind.POD,
            words=f"pod {POD}: train (pid 4711) has nvidia0 open",
            pod=POD,
            pid=4711,
            device="nvidia0",
        ),
    )


def test_a_pod_that_does_not_come_from_the_api_server_has_another_sort_of_uid() -> None:
    uid = "6f0f7a51cd1b2b64b2f9b3d4e5f60718"
    assert find_pod(f"0::/kubepods/burstable/pod{uid}/9f2c\n") == uid
    assert find_pod("0::/system.slice/podman-9f2c.scope\n") == ""


@given(st.text(max_size=300))
def test_no_cgroup_confuses(text: str) -> None:
    assert len(find_pod(text)) in (0, 32, 36)
    assert len(find_slurm_job(text)) <= 40


@given(st.text(alphabet="kubepods/.slicejob_0123-:\n", max_size=200))
def test_a_pods_name_is_found_among_anything(text: str) -> None:
    assert find_pod(f"{text}\n0::/kubepods/burstable/pod{POD}/1\n") == POD


# --- what others say


def test_announced_jobs_and_a_release_are_uses(tree: Tree) -> None:
    detector = tree.detector()
    detector.given(announced=("55\n",), released="all GPUs released until 12:00:00")
    assert words(detector.uses()) == ["released: all GPUs released until 12:00:00", "job 55?"]


def test_the_driver_names_processes_that_cannot_be_looked_at(tree: Tree) -> None:
    tree.process(10, "train", cgroup="0::/system.slice/slurmstepd.scope/job_123/step_0\n")
    tree.process(11, "notebook")
    tree.process(12, "bash")
    tree.process(13, "nvvs")
    for pid in (10, 11, 13):
        tree.hide(pid)
    detector = tree.detector()
    detector.given(compute={f"gpu/{index}": () for index in range(8)})
    assert detector.uses() == (), "nobody works on any"
    detector.given(
        compute={**detector.context.compute, "gpu/0": [10.0, 13.0], "gpu/1": [11, 12, 999]}
    )  # 12 has let go, 999 has ended
    assert words(detector.uses()) == [
        "job 123 (slurm)",
        "notebook (pid 11) computes on gpu/1, as the driver says",
    ]


def test_beside_a_run_of_ours_only_what_is_known_to_be_somebody_elses_counts(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path / "node", gpus=2, neurons=1)
    for pid, name, parent in ((10, "train", 1), (13, "nvvs", 1), (14, "nvbandwidth", 13)):
        tree.process(pid, name, parent=parent)
        tree.hide(pid)
    detector = tree.detector()
    detector.given(compute={"gpu/0": [13, 14]}, memory={"neuron/0": 4096.0})
    # Memory that has no owner, and a GPU that did not answer.
    assert [use.kind for use in detector.uses()] == [UseKind.DRIVER, UseKind.UNKNOWN]
    detector.given(testing=True)
    assert detector.uses() == ()
    detector.given(compute={"gpu/0": [13, 14, 10]})
    assert words(detector.uses()) == ["train (pid 10) computes on gpu/0, as the driver says"]


def test_what_dcgms_engine_starts_for_a_test_is_not_somebody_elses_work(tree: Tree) -> None:
    """DCGM 4 has tests that are programs of their own. A user may call his job so too."""
    tree.process(13, "nvvs")
    tree.process(14, "mpirun", parent=13)
    tree.process(15, "all_reduce_perf", ["/dev/nvidia0"], parent=14)
    tree.process(20, "all_reduce_perf", ["/dev/nvidia1"])
    assert words(tree.detector().uses()) == ["all_reduce_perf (pid 20) has nvidia1 open"]
    assert [use.pid for use in tree.detector(users=True).uses()] == [15, 20]


def test_a_monitor_that_computes_is_work_after_all(tree: Tree) -> None:
    tree.process(10, "nvidia-smi", ["/dev/nvidia0", "/dev/nvidia-uvm"])  # so it calls itself
    detector = tree.detector()
    detector.given(compute={"gpu/0": [10]})
    assert words(detector.uses()) == ["nvidia-smi (pid 10) computes on gpu/0, as the driver says"]


# --- what cannot be told


def test_where_processes_cannot_be_looked_at_the_driver_must_answer_for_every_gpu(
    tree: Tree,
) -> None:
    tree.process(10)
    tree.hide(10)
    detector = tree.detector()
    for answered in (0, 7):
        detector.given(compute={f"gpu/{index}": () for index in range(answered)})
        (use,) = detector.uses()
        assert (use.kind, f"{8 - answered} of 8 GPUs" in use.words) == (UseKind.UNKNOWN, True)
    detector.given(compute={f"gpu/{index}": () for index in range(8)})
    assert detector.uses() == ()


def test_the_same_of_neuron_devices(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "trainium", gpus=0, neurons=2)
    tree.process(10)
    detector = tree.detector()
    detector.given(memory={"neuron/0": 4096.0})
    assert detector.uses() == (), "who may look at all processes need not ask the driver"
    tree.hide(10)
    tree.clock.now += 3.0
    assert [use.kind for use in detector.uses()] == [UseKind.DRIVER, UseKind.UNKNOWN]
    detector.given(memory={"neuron/0": 0.0, "neuron/1": 0.0})
    assert detector.uses() == ()
    detector.given(memory={"neuron/0": 0.0, "neuron/1": 4096.0})
    assert words(detector.uses()) == ["memory of neuron/1 is in use, as the driver says"]


def test_in_a_container_of_its_own_only_the_driver_can_tell(tree: Tree) -> None:
    tree.process(1)
    tree.process(50, "bash")
    (tree.procfs / "self/ns").mkdir(parents=True)
    (tree.procfs / "self/ns/pid").symlink_to("pid:[4026532999]")
    detector = tree.detector()
    assert [use.kind for use in detector.uses()] == [UseKind.UNKNOWN]
    detector.given(compute={f"gpu/{index}": () for index in range(8)})
    assert detector.uses() == ()
    detector.given(
        compute={**detector.context.compute, "gpu/3": [50, 90210]}
    )  # not the 50 that is seen from here
    assert {use.device for use in detector.uses()} == {"gpu/3"}
    assert (
        words(detector.uses())[0] == "process 50 of the node computes on gpu/3, as the driver says"
    )
    assert not detector.sees_node
    detector.given(testing=True)
    assert detector.uses() == (), "which of these numbers are our own run's cannot be told"


def test_on_the_node_itself_all_of_it_is_seen(tree: Tree) -> None:
    tree.process(1)
    (tree.procfs / "self/ns").mkdir(parents=True)
    (tree.procfs / "self/ns/pid").symlink_to(device_users._HOST_PIDS)
    detector = tree.detector()
    assert detector.uses() == () and detector.sees_node


def test_where_other_users_processes_are_hidden_a_process_not_seen_has_not_ended(
    tree: Tree,
) -> None:
    tree.process(50, "vitald")
    (tree.procfs / "self").mkdir()
    detector = tree.detector()
    detector.given(compute={f"gpu/{index}": () for index in range(8)})
    assert detector.uses() == ()
    detector.given(compute={**detector.context.compute, "gpu/3": [90210]})
    assert words(detector.uses()) == ["a process (pid 90210) computes on gpu/3, as the driver says"]
    detector.given(compute={})
    assert [use.kind for use in detector.uses()] == [UseKind.UNKNOWN]


def test_a_node_without_devices_has_no_users(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "plain", gpus=0)
    tree.process(10)
    tree.hide(10)
    assert tree.detector().uses() == ()


def test_the_nodes_first_process_may_be_closed_to_anybody(tree: Tree) -> None:
    tree.process(1, "systemd")
    tree.hide(1)
    assert tree.detector().uses() == ()


def test_without_procfs_nothing_is_known(tree: Tree) -> None:
    tree.procfs.rmdir()
    (use,) = tree.detector().uses()
    assert use.kind is UseKind.UNKNOWN
    assert "No such file" in use.words


@given(
    st.dictionaries(
        st.sampled_from(["stat", "cmdline", "cgroup", "environ"]), st.binary(max_size=200)
    ),
    st.integers(1, 10**9),
)
def test_whatever_stands_in_procfs_a_look_returns(files: dict[str, bytes], pid: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder) / "node")
        process = tree.process(pid, "slurmstepd", ["/dev/nvidia0"])
        for name, content in files.items():
            (process / name).write_bytes(content)
        for use in tree.detector().uses():
            assert use.words.isprintable()


# --- for how long


def test_idle_time_begins_with_the_first_look_that_saw_nobody(tree: Tree) -> None:
    detector, clock = tree.detector(), tree.clock
    assert detector.get_idle_s(clock.now) == 0.0
    detector.uses()
    clock.now += 30
    detector.uses()
    assert detector.get_idle_s(clock.now + 5) == 35.0
    detector.given(announced=("1",))
    detector.uses()
    assert detector.get_idle_s(clock.now) == 0.0
    detector.given(announced=())
    clock.now += 10
    detector.uses()
    clock.now += 10
    assert detector.get_idle_s(clock.now) == 10.0


def test_a_look_that_failed_ends_it(tree: Tree) -> None:
    detector, clock = tree.detector(), tree.clock
    detector.uses()
    clock.now += 30
    assert detector.get_idle_s(clock.now) == 30.0
    assert detector.report_unknown("no answer within 5 s") == Use(
        kind=UseKind.UNKNOWN, words="not known: no answer within 5 s"
    )
    assert detector.get_idle_s(clock.now) == 0.0


def test_looks_that_are_far_apart_do_not_make_one_idle_time(tree: Tree) -> None:
    detector, clock = tree.detector(), tree.clock
    detector.uses()
    clock.now += 3600
    assert detector.get_idle_s(clock.now) == 0.0
    detector.uses()
    clock.now += 20
    assert detector.get_idle_s(clock.now) == 20.0


# --- real processes


@contextmanager
def child(code: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that says when it is ready, and ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


OPEN = """
    import sys
    held = open({path!r})
    print("ready", flush=True)
    sys.stdin.read()
"""


def real(folder: Path, own: Sequence[int] = ()) -> Detector:
    """Over this machine's real processes; devices are this test's own files: other tests have some
    of the same names open.
    """

    def is_ours(path: str) -> bool:
        return Path(path).is_file() and os.path.realpath(path).startswith(f"{folder}/")

    return Detector(cgroup=folder / "no cgroups", dev=folder, own=own, proven=is_ours)


@pytest.mark.usefixtures("whole_machine")
def test_a_real_process_is_seen_and_one_of_ours_is_not(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    detector = real(tmp_path)
    assert detector.uses() == ()
    with child(OPEN.format(path=str(device))) as process:
        (use,) = detector.uses()
        assert (use.pid, use.device) == (process.pid, "nvidia0")
        assert f"(pid {process.pid}) has nvidia0 open" in use.words
        assert real(tmp_path, own=[os.getpid()]).uses() == ()
        device.unlink()
        device.touch()  # as udev may make it anew
        assert [use.pid for use in real(tmp_path).uses()] == [process.pid]
    assert detector.uses() == ()


@pytest.mark.usefixtures("whole_machine")
def test_a_real_device_file_needs_no_help(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    try:
        os.mknod(device, 0o600 | 0o020000, Path("/dev/null").stat().st_rdev)
        device.open().close()
    except OSError as error:
        pytest.skip(f"no device files can be made here: {error}")
    (tmp_path / "nvidia1").touch()
    with (
        child(OPEN.format(path=str(device))) as process,
        child(OPEN.format(path=str(tmp_path / "nvidia1"))),
    ):
        detector = Detector(cgroup=tmp_path / "none", dev=tmp_path)
        assert [(use.pid, use.device) for use in detector.uses()] == [(process.pid, "nvidia0")]


@pytest.mark.usefixtures("whole_machine")
def test_a_real_process_whose_first_thread_has_ended(tmp_path: Path) -> None:
    number = {"x86_64": 60, "aarch64": 93}.get(platform.machine())
    if number is None:
        pytest.skip("the number of exit(2) is not known here")
    device = tmp_path / "nvidia0"
    device.touch()
    code = f"""
        import ctypes, threading, time
        held = open({str(device)!r})
        threading.Thread(target=time.sleep, args=(60,)).start()
        print("ready", flush=True)
        ctypes.CDLL(None).syscall({number}, 0)
    """
    with child(code) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: ") Z " in stat.read_text(), "the first thread's end")
        assert [use.pid for use in real(tmp_path).uses()] == [process.pid]
        assert [use.pid for use in real(tmp_path).find_device_users()] == [process.pid], (
            "the others work on"
        )


def test_processes_that_come_and_go_meanwhile(tmp_path: Path) -> None:
    detector = real(tmp_path)
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            subprocess.run(["/bin/true"], check=True)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert detector.uses() == ()
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_counts_whom_it_may_not_look_at(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "nvidia0").touch()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: or its own files are hidden from it
            table = ProcessTable(Path("/proc"), tmp_path)
            table.read_processes(0.0)
            os.write(writer, f"{table.hidden} {table.unreadable_reason}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as answer:
        hidden, _, blind = answer.read().partition(" ")
    kernel_threads = sum(
        (int(one.read_text().rpartition(")")[2].split()[6]) & KERNEL_THREAD) > 0
        for one in Path("/proc").glob("[0-9]*/stat")
    )
    assert int(hidden) > 0
    assert (
        kernel_threads == 0
        or int(hidden) < len(list(Path("/proc").glob("[0-9]*"))) - kernel_threads / 2
    )
    assert blind == f"{hidden} processes could not be checked"
