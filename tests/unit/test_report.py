"""`vitald report`: the archive's format and limit, what is taken out of a configuration, and parts
that cannot be got.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import require
from tests.waiting import WAIT_S
from vitald import tomlfile
from vitald.catalog.settings import load_configured_catalog
from vitald.cli import CommandFailed, client
from vitald.cli.client import NoAnswer
from vitald.cli.report import archive, machine, redact
from vitald.cli.report.archive import Archive, ArchiveFull, CannotWrite, create_file
from vitald.cli.report.history import DaemonHistory, EventPages
from vitald.cli.report.parts import ReportOptions, SupportReport
from vitald.cli.report.redact import REDACTED, Redactor, read_configuration, redact_configuration
from vitald.config.paths import Paths
from vitald.config.sections import format_example
from vitald.judge.settings import PolicySettings
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


def test_no_planted_secret_is_shown() -> None:
    leaked = []
    for text in PLANTED:
        for broken in ("", "\nthis is no TOML\n"):
            shown, wrong = redact_configuration(text + broken, Redactor())
            if SECRET in shown or bool(wrong) != bool(broken):
                leaked.append((text, broken, shown))
            if not broken:
                tomlfile.parse_toml(shown, "shown")
    assert leaked == []


def test_no_secret_is_shown_whatever_it_is_called() -> None:
    for value in SHAPES:
        redactor = Redactor()
        shown, _ = redact_configuration(f"[x]\nplain = {json.dumps(value)}\n", redactor)
        assert value not in shown and REDACTED in shown, value
        assert redactor.redactions == ["x.plain: by its shape"]


def test_ordinary_settings_are_shown_as_they_are() -> None:
    """Every key that vitald has, and values that look a little like secrets."""
    ordinary = f"""{format_example()}
[catalog.overrides."xid/63"]
action = "reboot_node"
advice = "see https://wiki.example.com/gpu/xid-63"
[more]
uuid = "GPU-8f3e0c1a-1111-2222-3333-444455556666"
library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
at = 1979-05-27T07:32:00Z
ten = [1, 2.5, true, {{a = "\\u007f \\" ü"}}]
"""
    redactor = Redactor()
    shown, wrong = redact_configuration(ordinary, redactor)
    assert tomlfile.parse_toml(shown, "shown") == tomlfile.parse_toml(ordinary, "ordinary")
    assert (wrong, redactor.redactions, redactor.secrets) == ("", [], set())


_SCALAR = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=20)
)
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=8), _VALUE, max_size=4))
@example({"a": {"b": {}, "c": [{"d": {"e": "f"}}], "": ""}})
def test_what_is_shown_is_toml_again(tables: Json) -> None:
    """Written anew, only what was taken out differs: written once more, nothing does."""
    from vitald.cli.report.redact import _format_tables

    shown = Redactor().redact_tables(tables)
    assert tomlfile.parse_toml("\n".join(_format_tables(shown)), "shown") == shown


@settings(max_examples=300)
@given(st.text(max_size=300))
@example('[a.env]\nx = "y"')
def test_any_text_can_be_shown(text: str) -> None:
    redactor = Redactor()
    redact_configuration(text, redactor)
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


class Past:
    """Events numbered 1 to `count`, some numbers missing; fails on the n-th page."""

    origin = "a test"

    def __init__(self, count: int, holes: range = range(0), fails_at: int = 0) -> None:
        self._ids = [number for number in range(1, count + 1) if number not in holes]
        self._asked, self._fails_at = 0, fails_at

    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[Json]:
        self._asked += 1
        if self._asked == self._fails_at:
            raise CommandFailed("no answer")
        ids = [number for number in self._ids if number > (since if after is None else after)]
        return [
            {"id": number, "time": number, "raw": f"line {number}"}
            for number in (ids[-limit:] if newest else ids[:limit])
        ]


def line(value: Json) -> bytes:
    return json.dumps(value).encode() + b"\n"


def ids(pages: EventPages) -> list[int]:
    data = b"".join(pages)
    assert len(data) == pages.size
    return [json.loads(one)["id"] for one in data.splitlines()]


def paged(past: Past, since: float = 0, most: int = MIB, until: float = float("inf")) -> EventPages:
    return EventPages(past, since, line, most=most, until=until)  # type: ignore[arg-type]


def test_every_event_once_and_in_order() -> None:
    for count in (0, 1, MAX_PAGE - 1, MAX_PAGE, MAX_PAGE + 1, 3 * MAX_PAGE + 7):
        for since in (0, count // 2, count):
            assert ids(paged(Past(count), since)) == [*range(since + 1, count + 1)], (count, since)
    holes = range(500, 3700)
    numbers = [number for number in range(1, 5001) if number not in holes]
    assert ids(paged(Past(5000, holes))) == numbers, "some are missing"


def test_of_too_many_the_newest_stay() -> None:
    pages = paged(Past(20_000), most=40_000)
    kept = ids(pages)
    assert kept == [*range(20_001 - len(kept), 20_001)] and 0 < len(kept) < 20_000
    assert f" {kept[0]} " in pages.cut
    assert pages.drop_older_half() and ids(pages)[-1] == 20_000
    while pages.drop_older_half():
        pass
    assert ids(pages) == [*range(19_001, 20_001)]


def test_what_was_fetched_is_kept_when_the_rest_fails() -> None:
    late, failed = paged(Past(5000), until=0.0), paged(Past(5000, fails_at=5))
    assert (ids(late), "4001" in late.cut) == ([*range(4001, 5001)], True)
    assert (ids(failed), "3001" in failed.cut) == ([*range(3001, 5001)], True)
    assert "no answer" in failed.cut and "no answer" not in late.cut
    with pytest.raises(CommandFailed):
        paged(Past(5000, fails_at=1))


def test_a_daemon_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Endpoint[object]] = []

    def get(_: object, endpoint: Endpoint[object], **_values: object) -> Json:
        requested.append(endpoint)
        raise NoAnswer("no answer in time")

    monkeypatch.setattr(client, "get", get)
    daemon = DaemonHistory(argparse.Namespace())
    for question in (daemon.read_status, daemon.list_open, daemon.list_runs):
        with pytest.raises(CommandFailed, match="no answer in time"):
            question()
    assert requested == [endpoints.STATUS]


def test_an_answer_without_end_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object, **_values: object) -> Json:
        raise RecursionError

    monkeypatch.setattr(client, "get", get)
    with pytest.raises(CommandFailed, match="/v1/status: an answer that nobody can read"):
        DaemonHistory(argparse.Namespace()).read_status()


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
    assert found.shown.count("# wrong: ") == 3


def test_a_node_on_which_nothing_works(tmp_path: Path) -> None:
    """No daemon, no ledger, a wrong configuration with a secret in it: what there is, and why the
    rest is not.
    """
    parts, missing = alone(
        tmp_path,
        f'[paths]\nstate = "{tmp_path}/state"\n[metrics]\nlisten = "off"\n[alerts]\ntoken ='
        f' "{SECRET}"\n',
    )
    own = {"README.txt", "config.toml", "errors.txt", "summary.txt", "versions.json"}
    assert own | {"status.json", "inventory/pci.json"} <= {*parts}
    why = dict(missing)
    assert why["the ledger instead"] == "No such file or directory"
    assert "is the daemon running?" in why["all that only the daemon knows"]
    assert parts["errors.txt"].decode().splitlines() == [
        f"{part}: {text}" for part, text in missing
    ]
    shown = parts["config.toml"].decode()
    assert (
        "# redacted: alerts.token: by its name" in shown
        and "unknown section" in shown
        and "off" in shown
    )
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
    parts, _ = alone(tmp_path, f'[log]\nlevel = "debug"\n[alerts\npassword = "{SECRET}"\n')
    shown = parts["config.toml"].decode()
    assert 'level = "debug"' in shown and "not valid TOML" in shown and SECRET not in shown


def test_a_damaged_ledger_stops_nothing(tmp_path: Path) -> None:
    """It is put in as it is, where that is asked for."""
    path = tmp_path / "ledger.db"
    config = f'[paths]\nstate = "{tmp_path}"\n'
    for ledger in (b"", b"SQLite format 3\0" + noise(8000), noise(8000)):
        path.write_bytes(ledger)
        parts, missing = alone(tmp_path, config)
        assert (
            "the ledger instead" in dict(missing)
            or json.loads(parts["status.json"])["remembered"] == "healthy"
        )
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
