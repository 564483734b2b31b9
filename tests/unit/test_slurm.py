"""`vitald slurm prolog|epilog|health`, without a Slurm."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.builders import ROOT
from tests.unit.slurm_made import record_scontrol, verdict
from tests.unit.test_imports import forbidden, loaded_by
from tests.waiting import WAIT_S
from vitald.cli.slurm import command, health
from vitald.slurm import drain, scontrol
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import Settings

OURS = "vitald: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is asked of scontrol, instead of asking it."""
    return record_scontrol(monkeypatch)


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        (
            {"SLURM_JOB_EXIT_CODE2": "3:0", "SLURM_JOB_EXIT_CODE": "768"},
            {"exitCode": 3, "signal": 0},
        ),
        ({"SLURM_JOB_EXIT_CODE2": "0:9"}, {"exitCode": 0, "signal": 9}),
        ({"SLURM_JOB_EXIT_CODE": "768"}, {"exitCode": 3, "signal": 0}),
        ({"SLURM_JOB_EXIT_CODE": "139"}, {"exitCode": 0, "signal": 11}),  # with a core
        ({"SLURM_JOB_EXIT_CODE": "what"}, {}),
        ({}, {}),
    ],
)
def test_how_a_job_ended_by_the_environment(
    environment: dict[str, str],
    state: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    said: list[list[str]],
) -> None:
    """scontrol is asked only where it does not say."""
    for name in ("SLURM_JOB_EXIT_CODE", "SLURM_JOB_EXIT_CODE2"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert command._read_exit_state("7") == state
    assert said == ([] if state else [["show", "job", "7", "-o"]])


@pytest.mark.parametrize(
    "file", ["docs/slurm.md", "packaging/slurm/README.md", "packaging/install"]
)
def test_who_sets_up_slurm_is_told_of_jobs_that_would_stay_held(file: str) -> None:
    assert "SchedulerParameters=nohold_on_prolog_fail" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("edge", ["prolog", "epilog", "health"])
def test_asking_loads_little(edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every job, on every node: no rules, no server, and scontrol only where something must be
    said.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_EXIT_CODE2", "0:0")
    loaded = loaded_by(["slurm", edge, "--socket", "/nonexistent", "--config", "/nonexistent"])
    assert "vitald.cli.slurm.command" in loaded
    assert (
        forbidden(
            loaded,
            "vitald.catalog",
            "vitald.config",
            "vitald.judge",
            "vitald.collectors",
            "asyncio",
            "sqlite3",
            "subprocess",
            "dataclasses",
        )
        == []
    )
    if edge != "health":
        assert forbidden(loaded, "vitald.slurm.scontrol", "vitald.cli.render") == []


@pytest.mark.parametrize(("edge", "code"), [("prolog", 20), ("epilog", 0), ("health", 0)])
def test_a_fault_of_ours_is_said_and_the_configuration_decides(
    edge: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: list[list[str]],
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[slurm]\nunknown = "refuse"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def broken(*_: object, **__: object) -> dict[str, object]:
        raise KeyError("a mistake")

    monkeypatch.setattr(command.client, "call_api", broken)
    monkeypatch.setattr(command.client, "read_status", broken)
    parser = argparse.ArgumentParser()
    command.options(parser)
    assert command.run(parser.parse_args([edge, "--config", str(path)])) == code
    assert "KeyError: 'a mistake'" in capsys.readouterr().err


@pytest.mark.parametrize("trouble", ["absent", "broken"])
def test_a_refusal_stands_whatever_becomes_of_the_drain(
    trouble: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if trouble == "absent":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(scontrol, "PATH", str(tmp_path))
    else:
        monkeypatch.setattr(drain, "drain_node", None)
        monkeypatch.setattr(
            scontrol, "read_node_state", lambda *_: SlurmNode(frozenset({"IDLE"}), "")
        )
    daemon = Daemon(monkeypatch, {"/v1/status": [verdict()]})
    assert daemon.prolog(Settings()) == 20
    printed = capsys.readouterr().err
    assert (
        "scontrol cannot be run: No such file or directory" if trouble == "absent" else "TypeError"
    ) in printed


class Daemon:
    """Stands for vitald on a socket: one answer for each path; what it was asked."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[dict[str, object]]]
    ) -> None:
        self.asked: list[str] = []
        self._answers = answers
        monkeypatch.setattr(
            command.client, "read_status", lambda *_, **__: self._next("/v1/status")
        )
        monkeypatch.setattr(
            command.client, "call_api", lambda _, path, body=None: self._next(path, body)
        )
        monkeypatch.setenv("SLURM_JOB_ID", "7")

    def _next(self, path: str, body: object = None) -> dict[str, object]:
        self.asked.append(f"{path} {json.dumps(body)}" if body else path)
        answers = self._answers[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if "error" in answer:
            raise command.client.DaemonRefused(404, str(answer["error"]), "")
        return answer

    def prolog(self, settings: Settings) -> int:
        return command.run_prolog(
            settings, command.DaemonClient(None, time.monotonic() + settings.budget_s)
        )


GOING: dict[str, object] = {"id": "r1", "check": "dcgm", "level": 1, "gpus": [], "stage": "running"}
HEALTHY = verdict("healthy", rebootRequired=False)
TELL, RUN = '/v1/jobs {"event": "begin", "job": "7", "user": ""}', "/v1/diagnostics/run"


def last(seconds_ago: float, took: float = 0.1) -> dict[str, object]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - seconds_ago))
    return {"check": "dcgm", "level": 1, "ended": moment, "seconds": took}


@pytest.mark.parametrize(
    ("settings", "runs", "is_run"),
    [
        (Settings(), [], False),
        (Settings(level_1_age_s=3600.0), [last(60.0)], False),
        (Settings(level_1_age_s=3600.0), [last(7200.0)], True),
        (Settings(level_1_age_s=3600.0), [last(7200.0, took=30.0)], False),  # no time
        (Settings(level_1_age_s=3600.0), [], True),
        (Settings(level_1_age_s=3600.0), [{**last(60.0), "level": 2}], True),
    ],
)
def test_level_1_before_a_job(
    settings: Settings,
    runs: list[dict[str, object]],
    is_run: bool,
    monkeypatch: pytest.MonkeyPatch,
    said: list[list[str]],
) -> None:
    """Where the last one is too old and there is time; what it finds decides."""
    monkeypatch.delenv("SLURM_JOB_USER", raising=False)
    monkeypatch.delenv("SLURM_JOB_UID", raising=False)
    shown: list[dict[str, object]] = [
        {"last": runs, "going": []},
        {"last": runs, "going": [GOING]},
        {"last": runs, "going": []},
    ]
    answers: dict[str, list[dict[str, object]]] = {
        "/v1/status": [HEALTHY, verdict()],
        "/v1/jobs": [{}],
        "/v1/diagnostics": shown,
        RUN: [{"going": GOING}],
    }
    daemon = Daemon(monkeypatch, answers)
    assert daemon.prolog(settings) == (20 if is_run else 0)
    assert daemon.asked[:2] == ["/v1/status", TELL]
    assert any(one.startswith(RUN) for one in daemon.asked) is is_run
    if is_run:
        assert (
            daemon.asked[-1]
            == '/v1/jobs {"event": "end", "job": "7", "user": "", "reason": "refused by the'
            ' prolog"}'
        )


@pytest.mark.parametrize(
    "shown",
    [
        [{"last": [], "going": [GOING]}],  # another job's prolog asked for it, or the schedule
        [{"last": [], "going": []}, {"last": [], "going": [GOING]}],  # while we asked ourselves
        [
            {"last": [last(0.1)], "going": [{**GOING, "stage": "ending"}]}
        ],  # what it found is not in the verdict yet
    ],
)
def test_a_level_1_that_runs_already_is_waited_for(
    shown: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, said: list[list[str]]
) -> None:
    answers: dict[str, list[dict[str, object]]] = {
        "/v1/status": [HEALTHY, verdict()],
        "/v1/jobs": [{}],
        RUN: [{"error": "it is running already"}],
    }
    daemon = Daemon(
        monkeypatch, {**answers, "/v1/diagnostics": [*shown, {"last": [last(0.1)], "going": []}]}
    )
    assert daemon.prolog(Settings(level_1_age_s=3600.0)) == 20


@pytest.mark.parametrize(
    ("then", "resumed"),
    [
        ("healthy", True),
        ("degraded", True),
        ("unhealthy", False),
        ("unknown", False),
        ("no answer", False),
    ],
)
def test_what_was_drained_since_we_asked_is_not_resumed(
    then: str, resumed: bool, said: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        scontrol, "read_node_state", lambda *_: SlurmNode(frozenset({"IDLE", "DRAIN"}), OURS)
    )
    again: dict[str, object] = {"error": "late"} if then == "no answer" else verdict(then)
    Daemon(monkeypatch, {"/v1/status": [HEALTHY, again], "/v1/jobs": [{"running": []}]})
    assert (
        command.run_health_check(Settings(), command.DaemonClient(None, time.monotonic() + WAIT_S))
        == 0
    )
    assert [words[2:] for words in said] == ([["state=resume"]] if resumed else [])


JOBS: dict[str, object] = {"running": [{"job": "12"}, {"job": "4[1]"}], "recent": []}


@pytest.mark.parametrize(
    ("shown", "trouble", "told"),
    [
        ("JobId=12 JobState=RUNNING Reason=None ExitCode=0:0 RunTime=1", "", None),
        (
            "JobId=12 JobState=COMPLETING Reason=None ExitCode=3:0 RunTime=1",
            "",
            None,
        ),  # its epilog may be running
        ("JobId=12 JobState=SUSPENDED Reason=None ExitCode=0:0 RunTime=1", "", None),
        ("JobId=12 JobState=SOMETHING_NEW Reason=None ExitCode=0:0 RunTime=1", "", None),
        ("", "scontrol show failed: Unable to contact slurm controller", None),
        ("", "scontrol did not answer within 5.0 s", None),
        (
            "JobId=12 JobState=COMPLETED Reason=None ExitCode=0:0 RunTime=1",
            "",
            {"exitCode": 0, "signal": 0},
        ),
        (
            "JobId=12 JobState=PENDING Reason=Priority ExitCode=0:0 RunTime=1",
            "",
            {"reason": "requeued"},
        ),
        (
            (
                "JobId=12 ArrayJobId=12 ArrayTaskId=2 JobState=FAILED Reason=NonZeroExitCode"
                " ExitCode=3:0 RunTime=1\nJobId=13 ArrayJobId=12 ArrayTaskId=1 JobState=RUNNING"
                " Reason=None ExitCode=0:0 RunTime=1\n"
            ),
            "",
            {"exitCode": 3, "signal": 0, "reason": "NonZeroExitCode"},
        ),
        (
            (
                "JobId=13 ArrayJobId=12 ArrayTaskId=1 JobState=FAILED Reason=None ExitCode=3:0"
                " RunTime=1\nJobId=12 ArrayJobId=12 ArrayTaskId=2 JobState=RUNNING Reason=None"
                " ExitCode=0:0 RunTime=1\n"
            ),
            "",
            None,
        ),
        ("", "scontrol show failed: slurm_load_jobs error: Invalid job id specified", {}),
    ],
)
def test_the_end_of_a_job_that_nobody_told(
    shown: str,
    trouble: str,
    told: dict[str, object] | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Slurm is asked by the health check; where it does not say so for certain, the job runs."""
    asked = record_scontrol(monkeypatch, shown, trouble)
    daemon = Daemon(monkeypatch, {"/v1/jobs": [JOBS, {}]})
    health.report_ended_jobs(Settings(), command.DaemonClient(None, time.monotonic() + WAIT_S))
    assert asked == [["show", "job", "12", "-o"]], (
        "what is no number of Slurm's, another scheduler told"
    )
    ends = [json.loads(one.partition(" ")[2]) for one in daemon.asked[1:]]
    assert ends == (
        [{"event": "end", "job": "12", **told, "diagnose": True}] if told is not None else []
    )


@pytest.mark.parametrize(
    "diagnostics",
    [
        {"/v1/diagnostics": [{"error": "no such path"}]},
        {
            "/v1/diagnostics": [{"last": [], "going": []}],
            RUN: [{"error": "dcgmi is not installed"}],
        },
        {"/v1/diagnostics": [{"last": [{"check": "dcgm", "level": 1}], "going": []}]},
        {
            "/v1/diagnostics": [{"last": [], "going": []}, {"last": [], "going": [GOING]}],
            RUN: [{"going": GOING}],
        },  # does not end in time
    ],
)
def test_a_level_1_that_does_not_come_changes_nothing(
    diagnostics: dict[str, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon = Daemon(monkeypatch, {"/v1/status": [HEALTHY], "/v1/jobs": [{}], **diagnostics})
    assert daemon.prolog(Settings(level_1_age_s=3600.0, budget_s=0.5)) == 0
    assert "level 1" in capsys.readouterr().err


def test_a_refused_job_is_not_noted(monkeypatch: pytest.MonkeyPatch, said: list[list[str]]) -> None:
    """And pre-empts nothing."""
    daemon = Daemon(monkeypatch, {"/v1/status": [verdict()]})
    assert daemon.prolog(Settings()) == 20
    assert daemon.asked == ["/v1/status"]


def test_the_scripts_are_sound() -> None:
    for path in sorted((ROOT / "packaging/slurm").iterdir()):
        if path.suffix != ".md":
            assert os.access(path, os.X_OK), path
            assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
