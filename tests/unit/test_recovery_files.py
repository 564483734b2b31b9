"""What root reads and writes where others have a hand in it, and the programs that it runs. As
root: who owns a file is what counts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import require
from tests.waiting import until
from vitald.config.paths import RECOVERY_PATH
from vitald.model.words import Repair
from vitald.recovery import decision_log, files, programs
from vitald.recovery.decision import Decision, Step
from vitald.recovery.decision_log import format_decision
from vitald.recovery.files import Untrusted
from vitald.timestamps import format_rfc3339

NOBODY = 65534


@pytest.fixture(autouse=True)
def _root() -> None:
    require(os.geteuid() == 0, "root")


def _symlink(path: Path) -> None:
    path.with_name("real").write_text("x")
    path.symlink_to(path.with_name("real"))


def _hard_link(path: Path) -> None:
    path.write_text("x")
    os.link(path, path.with_name("other"))


def _of_another(path: Path) -> None:
    path.write_text("x")
    os.chown(path, NOBODY, -1)


def _mode(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text("x")
        path.chmod(mode)

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_symlink, "symbolic link"),
        (_hard_link, "another name"),
        (_of_another, f"belongs to uid {NOBODY}"),
        (_mode(0o660), "mode 0660"),
        (_mode(0o646), "mode 0646"),
        (os.mkfifo, "not an ordinary file"),
        (Path.mkdir, "not an ordinary file"),
        (lambda path: path.write_text("x" * 11), "larger than 10 bytes"),
        (
            lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)),
            "not an ordinary file|denied",
        ),  # /dev/zero; a container may not open it
    ],
)
def test_a_file_that_does_not_count(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "request.json"
    make(path)
    with pytest.raises(Untrusted, match=said):
        files.read_owned_file(path, {0}, 10)


def test_a_file_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    with pytest.raises(files.Absent):
        files.read_owned_file(path, {0}, 10)
    path.write_bytes(b"0123456789")
    assert files.read_owned_file(path, {0}, 10) == b"0123456789"
    os.chown(path, NOBODY, -1)
    assert files.read_owned_file(path, {0, NOBODY}, 10) == b"0123456789"


def test_no_folder_on_the_way_may_be_anybodys(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("x")
    files.check_folders(folder, {0})
    (tmp_path / "a").chmod(0o777)
    with pytest.raises(Untrusted, match="mode 0777"):
        files.check_folders(folder, {0})
    with pytest.raises(Untrusted, match="mode 0777"):
        files.read_root_file(folder / "config.toml", 10)
    (tmp_path / "a").chmod(0o1777)  # as /tmp: nobody can rename what is another's
    files.check_folders(folder, {0})
    os.chown(tmp_path / "a", NOBODY, -1)
    with pytest.raises(Untrusted, match=f"uid {NOBODY}"):
        files.check_folders(folder, {0})
    files.check_folders(folder, {0, NOBODY})
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(Untrusted, match="not a folder"):
        files.check_folders(tmp_path / "link", {0, NOBODY})


def test_a_link_to_roots_file_is_followed_and_judged_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "config.toml").symlink_to(tmp_path / "real")
    assert files.read_root_file(tmp_path / "config.toml", 10) == b"x"
    os.chown(tmp_path / "real", NOBODY, -1)
    with pytest.raises(Untrusted, match=f"uid {NOBODY}"):
        files.read_root_file(tmp_path / "config.toml", 10)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(Untrusted):
        files.read_root_file(tmp_path / "loop", 10)


def test_a_switch_that_cannot_be_seen_is_on(tmp_path: Path) -> None:
    assert files.describe_existing(tmp_path / "no-recovery") == ""
    assert files.describe_existing(tmp_path / "no folder/no-recovery") == ""
    (tmp_path / "no-recovery").symlink_to(
        "/nonexistent"
    )  # anything of this name, wherever it leads
    assert "exists" in files.describe_existing(tmp_path / "no-recovery")
    (tmp_path / "file").touch()
    assert "cannot be checked: Not a directory" in files.describe_existing(
        tmp_path / "file/no-recovery"
    )
    assert "cannot be checked" in files.describe_existing(tmp_path / ("x" * 300))


def test_what_is_written_is_whole_and_for_the_group(tmp_path: Path) -> None:
    path = tmp_path / "actions.json"
    for text in (b"one", b"two" * 100_000):
        files.write_durably(path, text, NOBODY)
        assert path.read_bytes() == text
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 0, NOBODY)
    assert [one.name for one in tmp_path.iterdir()] == ["actions.json"]
    path.with_name(".actions.json.new").symlink_to("/etc/passwd")  # left there by whom ever
    files.write_durably(path, b"three", NOBODY)
    assert path.read_bytes() == b"three"


def test_one_at_a_time(tmp_path: Path) -> None:
    with (
        files.hold_folder(tmp_path),
        pytest.raises(Untrusted, match="another vitald recovery run"),
        files.hold_folder(tmp_path),
    ):
        pass
    with files.hold_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    ("kind", "forgets"), [("ext4", False), ("tmpfs", True), ("ramfs", True), ("overlay", False)]
)
def test_a_folder_that_does_not_survive_a_reboot(tmp_path: Path, kind: str, forgets: bool) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"21 1 0:99 / /proc rw - proc proc rw\n22 1 {os.major(device)}:{os.minor(device)} /"
        f" {tmp_path} rw,relatime shared:1 - {kind} none rw\n"
    )
    assert bool(files.describe_volatility(tmp_path, mounts)) is forgets
    assert "cannot be told" in files.describe_volatility(tmp_path, tmp_path / "none")


def test_memory_is_told_from_a_disk_on_this_machine() -> None:
    assert "tmpfs" in files.describe_volatility(Path("/dev/shm"))


# --- programs


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_gets_a_clean_environment_and_its_own_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nonexistent/evil.so")
    monkeypatch.setenv("PATH", str(tmp_path))
    script(tmp_path / "env", "echo hostile")
    done = programs.run_program(("env",), 5.0, {"VITALD_ACTION": "reboot"})
    variables = dict(line.split("=", 1) for line in done.output.decode().splitlines())
    assert variables == {
        "PATH": RECOVERY_PATH,
        "LC_ALL": "C.UTF-8",
        "HOME": "/",
        "VITALD_ACTION": "reboot",
    }
    folders = RECOVERY_PATH.split(":")
    assert folders.index("/usr/bin") < folders.index("/usr/local/bin"), (
        "what is in /usr/local does not stand in for the system's"
    )
    assert programs.run_program(("printf", "%s", "$(id); `id`"), 5.0).output == b"$(id); `id`"


def test_how_a_program_fails_is_said(tmp_path: Path) -> None:
    failing = script(tmp_path / "failing", "echo first; printf 'why\\033[2J' >&2; exit 3")
    done = programs.run_program((failing,), 5.0)
    assert (done.exit_code, done.trouble) == (3, f"{failing} failed: exit 3: why?[2J")
    assert (
        programs.run_program(("no-such-program",), 5.0).trouble
        == "no-such-program: there is no such program"
    )
    assert programs.run_program((script(tmp_path / "killed", "kill -9 $$"),), 5.0).trouble.endswith(
        "failed: signal 9"
    )
    (tmp_path / "garbage").write_bytes(b"\x7fELF")
    (tmp_path / "garbage").chmod(0o755)
    assert "cannot be run" in programs.run_program((str(tmp_path / "garbage"),), 5.0).trouble


def test_a_program_that_is_anybodys_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "drain"
    ran = tmp_path / "ran"
    script(path, f"touch {ran}")
    path.chmod(0o757)
    assert "mode 0757" in programs.run_program((str(path),), 5.0).trouble
    path.chmod(0o755)
    os.chown(path, NOBODY, -1)
    (tmp_path / "link").symlink_to(path)
    for name in ("drain", "link"):
        assert f"uid {NOBODY}" in programs.run_program((str(tmp_path / name),), 5.0).trouble
    assert not ran.exists()


def test_a_program_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hanging = script(
        tmp_path / "hanging", f"trap '' TERM; sleep 1000 & echo $! > {pid}; wait; sleep 1000"
    )
    done = programs.run_program((hanging,), 2.0)
    assert "did not end within 2 s" in done.trouble
    until(lambda: not runs(int(pid.read_text())), "what it started to end")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_a_program_leaves_running_holds_up_nothing(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    done = programs.run_program(
        (script(tmp_path / "leaving", f"sleep 1000 & echo $! > {pid}; echo said"),), 10.0
    )
    assert (done.exit_code, done.output, done.trouble) == (0, b"said\n", "")
    os.kill(int(pid.read_text()), 9)  # which still runs


# --- the record


def test_whether_a_reboot_has_happened_is_shown() -> None:
    ordered = {"action": "reboot", "step": "act", "outcome": "ordered", "bootId": "a"}
    shown = {boot_id: format_decision(ordered, boot_id=boot_id) for boot_id in ("", "a", "b")}
    assert shown == {
        "": "reboot the node: ordered",
        "a": "reboot the node: ordered, and the node is still in the same boot",
        "b": "reboot the node: ordered, and the node has been booted since",
    }
    for other in ({"action": "replace"}, {"outcome": "failed: exit 1"}, {"outcome": ""}):
        assert "same boot" not in format_decision({**ordered, **other}, boot_id="a")


def test_the_same_decision_is_counted_and_the_file_stays_small(tmp_path: Path) -> None:
    refused = Decision(
        step=Step.REFUSED, kind=Repair.REBOOT, reasons=(("budget", "1 within a day"),)
    )
    for moment in (1.0, 2.0, 3.0):
        decision_log.append_record(
            tmp_path, decision_log.build_record(refused, None, "boot-a", moment), 0
        )
    [one] = decision_log.read_records(tmp_path)
    assert (one["times"], one["time"], one["last"]) == (3, format_rfc3339(1.0), format_rfc3339(3.0))
    act = Decision(step=Step.ACT, kind=Repair.REBOOT)
    failed = "failed: no such interpreter"
    for outcome in (decision_log.BEGUN, failed) * 3 + (decision_log.BEGUN, decision_log.ORDERED):
        decision_log.append_record(
            tmp_path, decision_log.build_record(act, None, "boot-a", 4.0, outcome), 0
        )
    assert [
        (one["step"], one["outcome"], one["times"]) for one in decision_log.read_records(tmp_path)
    ] == [
        ("refused", "", 3),
        ("act", failed, 3),
        ("act", "ordered", 1),
    ]
    (tmp_path / decision_log.FILE).write_bytes(
        b"\xff\n[1]\nnull\n" + (tmp_path / decision_log.FILE).read_bytes()
    )
    assert len(decision_log.read_records(tmp_path)) == 3, "it may be damaged: it decides nothing"
    lines = (tmp_path / decision_log.FILE).read_bytes().splitlines()[-1:] * 600
    (tmp_path / decision_log.FILE).write_bytes(b"\n".join(lines))
    decision_log.append_record(tmp_path, decision_log.build_record(refused, None, "boot-a", 5.0), 0)
    assert len(decision_log.read_records(tmp_path)) == 500
