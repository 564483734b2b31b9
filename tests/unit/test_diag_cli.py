"""`vitald diag`: the exit code is the verdict, Ctrl-C never ends a run, and what programs print
cannot drive the terminal.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Json
from tests.unit.diagnosing import (
    FAILED,
    PASSED,
    FakeDiagnostics,
    Served,
    run_of,
    slow_link,
    status_with,
)
from tests.waiting import WAIT_S, until
from vitald.cli import main, status
from vitald.cli.diag import command, views
from vitald.cli.diag.command import Progress
from vitald.model.diagnostic import (
    ActiveRun,
    Fault,
    Measure,
    Refusal,
    Report,
    Run,
    RunRequest,
    ScheduledRun,
    Stage,
    Test,
)
from vitald.model.words import Outcome
from vitald.text import join_ranges

Cli = Callable[..., int]


@pytest.fixture
def fake() -> FakeDiagnostics:
    return FakeDiagnostics()


@pytest.fixture
def served(tmp_path: Path, fake: FakeDiagnostics) -> Iterator[Served]:
    with Served(tmp_path, fake) as running:
        yield running


@pytest.fixture
def cli(served: Served, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`vitald diag ARGUMENTS`, here and quickly. Nobody sits at the terminal."""
    monkeypatch.setattr(command, "_POLL_S", 0.01)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return lambda *arguments: main(["diag", *arguments, "--socket", str(served.socket)])


def ends(fake: FakeDiagnostics, report: Report, *stages: ActiveRun, **more: object) -> None:
    """Each look shows the next of `stages`; then it has ended so."""
    left = list(stages)

    def look() -> None:
        if left and fake.active:
            going = fake.active[0]
            fake.active = (
                replace(
                    left.pop(0), id=going.id, request=going.request, requested_at=going.requested_at
                ),
            )
        elif fake.active:
            fake.end(report, **more)

    fake.on_look = look


def running(**more: object) -> ActiveRun:
    shown: dict[str, object] = {
        "stage": Stage.RUNNING,
        "began": time.time() - 30.0,
        "expected_s": 480.0,
        **more,
    }
    return ActiveRun(id="", request=None, requested_at=time.time(), **shown)  # type: ignore[arg-type]  # filled in by `ends`


# --- run


def test_exit_codes(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    for report, preempted, code, said in (
        (PASSED, "", 0, "PASS"),
        (FAILED, "", 20, "FAIL"),
        (Report(outcome=Outcome.CONFIG, reason="off"), "", 10, "SETTINGS ARE WRONG"),
        (Report(outcome=Outcome.NOT_APPLICABLE, reason="MIG"), "", 10, "NOT APPLICABLE"),
        (Report(outcome=Outcome.INCONCLUSIVE, reason="skipped"), "", 30, "no pass"),
        (Report(outcome=Outcome.ERROR, reason="no engine"), "", 30, "no pass"),
        (Report(outcome=Outcome.INCONCLUSIVE), "job 815", 30, "job 815"),
        (PASSED, "job 815", 30, "MADE ROOM"),
    ):
        ends(fake, report, running(), preempted=preempted)
        assert cli("run", "2") == code, report
        shown = capsys.readouterr()
        assert said in shown.out and report.reason in shown.out, shown.out
        assert shown.err == ""
    assert {(one.level, one.reason) for one in fake.asked} == {(2, "asked on the command line")}


def test_a_run_that_is_still_owed_says_so(
    cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]
) -> None:
    def postpone() -> None:
        going = fake.active[0]
        if going.id.endswith(".2"):
            return
        fake.end(Report(outcome=Outcome.INCONCLUSIVE), preempted="job 815")
        fake.active = (replace(going, id=f"{going.id}.2", waits_for="the next attempt at 9:10"),)

    fake.on_look = postpone
    assert cli("run", "2") == 30
    shown = capsys.readouterr().out
    assert "still owed, waits for the next attempt at 9:10\n" in shown
    assert f"vitald diag cancel {fake.active[0].id} --reason TEXT" in shown


def test_json(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    """One document and nothing else, where no terminal is."""
    ends(fake, FAILED, running())
    words = ("--gpu", "3", "--gpu", "1", "--gpu", "3", "--busy", "--reason", "ticket 7")
    assert cli("run", "2", "--json", *words) == 20
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["outcome"], shown.err) == ("fail", "")
    (asked,) = fake.asked
    assert (asked.gpus, asked.busy, asked.reason) == ((1, 3), True, "ticket 7")


def test_not_followed(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", "--check", "dcgm_health", "--no-wait") == 0
    assert "vitald diag show 20261118T134640-1-dcgm_health" in capsys.readouterr().out
    assert cli("run", "--no-wait", "--json") == 0
    assert json.loads(capsys.readouterr().out)["active"]["level"] == 1
    assert [(one.check, one.level) for one in fake.asked] == [("dcgm_health", 0), ("dcgm", 1)]


def test_refused(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    fake.refusal = Refusal("nccl cannot run here", "no all_reduce_perf")
    assert cli("run", "--check", "nccl") == 69
    assert capsys.readouterr().err == "vitald: nccl cannot run here (no all_reduce_perf)\n"
    assert cli("run", "2", "--check", "dcgm_health") == 69
    assert "dcgm_health has no level 2" in capsys.readouterr().err


def test_long_ones_want_a_reason_and_a_yes(
    cli: Cli,
    fake: FakeDiagnostics,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends(fake, PASSED)
    assert cli("run", "3") == 2
    assert "--reason TEXT" in capsys.readouterr().err
    assert cli("run", "4", "--reason", "ticket 7") == 2
    shown = capsys.readouterr().err
    assert "dcgm level 4" in shown and "1 h 30 min" in shown and "--yes" in shown
    assert fake.asked == []

    class Person(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, code in (("", 69), ("no\n", 69), ("yes\n", 0)):
        monkeypatch.setattr("sys.stdin", Person(answer))
        assert cli("run", "3", "--reason", "ticket 7") == code, answer
        assert "about 25 min" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert cli("run", "3", "--reason", "ticket 7", "--yes") == 0
    assert [one.level for one in fake.asked] == [3, 3]


def test_progress_without_a_terminal(
    cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each change; time that passes is none."""
    waits = [
        replace(
            running(),
            stage=Stage.WAITING,
            began=None,
            waits_for=f"devices idle for 300 s: {seconds} s so far",
        )
        for seconds in (1, 2)
    ]
    tests = [running(test=test) for test in ("", "", "memory", "pcie\x1b[2J")]
    ends(fake, PASSED, *waits, *tests)
    assert cli("run", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+ s (of|so)", "N s \\1", line) for line in lines[:6]] == [
        "dcgm level 2 waits for its turn, N s so far",
        "dcgm level 2 waits for devices idle for 300 s: N s so far, N s so far",
        "dcgm level 2 runs, N s of about 8 min",
        "dcgm level 2 runs, memory, N s of about 8 min",
        "dcgm level 2 runs, pcie\\x1b[2J, N s of about 8 min",
        "dcgm level 2  PASS  took 60 s",
    ]


def test_behind_another(
    cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.active = (replace(running(), id="other", request=run_of(check="nccl", level=0).request),)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            fake.active = fake.active[1:]
            fake.end(PASSED)

    fake.on_look = look
    assert cli("run", "1") == 0
    assert "dcgm level 1 waits for nccl to end" in capsys.readouterr().out


def test_the_daemon_is_restarted_meanwhile(
    cli: Cli,
    fake: FakeDiagnostics,
    served: Served,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is waited for; a run of which there is no trace has no verdict."""

    def look() -> None:
        fake.on_look = lambda: None
        fake.active = ()  # a daemon that is restarted knows of no run
        threading.Thread(target=lambda: (served.stop(), served.start()), daemon=True).start()

    fake.on_look = look
    monkeypatch.setattr(command, "_MAX_SILENCE_S", 1.0)
    assert cli("run", "1") == 30
    assert "left no result" in capsys.readouterr().err


def test_the_daemon_is_gone(
    cli: Cli,
    fake: FakeDiagnostics,
    served: Served,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_MAX_SILENCE_S", 0.3)
    fake.on_look = lambda: threading.Thread(target=served.stop, daemon=True).start()
    assert cli("run", "1") == 30
    shown = capsys.readouterr()
    assert "the daemon does not answer" in shown.out
    assert shown.err.startswith("vitald: ")


# --- on a terminal


class Terminal:
    """The command on a terminal of its own. What it drew is kept."""

    def __init__(self, served: Served, *arguments: str, **environment: str) -> None:
        self._leader, follower = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            [PYTHON, "-m", "vitald", "diag", *arguments, "--socket", str(served.socket)],
            cwd=ROOT,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            # Whoever starts the tests in the background has it ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", **environment},
        )
        os.close(follower)

    def until(self, text: str) -> None:
        def is_shown() -> bool:
            if text not in self.shown and select.select([self._leader], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._leader, 1 << 16).decode()
                except OSError:
                    assert text in self.shown, self.shown
            return text in self.shown

        until(is_shown, lambda: f"{text!r} in {self.shown!r}")

    def code(self) -> int:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                if not (part := os.read(self._leader, 1 << 16)):
                    break
            except OSError:
                break  # nobody writes any more
            self.shown += part.decode()
        os.close(self._leader)
        return self.process.wait(WAIT_S)


def test_the_bar(served: Served, fake: FakeDiagnostics) -> None:
    """Drawn over in its place, and gone when the result comes."""
    fake.on_ask = lambda going: replace(
        going, stage=Stage.RUNNING, began=time.time() - 120.0, test="memory"
    )
    terminal = Terminal(served, "run", "2")
    terminal.until("memory")
    assert re.search(
        r"\rdcgm level 2 \[######\.{18}\]  25% 2 min(?: 1 s)? of about 8 min, memory\x1b\[K",
        terminal.shown,
    )
    assert "\n" not in terminal.shown
    fake.end(FAILED)
    assert terminal.code() == 20
    assert "\r\x1b[K\x1b[1mdcgm level 2\x1b[0m  \x1b[1;31mFAIL\x1b[0m" in terminal.shown


def test_a_terminal_that_cannot_draw(served: Served, fake: FakeDiagnostics) -> None:
    fake.on_ask = lambda going: replace(going, stage=Stage.RUNNING, began=time.time())
    terminal = Terminal(served, "run", "2", TERM="dumb", NO_COLOR="1")
    terminal.until("dcgm level 2 runs")
    fake.end(PASSED)
    assert terminal.code() == 0
    assert "\x1b" not in terminal.shown


def test_ctrl_c_lets_go_and_ends_nothing(served: Served, fake: FakeDiagnostics) -> None:
    fake.on_ask = lambda going: replace(
        going, stage=Stage.RUNNING, began=time.time(), test="memory"
    )
    terminal = Terminal(served, "run", "2")
    terminal.until("memory")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.code() == 130
    assert "dcgm level 2 continues" in terminal.shown
    assert "vitald diag cancel 20261118T134640-1-dcgm --reason TEXT" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert (fake.cancelled, len(fake.active)) == ([], 1)


def test_the_bar_is_full_only_at_the_end() -> None:
    assert command.draw_bar(0, 60) == "[........................]   0%"
    assert command.draw_bar(600, 60) == "[#######################.]  99%"
    assert command.draw_bar(600, 0.0).endswith("  0%")
    assert command.format_time(600, 60) == "10 min, usually 60 s"
    assert command.format_time(10, 0) == "10 s"


def test_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log shows once a minute that it still runs."""
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    to = io.StringIO()
    with Progress(to) as shown:
        for second in range(150):
            now[0] = float(second)
            shown.show_line("it runs", since=f", {second} s")
    assert to.getvalue() == "it runs, 0 s\nit runs, 60 s\nit runs, 120 s\n"


# --- list, show, cancel, read


def test_list(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("list") == 0
    shown = capsys.readouterr().out
    for line in (
        "dcgm +1 +never +- +1 h +not scheduled",
        "dcgm +3 +never +- +- +on request",
        "nccl +- +never +- +- +cannot run: all_reduce_perf is not installed",
    ):
        assert re.search(f"^{line}$", shown, re.MULTILINE), shown
    assert shown.endswith("\nno runs yet\n")

    now = time.time()
    fake.remembered = [
        run_of(FAILED, began=now - 360.0, by="finding #12"),
        run_of(level=1, began=now - 100.0, seconds=10.0, preempted="job 815"),
    ]
    fake.last_runs = {(run.request.check, run.request.level): run for run in fake.remembered}
    fake.scheduled = (
        ScheduledRun(check="dcgm", level=1, at=now + 3000.5),
        ScheduledRun(check="dcgm", level=2, at=now - 1.0, waits_for="idle devices: job 815"),
    )
    going = running(began=now - 5.0, expected_s=60.0)
    owed = ActiveRun(
        id="a-2.2",
        request=RunRequest(check="dcgm", level=3, by="alice, pid 7", reason="ticket 4711"),
        requested_at=now - 7200.0,
        waits_for="the next attempt at 12:40 UTC (1 so far, the last: it made room for job 815)",
    )
    again = replace(owed, id="a-3.2", request=RunRequest(check="dcgm", level=1), waits_for="more")
    fake.active = (
        replace(going, id="a-1", request=run_of(level=0, check="dcgm_health").request),
        owed,
        again,
    )
    fake.blocked = "job 815"
    assert cli("list") == 0
    shown = capsys.readouterr().out
    for line in (
        "dcgm +1 +made room, 2 min ago +10 s +1 h +in (50 min|49 min 59 s), waits for more",
        "dcgm +2 +fail, 5 min ago +60 s +24 h +now, waits for idle devices: job 815",
        r"dcgm_health +- +never +- +10 min +runs: \d s of about 60 s",
        "what needs idle devices waits: job 815",
        "runs   dcgm_health  a-1, requested [01] s ago by schedule",
        "waits  dcgm level 3  a-2.2, requested 2 h ago by alice, pid 7: ticket 4711",
        r"       for the next attempt at 12:40 UTC \(1 so far, the last: it made room for job 815\)",
        ".*dcgm level 2 +fail +60 s +20261118T[^ ]* +finding #12 +GPU 3: a row remap failed",
        ".*dcgm level 1 +made room +10 s +20261118T[^ ]* +schedule +made room for job 815",
    ):
        assert re.search(f"^{line}$", shown, re.MULTILINE), shown

    assert cli("list", "--limit", "1", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert ([one["outcome"] for one in answer["runs"]], len(answer["checks"])) == (["fail"], 3)
    assert cli("list", "--limit", "1", "--ids") == 0
    assert capsys.readouterr().out.split() == [one["id"] for one in answer["runs"]]


def test_show(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("show", "last") == 69
    assert "no runs yet" in capsys.readouterr().err
    fake.remembered = [
        run_of(FAILED, raw="$ dcgmi diag\n{}\n", exit_code=226, command="dcgmi diag -r 2 -j"),
        slow_link(),
    ]
    assert cli("show", "last") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "dcgm level 2  FAIL  GPU 3  took 60 s"
    assert lines[1:3] == [
        "  why    GPU 3: a row remap failed",
        "  do     replace the node (replacement required)",
    ]
    assert "  Page Retirement/Row Remap  Fail GPU 3, Pass GPU 0-2" in lines
    assert "  CUDA Main Library          Pass" in lines
    assert "  GPU 3  Page Retirement/Row Remap  dcgm/84  (error 84, severity 2)" in lines
    assert "         GPU 3 has uncorrectable memory errors and row remapping has failed." in lines
    assert any("exit code 226, DCGM 3.3.7, driver 535.183.01" in line for line in lines)
    assert lines[-1] == f"  what it printed: vitald diag show {fake.remembered[0].id} --raw"

    assert cli("show", fake.remembered[1].id) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"busbw_bytes_per_second +- +101\.50 GB/s +BAD +at least 350\.00 GB/s\n", shown
    )
    assert re.search(r"latency_seconds +rdmap0s6 +21\.6 us +at most 50\.0 us\n", shown)

    assert cli("show", "last", "--raw") == 0
    assert capsys.readouterr().out == "$ dcgmi diag\n{}\n"
    assert cli("show", fake.remembered[1].id, "--raw") == 0
    assert capsys.readouterr() == ("", "nothing is kept of what it printed\n")
    assert cli("show", "last", "--json") == 0
    assert json.loads(capsys.readouterr().out)["raw"] == "$ dcgmi diag\n{}\n"
    assert cli("show", "nobody") == 69
    assert "no run 'nobody'" in capsys.readouterr().err


def test_hostile_text_does_not_drive_the_terminal(served: Served, fake: FakeDiagnostics) -> None:
    """Whatever a program printed: shown, and obeyed by nobody."""
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\u202e"
    report = Report(
        outcome=Outcome.FAIL,
        reason=evil * 9,
        culprits=(1,),
        dcgm_version=evil,
        driver_version=evil,
        tests=(Test(name=evil, status=evil), Test(name="t", gpus={evil: evil, "1": "Pass"})),
        faults=tuple(Fault(code=evil, test=evil, text=evil * 3, device=evil) for _ in range(40)),
        measures=tuple(
            Measure(name=evil, value=float("nan"), device=evil, minimum=1.0) for _ in range(40)
        ),
    )
    fake.remembered = [
        run_of(report, raw=evil + "\tx", command=evil, by=evil, reason=evil, preempted=evil)
    ]
    fake.last_runs = {("dcgm", 2): fake.remembered[0]}
    fake.active = (
        ActiveRun(
            id="a-1",
            request=fake.remembered[0].request,
            requested_at=1.0,
            waits_for=evil,
            test=evil,
        ),
    )
    fake.blocked = evil
    for arguments in (("show", "last"), ("show", "last", "--raw"), ("list",)):
        terminal = Terminal(served, *arguments, NO_COLOR="1")
        assert terminal.code() == 0, terminal.shown
        assert not re.search(
            "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202e]", terminal.shown.replace("\r\n", "\n")
        ), arguments
        assert "\r" not in terminal.shown.replace("\r\n", "\n")
        assert "owned" in terminal.shown
    terminal = Terminal(served, "show", "last")
    assert terminal.code() == 0
    assert "and 24 more" in terminal.shown


def test_cancel(cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("cancel", "--reason", "a job waits") == 69
    assert "no diagnostic runs" in capsys.readouterr().err
    fake.active = (
        ActiveRun(
            id="a-1", request=run_of().request, requested_at=1.0, stage=Stage.RUNNING, began=2.0
        ),
    )
    assert cli("cancel", "--reason", "a job waits") == 0
    assert capsys.readouterr().out == "dcgm level 2 was told to end: vitald diag show a-1\n"
    assert cli("cancel", "a-1", "--reason", "still", "--json") == 0
    assert json.loads(capsys.readouterr().out)["active"]["stage"] == "ending"
    assert [(id_, reason) for id_, _, reason in fake.cancelled[1:]] == [
        (None, "a job waits"),
        ("a-1", "still"),
    ]
    with pytest.raises(SystemExit):
        cli("cancel", "a-1")


def test_read_is_another_module(capsys: pytest.CaptureFixture[str]) -> None:
    """It asks no daemon, so it takes no socket."""
    with pytest.raises(SystemExit) as usage:
        main(["diag", "read", "--help"])
    assert usage.value.code == 0
    assert "--socket" not in capsys.readouterr().out


def test_usage() -> None:
    for words in ((), ("walk",), ("show",)):
        with pytest.raises(SystemExit) as usage:
            main(["diag", *words])
        assert usage.value.code == 2, words


def test_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("run", "2"),
        ("run", "3", "--reason", "x", "--yes"),
        ("list",),
        ("show", "last"),
        ("cancel", "--reason", "x"),
    ):
        assert main(["diag", *arguments, "--socket", str(tmp_path / "none.sock")]) == 30
        assert "is the daemon running?" in capsys.readouterr().err


# --- words


def test_spans() -> None:
    spans = {
        0.4: "0 s",
        89.4: "89 s",
        90: "1 min 30 s",
        600: "10 min",
        3599: "59 min 59 s",
        5400: "1 h 30 min",
        86400: "24 h",
    }
    assert {seconds: views.format_duration(seconds) for seconds in spans} == spans


def test_numbers() -> None:
    assert join_ranges([7, 0, 1, 2, 3, 5, 2]) == "0-3, 5, 7"


def test_status_tells_of_diagnostics(
    fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]
) -> None:
    """What runs or waits, and what failed last; a pass is no news."""
    failed: Run = run_of(FAILED, began=time.time() - 360.0)
    fake.last_runs = {("dcgm", 1): run_of(level=1), ("dcgm", 2): failed}
    fake.active = (
        ActiveRun(
            id="a-1",
            request=run_of(level=1).request,
            requested_at=1.0,
            stage=Stage.RUNNING,
            began=2.0,
        ),
    )

    def told() -> str:
        lists = ("findings", "incidents", "suspects", "sources", "components")
        flags = ("rebootRequired", "replacementRequired", "simulated")
        whole: Json = {
            **dict.fromkeys(flags, False),
            **{name: [] for name in lists},
            "host": "n",
            "status": "healthy",
            "ledger": {"ok": True},
            "kernelLog": {"recordsLost": 0, "untrusted": 0},
            "profile": "nvidia",
            "version": "1",
            "startedAt": datetime.now(timezone.utc).isoformat(),
        }
        status.show_status({**whole, **status_with(fake)})
        before = capsys.readouterr().out
        status.show_status(whole)  # an older daemon
        assert "diagnostic" not in capsys.readouterr().out
        return before

    shown = told()
    assert "  diagnostic dcgm level 1 runs: vitald diag list\n" in shown
    assert (
        "  diagnostic dcgm level 2 FAILED 5 min ago: GPU 3: a row remap failed: vitald diag show"
        f" {failed.id}\n" in shown
    )
    fake.active = (replace(fake.active[0], stage=Stage.WAITING, waits_for="idle devices: job 815"),)
    assert "  diagnostic dcgm level 1 waits for idle devices: job 815: vitald diag list\n" in told()
    fake.active, fake.last_runs = (), {("dcgm", 2): run_of()}
    assert "diagnostic" not in told()


def test_a_list_says_that_it_is_not_whole(
    cli: Cli, fake: FakeDiagnostics, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        ends(fake, PASSED, running())
        assert cli("run", "1") == 0
    capsys.readouterr()
    for limit, more in ((2, True), (3, False)):
        assert cli("list", "--limit", str(limit), "--json") == 0
        listed = json.loads(capsys.readouterr().out)
        assert (len(listed["runs"]), listed["more"]) == (limit, more)
        assert cli("list", "--limit", str(limit)) == 0
        assert ("and older ones" in capsys.readouterr().out) is more
