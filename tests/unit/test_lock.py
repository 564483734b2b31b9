"""One at a time, and nobody but the folder's owner can say who. As root: others must be let in as
far as they may come.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import require
from vitald import lock
from vitald.recovery import files

NOBODY = 65534


@contextmanager
def holding_all_it_can(folders: list[Path]) -> Iterator[int]:
    """Another user, of the group that may read, holds an exclusive lock on everything in these
    folders that it can open. How many.
    """
    said, told = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            places = [
                os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in folders
            ]  # the way there may be closed to it
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            held = 0
            for place in places:
                os.fchdir(place)
                for one in [Path(), *Path().rglob("*")]:
                    try:
                        fcntl.flock(
                            os.open(one, os.O_RDONLY | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB
                        )
                    except OSError:
                        continue
                    held += 1
            os.write(told, bytes([held]))
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(told)
    os.close(wait)
    try:
        yield os.read(said, 1)[0]
    finally:
        os.close(go)
        os.close(said)
        os.waitpid(child, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As systemd makes it for a service of root's with a group that may read."""
    require(os.geteuid() == 0, "root")
    made = tmp_path / "state"
    made.mkdir()
    os.chown(made, 0, NOBODY)
    made.chmod(0o750)
    for name, mode in (("actions.json", 0o640), ("decisions.jsonl", 0o640)):
        (made / name).write_text("{}")
        os.chown(made / name, 0, NOBODY)
        (made / name).chmod(mode)
    return made


@pytest.mark.parametrize("left", [False, True], ids=["", "a lock was left"])
def test_who_may_read_a_folder_cannot_lock_it(folder: Path, left: bool) -> None:
    if left:
        (folder / lock.FILE).touch(0o600)
    with holding_all_it_can([folder]) as held:
        assert held == 3  # the folder and its two files
        with files.hold_folder(folder):
            assert stat.S_IMODE((folder / lock.FILE).stat().st_mode) == 0o600
    assert not (folder / lock.FILE).exists()


def test_one_at_a_time(tmp_path: Path) -> None:
    for _ in range(2):
        with lock.hold_lock(tmp_path), pytest.raises(BlockingIOError), lock.hold_lock(tmp_path):
            pass


def test_one_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    """By who cleans up: the next one must not lock what is not there any more, nor the former take
    the next one's away.
    """
    with lock.hold_lock(tmp_path):
        (tmp_path / lock.FILE).unlink()
        with lock.hold_lock(tmp_path):
            (tmp_path / lock.FILE).rename(tmp_path / "kept")
            (tmp_path / lock.FILE).touch()
    assert (tmp_path / lock.FILE).exists()


def test_what_stands_in_its_place_is_none(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "root")
    path = tmp_path / lock.FILE
    (tmp_path / "other").touch()
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError) as refused, lock.hold_lock(tmp_path):
        pass
    assert refused.value.errno == errno.ELOOP
    path.unlink()
    for make in (lambda: os.mkfifo(path), lambda: (path.touch(), os.chown(path, NOBODY, -1))):
        make()
        with pytest.raises(PermissionError), lock.hold_lock(tmp_path):
            pass
        path.unlink()
    path.mkdir()
    with pytest.raises(OSError), lock.hold_lock(tmp_path):
        pass


def test_one_that_others_could_open_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / lock.FILE).touch(0o644)
    (tmp_path / lock.FILE).chmod(0o644)
    with lock.hold_lock(tmp_path):
        assert stat.S_IMODE((tmp_path / lock.FILE).stat().st_mode) == 0o600
