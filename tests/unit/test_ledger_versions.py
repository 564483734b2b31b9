"""The version of a ledger's schema: created at once, and a newer one is left as it is."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.builders import ROOT, event
from tests.waiting import WAIT_S
from vitald import __version__
from vitald.ledger.errors import LedgerNewer
from vitald.ledger.queries import PastQuery, open_snapshot, read_events
from vitald.ledger.schema import VERSION, inspect_version
from vitald.ledger.store import COUNT, FILE, Ledger, LedgerEntry


def write_ledger(folder: Path) -> Path:
    """A ledger with an event, closed."""
    ledger = Ledger(folder)
    ledger.open()
    ledger.commit([LedgerEntry(events=(event("xid/79"),))])
    ledger.close()
    return folder


def read_content(folder: Path) -> list[str]:
    """All that a ledger holds, its schema included."""
    with closing(sqlite3.connect(folder / FILE)) as db:
        return [f"{db.execute('PRAGMA user_version').fetchone()[0]}", *db.iterdump()]


# Forks a child for every step of SQLite's machine, or of our statements, and has it killed there.
# Says which of them ended by itself.
_KILLED = """
import os, shutil, signal, sqlite3, sys
from pathlib import Path
from vitald.ledger.store import Ledger

folder, connect = Path(sys.argv[1]), sqlite3.connect

def child(step):
    left = step
    def passed(*_):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    def watched(*place, **how):
        db = connect(*place, **how)
        if "uri" not in how:  # the one that writes
            db.set_trace_callback(passed)
            db.set_progress_handler(passed, 40)
        return db
    sqlite3.connect = watched
    Ledger(folder / str(step)).open()
    os._exit(0)

step, status = 0, 9
while status:
    step += 1
    shutil.copytree(folder / "0", folder / str(step))
    if not (pid := os.fork()):
        child(step)
    status = os.waitpid(pid, 0)[1]
print(step)
"""


def test_killed_anywhere_while_it_is_created(tmp_path: Path) -> None:
    """It has all its tables, or none; and the next start ends with a new ledger either way."""
    (tmp_path / "0").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    steps, versions = int(done.stdout), set()
    whole = read_content(tmp_path / str(steps))
    empty = ["0", "BEGIN TRANSACTION;", "COMMIT;"]
    assert whole[0] == str(VERSION)
    for step in range(1, steps):
        folder = tmp_path / str(step)
        if (folder / FILE).exists():
            found = read_content(shutil.copytree(folder, tmp_path / f"copy {step}"))
            assert found in (empty, whole), step
            versions.add(found[0])
        ledger = Ledger(folder)
        ledger.open()
        ledger.close()
        assert read_content(folder) == whole
    assert versions == {"0", str(VERSION)}


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


_WRITE = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA user_version = 99")
db.execute("CREATE TABLE of_a_later_day (a)")
os._exit(0)
"""


@pytest.mark.parametrize("left", ["closed", "killed", "power cut"])
def test_a_newer_ledger_is_not_touched(tmp_path: Path, left: str) -> None:
    """Not a byte, and nothing is made beside it; also where the newer vitald was killed, so that
    its last words are in the write-ahead log only.
    """
    path = write_ledger(tmp_path) / FILE
    subprocess.run([sys.executable, "-c", _WRITE, str(path)], check=True)
    if left == "closed":
        with closing(sqlite3.connect(path)) as db:
            db.execute("SELECT * FROM of_a_later_day")
    elif left == "power cut":
        path.with_name(FILE + "-shm").unlink()
    beside = {
        "closed": {FILE},
        "killed": {FILE, FILE + "-wal", FILE + "-shm"},
        "power cut": {FILE, FILE + "-wal"},
    }
    before = everything(tmp_path)
    assert {*before} == {COUNT, *beside[left]}
    with pytest.raises(LedgerNewer) as refused:
        Ledger(tmp_path).open()
    assert everything(tmp_path) == before
    for part in (str(path), "newer", "99", str(VERSION), __version__, "left as it is", "Install"):
        assert part in str(refused.value), part


def test_the_version_is_found_without_touching_anything(tmp_path: Path) -> None:
    before = everything(write_ledger(tmp_path))
    assert inspect_version(tmp_path / FILE) == VERSION
    assert everything(tmp_path) == before


def test_a_strange_name_is_no_part_of_an_address(tmp_path: Path) -> None:
    """SQLite reads the path as a URI where it is asked to."""
    folder = write_ledger(tmp_path / "a?mode=rw&b#c%41")
    assert inspect_version(folder / FILE) == VERSION
    assert len(read_events(folder / FILE, PastQuery())) == 1
    assert Ledger(folder).rescue() is not None


def test_a_ledger_that_is_replayed_is_left_as_it_was(tmp_path: Path) -> None:
    """It may be a support case's."""
    before = everything(write_ledger(tmp_path))
    with open_snapshot(tmp_path / FILE) as stored:
        assert len([*stored.events]) == 1
    assert everything(tmp_path) == before


def test_a_newer_ledger_is_not_replayed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(write_ledger(tmp_path) / FILE)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerNewer), open_snapshot(tmp_path / FILE):
        pass
