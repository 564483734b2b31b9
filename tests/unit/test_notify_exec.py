"""Programs that get notifications: real ones, which fail, hang, write much or leave children."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from tests.notifications import FINDING, make_notification
from tests.waiting import until
from vitald.publish.notify import exec as notify_exec
from vitald.publish.notify.exec import ExecReceiver, build_environment
from vitald.publish.notify.formats import FORMATS
from vitald.publish.notify.notification import Notification, NotificationKind
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.sink import SinkFailed

OPENED = make_notification(NotificationKind.OPENED)


def run_script(script: str, timeout_s: float = 30.0, notification: Notification = OPENED) -> None:
    """Deliver to a script of the shell. Raises as deliver does."""
    receiver = ExecReceiver("test", ["/bin/sh", "-c", script], timeout_s)
    asyncio.run(receiver.deliver(notification))


def is_running(pid: int) -> bool:
    """A zombie does not run."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_what_a_program_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the publisher's own")
    out = shlex.quote(str(tmp_path))
    run_script(f"cat > {out}/body; env -0 > {out}/env; pwd > {out}/pwd")
    assert json.loads((tmp_path / "body").read_bytes()) == FORMATS["vitald"].build(OPENED)
    pairs = (tmp_path / "env").read_text().rstrip("\0").split("\0")
    environment = dict(pair.split("=", 1) for pair in pairs)
    assert set(environment) - {"PWD", "SHLVL", "_", "OLDPWD"} == {
        "PATH",
        "LANG",
        "VITALD_TRANSITION",
        "VITALD_ID",
        "VITALD_DEDUP_KEY",
        "VITALD_HOST",
        "VITALD_INSTANCE_ID",
        "VITALD_STATUS",
        "VITALD_REBOOT_DUE",
        "VITALD_REPLACEMENT_DUE",
        "VITALD_SUMMARY",
        "VITALD_COMPONENT",
        "VITALD_CODE",
        "VITALD_SERIAL",
        "VITALD_ACTION",
        "VITALD_WHEN",
        "VITALD_CONFIRMED",
        "VITALD_SIMULATED",
    }
    assert environment["VITALD_CODE"] == "xid/79"
    assert (tmp_path / "pwd").read_text() == "/\n"


def test_there_is_no_shell(tmp_path: Path) -> None:
    receiver = ExecReceiver("test", ["/bin/echo", f"; touch {tmp_path}/made", "$(id)"])
    result = asyncio.run(receiver.run_program(OPENED))
    assert result.output == f"; touch {tmp_path}/made $(id)"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("text", ["\0\x1b[2J\n", "A" * 100_000, "\udc80", "x=y\u202e"])
def test_hostile_values_of_variables(text: str) -> None:
    hostile = make_notification(
        NotificationKind.OPENED,
        key=text,
        finding=type(FINDING)(
            **{
                name: text if name in ("component", "code", "title", "when") else value
                for name, value in ((each, getattr(FINDING, each)) for each in FINDING.__slots__)
            }
        ),
    )
    for value in build_environment(hostile).values():
        assert value.isprintable() and len(value.encode()) <= 1000
    run_script("exit 0", notification=hostile)


@pytest.mark.parametrize("status", [1, 2, 75, 126, 127, 255])
def test_what_is_tried_again(status: int) -> None:
    with pytest.raises(SinkFailed, match=f"exit status {status}: no network"):
        run_script(f"echo no network >&2; exit {status}")


def test_what_is_final() -> None:
    with pytest.raises(NotificationRefused, match="exit status 65: not mine"):
        run_script("echo not mine; exit 65")


def test_a_signal() -> None:
    with pytest.raises(SinkFailed, match="killed by signal 9"):
        run_script("kill -9 $$")


@pytest.mark.parametrize("program", ["/nonexistent/program", "/etc/passwd", "/bin/a\0b"])
def test_a_program_that_cannot_be_started(program: str) -> None:
    receiver = ExecReceiver("test", [program])
    with pytest.raises(SinkFailed, match=f"{program}: "):
        asyncio.run(receiver.deliver(OPENED))


def test_a_program_that_reads_nothing() -> None:
    """The pipe breaks, or stays full."""
    run_script("exec <&-; exit 0")


def test_a_program_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM, then SIGKILL, for it and its children."""
    monkeypatch.setattr(notify_exec, "_GRACE_S", 0.2)
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 1000 & echo $$ $! > {pids}; while :; do wait; done"
    with pytest.raises(SinkFailed, match="ended after"):
        run_script(script, timeout_s=0.5)
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not is_running(pid))


def test_a_program_that_ends_on_sigterm() -> None:
    with pytest.raises(SinkFailed, match="ended after"):
        run_script("trap 'exit 0' TERM; while :; do sleep 0.01; done", timeout_s=0.5)


def test_children_that_are_left_behind(tmp_path: Path) -> None:
    """They keep the output open: it is not waited for, and they are ended."""
    pid_file = tmp_path / "pid"
    run_script(f"sleep 1000 & echo $! > {pid_file}; exit 0")
    pid = int(pid_file.read_text())
    until(lambda: not is_running(pid))


def test_much_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = ExecReceiver("test", ["/bin/sh", "-c", "yes x | head -c 5000000; printf '\\033['"])
    result = asyncio.run(receiver.run_program(OPENED))
    assert len(result.output) <= 64 * 1024 and result.output.isprintable()
    logged: list[str] = []
    monkeypatch.setattr(
        notify_exec.log, "info", lambda event, **values: logged.append(values["output"])
    )
    asyncio.run(receiver.deliver(OPENED))
    assert len(logged[0].encode()) <= 1000


def test_one_at_a_time(tmp_path: Path) -> None:
    folder = shlex.quote(str(tmp_path))
    script = f"mkdir {folder}/lock || exit 9; sleep 0.1; rmdir {folder}/lock"
    receiver = ExecReceiver("test", ["/bin/sh", "-c", script])

    async def deliver_together() -> None:
        await asyncio.gather(*(receiver.deliver(OPENED) for _ in range(3)))

    asyncio.run(deliver_together())


def test_a_publisher_that_stops_leaves_nothing(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    receiver = ExecReceiver("test", ["/bin/sh", "-c", f"echo $$ > {pid_file}; sleep 1000"])

    async def stop() -> None:
        task = asyncio.ensure_future(receiver.deliver(OPENED))
        while not (pid_file.exists() and pid_file.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stop())
    pid = int(pid_file.read_text())
    until(lambda: not is_running(pid))


def test_a_program_that_hangs_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL does not end it: it is left behind, and the message is tried again."""
    monkeypatch.setattr(notify_exec, "_GRACE_S", 0.05)
    monkeypatch.setattr(notify_exec, "_KILL_S", 0.05)
    kill, pids = os.killpg, list[int]()
    monkeypatch.setattr(notify_exec.os, "killpg", lambda pid, _: pids.append(pid))
    with pytest.raises(SinkFailed, match="ended after"):
        run_script("sleep 1000", timeout_s=0.05)
    kill(pids[0], signal.SIGKILL)
