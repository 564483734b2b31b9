"""Required mount points, over mount tables in a folder that stands for /proc."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clock import Clock
from tests.looking import Looking, polled, told
from tests.pace import patient
from tests.trees import Tree
from vitald.collectors import polling
from vitald.collectors.inventory.settings import read_mount_points
from vitald.collectors.mounts.collector import RequiredMounts
from vitald.model import SourceState

ROOT = "22 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw"
FSX = "41 22 0:44 / /fsx rw,noatime shared:9 - lustre 10.0.0.5@tcp:/abcd rw,flock"
DATA = "42 22 0:45 / /home/data rw - nfs4 filer:/export rw,hard"
COMPONENT = "disk//fsx"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    set_mounts(tree, ROOT, FSX)
    return tree


def set_mounts(tree: Tree, *lines: str, own: tuple[str, ...] | None = None) -> None:
    """The tables of process 1 and of the daemon."""
    tree.write("proc/1/mountinfo", "\n".join(lines))
    tree.write("proc/self/mountinfo", "\n".join(lines if own is None else own))


def make_mounts(
    tree: Tree,
    *points: str,
    statvfs: Callable[[str], os.statvfs_result] = lambda _: os.statvfs("/"),
) -> RequiredMounts:
    mounts = RequiredMounts(tree.root / "proc", points)
    mounts.statvfs = statvfs
    return mounts


def fail(code: int) -> Callable[[str], os.statvfs_result]:
    def statvfs(_: str) -> os.statvfs_result:
        raise OSError(code, os.strerror(code))

    return statvfs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


def poll_for(looking: Looking, clock: Clock, rounds: int) -> set[tuple[str, str]]:
    """The findings of so many rounds, half a minute apart."""
    events = []
    for _ in range(rounds):
        events += looking.look()
        clock.ahead += 30.0
    return told(events)


def test_a_mounted_file_system_that_answers(tree: Tree, clock: Clock) -> None:
    with Looking(polled(make_mounts(tree, "/fsx"))) as looking:
        assert poll_for(looking, clock, 5) == set()
        readings = looking.readings(COMPONENT)
        assert looking.last.state is SourceState.OK
    assert (readings.values["mounted"], readings.values["answers"]) == (1.0, 1.0)
    assert readings.labels["type"] == "lustre"


def test_without_required_mounts_nothing_is_polled(tree: Tree) -> None:
    with Looking(polled(make_mounts(tree))) as looking:
        looking.look()
        assert (looking.last.state, looking.last.readings) == (SourceState.ABSENT, ())


def test_what_is_not_mounted_for_a_minute_is_missing(tree: Tree, clock: Clock) -> None:
    """Boot brings file systems up one after another: half a minute is nothing."""
    asked: list[str] = []

    def statvfs(point: str) -> os.statvfs_result:
        asked.append(point)
        return os.statvfs("/")

    set_mounts(tree, ROOT)
    with Looking(polled(make_mounts(tree, "/fsx", statvfs=statvfs))) as looking:
        assert poll_for(looking, clock, 2) == set()
        assert poll_for(looking, clock, 2) == {("mounts/missing", COMPONENT)}
        assert asked == []  # the folder below would answer for the wrong file system
        set_mounts(tree, ROOT, FSX)
        (event,) = looking.look()
    assert (event.code, event.fields["recovered"]) == ("mounts/missing", True)


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOTCONN, errno.EIO])
def test_a_file_system_that_returns_an_error(tree: Tree, clock: Clock, code: int) -> None:
    with Looking(polled(make_mounts(tree, "/fsx", statvfs=fail(code)))) as looking:
        assert poll_for(looking, clock, 4) == {("mounts/failed", COMPONENT)}
        failed = next(event for event in looking.events if event.code == "mounts/failed")
    assert errno.errorcode[code] in str(failed.fields["error"])


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_call_that_is_not_permitted_proves_nothing(tree: Tree, clock: Clock, code: int) -> None:
    with Looking(polled(make_mounts(tree, "/fsx", statvfs=fail(code)))) as looking:
        assert poll_for(looking, clock, 5) == set()
        readings = looking.readings(COMPONENT)
        assert looking.last.state is SourceState.OK
    assert "answers" not in readings.values
    assert errno.errorcode[code] in readings.missing["answers"]


def test_what_the_sandbox_hides_is_not_asked(tree: Tree, clock: Clock) -> None:
    set_mounts(tree, ROOT, DATA, own=(ROOT,))
    mounts = make_mounts(tree, "/home/data", statvfs=fail(errno.EIO))
    with Looking(polled(mounts)) as looking:
        assert poll_for(looking, clock, 5) == set()
        readings = looking.readings("disk//home/data")
    assert readings.values == {"mounted": 1.0}
    assert "hidden from the daemon" in readings.missing["answers"]


def test_a_mount_table_of_a_node_with_many_containers(tree: Tree, clock: Clock) -> None:
    """Longer than what other files of /proc may have: the last line counts, too."""
    overlay = "90 22 0:{0} / /run/c/{0} rw - overlay overlay rw,lowerdir=" + "/layer" * 500
    set_mounts(tree, ROOT, *(overlay.format(number) for number in range(200)), FSX)
    with Looking(polled(make_mounts(tree, "/fsx"))) as looking:
        assert poll_for(looking, clock, 4) == set()
        assert looking.readings(COMPONENT).values["mounted"] == 1.0


def test_a_mount_table_that_cannot_be_read_makes_the_node_unknown(tree: Tree) -> None:
    tree.remove("proc/1")
    tree.remove("proc/self")
    with Looking(polled(make_mounts(tree, "/fsx"))) as looking:
        assert told(looking.look()) == set()
        assert looking.last.state is SourceState.FAILED


def test_a_file_system_that_hangs_is_named_and_the_others_go_on(tree: Tree) -> None:
    set_mounts(tree, ROOT, FSX, DATA)
    answer = threading.Event()

    def statvfs(point: str) -> os.statvfs_result:
        if point == "/fsx":
            answer.wait()
        return os.statvfs("/")

    mounts = make_mounts(tree, "/fsx", "/home/data", statvfs=statvfs)
    with Looking(polled(mounts, look_s=patient(1.0))) as looking:
        try:
            looking.look()
            looking.until(lambda batch: ("mounts/hung", COMPONENT) in told(batch.events))
            assert looking.readings("disk//home/data").values["answers"] == 1.0
            assert looking.last.state is SourceState.FAILED
        finally:
            answer.set()
        batch = looking.until(
            lambda batch: any(event.code == "mounts/hung" for event in batch.events)
        )
    assert [event.fields.get("recovered") for event in batch.events] == [True]


def test_a_mount_point_is_an_absolute_path() -> None:
    assert read_mount_points(["/fsx", "/data/shared"]) == ("/fsx", "/data/shared")
    for point in ("fsx", "/fsx/", "/a//b", "/a/../b"):
        with pytest.raises(ValueError, match="absolute paths"):
            read_mount_points([point])
