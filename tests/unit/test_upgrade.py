"""An upgrade keeps what was known, whatever ends it half-way; a newer vitald's ledger, an older
configuration and other versions of the API.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builders import ROOT, catalogue
from tests.unit.test_runs import FULL
from tests.waiting import WAIT_S
from vitald import __version__, config_file, tomlfile
from vitald import config as configs
from vitald.cli import main
from vitald.config import Moved
from vitald.judge.engine import Judge
from vitald.judge.verdict import compute_verdict
from vitald.ledger import (
    FILE,
    MIGRATIONS,
    Ledger,
    LedgerError,
    LedgerNewer,
    PastQuery,
    open_snapshot,
    read_events,
    read_findings,
    read_run,
    sums,
)
from vitald.ledger.schema import VERSION, inspect_version

LEDGERS = ROOT / "tests" / "data" / "ledgers"
OLD = [*range(1, VERSION + 1)]  # a new schema brings a ledger of the one before it with it
Json = dict[str, Any]


def laid_out(folder: Path, schema: int) -> Path:
    """A ledger as a vitald of that schema left it."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.executescript((LEDGERS / f"schema-{schema}.sql").read_text())
        db.execute("PRAGMA journal_mode = WAL")
    return folder


@cache
def said(schema: int) -> Json:
    """What that vitald answered, right before its ledger was taken."""
    told: Json = json.loads((LEDGERS / f"schema-{schema}.json").read_text())
    return told


def content(folder: Path) -> list[str]:
    """All that a ledger holds, its schema included."""
    with closing(sqlite3.connect(folder / FILE)) as db:
        return [f"{db.execute('PRAGMA user_version').fetchone()[0]}", *db.iterdump()]


def rows(folder: Path) -> dict[str, list[Json]]:
    with closing(sqlite3.connect(folder / FILE)) as db:
        db.row_factory = sqlite3.Row
        tables = [
            row[0]
            for row in db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        return {
            table: [dict(row) for row in db.execute(f"SELECT * FROM {table} ORDER BY 1")]
            for table in tables
        }


@pytest.mark.parametrize("schema", OLD)
def test_an_older_ledger_is_taken_over_whole(tmp_path: Path, schema: int) -> None:
    """Every row and column that it had; and once: to open it again changes nothing."""
    before = rows(laid_out(tmp_path, schema))
    assert {"events", "findings", "transitions", "positions", "audit"} <= {
        table for table, held in before.items() if held
    }
    ledger = Ledger(tmp_path)
    ledger.open()
    ledger.close()
    after = rows(tmp_path)
    for table, held in before.items():
        kept = [{column: one[column] for column in held[0]} for one in after[table]]
        assert kept == held, table
    first = content(tmp_path)
    assert first[0] == str(VERSION)
    ledger.open()
    ledger.close()
    assert content(tmp_path) == first


# When these ledgers were taken, the catalogue replaced for Xid 64 at once.
REPLACED_AT_ONCE = (
    '"xid/64" = { action = "replace_node", clears = ["replaced"], escalation = "none", cases = [] }'
)


@pytest.mark.parametrize("schema", OLD)
def test_the_verdict_over_an_older_ledger_is_the_one_of_its_day(
    tmp_path: Path, schema: int
) -> None:
    ledger = Ledger(laid_out(tmp_path, schema))
    ledger.open()
    memory = ledger.read_state().memory
    told = said(schema)
    of_its_day = catalogue(overrides=REPLACED_AT_ONCE)
    judge = Judge(of_its_day, memory)
    assert judge.reload_catalog(of_its_day, 0.0) == []
    verdict = compute_verdict(
        judge.open_findings, [], 0.0, {one.id: one for one in judge.incidents}
    )
    assert verdict.status.value == told["status"] == "unhealthy"
    flags = {
        "rebootRequired": verdict.reboot_required,
        "replacementRequired": verdict.replacement_required,
        "action": verdict.action.value,
    }
    assert flags == {name: told[name] for name in flags}
    assert list(verdict.reasons) == told["reasons"]
    opened = [
        {
            "id": one.id,
            "code": one.code,
            "component": one.component.name,
            "action": one.action.value,
        }
        for one in judge.open_findings
    ]
    opened_then: list[Json] = told["findings"]
    assert sorted(opened, key=str) == sorted(
        ({key: one[key] for key in opened[0]} for one in opened_then), key=str
    )
    assert sorted(one.id for one in read_findings(ledger.path, 100)) == told["cleared"]
    assert [one.event.raw for one in read_events(ledger.path, PastQuery())] == told["events"]
    if schema >= 2:  # the record of a device that failed twice
        assert len(memory.marks) == 11
    if schema >= 4:
        assert read_run(ledger.path, FULL.id) == FULL


@cache
def on_the_way(schema: int) -> dict[str, list[str]]:
    """The content at each version from that schema to today's: what a migration may leave, and
    nothing else.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript((LEDGERS / f"schema-{schema}.sql").read_text())
        sums.register_functions(db)
        stages = {str(schema): [*db.iterdump()]}
        for number, script in enumerate(MIGRATIONS[schema:], start=schema + 1):
            db.executescript(script)
            stages[str(number)] = [*db.iterdump()]
    return stages


def whole(folder: Path, schema: int) -> str:
    """The version that a ledger is of, all of it."""
    version, *held = content(folder)
    assert held == on_the_way(schema)[version], f"neither the one nor the other: {version}"
    return version


# Forks a child for every step of SQLite's machine, or of our statements, and has it killed there.
# Says which of them ended by itself.
_KILLED = """
import os, shutil, signal, sqlite3, sys
from pathlib import Path
from vitald.ledger import Ledger

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


def test_killed_anywhere_in_a_migration(tmp_path: Path) -> None:
    """Of the one version or of the other, never between; and the next start goes on from there to
    the same end. The oldest ledger goes through all versions.
    """
    schema = OLD[0]
    laid_out(tmp_path / "0", schema)
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    steps = int(done.stdout)
    assert steps > 20
    seen = set()
    for step in range(1, steps + 1):
        copy = shutil.copytree(tmp_path / str(step), tmp_path / f"{step} looked at")
        seen.add(whole(copy, schema))
        ledger = Ledger(tmp_path / str(step))
        ledger.open()
        ledger.close()
        assert whole(tmp_path / str(step), schema) == str(VERSION)
    assert seen == {*on_the_way(schema)}  # it was really killed in each of the steps


@contextmanager
def files_of(most_bytes: int) -> Iterator[None]:
    """No file may grow beyond that: to SQLite, the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The last step alone writes less than the 32 KiB that the index of SQLite's log takes, so no limit
# would end it half-way.
@pytest.mark.parametrize("schema", OLD[:-2])
def test_a_disk_that_gets_full_during_a_migration(tmp_path: Path, schema: int) -> None:
    """The old ledger stays whole, what it knows is known to the daemon all the same, and with room
    again it is migrated.
    """
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # else it would end us
    seen = set()
    for number, most in enumerate(range(33 * 1024, 256 * 1024, 4096)):
        ledger = Ledger(laid_out(tmp_path / str(number), schema))
        try:
            with files_of(most):
                ledger.open()
        except LedgerError as error:
            assert not isinstance(error, LedgerNewer) and str(ledger.path) in str(error)
            rescued = ledger.rescue()
            assert rescued is not None and len(rescued.memory.findings) == len(
                said(schema)["findings"]
            )
            seen.add(
                whole(shutil.copytree(ledger.path.parent, tmp_path / f"{number} looked at"), schema)
            )
        else:
            break
    assert seen and str(VERSION) not in seen
    ledger = Ledger(tmp_path / "0")
    ledger.open()
    ledger.close()
    assert whole(tmp_path / "0", schema) == str(VERSION)


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
    path = laid_out(tmp_path, VERSION) / FILE
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
    assert {*before} == beside[left]
    with pytest.raises(LedgerNewer) as refused:
        Ledger(tmp_path).open()
    assert everything(tmp_path) == before
    for part in (str(path), "newer", "99", str(VERSION), __version__, "left as it is", "Install"):
        assert part in str(refused.value), part


@pytest.mark.parametrize("schema", OLD)
def test_the_version_is_found_without_touching_anything(tmp_path: Path, schema: int) -> None:
    before = everything(laid_out(tmp_path, schema))
    assert inspect_version(tmp_path / FILE) == schema
    assert everything(tmp_path) == before


def test_a_strange_name_is_no_part_of_an_address(tmp_path: Path) -> None:
    """SQLite reads the path as a URI where it is asked to."""
    folder = laid_out(tmp_path / "a?mode=rw&b#c%41", VERSION)
    assert inspect_version(folder / FILE) == VERSION
    assert len(read_events(folder / FILE, PastQuery())) == len(said(VERSION)["events"])
    assert Ledger(folder).rescue() is not None


def test_a_ledger_of_any_age_is_replayed(tmp_path: Path) -> None:
    """And left as it was: it may be a support case's."""
    for schema in OLD:
        folder = laid_out(tmp_path / str(schema), schema)
        before = everything(folder)
        with open_snapshot(folder / FILE) as stored:
            assert len([*stored.events]) >= len(said(schema)["events"])
            assert len(stored.opened) == len(said(schema)["findings"])
        assert everything(folder) == before


def test_a_newer_ledger_is_not_replayed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(laid_out(tmp_path, VERSION) / FILE)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerNewer), open_snapshot(tmp_path / FILE):
        pass


# --- the configuration


def config_of(text: str) -> configs.Config:
    return configs.parse(text, tomlfile.parse_toml(text, "c.toml"), "c.toml")


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if keys had changed: none has so far."""
    table = {
        ("log", "verbosity"): Moved("0.2", ("log", "level")),
        ("journal", "path"): Moved(
            "0.3", ("kernel_log", "journal"), "it belongs to the kernel log"
        ),
        ("journal", "follow"): Moved("0.3", None, "the journal is read at a start only"),
    }
    monkeypatch.setattr(configs, "MOVED", table)


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        (
            "[policy]\n[log]\nverbosity = 'debug'\n",
            [
                "c.toml:3: [log] verbosity: called [log] level since vitald 0.2. It is read as"
                " that: rename it"
            ],
        ),
        (
            "[log]\nlevel = 'debug'\nverbosity = 'error'\n",
            [
                "c.toml:3: [log] verbosity: called [log] level since vitald 0.2, which is set as"
                " well. It has no effect: remove it"
            ],
        ),
        (
            "[log]\nlevel = 'debug'\n\n[journal]\nfollow = true\n",
            [
                "c.toml:5: [journal] follow: gone since vitald 0.3: the journal is read at a start"
                " only. It has no effect: remove it"
            ],
        ),
        ("[log]\nlevel = 'debug'\n[journal]\n", []),
        ("[log]\nlevel = 'debug'\n", []),
    ],
)
def test_a_key_that_changed_is_read_and_named(moved: None, text: str, notes: list[str]) -> None:
    """With its line and both names; a fleet is not left without its daemon because of a key that
    was right the day before.
    """
    config = config_of(text)
    assert config.log.level == "debug"
    assert list(config.notes) == notes


def test_a_key_that_moved_into_another_section(moved: None) -> None:
    config = config_of("[journal]\npath = 'off'\nfollow = true\n")
    assert config.kernel_log.journal == "off"
    assert [note.partition(":")[2].partition("]")[0] for note in config.notes] == [
        "2: [journal",
        "3: [journal",
    ]
    assert "it belongs to the kernel log" in config.notes[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "[log]\nverbosity = 'loud'\n",
            "c.toml:2: [log] verbosity: must be one of debug, info, warning, error, not 'loud'",
        ),
        ("[log]\nverbosty = 'debug'\n", "c.toml:2: [log] verbosty: unknown key"),
        ("[log]\nlevl = 'debug'\n", "c.toml:2: [log] levl: unknown key, did you mean level?"),
        ("[journal]\npaht = 'off'\n", "c.toml:1: [journal]: unknown section"),
    ],
)
def test_what_was_never_right_is_refused(moved: None, text: str, error: str) -> None:
    """By the name that stands in the file."""
    with pytest.raises(config_file.ConfigError) as refused:
        config_of(text)
    assert refused.value.errors[0].startswith(error)


def test_config_check_shows_what_changed(
    moved: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And finds the file right: so it can be asked before an upgrade."""
    path = tmp_path / "config.toml"
    path.write_text("[log]\nverbosity = 'debug'\n")
    assert main(["config", "check", str(path)]) == 0
    said = capsys.readouterr()
    assert (
        f"{path}:2: [log] verbosity: called [log] level" in said.out and f"{path}: ok" in said.out
    )
    assert main(["config", "check", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 1


@pytest.mark.parametrize(
    ("text", "userspace"),
    [
        ("", "unconfirmed"),
        ("accept_userspace = true\n", "confirmed"),
        ("accept_userspace = false\n", "ignore"),
        ("accept_userspace = true\nuserspace = 'confirmed'\n", "confirmed"),
    ],
)
def test_what_the_older_switch_for_records_of_processes_means(text: str, userspace: str) -> None:
    """As it was meant: judged wholly, or not at all. Both may stand there where they agree."""
    config = config_of(f"[kernel_log]\n{text}")
    assert config.kernel_log.userspace == userspace
    assert len(config.notes) == ("accept" in text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "accept_userspace = true\nuserspace = 'ignore'\n",
            (
                "c.toml:2: [kernel_log] accept_userspace: says 'confirmed', and [kernel_log] "
                "userspace says"
            ),
        ),
        (
            "accept_userspace = 'yes'\n",
            "c.toml:2: [kernel_log] accept_userspace: expected true or false",
        ),
        (
            "userspace = 'yes'\n",
            "c.toml:2: [kernel_log] userspace: must be one of unconfirmed, confirmed, ignore, not ",
        ),
    ],
)
def test_switches_that_contradict_each_other_are_refused(text: str, error: str) -> None:
    with pytest.raises(config_file.ConfigError) as refused:
        config_of(f"[kernel_log]\n{text}")
    assert refused.value.errors[0].startswith(error)


def test_a_key_that_changed_is_no_key_now() -> None:
    now = {(section, key) for section in configs.SECTIONS for key in configs.settings_of(section)}
    assert not now & {*configs.MOVED}
