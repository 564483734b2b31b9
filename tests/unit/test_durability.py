"""An event is on the disk before anything shows it, and nothing that came to the disk is taken from
it by a power cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from tests import syncs
from tests.conftest import require
from vitald.ledger.disk import count_lost_frames

Line = tuple[str, ...]
DATABASE, LOG = "ledger.db", "ledger.db-wal"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    require(syncs.compiler(), "a C compiler (apt-get install gcc libc6-dev)")
    return syncs.trace(tmp_path_factory.mktemp("syncs"))


@pytest.fixture
def judged(traced: list[Line]) -> list[Line]:
    return traced[: traced.index(("another",))]


@pytest.fixture
def noted(traced: list[Line]) -> list[Line]:
    return traced[traced.index(("another",)) :]


def unsynced(lines: Iterable[Line]) -> set[str]:
    """The files with writes that were not on the disk at the end of these lines."""
    dirty: set[str] = set()
    for word, *name in lines:
        if word == "write":
            dirty.add(name[0])
        elif word == "sync":
            dirty.discard(name[0])
    return dirty


@pytest.mark.parametrize("number", range(syncs.EVENTS))
def test_an_event_is_on_the_disk_before_anything_shows_it(judged: list[Line], number: int) -> None:
    """The last one also: just before it a position was noted that did not wait for the disk."""
    name = f"record-{number}"
    read, shown, answered = (judged.index((word, name)) for word in ("read", "shown", "answered"))
    assert LOG in {line[1] for line in judged[read:shown] if line[0] == "write"}
    assert unsynced(judged[:shown]) == set()
    assert shown < answered


def test_a_position_alone_does_not_wait_for_the_disk(judged: list[Line]) -> None:
    noting, noted = judged.index(("noting",)), judged.index(("noted",))
    assert {line[:2] for line in judged[noting + 1 : noted]} == {("write", LOG)}


def test_a_new_ledger_is_on_the_disk_when_it_is_opened(noted: list[Line]) -> None:
    assert unsynced(noted[: noted.index(("opened",))]) == set()


def test_the_log_is_used_again_only_when_what_was_in_it_is_on_the_disk(noted: list[Line]) -> None:
    """Else a power cut takes events that were committed long before, or the whole file."""
    lines = noted[noted.index(("opened",)) :]
    moved = [at for at, line in enumerate(lines) if line[:2] == ("write", DATABASE)]
    assert moved
    for at in moved:
        assert LOG not in unsynced(lines[:at]), "moved before it was safe in the log"
    again = [at for at, line in enumerate(lines) if line == ("write", LOG, "0") and at > moved[0]]
    assert again
    for at in again:
        assert DATABASE not in unsynced(lines[:at]), (
            "written over before it was safe in the database"
        )


def test_frames_that_are_left_of_an_earlier_round_of_the_log_are_not_lost(tmp_path: Path) -> None:
    """After a checkpoint SQLite writes the log from its beginning again: of what stands behind,
    nothing was lost.
    """
    log = tmp_path / "copy"
    with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        for _ in range(5):
            db.execute("INSERT INTO t VALUES (?)", ("x" * 3000,))
        db.execute("PRAGMA wal_checkpoint(RESTART)")
        for _ in range(2):
            db.execute("INSERT INTO t VALUES ('y')")
        log.write_bytes((tmp_path / "db-wal").read_bytes())
    assert count_lost_frames(log) == 0
    with log.open("r+b") as file:
        file.seek(100)  # within the first frame, behind which a commit follows
        file.write(b"damage")
    assert count_lost_frames(log) == 2
