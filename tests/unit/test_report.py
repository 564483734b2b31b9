"""`vitald report`: the archive's format and limit, what is taken out of a configuration, and parts
that cannot be got.
"""

from __future__ import annotations

import io
import json
import os
import random
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import IO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import require
from tests.unit.test_ledger import events
from tests.waiting import WAIT_S
from vitald import tomlfile
from vitald.catalog.settings import load_configured_catalog
from vitald.cli import CommandFailed, client
from vitald.cli.client import NoAnswer
from vitald.cli.report import archive, machine, redact
from vitald.cli.report.archive import Archive, ArchiveFull, CannotWrite, create_file
from vitald.cli.report.event_pages import EventPages
from vitald.cli.report.ledger_history import LedgerHistory
from vitald.cli.report.parts import DaemonAnswers, ReportOptions, SupportReport
from vitald.cli.report.redact import REDACTED, Redactor, read_configuration
from vitald.config.paths import Paths
from vitald.config.sections import format_example
from vitald.config.values import Config
from vitald.judge.settings import PolicySettings
from vitald.ledger.errors import LedgerError
from vitald.ledger.store import FILE, Ledger, LedgerEntry
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, Endpoint

pytestmark = pytest.mark.usefixtures("catalog_loaded_once")

Json = dict[str, object]
MIB = 1024 * 1024


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


# --- the archive


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_what_goes_in_comes_out(members: list[bytes]) -> None:
    """With Python's tarfile and with GNU tar."""
    file = io.BytesIO()
    archive = Archive(file, "folder", 1_700_000_000.5, 50 * MIB)
    for number, data in enumerate(members):
        archive.stream_member(f"in/{number}", len(data), (data[:100], data[100:]))
    size = archive.close("last", b"end")
    wanted = {
        **{f"folder/in/{number}": data for number, data in enumerate(members)},
        "folder/last": b"end",
    }
    assert size == len(file.getvalue())
    assert read(file.getvalue()) == wanted
    listed = subprocess.run(
        ["tar", "tzf", "-"], input=file.getvalue(), capture_output=True, check=True
    )
    assert listed.stdout.decode().split() == [*wanted] and listed.stderr == b""


def test_what_does_not_fit_is_taken_back() -> None:
    """And a smaller one that comes after it still fits; the limit holds for the whole file, the
    last member included.
    """
    file = io.BytesIO()
    archive = Archive(file, "folder", 0.0, 3 * MIB)
    archive.add_member("a", noise(MIB))
    with pytest.raises(ArchiveFull, match="larger than 3 MiB"):
        archive.add_member("b", noise(2 * MIB))
    archive.add_member("c", b"small")
    with pytest.raises(ValueError, match="expected 10 bytes, got 3"):
        archive.stream_member("d", 10, (b"abc",))
    archive.close("errors", noise(500_000))
    assert [*read(file.getvalue())] == ["folder/a", "folder/c", "folder/errors"]
    assert len(file.getvalue()) <= 3 * MIB


def written(path: Path, *, force: bool = False, data: bytes = b"new") -> None:
    with create_file(path, force=force) as (file, publish):
        file.write(data)
        publish()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with pytest.raises(KeyboardInterrupt), create_file(path, force=False) as (file, _):
        file.write(b"half")
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == []
    written(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777, [*tmp_path.iterdir()]) == (
        b"new",
        0o600,
        [path],
    )


def test_nothing_is_overwritten_or_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"old")
    with pytest.raises(CannotWrite, match="--force"):
        written(kept)
    for place in (kept, tmp_path / "nowhere"):
        link = tmp_path / "link"
        link.symlink_to(place)
        for force in (False, True):
            with pytest.raises(CannotWrite, match="symbolic link"):
                written(link, force=force)
        link.unlink()
    with pytest.raises(CannotWrite, match="no regular file"):
        written(Path("/dev/null"), force=True)
    with pytest.raises(CannotWrite, match="No such file"):
        written(tmp_path / "no" / "folder")
    assert (kept.read_bytes(), [*tmp_path.iterdir()]) == (b"old", [kept])
    written(kept, force=True)
    assert kept.read_bytes() == b"new"


def test_what_comes_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in the moment after the last look."""
    path = tmp_path / "x"
    for seen in (True, False):
        if not seen:
            monkeypatch.setattr(archive, "_check_target", lambda path, *, force: None)
        with (
            pytest.raises(CannotWrite, match="file exists"),
            create_file(path, force=False) as (_, publish),
        ):
            path.write_bytes(b"theirs")
            publish()
        assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"theirs", [path])
        path.unlink()


def test_a_full_disk_is_said() -> None:
    class Disk(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(CannotWrite, match="No space left"):
        Archive(Disk(), "x", 0.0, MIB)


# --- what is taken out

SECRET = "hunter2-Tr0ub4dor"
PLANTED = [
    f'[alerts]\npassword = "{SECRET}"',
    f'[alerts]\n"api-key" = "{SECRET}" # a comment',
    f'[alerts]\nslack_token = """\n{SECRET}"""',
    f'[alerts.headers]\nAuthorization = "Bearer {SECRET}"',
    f'[alerts]\nheaders = ["X-Auth-Token: {SECRET}"]',
    f'[alerts]\nurl = "https://vitald:{SECRET}@hooks.example.com/x"',
    f'[alerts]\nurl = "https://{SECRET}@hooks.example.com"',
    f'[alerts]\nurl = "https://example.com/hook?room=1&key={SECRET}"',
    f'[alerts]\nurl = "https://vitald:p/{SECRET}@example.com"',
    f'[recovery]\ncommand = ["drain", "--token", "{SECRET}"]',
    f'[recovery]\ncommand = "drain --api-key={SECRET} --force"',
    f'[recovery]\ncommand = "drain --secret {SECRET} --force"',
    f'[recovery]\nenvironment = {{ FOO = "{SECRET}" }}',
    f'[recovery.env]\nFOO = "{SECRET}"',
    f'[recovery]\nenv = ["FOO={SECRET}"]',
    f'[[hooks]]\ncredentials = [["a", "{SECRET}"]]',
    f'# password = "{SECRET}"\n[log]\nlevel = "info"  # {SECRET}',
    f'[a]\n"pass\\u0077ord" = "{SECRET}"',
    f'[a]\n"https://u:{SECRET}@x" = 1',
    f"[a]\nkey = '{SECRET}'",
    f'[notify.ops]\nurl = "https://hooks.example.com/{SECRET}"',
    f'[notify.ops]\nurl = ["https://a.example.com", "https://b.example.com/x/{SECRET}/?y"]',
]
SHAPES = [
    "ghp_abcdefghijklmnopqrst0123456789",
    "xoxb-1234567890-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "0123456789abcdef0123456789abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
    "https://hooks.example.com/services/T0000/B0000/a1b2c3d4e5f6g7h8i9j0k1l2",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
]


def shown_of(folder: Path, text: str, redactor: Redactor | None = None) -> Json:
    path = folder / "config.toml"
    path.write_text(text)
    return {**read_configuration(path, redactor or Redactor()).shown}


def test_no_planted_secret_is_shown(tmp_path: Path) -> None:
    """Of a file that is not valid TOML nothing is."""
    leaked = []
    for text in PLANTED:
        for broken in ("", "\nthis is no TOML\n"):
            shown = shown_of(tmp_path, text + broken)
            if SECRET in json.dumps(shown) or ("tables" in shown) is bool(broken):
                leaked.append((text, broken, shown))
    assert leaked == []


def test_no_secret_is_shown_whatever_it_is_called(tmp_path: Path) -> None:
    for value in SHAPES:
        shown = json.dumps(shown_of(tmp_path, f"[x]\nplain = {json.dumps(value)}\n"))
        assert json.dumps(value)[1:-1] not in shown and REDACTED in shown, value
        assert '"redacted": ["x.plain: by its shape"]' in shown


def test_ordinary_settings_are_shown_as_they_are(tmp_path: Path) -> None:
    """Every key that vitald has, and values that look a little like secrets."""
    ordinary = f"""{format_example()}
[catalog.overrides."xid/63"]
action = "reboot_node"
advice = "see https://wiki.example.com/gpu/xid-63"
[more]
uuid = "GPU-8f3e0c1a-1111-2222-3333-444455556666"
library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
at = "1979-05-27T07:32:00Z"
url = "https://hooks.example.com/"
ten = [1, 2.5, true, {{a = "\\u007f \\" ü"}}]
command = ["drain", "--force", "--all"]
"""
    redactor = Redactor()
    shown = shown_of(tmp_path, ordinary, redactor)
    assert shown["tables"] == tomlfile.parse_toml(ordinary, "ordinary")
    assert (redactor.redactions, redactor.secrets) == ([], set())


def test_a_time_is_shown_as_text(tmp_path: Path) -> None:
    shown = shown_of(tmp_path, "[x]\nat = 1979-05-27T07:32:00Z\nday = 1979-05-27\n")
    assert shown["tables"] == {"x": {"at": "1979-05-27T07:32:00+00:00", "day": "1979-05-27"}}


@settings(max_examples=300)
@given(st.text(max_size=300))
def test_any_text_can_be_shown(text: str) -> None:
    redactor = Redactor()
    redactor.redact_text(text)
    redactor.redact_tables({"x": text, text: [text]})
    redactor.redact_log(text)
    redactor.remove_secrets(text.encode(errors="replace"))


def test_a_secret_is_taken_out_of_the_other_parts_too() -> None:
    """As it is, and as JSON writes it. A word of every text is not, and a log's lines decide
    nothing.
    """
    secret = 'quo"te-ü-1234'
    redactor = Redactor()
    redactor.redact_tables(
        {"x": {"password": secret, "token": "gpu", "secret": "reboot", "pass": "correct-horse"}}
    )
    assert redactor.redact_log('auth=NVRM-79-evidence "x"\n') == f'auth={REDACTED} "x"\n'
    texts = {
        f"a {secret} b": f"a {REDACTED} b",
        json.dumps({"a": secret}): f'{{"a": "{REDACTED}"}}',
        "correct-horses": f"{REDACTED}s",
        "gpu NVRM-79-evidence: reboot": "gpu NVRM-79-evidence: reboot",
    }
    assert {text: redactor.remove_secrets(text.encode()).decode() for text in texts} == texts


def test_a_line_is_redacted_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a line of 512 KiB an expression that backtracks runs into the test's timeout."""
    monkeypatch.setattr(redact, "_MAX_LINE", sys.maxsize)
    for piece in (
        "://a:",
        "token",
        "-token-",
        "http://",
        "https://a/",
        "-----BEGIN PRIVATE KEY-----",
        "a" * 30 + "/",
        "Bearer ",
    ):
        Redactor().redact_log(piece * ((512 << 10) // len(piece)))


# --- where it comes from


def past(count: int, fails_at: int = 0) -> Iterator[list[Json]]:
    """Pages of events numbered 1 to `count`, the newest page first; fails on the n-th."""
    for number, last in enumerate(range(count, 0, -MAX_PAGE), start=1):
        if number == fails_at:
            raise LedgerError("cannot be read")
        first = max(1, last - MAX_PAGE + 1)
        yield [{"id": id_, "time": id_, "raw": f"line {id_}"} for id_ in range(first, last + 1)]


def line(value: Json) -> bytes:
    return json.dumps(value).encode() + b"\n"


def ids(pages: EventPages) -> list[int]:
    data = b"".join(pages)
    assert len(data) == pages.size
    return [json.loads(one)["id"] for one in data.splitlines()]


def paged(pages: Iterable[list[Json]], most: int = MIB, until: float = float("inf")) -> EventPages:
    return EventPages(pages, line, most=most, until=until)  # type: ignore[arg-type]


def test_every_event_once_and_in_order() -> None:
    for count in (0, 1, MAX_PAGE, 3 * MAX_PAGE + 7):
        assert ids(paged(past(count))) == [*range(1, count + 1)], count


def test_events_are_read_from_the_ledger_in_pages(tmp_path: Path) -> None:
    """Whatever is missing between them, and none from before the period."""
    ledger = Ledger(tmp_path)
    ledger.open()
    ledger.commit([LedgerEntry(events=events(2 * MAX_PAGE + 7))])
    ledger.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        numbers = (MAX_PAGE - 300, MAX_PAGE + 300)
        db.execute("DELETE FROM events WHERE id > ? AND id <= ?", numbers)
        db.execute("UPDATE events SET raw = 'changed' WHERE id = 3")  # its checksum is wrong
        db.commit()
    history = LedgerHistory(Config().replace(Paths(state=tmp_path)))
    wanted = [*range(1, 3), *range(4, numbers[0] + 1), *range(numbers[1] + 1, 2 * MAX_PAGE + 8)]
    assert ids(paged(history.read_events(0.0))) == wanted  # type: ignore[arg-type]
    times = [event["time"] for page in history.read_events(0.0) for event in page]
    begin = datetime.fromisoformat(sorted(times)[-5].replace("Z", "+00:00")).timestamp()
    assert ids(paged(history.read_events(begin))) == wanted[-5:]  # type: ignore[arg-type]
    history.close()


def test_of_too_many_the_newest_stay() -> None:
    pages = paged(past(20_000), most=40_000)
    kept = ids(pages)
    assert kept == [*range(20_001 - len(kept), 20_001)] and 0 < len(kept) < 20_000
    assert f" {kept[0]} " in pages.cut
    assert pages.drop_older_half() and ids(pages)[-1] == 20_000
    while pages.drop_older_half():
        pass
    assert ids(pages) == [*range(19_001, 20_001)]


def test_what_was_read_is_kept_when_the_rest_fails() -> None:
    late, failed = paged(past(5000), until=0.0), paged(past(5000, fails_at=3))
    assert (ids(late), "4001" in late.cut) == ([*range(4001, 5001)], True)
    assert (ids(failed), "3001" in failed.cut) == ([*range(3001, 5001)], True)
    assert "cannot be read" in failed.cut and "cannot be read" not in late.cut
    with pytest.raises(LedgerError):
        paged(past(5000, fails_at=1))


def test_a_daemon_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Endpoint[object]] = []

    def get(_: object, endpoint: Endpoint[object], **_values: object) -> Json:
        requested.append(endpoint)
        raise NoAnswer("no answer in time")

    monkeypatch.setattr(client, "get", get)
    daemon = DaemonAnswers(Path("s"), 1.0)
    for endpoint in (endpoints.STATUS, endpoints.GPUS, endpoints.EXPECT):
        with pytest.raises(CommandFailed, match="no answer in time"):
            daemon.get(endpoint)
    assert requested == [endpoints.STATUS]


def test_an_answer_without_end_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object, **_values: object) -> Json:
        raise RecursionError

    monkeypatch.setattr(client, "get", get)
    with pytest.raises(CommandFailed, match="/v1/status: the answer is nested too deeply"):
        DaemonAnswers(Path("s"), 1.0).get(endpoints.STATUS)


# --- the machine


def test_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        b"x" * 100 + b"\n" + b"".join(b"line %07d\n" % number for number in range(250_000))
    )
    lines = machine.read_tail(path).splitlines()
    assert lines[-1] == "line 0249999" and lines[0].startswith("line 0") and len(lines) < 250_000
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        machine.read_tail(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(machine.Unavailable, match="no regular file"):
        machine.read_tail(tmp_path / "pipe")


def test_the_kernels_messages() -> None:
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.R_OK), "root and a readable /dev/kmsg")
    text = machine.read_kernel_messages(Path("/dev/kmsg"))
    assert all(entry.startswith("[") and entry.isprintable() for entry in text.splitlines())


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setattr(machine, "_PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "_TIMEOUT_S", 0.5)

    def make(script: str) -> str:
        (tmp_path / "it").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "it").chmod(0o755)
        return machine.run_program("it", "--now")

    return make


def test_programs_neither_hang_nor_flood(program: Callable[[str], str]) -> None:
    assert program('echo "$1"; echo no >&2') == "--now\n"
    assert program("exit 0") == ""
    assert len(program("yes")) == 2 * MIB
    assert program("echo begun; exec sleep 60") == "begun\n"
    with pytest.raises(machine.Unavailable, match="it: not for you"):
        program("echo not for you >&2; exit 1")
    with pytest.raises(machine.Unavailable, match="did not answer"):
        program("exec sleep 60")
    with pytest.raises(machine.Unavailable, match="no such-program here"):
        machine.run_program("such-program")


# --- the whole, where there is nobody to ask


def alone(
    folder: Path, config: str, most: int = 10 * MIB, **more: object
) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
    """The parts by name, and what is missing."""
    path = folder / "config.toml"
    path.write_text(config)
    file: IO[bytes] = io.BytesIO()
    wanted = ReportOptions(
        **{
            "since": 0.0,
            "config": path,
            "socket": folder / "none.sock",
            "timeout": 1.0,
            "logs": False,
            "ledger": False,
            "most": most,
            **more,
        }  # type: ignore[arg-type]
    )
    report = SupportReport(Archive(file, "r", 0.0, most), wanted, 0.0)
    size = report.write()
    data = file.getvalue()  # type: ignore[attr-defined]
    assert size == len(data)
    return {name.removeprefix("r/"): part for name, part in read(data).items()}, report.missing


def test_what_is_right_in_a_wrong_configuration_is_used(tmp_path: Path) -> None:
    """A section whose settings are wrong together is as by default, so that all else goes on."""
    path = tmp_path / "c.toml"
    path.write_text(
        f'[paths]\nstate = "{tmp_path}"\nsysfs = 5\n[policy]\ndevice_reset = true\n[catalog]\n'
        'profile = "hyperpod"\noverrides."xid/79".action = "explode"\n[dcgm]\nlevel_1 = "5s"\n'
    )
    found = read_configuration(path, Redactor())
    config = found.config
    assert (config[Paths].state, config[Paths].sysfs) == (tmp_path, Path("/sys"))
    assert config[PolicySettings].device_reset
    assert load_configured_catalog(config).profile == "nvidia"
    assert len(cast("list[str]", found.shown["errors"])) == 3


def test_a_node_on_which_nothing_works(tmp_path: Path) -> None:
    """No daemon, no ledger, a wrong configuration with a secret in it: what there is, and why the
    rest is not.
    """
    parts, missing = alone(
        tmp_path,
        f'[paths]\nstate = "{tmp_path}/state"\n[metrics]\nlisten = "off"\n[alerts]\ntoken ='
        f' "{SECRET}"\n',
    )
    own = {"README.txt", "config.json", "errors.txt", "summary.txt", "versions.json"}
    assert own | {"status.json", "inventory/pci.json"} <= {*parts}
    why = dict(missing)
    assert why["the history"].startswith(f"{tmp_path}/state/ledger.db: No such file or directory")
    assert "is the daemon running?" in why["all that only the daemon knows"]
    assert parts["errors.txt"].decode().splitlines() == [
        f"{part}: {text}" for part, text in missing
    ]
    shown = json.loads(parts["config.json"])
    assert shown["redacted"] == ["alerts.token: by its name"]
    assert "unknown section" in shown["errors"][0]
    assert shown["tables"]["metrics"] == {"listen": "off"}
    assert not [name for name, part in parts.items() if SECRET.encode() in part]
    assert json.loads(parts["status.json"])["status"] == "unknown"


def test_what_the_recovery_decided(tmp_path: Path) -> None:
    """Lines that are no JSON objects are left out, and so is a link."""
    folder = tmp_path / "recover"
    folder.mkdir()
    decided = folder / "decisions.jsonl"
    decided.write_text(f'{{"why": "{SECRET} \\u001b[31m"}}\n[1]\n{"[" * 100_000}\n{{"why": "half')
    config = (
        f'[paths]\nstate = "{tmp_path}/none"\n[recovery]\nstate = "{folder}"\n[x]\ntoken ='
        f' "{SECRET}"\n'
    )
    parts, _ = alone(tmp_path, config)
    assert parts["recovery/decisions.jsonl"].decode() == f'{{"why": "{REDACTED} \\u001b[31m"}}\n'
    decided.rename(tmp_path / "elsewhere")
    decided.symlink_to(tmp_path / "elsewhere")
    parts, missing = alone(tmp_path, config)
    assert "recovery/decisions.jsonl" in dict(missing) and "recovery/decisions.jsonl" not in parts


def test_a_configuration_that_cannot_be_parsed(tmp_path: Path) -> None:
    """Nothing of it is shown, as its secrets cannot be known; the parser's message is."""
    parts, missing = alone(tmp_path, f'[log]\nlevel = "debug"\n[alerts\npassword = "{SECRET}"\n')
    (error,) = json.loads(parts["config.json"])["errors"]
    assert "not valid TOML" in error and "line 3" in error
    assert dict(missing)["the configuration, and a search for its secrets"] == error
    assert not [name for name, part in parts.items() if b"debug" in part or SECRET.encode() in part]


def test_a_damaged_ledger_stops_nothing(tmp_path: Path) -> None:
    """It is put in as it is, where that is asked for."""
    path = tmp_path / "ledger.db"
    config = f'[paths]\nstate = "{tmp_path}"\n'
    for ledger in (b"", b"SQLite format 3\0" + noise(8000), noise(8000)):
        path.write_bytes(ledger)
        parts, missing = alone(tmp_path, config)
        assert {"the history", "what the ledger remembers"} & {*dict(missing)}
        assert "cannot be read" in parts["summary.txt"].decode()
        assert json.loads(parts["status.json"])["status"] == "unknown"
        assert "ledger/ledger.db" not in parts and "versions.json" in parts
        parts, _ = alone(tmp_path, config, ledger=True)
        assert parts["ledger/ledger.db"] == ledger == path.read_bytes()
        assert sorted(one.name for one in tmp_path.iterdir()) == ["config.toml", "ledger.db"]


def test_a_ledger_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "else").write_bytes(b"not ours")
    (tmp_path / "ledger.db").symlink_to(tmp_path / "else")
    parts, missing = alone(tmp_path, f'[paths]\nstate = "{tmp_path}"\n', ledger=True)
    assert "ledger/" in dict(missing)
    assert not [name for name, part in parts.items() if b"not ours" in part]


def test_a_large_ledger_gives_way_to_the_rest(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(noise(5 * MIB))
    parts, missing = alone(tmp_path, f'[paths]\nstate = "{tmp_path}"\n', most=4 * MIB, ledger=True)
    assert "larger than 4 MiB" in dict(missing)["ledger/ledger.db"]
    assert "errors.txt" in parts


def test_usage(tmp_path: Path) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "vitald", "report", *arguments],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.stdout == "" and "Traceback" not in done.stderr
        return done.returncode, done.stderr

    for option, value in (
        ("--since", "soon"),
        ("--max-size", "1KiB"),
        ("--max-size", "-1"),
        ("--timeout", "0"),
        ("--timeout", "x"),
    ):
        assert told(option, value)[0] == 2, (option, value)
    there = tmp_path / "there"
    there.write_text("kept")
    code, said = told("--output", str(there))
    assert (code, "--force replaces it" in said, there.read_text()) == (69, True, "kept")
