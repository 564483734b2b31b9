"""`vitald slurm prolog|epilog|health`, without a Slurm."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.builders import ROOT
from tests.unit.slurm_made import record_scontrol, verdict
from tests.unit.test_imports import forbidden, loaded_by
from tests.waiting import WAIT_S
from vitald.cli.slurm import command, health
from vitald.cli.slurm.daemon_client import ScriptSettings
from vitald.metrics.slurm import UnknownJobs
from vitald.slurm import drain, scontrol
from vitald.slurm.owner import record_reasons
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.unknown_jobs import count_job
from vitald.worker_thread import WorkerThread

OURS = "vitald: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is asked of scontrol, instead of asking it."""
    return record_scontrol(monkeypatch)


def test_how_a_job_ended_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, said: list[list[str]]
) -> None:
    """scontrol is asked only where it does not say."""
    environments: list[tuple[dict[str, str], dict[str, object]]] = [
        (
            {"SLURM_JOB_EXIT_CODE2": "3:0", "SLURM_JOB_EXIT_CODE": "768"},
            {"exitCode": 3, "signal": 0},
        ),
        ({"SLURM_JOB_EXIT_CODE2": "0:9"}, {"exitCode": 0, "signal": 9}),
        ({"SLURM_JOB_EXIT_CODE": "768"}, {"exitCode": 3, "signal": 0}),
        ({"SLURM_JOB_EXIT_CODE": "139"}, {"exitCode": 0, "signal": 11}),  # with a core
        ({"SLURM_JOB_EXIT_CODE": "what"}, {}),
        ({}, {}),
    ]
    for environment, state in environments:
        said.clear()
        for name in ("SLURM_JOB_EXIT_CODE", "SLURM_JOB_EXIT_CODE2"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert command._read_exit_state("7") == state, environment
        assert said == ([] if state else [["show", "job", "7", "-o"]])


def test_who_sets_up_slurm_is_told_of_jobs_that_would_stay_held() -> None:
    setting = "SchedulerParameters=nohold_on_prolog_fail"
    files = ("docs/slurm.md", "packaging/slurm/README.md", "packaging/install")
    assert [one for one in files if setting not in (ROOT / one).read_text(encoding="utf-8")] == []


def test_asking_loads_little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At every job, on every node: no rules, no server, and scontrol only where something must be
    said.
    """
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_EXIT_CODE2", "0:0")
    config = tmp_path / "config.toml"
    config.write_text(f'[slurm]\nrecord = "{tmp_path}/record"')
    daemons = ("vitald.catalog", "vitald.config.sections", "vitald.judge", "vitald.collectors")
    modules = ("asyncio", "sqlite3", "subprocess")
    for edge in ("prolog", "epilog", "health"):
        loaded = loaded_by(["slurm", edge, "--socket", "/nonexistent", "--config", str(config)])
        assert "vitald.cli.slurm.command" in loaded
        said = () if edge == "health" else ("vitald.slurm.scontrol", "vitald.cli.render")
        assert forbidden(loaded, *daemons, *modules, *said) == [], edge


def test_a_fault_of_ours_is_said_and_the_configuration_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: list[list[str]],
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[slurm]\nunknown = "refuse"\nrecord = "{tmp_path}/record"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def broken(*_: object, **__: object) -> dict[str, object]:
        raise KeyError("a mistake")

    monkeypatch.setattr(command.client, "get", broken)
    monkeypatch.setattr(command.client, "post", broken)
    monkeypatch.setattr(command.client, "read_status", broken)
    parser = argparse.ArgumentParser()
    command.options(parser)
    for edge, code in {"prolog": 20, "epilog": 0, "health": 0}.items():
        assert command.run(parser.parse_args([edge, "--config", str(path)])) == code, edge
        assert "KeyError: 'a mistake'" in capsys.readouterr().err, edge


def test_a_refusal_stands_whatever_becomes_of_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(monkeypatch, {"/v1/status": [verdict()]})
    with monkeypatch.context() as absent:
        absent.setenv("PATH", str(tmp_path))
        absent.setattr(scontrol, "PATH", str(tmp_path))
        assert daemon.prolog(ScriptSettings()) == 20
        assert "No such file or directory" in capsys.readouterr().err
    monkeypatch.setattr(drain, "drain_node", None)
    monkeypatch.setattr(scontrol, "read_node_state", lambda *_: SlurmNode(frozenset({"IDLE"}), ""))
    assert daemon.prolog(ScriptSettings()) == 20
    assert "TypeError" in capsys.readouterr().err


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
        for verb in ("get", "post"):
            monkeypatch.setattr(
                command.client,
                verb,
                lambda _, endpoint, body=None: self._next(endpoint.path, body),
            )
        monkeypatch.setenv("SLURM_JOB_ID", "7")

    def _next(self, path: str, body: object = None) -> dict[str, object]:
        self.asked.append(f"{path} {json.dumps(body)}" if body else path)
        answers = self._answers[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if "error" in answer:
            raise command.client.DaemonRefused(404, str(answer["error"]), "")
        return answer

    def prolog(self, settings: ScriptSettings) -> int:
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
    ("edge", "budget", "seconds"),
    [
        ("prolog", "1s", 0.9),
        ("prolog", "60s", 59.9),
        ("epilog", "1s", 0.9),
        ("epilog", "60s", 1.9),
        ("health", "1s", 5.0),
    ],
)
def test_how_long_a_daemon_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, edge: str, budget: str, seconds: float
) -> None:
    """Jobs wait for a prolog and an epilog: 0.1 s of their budget is what starting them takes."""
    config = tmp_path / "config.toml"
    config.write_text(f'[slurm]\nbudget = "{budget}"')
    left = []

    def act(settings: ScriptSettings, daemon: command.DaemonClient) -> int:
        left.append(daemon.seconds_left)
        return 0

    monkeypatch.setattr(command, "_EDGES", {edge: act})
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    assert command.run(argparse.Namespace(edge=edge, config=config, socket=None)) == 0
    assert left == [pytest.approx(seconds)]


def test_jobs_that_cannot_be_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No job is held up for it, and no count is shown where none is known."""
    record = tmp_path / "a file" / "reason"
    counted = UnknownJobs(lambda: record, WorkerThread("test"))

    def shown() -> dict[str, float]:
        asyncio.run(counted.update_counts())
        [family] = counted.collect_metrics()
        return {sample.labels["choice"]: sample.value for sample in family.samples}

    for choice in ("allow", "allow", "refuse"):
        count_job(ScriptSettings(record=record, unknown=choice))
    assert shown() == {"allow": 2, "refuse": 1}
    shutil.rmtree(record.parent)
    assert shown() == {"allow": 0, "refuse": 0}
    record.parent.touch()
    count_job(ScriptSettings(record=record))
    assert "this job is not counted: " in capsys.readouterr().err
    assert shown() == {}


def test_level_1_before_a_job(monkeypatch: pytest.MonkeyPatch, said: list[list[str]]) -> None:
    """Where the last one is too old and there is time; what it finds decides."""
    monkeypatch.delenv("SLURM_JOB_USER", raising=False)
    monkeypatch.delenv("SLURM_JOB_UID", raising=False)
    hourly = ScriptSettings(level_1_age_s=3600.0)
    cases: list[tuple[ScriptSettings, list[dict[str, object]], bool]] = [
        (ScriptSettings(), [], False),
        (hourly, [last(60.0)], False),
        (hourly, [last(7200.0)], True),
        (hourly, [last(7200.0, took=30.0)], False),  # no time
        (hourly, [], True),
        (hourly, [{**last(60.0), "level": 2}], True),
    ]
    for settings, runs, is_run in cases:
        shown: list[dict[str, object]] = [
            {"last": runs, "active": []},
            {"last": runs, "active": [GOING]},
            {"last": runs, "active": []},
        ]
        answers: dict[str, list[dict[str, object]]] = {
            "/v1/status": [HEALTHY, verdict()],
            "/v1/jobs": [{}],
            "/v1/diagnostics": shown,
            RUN: [{"active": GOING}],
        }
        daemon = Daemon(monkeypatch, answers)
        assert daemon.prolog(settings) == (20 if is_run else 0), runs
        assert daemon.asked[:2] == ["/v1/status", TELL]
        assert any(one.startswith(RUN) for one in daemon.asked) is is_run
        if is_run:
            path, _, end = daemon.asked[-1].partition(" ")
            assert (path, json.loads(end)) == (
                "/v1/jobs",
                {"event": "end", "job": "7", "user": "", "reason": "refused by the prolog"},
            )


def test_a_level_1_that_runs_already_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, said: list[list[str]]
) -> None:
    cases: list[list[dict[str, object]]] = [
        # Another job's prolog asked for it, or the schedule.
        [{"last": [], "active": [GOING]}],
        # While we asked ourselves.
        [{"last": [], "active": []}, {"last": [], "active": [GOING]}],
        # What it found is not in the verdict yet.
        [{"last": [last(0.1)], "active": [{**GOING, "stage": "ending"}]}],
    ]
    for shown in cases:
        answers: dict[str, list[dict[str, object]]] = {
            "/v1/status": [HEALTHY, verdict()],
            "/v1/jobs": [{}],
            RUN: [{"error": "it is running already"}],
            "/v1/diagnostics": [*shown, {"last": [last(0.1)], "active": []}],
        }
        assert Daemon(monkeypatch, answers).prolog(ScriptSettings(level_1_age_s=3600.0)) == 20, (
            shown
        )


def test_what_was_drained_since_we_asked_is_not_resumed(
    said: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = ScriptSettings(record=tmp_path / "reason")
    monkeypatch.setattr(
        scontrol, "read_node_state", lambda *_: SlurmNode(frozenset({"IDLE", "DRAIN"}), OURS)
    )
    resumed = []
    for then in ("healthy", "degraded", "unhealthy", "unknown", "no answer"):
        said.clear()
        again: dict[str, object] = {"error": "late"} if then == "no answer" else verdict(then)
        answers: dict[str, list[dict[str, object]]] = {
            "/v1/status": [HEALTHY, again],
            "/v1/jobs": [{"running": []}],
            "/v1/scheduler": [{"error": "no such path"}],  # an older daemon
        }
        Daemon(monkeypatch, answers)
        daemon = command.DaemonClient(None, time.monotonic() + WAIT_S)
        record_reasons(settings, OURS)
        assert command.run_health_check(settings, daemon) == 0
        resumed += [(then, words[2:]) for words in said]
    assert resumed == [("healthy", ["state=resume"]), ("degraded", ["state=resume"])]


JOBS: dict[str, object] = {"running": [{"job": "12"}, {"job": "4[1]"}], "recent": []}


def test_the_end_of_a_job_that_nobody_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm is asked by the health check; where it does not say so for certain, the job runs."""

    def job(state: str, reason: str = "None", code: str = "0:0", ids: str = "JobId=12") -> str:
        return f"{ids} JobState={state} Reason={reason} ExitCode={code} RunTime=1\n"

    twelve = "JobId=12 ArrayJobId=12 ArrayTaskId=2"
    thirteen = "JobId=13 ArrayJobId=12 ArrayTaskId=1"
    cases: list[tuple[str, str, dict[str, object] | None]] = [
        (job("RUNNING"), "", None),
        (job("COMPLETING", code="3:0"), "", None),  # its epilog may be running
        (job("SUSPENDED"), "", None),
        (job("SOMETHING_NEW"), "", None),
        ("", "scontrol show failed: Unable to contact slurm controller", None),
        ("", "scontrol did not answer within 5.0 s", None),
        (job("COMPLETED"), "", {"exitCode": 0, "signal": 0}),
        (job("PENDING", "Priority"), "", {"reason": "requeued"}),
        (
            job("FAILED", "NonZeroExitCode", "3:0", twelve) + job("RUNNING", ids=thirteen),
            "",
            {"exitCode": 3, "signal": 0, "reason": "NonZeroExitCode"},
        ),
        (job("FAILED", code="3:0", ids=thirteen) + job("RUNNING", ids=twelve), "", None),
        ("", "scontrol show failed: slurm_load_jobs error: Invalid job id specified", {}),
    ]
    for shown, trouble, told in cases:
        asked = record_scontrol(monkeypatch, shown, trouble)
        daemon = Daemon(monkeypatch, {"/v1/jobs": [JOBS, {}]})
        health.report_ended_jobs(
            ScriptSettings(), command.DaemonClient(None, time.monotonic() + WAIT_S)
        )
        # What is no number of Slurm's, another scheduler told.
        assert asked == [["show", "job", "12", "-o"]]
        ends = [json.loads(one.partition(" ")[2]) for one in daemon.asked[1:]]
        assert ends == (
            [] if told is None else [{"event": "end", "job": "12", **told, "diagnose": True}]
        ), (shown, trouble)


def test_a_level_1_that_does_not_come_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing: dict[str, object] = {"last": [], "active": []}
    runs: dict[str, object] = {"last": [], "active": [GOING]}
    cases: list[tuple[list[dict[str, object]], dict[str, object]]] = [
        ([{"error": "no such path"}], {}),
        ([nothing], {"error": "dcgmi is not installed"}),
        ([{"last": [{"check": "dcgm", "level": 1}], "active": []}], {}),
        ([nothing, runs], {"active": GOING}),  # does not end in time
    ]
    for shown, answer in cases:
        answers = {"/v1/status": [HEALTHY], "/v1/jobs": [{}], "/v1/diagnostics": shown}
        daemon = Daemon(monkeypatch, {**answers, RUN: [answer]} if answer else answers)
        assert daemon.prolog(ScriptSettings(level_1_age_s=3600.0, budget_s=0.5)) == 0, shown
        assert "level 1" in capsys.readouterr().err, shown


def test_a_refused_job_is_not_noted(monkeypatch: pytest.MonkeyPatch, said: list[list[str]]) -> None:
    """And pre-empts nothing."""
    daemon = Daemon(monkeypatch, {"/v1/status": [verdict()]})
    assert daemon.prolog(ScriptSettings()) == 20
    assert daemon.asked == ["/v1/status"]


def test_the_scripts_are_sound() -> None:
    for path in sorted((ROOT / "packaging/slurm").iterdir()):
        if path.suffix != ".md":
            assert os.access(path, os.X_OK), path
            assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
