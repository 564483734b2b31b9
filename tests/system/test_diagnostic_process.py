"""Diagnostic programs that misbehave: deadlines hold, nothing is left running, and the reason is
said.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tests.clock import HOUR_S, run_turned, turn
from tests.conftest import require
from tests.dcgmi import Answer, Dcgmi, diag, document, refusal
from tests.unit.builders import ROOT
from tests.waiting import WAIT_S, until, until_async
from vitald.diagnostics.check import MAX_BYTES, Command, Output, ProgramEnd
from vitald.diagnostics.device_access import find_leftovers
from vitald.diagnostics.run import process
from vitald.diagnostics.run.held_processes import (
    HeldProcesses,
    find_delegated_cgroup,
    is_running,
    list_processes,
)
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics.run.start import Started, start_program

TOKEN = f"TOKEN={secrets.token_hex(8)}"  # in the environment of all that these tests start
NVVS = "nvvs"


@pytest.fixture
def dcgmi(tmp_path: Path) -> Iterator[Dcgmi]:
    with Dcgmi(tmp_path / "bin") as program:
        yield program


def _find_cgroups() -> Path | None:
    """Where the second version of control groups is mounted."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A control group that may be divided. Nothing is left of what was made in it."""
    cgroups = _find_cgroups()
    require(cgroups is not None and os.access(cgroups, os.W_OK), "control groups, to make one")
    assert cgroups is not None
    folder = cgroups / f"vitald-test-{secrets.token_hex(4)}"
    folder.mkdir()
    yield folder
    folder.rmdir()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither processes, nor zombies, nor open files, nor threads."""
    fds, children = _fds(), _children()
    yield
    until(lambda: not _threads(), "threads to end")
    assert _children() - children == set()
    assert _fds() - fds == set()


def _fds() -> set[str]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(f"{fd.name} {fd.readlink()}")
    return found


def _children() -> set[int]:
    """Zombies, too."""
    return {one.pid for one in list_processes() if one.parent == os.getpid()}


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "diagnostic"]


def _marked() -> list[str]:
    """What comes from these tests and lives."""
    found = []
    for one in list_processes():
        with suppress(OSError):
            if TOKEN.encode() in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0"):
                found.append(str(one))
    return found


def command(
    dcgmi: Dcgmi,
    *,
    deadline_s: float = HOUR_S,
    grace_s: float = 0.2,
    level: int = 1,
    **environment: str,
) -> Command:
    argv = (str(dcgmi.path), "diag", "-r", str(level), "--json")
    return Command(
        argv=argv,
        deadline_s=deadline_s,
        grace_s=grace_s,
        environment=dict([TOKEN.split("=")]) | environment,
    )


def shell(script: str, *, deadline_s: float = HOUR_S, grace_s: float = 0.2) -> Command:
    argv = ("/bin/sh", "-c", script)
    return Command(
        argv=argv, deadline_s=deadline_s, grace_s=grace_s, environment=dict([TOKEN.split("=")])
    )


def run(wanted: Command, programs: Callable[[], Programs] = Programs) -> Output:
    async def execute() -> Output:
        return await programs().execute(wanted)

    return asyncio.run(execute())


def run_past_deadline(
    wanted: Command,
    begun: Callable[[], object],
    programs: Callable[[], Programs] = Programs,
    got_sigterm: Callable[[], object] | None = None,
) -> Output:
    """The deadline passes once the program has begun. For one that ignores SIGTERM, the grace period
    passes once it has got it.
    """

    async def execute() -> Output:
        running = asyncio.create_task(programs().execute(wanted))
        await until_async(begun, "the program's start")
        turn(wanted.deadline_s)
        if got_sigterm is not None:
            await until_async(got_sigterm, "SIGTERM")
            turn(wanted.grace_s)
        return await running

    return run_turned(execute())


# --- as it should be


@pytest.mark.core
def test_a_run_that_is_well(dcgmi: Dcgmi) -> None:
    output = run(command(dcgmi, level=2))
    assert (output.ended, output.exit_code, output.why, output.left, output.dropped) == (
        ProgramEnd.EXITED,
        0,
        "",
        (),
        0,
    )
    assert output.stdout == document(level=2)
    assert output.seconds > 0


def test_exit_code_and_both_streams_are_kept(dcgmi: Dcgmi) -> None:
    dcgmi.diag(
        Answer(
            stdout="out\udcff".encode("utf-8", "surrogateescape").decode(
                "utf-8", "surrogateescape"
            ),
            stderr="err",
            exit_code=226,
        )
    )
    output = run(command(dcgmi))
    assert (output.ended, output.exit_code, output.stdout, output.stderr) == (
        ProgramEnd.EXITED,
        226,
        "out\N{REPLACEMENT CHARACTER}",
        "err",
    )


def test_it_is_alone_and_knows_neither_jobs_nor_the_daemon(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = dict.fromkeys(
        (
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_DRIVER_CAPABILITIES",
            "LD_PRELOAD",
            "LANG",
        ),
        "",
    )
    hidden |= {
        "SLURM_JOB_ID": "1",
        "SLURMD_NODENAME": "a",
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "1",
        "LISTEN_FDS": "1",
    }
    hidden |= {
        "RUNTIME_DIRECTORY": "/run/vitald",
        "STATE_DIRECTORY": "/var/lib/vitald",
        "JOURNAL_STREAM": "8:1",
        "LC_TIME": "de_DE",
    }
    hidden |= {"INVOCATION_ID": "1", "PYTHONPATH": "/work", "VITALD_SOCKET": "/run/x"}
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("PATH", "relative::/opt/tools/bin:/usr/bin")
    inherited = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    own = os.dup(0)
    os.dup2(inherited, 0)
    try:
        run(command(dcgmi, CUDA_DEVICE_ORDER="PCI_BUS_ID"))
        run(command(dcgmi))
    finally:
        os.dup2(own, 0)
        os.close(own)
        os.close(inherited)
    first, second = dcgmi.runs()
    assert hidden.keys() & first.environment.keys() == set()
    assert (
        first.environment["PATH"]
        == "/opt/tools/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"
    )
    assert (first.environment["LC_ALL"], first.environment["NCCL_SOCKET_IFNAME"]) == ("C", "eth0")
    assert (first.environment["CUDA_DEVICE_ORDER"], "CUDA_DEVICE_ORDER" in second.environment) == (
        "PCI_BUS_ID",
        False,
    )
    assert first.pid == first.group == first.session
    assert (first.stdin, first.cwd) == ("/dev/null", "/")
    assert not any(target == "/dev/zero" or "socket" in target for target in first.fds.values())


def test_it_is_what_the_kernel_ends_first_where_memory_runs_out() -> None:
    output = run(
        shell("until grep -x 500 /proc/self/oom_score_adj; do sleep 0.01; done", deadline_s=WAIT_S)
    )
    assert output.stdout.strip() == "500"


def test_slow_output_is_taken_whole(dcgmi: Dcgmi) -> None:
    dcgmi.diag(Answer(stdout=document(level=4), slow_s=0.6))
    output = run(command(dcgmi))
    assert (output.ended, output.stdout) == (ProgramEnd.EXITED, document(level=4))
    assert output.seconds > 0.6


# --- hanging


@pytest.mark.core
def test_a_hang_ends_at_the_deadline(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    output = run_past_deadline(
        shell(f"printf begun; touch {begun}; exec sleep 300", grace_s=HOUR_S), begun.exists
    )
    assert (output.ended, output.exit_code, output.stdout) == (
        ProgramEnd.DEADLINE,
        -signal.SIGTERM,
        "begun",
    )
    assert output.why == "no end within 3600 s"
    assert output.seconds >= HOUR_S


def test_who_ignores_sigterm_is_killed_after_the_grace(dcgmi: Dcgmi) -> None:
    dcgmi.diag(Answer(hang=True, ignores_term=True))
    output = run_past_deadline(
        command(dcgmi, grace_s=HOUR_S), dcgmi.runs, got_sigterm=lambda: dcgmi.runs()[0].signals
    )
    assert (output.ended, output.exit_code, output.left) == (
        ProgramEnd.DEADLINE,
        -signal.SIGKILL,
        (),
    )
    assert output.why == "no end within 3600 s; SIGTERM did not end it: killed"
    assert output.seconds >= 2 * HOUR_S
    assert dcgmi.runs()[0].signals == (signal.SIGTERM,)
    assert dcgmi.alive() == ()


def test_who_answers_sigterm_late_is_heard(dcgmi: Dcgmi) -> None:
    """As dcgmi does, once the engine has stopped what runs there."""
    dcgmi.diag(diag(delay_s=300.0, stops_s=0.4, leaves="engine"))
    output = run_past_deadline(command(dcgmi, grace_s=HOUR_S), dcgmi.runs)
    assert (output.ended, output.exit_code, output.stdout) == (
        ProgramEnd.DEADLINE,
        203,
        refusal(203),
    )
    assert dcgmi.alive() == ()


def test_a_program_that_was_stopped_ends_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def is_stopped() -> bool:
        return pid.exists() and ") T " in Path(f"/proc/{pid.read_text()}/stat").read_text()

    script = f"printf $$ >{pid}.new; mv {pid}.new {pid}; kill -STOP $$; sleep 300"
    output = run_past_deadline(shell(script), is_stopped)
    assert (output.ended, output.exit_code) == (ProgramEnd.DEADLINE, -signal.SIGKILL)


# --- too much output


def test_50_mib_of_output_cost_neither_memory_nor_the_loop(dcgmi: Dcgmi) -> None:
    last = document(level=2)
    size = 50 * 1024 * 1024
    dcgmi.diag(Answer(flood=size, stdout=last))
    turns = 0

    async def execute() -> Output:
        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        output = await Programs().execute(command(dcgmi))
        counting.cancel()
        return output

    run(command(dcgmi))  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmRSS")
    output = asyncio.run(execute())
    assert _status("VmHWM") - before < 20 * 1024
    assert output.ended is ProgramEnd.EXITED
    assert output.stdout.endswith(last)
    half = MAX_BYTES // 4
    gap = f"\n... {output.dropped} bytes dropped ...\n"
    assert output.dropped == size + len(last) - 2 * half
    assert output.stdout[half : half + len(gap)] == gap
    assert len(output.stdout) == 2 * half + len(gap)
    assert turns >= size / process._READ_BYTES, "others have their turn after each part"


def _status(name: str) -> int:
    """In KiB."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(f"{name}:")
    )
    return int(line.split()[1])


def test_each_stream_has_its_own_limit() -> None:
    async def execute() -> Output:
        flood = shell("head -c 100000 /dev/zero >&2; printf good")
        return await Programs().execute(replace(flood, max_bytes=4000))

    output = asyncio.run(execute())
    assert output.stdout == "good"
    assert output.dropped == 98000
    assert len(output.stderr.replace("\0", "")) < 40


def test_what_was_printed_last_is_not_lost_where_the_loop_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_SETTLE_S", 0.0)
    monkeypatch.setattr(process, "_READ_BYTES", 16)
    monkeypatch.setattr(process, "_PIPE_READS", 4096)
    output = run(shell("head -c 60000 /dev/zero; printf last"))
    assert len(output.stdout) == 60004
    assert output.stdout.endswith("last")


def test_output_without_end_ends_at_the_deadline(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    output = run_past_deadline(shell(f"touch {begun}; exec cat /dev/zero"), begun.exists)
    assert (output.ended, output.exit_code) == (ProgramEnd.DEADLINE, -signal.SIGTERM)
    assert len(output.stdout) < MAX_BYTES


# --- leaving children behind


@pytest.mark.parametrize("kind", ["child", "deaf child"])
def test_what_is_left_behind_is_ended_and_said(dcgmi: Dcgmi, kind: str) -> None:
    _check_left_behind(dcgmi, kind, None)


@pytest.mark.parametrize("kind", ["child", "deaf child", "session", "daemon"])
def test_what_is_left_behind_in_the_control_group_is_ended_and_said(
    dcgmi: Dcgmi, kind: str, delegated: Path
) -> None:
    _check_left_behind(dcgmi, kind, delegated)


def _check_left_behind(dcgmi: Dcgmi, kind: str, delegated: Path | None) -> None:
    dcgmi.diag(Answer(stdout="done", leaves=kind))
    output = run(command(dcgmi), lambda: Programs(delegated))
    assert (output.ended, output.exit_code, output.stdout, output.left) == (
        ProgramEnd.EXITED,
        0,
        "done",
        (),
    )
    assert output.why.startswith("it left behind nvvs (pid ")
    assert output.why.endswith("), now ended")
    assert dcgmi.alive() == ()


def test_the_deadline_ends_children_too(dcgmi: Dcgmi) -> None:
    _check_deadline(dcgmi, "deaf child", None)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("kind", ["deaf child", "session", "daemon"])
def test_the_deadline_ends_all_in_the_control_group(
    dcgmi: Dcgmi, kind: str, delegated: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """Also before Linux 5.14, which has no cgroup.kill."""
    if is_old:
        monkeypatch.setattr("vitald.diagnostics.run.held_processes._KILL", "cgroup.absent")
    _check_deadline(dcgmi, kind, delegated)


def _check_deadline(dcgmi: Dcgmi, kind: str, delegated: Path | None) -> None:
    dcgmi.diag(Answer(hang=True, ignores_term=True, leaves=kind))
    output = run_past_deadline(command(dcgmi), dcgmi.runs, lambda: Programs(delegated))
    assert (output.ended, output.exit_code, output.left) == (
        ProgramEnd.DEADLINE,
        -signal.SIGKILL,
        (),
    )
    assert dcgmi.alive() == ()


def test_what_leaves_session_and_environment_stays_in_the_control_group(
    tmp_path: Path, delegated: Path
) -> None:
    begun = tmp_path / "begun"
    escaped = f'trap "" TERM; echo $$; : >{begun}; sleep 300; true'
    output = run_past_deadline(
        shell(f"{HELD}setsid env -i sh -c '{escaped}' & sleep 300"),
        begun.exists,
        lambda: Programs(delegated),
    )
    pid = int(output.stdout)
    assert output.ended is ProgramEnd.DEADLINE
    assert not [one for one in list_processes() if one.pid == pid and not one.is_dead]


# It is moved there right after its start
HELD = "until grep -q diagnostic- /proc/self/cgroup; do sleep 0.01; done; "


def test_a_crowd_of_children_in_sessions_of_their_own(tmp_path: Path, delegated: Path) -> None:
    there = tmp_path / "there"
    child = f"sleep 300 & sleep 300 & echo >>{there}; wait"
    output = run(
        shell(
            f"{HELD}for i in 1 2 3 4 5 6 7 8; do setsid sh -c '{child}' & done; "
            f"until [ $(wc -l <{there}) = 8 ]; do sleep 0.01; done"
        ),
        lambda: Programs(delegated),
    )
    assert output.ended is ProgramEnd.EXITED
    assert re.search(r" and [12]\d more, now ended$", output.why)
    assert output.left == ()
    assert _marked() == []


def test_children_that_go_on_having_children(delegated: Path) -> None:
    output = run(
        shell(
            f"{HELD}setsid sh -c 'trap \"\" TERM; while :; do (setsid sleep 300 &); sleep 0.02; done' &"
            " sleep 0.2"
        ),
        lambda: Programs(delegated),
    )
    assert (output.ended, output.left) == (ProgramEnd.EXITED, ())
    assert _marked() == []


def test_a_child_that_is_about_to_end_was_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_LEFT_S", WAIT_S)
    assert run(shell("sleep 0.01 & exit 3")).why == ""


def test_a_stranger_who_holds_the_output_open_holds_up_nobody(tmp_path: Path) -> None:
    """Nothing says that it comes from the program."""
    there = tmp_path / "there"
    output = run(
        shell(
            f"(setsid env -i sh -c 'echo $$; : >{there}; sleep 300' &); "
            f"until [ -e {there} ]; do sleep 0.01; done; echo done"
        )
    )
    pid, done = output.stdout.split()
    os.killpg(int(pid), signal.SIGKILL)  # it is still there
    assert (output.ended, output.exit_code, done) == (ProgramEnd.EXITED, 0, "done")


def test_what_the_engine_runs_outlives_a_killed_client(dcgmi: Dcgmi) -> None:
    dcgmi.diag(Answer(hang=True, ignores_term=True, alone=True, leaves="engine"))
    output = run_past_deadline(command(dcgmi), dcgmi.runs)
    assert (output.ended, output.left) == (ProgramEnd.DEADLINE, ())
    (pid,) = dcgmi.alive()
    assert f"nvvs (pid {pid})" in find_leftovers()
    assert run(command(dcgmi)).exit_code == 222
    dcgmi.end()
    assert f"nvvs (pid {pid})" not in find_leftovers()
    dcgmi.forget()
    assert run_past_deadline(command(dcgmi), dcgmi.runs).ended is ProgramEnd.DEADLINE


def test_a_zombie_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / NVVS).symlink_to("/bin/true")
    child = subprocess.Popen([tmp_path / NVVS])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert Path(f"/proc/{child.pid}/comm").read_text() == f"{NVVS}\n"
        assert f"nvvs (pid {child.pid})" not in find_leftovers()
    finally:
        child.wait()


# --- signals, and programs that do not start


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSEGV, "ended by SIGSEGV"),
        (signal.SIGTERM, "ended by SIGTERM"),
        (signal.SIGRTMIN + 3, f"ended by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_ended_by_a_signal(dcgmi: Dcgmi, number: int, said: str) -> None:
    dcgmi.diag(Answer(stdout=document(), signal=number))
    output = run(command(dcgmi))
    assert (output.ended, output.exit_code, output.why) == (ProgramEnd.SIGNALLED, -number, said)
    assert output.stdout == document()


def test_killed_by_the_kernel(dcgmi: Dcgmi) -> None:
    dcgmi.diag(Answer(signal=signal.SIGKILL))
    output = run(command(dcgmi))
    assert (output.ended, output.exit_code) == (ProgramEnd.SIGNALLED, -signal.SIGKILL)
    assert output.why.startswith("ended by SIGKILL")


def _unexecutable(path: Path) -> None:
    path.chmod(0o644)


def _without_interpreter(path: Path) -> None:
    path.write_text("#!/no/such/python\n")


def _rubbish(path: Path) -> None:
    path.write_bytes(b"\0" * 64)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            _unexecutable,
            (
                "cannot be run: no right to, or it is not marked executable: Permission denied"
                " (EACCES)"
            ),
        ),
        (
            _without_interpreter,
            "cannot be run: its interpreter is missing: No such file or directory (ENOENT)",
        ),
        (
            _rubbish,
            (
                "neither a program for this machine nor a script with an interpreter line: Exec"
                " format error (ENOEXEC)"
            ),
        ),
        (Path.unlink, "is not there: No such file or directory (ENOENT)"),
        (_folder, "Permission denied (EACCES)"),
    ],
)
def test_what_cannot_be_started(dcgmi: Dcgmi, spoil: Callable[[Path], None], said: str) -> None:
    assert run(command(dcgmi)).ended is ProgramEnd.EXITED  # the same one was well before
    spoil(dcgmi.path)
    output = run(command(dcgmi))
    assert (output.ended, output.exit_code, output.stdout) == (ProgramEnd.NOT_STARTED, None, "")
    assert output.why.startswith(str(dcgmi.path))
    assert output.why.endswith(said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "there is no program to run: its name is empty"),
        (("",), "there is no program to run: its name is empty"),
        (
            ("no-such-program",),
            "there is no no-such-program on PATH: No such file or directory (ENOENT)",
        ),
        (("/bin/true", "a\0b"), "'/bin/true' cannot be run: embedded null byte"),
        (
            ("/bin/true", "a" * 10_000_000),
            "/usr/bin/true cannot be run: the system refuses: Argument list too long (E2BIG)",
        ),
    ],
)
def test_a_command_that_is_none(argv: tuple[str, ...], said: str) -> None:
    output = run(Command(argv=argv, deadline_s=WAIT_S))
    assert (output.ended, output.why.replace("/usr/bin/true", "/bin/true")) == (
        ProgramEnd.NOT_STARTED,
        said.replace("/usr/bin/true", "/bin/true"),
    )


def test_a_program_is_found_on_path(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", dcgmi.search_path)
    assert (
        run(Command(argv=("dcgmi", "--version"), deadline_s=WAIT_S)).stdout
        == "\ndcgmi  version: 4.5.2\n\n"
    )
    dcgmi.path.unlink()
    assert run(Command(argv=("dcgmi", "--version"), deadline_s=WAIT_S)).why.startswith(
        "there is no dcgmi on PATH"
    )


def test_a_program_that_vanishes_while_it_runs(dcgmi: Dcgmi) -> None:
    dcgmi.diag(diag(delay_s=0.3))

    async def execute() -> Output:
        running = asyncio.create_task(Programs().execute(command(dcgmi)))
        await until_async(dcgmi.runs)
        dcgmi.path.unlink()
        return await running

    output = asyncio.run(execute())
    assert (output.ended, output.stdout) == (ProgramEnd.EXITED, document())


# --- cancelling


@asynccontextmanager
async def going(
    dcgmi: Dcgmi, grace_s: float = HOUR_S
) -> AsyncIterator[tuple[Programs, asyncio.Task[Output]]]:
    """A run that has begun."""
    programs = Programs()
    running = asyncio.create_task(programs.execute(command(dcgmi, grace_s=grace_s)))
    await until_async(dcgmi.runs)
    yield programs, running


@pytest.mark.core
def test_cancelled_while_it_runs(dcgmi: Dcgmi) -> None:
    dcgmi.diag(diag(delay_s=300.0))

    async def execute() -> Output:
        async with going(dcgmi) as (programs, running):
            programs.cancel("root: not now")
            return await running

    output = asyncio.run(execute())
    assert (output.ended, output.exit_code, output.why, output.stdout) == (
        ProgramEnd.CANCELLED,
        203,
        "root: not now",
        refusal(203),
    )
    assert dcgmi.alive() == ()


@pytest.mark.parametrize("pause_s", [0.0, 0.0005, 0.002, 0.01, 0.02, 0.04])
def test_cancelled_while_it_starts(dcgmi: Dcgmi, pause_s: float) -> None:
    """Before the program is there, before it minds signals, or after."""
    dcgmi.diag(Answer(hang=True, leaves="deaf child"))

    async def execute() -> Output:
        programs = Programs()
        running = asyncio.create_task(programs.execute(command(dcgmi, grace_s=0.5)))
        await asyncio.sleep(pause_s)
        programs.cancel("changed my mind")
        return await running

    output = asyncio.run(execute())
    assert (output.ended, output.why) == (ProgramEnd.CANCELLED, "changed my mind")
    assert dcgmi.alive() == ()
    assert _marked() == []


def test_cancelled_while_it_prints(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def execute() -> Output:
        programs = Programs()
        wanted = shell(f"touch {begun}; exec cat /dev/zero")
        running = asyncio.create_task(programs.execute(wanted))
        await until_async(begun.exists)
        programs.cancel("enough")
        return await running

    output = asyncio.run(execute())
    assert (output.ended, output.exit_code, output.why) == (
        ProgramEnd.CANCELLED,
        -signal.SIGTERM,
        "enough",
    )


def test_a_job_does_not_wait_for_the_grace(dcgmi: Dcgmi) -> None:
    """Even where a deadline has passed before, and the program and its children ignore SIGTERM."""
    dcgmi.diag(Answer(hang=True, ignores_term=True, leaves="deaf child"))

    async def execute() -> Output:
        programs = Programs()
        running = asyncio.create_task(programs.execute(command(dcgmi, grace_s=HOUR_S)))
        await until_async(dcgmi.runs)
        turn()
        await until_async(lambda: dcgmi.runs()[0].signals)
        programs.cancel("job 7 begins", 0.3)
        return await running

    output = run_turned(execute())
    assert output.seconds >= HOUR_S + 0.3
    assert (output.ended, output.exit_code) == (
        ProgramEnd.DEADLINE,
        -signal.SIGKILL,
    )  # what came first is the reason
    assert dcgmi.alive() == ()


def test_a_longer_grace_lengthens_nothing(dcgmi: Dcgmi) -> None:
    dcgmi.diag(Answer(hang=True, ignores_term=True))

    async def execute() -> Output:
        async with going(dcgmi) as (programs, running):
            programs.cancel("first", 0.3)
            programs.cancel("second", HOUR_S)
            return await running

    output = asyncio.run(execute())
    assert output.why == "first; SIGTERM did not end it: killed"


def test_cancelled_while_its_children_are_ended(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is there already, and stands. What is left over gets no time any more."""
    monkeypatch.setattr(process, "_LEFT_S", HOUR_S)
    dcgmi.diag(Answer(stdout=document(), leaves="deaf child"))

    async def execute() -> Output:
        async with going(dcgmi) as (programs, running):
            await until_async(lambda: dcgmi.runs()[0].pid not in dcgmi.alive())
            programs.cancel("job 7 begins", 0.0)
            return await running

    output = asyncio.run(execute())
    assert (output.ended, output.exit_code, output.stdout) == (ProgramEnd.EXITED, 0, document())
    assert dcgmi.alive() == ()


def test_cancelled_when_nothing_runs(dcgmi: Dcgmi) -> None:
    async def execute() -> None:
        programs = Programs()
        programs.cancel("nothing there")
        assert (await programs.execute(command(dcgmi))).ended is ProgramEnd.EXITED
        programs.cancel("nothing there any more")
        assert (await programs.execute(command(dcgmi))).ended is ProgramEnd.EXITED

    asyncio.run(execute())


@pytest.mark.core
def test_one_at_a_time(dcgmi: Dcgmi) -> None:
    dcgmi.diag(diag(delay_s=300.0))

    async def execute() -> None:
        async with going(dcgmi) as (programs, running):
            with pytest.raises(RuntimeError):
                await programs.execute(command(dcgmi))
            await programs.close()
            assert (await running).ended is ProgramEnd.CANCELLED

    asyncio.run(execute())
    assert len(dcgmi.runs()) == 1


# --- the daemon's end


DEAF = Answer(hang=True, ignores_term=True, leaves="deaf child")


def test_the_daemon_stops_while_it_runs(dcgmi: Dcgmi) -> None:
    dcgmi.diag(DEAF)

    async def execute() -> None:
        async with going(dcgmi) as (_, running):
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert dcgmi.alive() == ()  # when the caller gets it, that has been done

    asyncio.run(execute())


def test_the_daemons_scope_is_cancelled(dcgmi: Dcgmi) -> None:
    """As a task group of anyio's cancels: again and again."""
    dcgmi.diag(DEAF)

    async def execute() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Programs().execute, command(dcgmi, grace_s=HOUR_S))
            await until_async(dcgmi.runs)
            tasks.cancel_scope.cancel()
        assert dcgmi.alive() == ()

    asyncio.run(execute())


def test_the_loop_ends_with_it(dcgmi: Dcgmi) -> None:
    dcgmi.diag(DEAF)
    running: list[Awaitable[Output]] = []

    async def execute() -> None:
        async with going(dcgmi) as (_, begun):
            running.append(begun)

    asyncio.run(execute())
    assert dcgmi.alive() == ()


def test_closing_waits_until_it_has_ended(dcgmi: Dcgmi) -> None:
    dcgmi.diag(DEAF)

    async def execute() -> None:
        async with going(dcgmi) as (programs, running):
            await programs.close()
            assert dcgmi.alive() == ()
            assert (await running).ended is ProgramEnd.CANCELLED
            await programs.close()

    asyncio.run(execute())


# --- a machine that is itself ill


def test_what_cannot_be_ended_is_named_and_left(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that hangs in the kernel, or is another user's."""
    dcgmi.diag(Answer(hang=True))

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "no")

    with monkeypatch.context() as patch:
        patch.setattr(process, "_LAST_S", 0.3)
        patch.setattr("vitald.diagnostics.run.held_processes.os.kill", refuse)
        patch.setattr("vitald.diagnostics.run.held_processes.os.killpg", refuse)
        output = run_past_deadline(command(dcgmi), dcgmi.runs)
    (pid,) = dcgmi.alive()
    assert (output.ended, output.exit_code) == (ProgramEnd.DEADLINE, None)
    assert [*map(str, output.left)] == [f"dcgmi (pid {pid})"] and is_running(output.left[0])
    assert output.why.endswith(f"cannot be ended: dcgmi (pid {pid})")
    dcgmi.end()
    run(shell("true"))  # takes away what is left of it


def test_a_start_that_hangs_is_given_up_and_ended_when_it_comes(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi.diag(DEAF)
    disk = threading.Event()

    def slow(wanted: Command, delegated: Path | None) -> Started:
        disk.wait()
        return start_program(wanted, delegated)

    monkeypatch.setattr(process, "start_program", slow)
    monkeypatch.setattr(process, "_START_S", HOUR_S)

    async def execute() -> Output:
        programs = Programs()
        running = asyncio.create_task(programs.execute(command(dcgmi)))
        await asyncio.sleep(0)
        programs.cancel("job 7 begins", 0.2)
        return await running

    try:
        output = asyncio.run(execute())
        assert output.ended is ProgramEnd.NOT_STARTED
        assert "does the disk that it is on answer?" in output.why
    finally:
        disk.set()  # what is left behind then, the fixture says


def test_processes_that_cannot_be_listed_are_named_as_unknown(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi.diag(Answer(stdout="done", leaves="deaf child"))

    def refuse(_: HeldProcesses) -> list[object]:
        raise OSError(errno.EIO, "no list")

    monkeypatch.setattr(HeldProcesses, "_list_living", refuse)
    output = run(command(dcgmi))
    assert (output.ended, output.stdout) == (ProgramEnd.EXITED, "done")
    assert "left is not known: [Errno 5] no list" in output.why
    until(lambda: dcgmi.alive() == ())


def test_a_control_group_that_cannot_be_made_is_none(
    dcgmi: Dcgmi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a unit in another slice, whose path is not writable."""
    dcgmi.diag(Answer(stdout="done", leaves="child"))
    assert run(command(dcgmi), lambda: Programs(tmp_path / "absent")).stdout == "done"
    assert "control_group_not_writable" in capsys.readouterr().out
    assert dcgmi.alive() == ()


def test_a_control_group_is_delegated_where_it_belongs_to_the_daemons_user(tmp_path: Path) -> None:
    require(os.getuid() == 0, "root, to become another user")
    for procfs, lines in (("new", "4:memory:/a\n0::/a/vitald.service\n"), ("old", "4:memory:/a\n")):
        (tmp_path / procfs / "self").mkdir(parents=True)
        (tmp_path / procfs / "self/cgroup").write_text(lines)
    own = tmp_path / "cgroup/a/vitald.service"
    own.mkdir(parents=True)

    def find(procfs: str) -> Path | None:
        return find_delegated_cgroup(tmp_path / procfs, tmp_path / "cgroup")

    assert find("new") is None  # of root, without systemd's attribute
    os.setxattr(own, "trusted.delegate", b"1")
    assert (find("new"), find("old")) == (own, None)
    own.rmdir()
    assert find("new") is None


def test_a_kernel_without_pidfd(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr("vitald.diagnostics.run.process.os.pidfd_open", absent)
    assert run(command(dcgmi)).ended is ProgramEnd.EXITED
    dcgmi.diag(DEAF)
    dcgmi.forget()
    assert run_past_deadline(command(dcgmi), dcgmi.runs).exit_code == -signal.SIGKILL


def script(text: str, *argv: str) -> str:
    """Run it in an interpreter of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", text, *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


_SCRIPT = """
import asyncio, ctypes, os, signal, sys
from vitald.diagnostics.check import Command
from vitald.diagnostics.run.process import Programs
{first}
async def main():
    command = Command(argv=("/bin/sh", "-c", sys.argv[1]), deadline_s=8.0, grace_s=0.2)
    output = await Programs().execute(command)
    shown = output.ended.value, output.exit_code, output.why, output.stdout.strip()
    print(*shown, sep="|", flush=True)
asyncio.run(main())
"""


def test_where_sigchld_is_ignored_the_exit_code_is_not_invented() -> None:
    said = script(
        _SCRIPT.format(first="signal.signal(signal.SIGCHLD, signal.SIG_IGN)"), "echo hello; exit 3"
    )
    assert (
        said
        == "exited|None|its exit code is not known: SIGCHLD is ignored here, or somebody else took"
        " it|hello\n"
    )


def test_orphans_that_become_ours_leave_no_zombies() -> None:
    """As in a container whose first process the daemon is."""
    assert ctypes.CDLL(None).prctl is not None
    first = "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)"
    last = "print(os.system(f'ps -o state= --ppid {os.getpid()} | grep -c Z'))"
    said = script(
        _SCRIPT.format(first=first) + last, "(sh -c 'sleep 300 & sleep 300' &) ; sleep 0.2"
    )
    lines = said.splitlines()
    assert lines[0].startswith("exited|0|it left behind ")
    assert lines[1] == "0"  # zombies


def test_as_an_ordinary_user(tmp_path: Path) -> None:
    """All of this without any right: only what is its own is looked at and ended."""
    require(os.getuid() == 0, "root, to become somebody else")
    folder = Path(tempfile.mkdtemp(prefix="vitald-"))
    folder.chmod(0o755)
    try:
        with Dcgmi(folder / "bin") as dcgmi:
            for kind in ("child", "deaf child"):
                dcgmi.diag(Answer(hang=True, ignores_term=True, leaves=kind))
                dcgmi.forget()
                said = _as_nobody(lambda: run_past_deadline(command(dcgmi), dcgmi.runs))
                assert (
                    said == f"{ProgramEnd.DEADLINE.value} {-signal.SIGKILL} no end within"
                    " 3600 s; SIGTERM did not end it: killed"
                )
                assert dcgmi.alive() == ()
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def _as_nobody(job: Callable[[], Output]) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            output = job()
            os.write(writing, f"{output.ended.value} {output.exit_code} {output.why}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    said = os.read(reading, 4096).decode()
    os.close(reading)
    return said
