"""What is said to Slurm and what Slurm says: without one."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pace import patient
from tests.unit.builders import FUZZ, ROOT
from tests.unit.test_imports import forbidden, loaded_by
from vitald import config
from vitald.cli import slurm
from vitald.cli.slurm import Known, Settings

# As scontrol of 22.05 prints it.
NODE = """NodeName=gpu01 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.22
   NodeAddr=127.0.0.1 NodeHostName=gpu01 Version=22.05.8
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
{more}
"""
JOB = "JobId=9 JobName=s.sh UserId=root(0) Nice=0 JobState=COMPLETING Reason={reason} Dependency=(null) Reboot=0 ExitCode={code} RunTime=00:00:01"
OURS = "vitald: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"


def verdict(
    status: str = "unhealthy", reason: str = "gpu/0000:65:00.0: broken (xid/79): reboot the node", **more: object
) -> dict[str, object]:
    flags = {"rebootRequired": True, "rebootConfirmed": True, "replacementRequired": False, "replacementConfirmed": False}
    return {"status": status, "reasons": [reason], **flags, "simulated": False, **more}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is asked of scontrol, instead of asking it."""
    asked: list[list[str]] = []

    def scontrol(arguments: list[str], seconds: float) -> tuple[str, str]:
        assert seconds > 0
        asked.append(arguments)
        return "", ""

    monkeypatch.setattr(slurm, "_scontrol", scontrol)
    return asked


def withdrawn(
    said: list[list[str]], known: Known, settings: Settings | None = None, about: dict[str, object] | None = None
) -> list[list[str]]:
    slurm.withdraw(settings or Settings(), about or verdict(), "gpu01", known, 1.0)
    assert all(words[:2] == ["update", "nodename=gpu01"] for words in said)
    return [words[2:] for words in said]


@pytest.mark.parametrize(
    ("state", "more", "known"),
    [
        ("IDLE", "", Known(frozenset({"IDLE"}), "")),
        ("MIXED+DRAIN", f"   Reason={OURS} [root@2026-11-21T21:12:13]", Known(frozenset({"MIXED", "DRAIN"}), OURS)),
        ("DOWN*+DRAIN", "   Reason=a [b] [c@d] [root@2026-11-21T21:12:13]", Known(frozenset({"DOWN", "DRAIN"}), "a [b] [c@d]")),
        ("IDLE+NOT_RESPONDING", "", Known(frozenset({"IDLE", "NOT_RESPONDING"}), "")),
        (
            "IDLE+FAIL",
            "   Reason=Action:Reboot [root@2026-11-21T21:26:31]\n   Comment=vitald: why = this",
            Known(frozenset({"IDLE", "FAIL"}), "Action:Reboot", "vitald: why = this"),
        ),
    ],
)
def test_how_slurm_has_a_node(state: str, more: str, known: Known) -> None:
    assert slurm.read_node(NODE.format(state=state, more=more)) == known
    assert known.held is not (known.states <= {"IDLE", "NOT_RESPONDING"})


@FUZZ
@given(st.text(), st.text())
def test_what_scontrol_may_print(state: str, more: str) -> None:
    """Whatever is there, it is read or it is not known; never an error."""
    for text in (state, NODE.format(state=state, more=more)):
        known = slurm.read_node(text)
        assert known is None or isinstance(known.reason, str)
    assert set(slurm.exit_state_of(state)) <= {"exitCode", "signal", "reason"}


@pytest.mark.parametrize(
    ("code", "reason", "state"),
    [
        ("0:0", "None", {"exitCode": 0, "signal": 0}),
        ("3:0", "NonZeroExitCode", {"exitCode": 3, "signal": 0, "reason": "NonZeroExitCode"}),
        ("0:9", "JobLaunchFailure", {"exitCode": 0, "signal": 9, "reason": "JobLaunchFailure"}),
        ("0:15", "None", {"exitCode": 0, "signal": 0}),  # scancel
        ("0:15", "TimeLimit", {"exitCode": 0, "signal": 0, "reason": "TimeLimit"}),
        ("0:15", "JobLaunchFailure", {"exitCode": 0, "signal": 15, "reason": "JobLaunchFailure"}),
    ],
)
def test_how_a_job_ended_by_scontrol(code: str, reason: str, state: dict[str, object]) -> None:
    assert slurm.exit_state_of(JOB.format(code=code, reason=reason)) == state


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({"SLURM_JOB_EXIT_CODE2": "3:0", "SLURM_JOB_EXIT_CODE": "768"}, {"exitCode": 3, "signal": 0}),
        ({"SLURM_JOB_EXIT_CODE2": "0:9"}, {"exitCode": 0, "signal": 9}),
        ({"SLURM_JOB_EXIT_CODE": "768"}, {"exitCode": 3, "signal": 0}),
        ({"SLURM_JOB_EXIT_CODE": "139"}, {"exitCode": 0, "signal": 11}),  # with a core
        ({"SLURM_JOB_EXIT_CODE": "what"}, {}),
        ({}, {}),
    ],
)
def test_how_a_job_ended_by_the_environment(
    environment: dict[str, str], state: dict[str, object], monkeypatch: pytest.MonkeyPatch, said: list[list[str]]
) -> None:
    """scontrol is asked only where it does not say."""
    for name in ("SLURM_JOB_EXIT_CODE", "SLURM_JOB_EXIT_CODE2"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert slurm._exit_state("7") == state
    assert said == ([] if state else [["show", "job", "7", "-o"]])


@pytest.mark.parametrize(
    "known",
    [
        Known(frozenset({"IDLE", "DRAIN"}), "ticket 4711"),
        Known(frozenset({"IDLE", "DRAIN"}), "vitald is suspected"),
        Known(frozenset({"IDLE", "DRAIN"}), ""),
        Known(frozenset({"DOWN"}), "Not responding"),
        Known(frozenset({"IDLE", "FAIL"}), "Action:Reboot"),
        Known(frozenset({"IDLE"}), "Action:Replace"),
        Known(frozenset({"IDLE", "DRAIN"}), slurm.reason_of(Settings(), verdict())),  # said already
    ],
)
def test_what_is_left_alone(known: Known, said: list[list[str]]) -> None:
    assert withdrawn(said, known) == []


@pytest.mark.parametrize("known", [Known(frozenset({"IDLE"}), ""), Known(frozenset({"MIXED"}), "an old reason")])
def test_a_node_in_service_is_drained(known: Known, said: list[list[str]]) -> None:
    assert withdrawn(said, known) == [["state=drain", "reason=vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"]]


def test_a_reason_that_a_person_changed_is_theirs(said: list[list[str]], tmp_path: Path) -> None:
    settings = Settings(record=tmp_path / "new folder" / "reason")
    ours, held = slurm.reason_of(settings, verdict()), frozenset({"IDLE", "DRAIN"})
    assert withdrawn(said, Known(frozenset({"IDLE"}), ""), settings) == [["state=drain", f"reason={ours}"]]
    for note in (f"{ours}; bob: RMA 4711", "vitald: seen by bob, RMA 123", f"{ours} "):
        assert not slurm.is_ours(settings, Known(held, note))
        said.clear()
        assert withdrawn(said, Known(held, note), settings) == []
    said.clear()
    worse = verdict(reason="gpu/0000:9b:00.0: worse (xid/64): replace the node")
    slurm.withdraw(settings, worse, "gpu01", Known(held, ours), 1.0)
    assert not slurm.is_ours(settings, Known(held, ours))
    assert slurm.is_ours(settings, Known(held, slurm.reason_of(settings, worse)))


def test_a_reason_that_slurm_did_not_take_leaves_the_former_one_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(record=tmp_path / "reason")
    ours, held = slurm.reason_of(settings, verdict()), frozenset({"IDLE", "DRAIN"})
    for trouble in ("", "slurmctld does not answer"):
        monkeypatch.setattr(slurm, "_scontrol", lambda arguments, seconds, trouble=trouble: ("", trouble))
        known = Known(held, ours) if trouble else Known(frozenset({"IDLE"}), "")
        reason = "gpu/0000:9b:00.0: worse (xid/64): replace the node" if trouble else "gpu/0000:65:00.0: broken (xid/79): reboot the node"
        slurm.withdraw(settings, verdict(reason=reason), "gpu01", known, 1.0)
    assert slurm.is_ours(settings, Known(held, ours))


def test_where_nothing_was_recorded_the_prefix_decides(tmp_path: Path) -> None:
    held = frozenset({"IDLE", "DRAIN"})
    assert slurm.is_ours(Settings(record=tmp_path / "nothing"), Known(held, "vitald: of an older vitald"))
    (tmp_path / "record").mkdir()
    assert slurm.is_ours(Settings(record=tmp_path / "record"), Known(held, "vitald: the record is a folder"))
    assert not slurm.is_ours(Settings(), Known(held, "ticket 4711"))


@pytest.mark.parametrize("file", ["docs/slurm.md", "packaging/slurm/README.md", "packaging/install"])
def test_who_sets_up_slurm_is_told_of_jobs_that_would_stay_held(file: str) -> None:
    assert "SchedulerParameters=nohold_on_prolog_fail" in (ROOT / file).read_text(encoding="utf-8")


def test_our_own_reason_is_kept_up_to_date(said: list[list[str]]) -> None:
    assert withdrawn(said, Known(frozenset({"IDLE", "DRAIN"}), "vitald: something milder")) == [
        ["reason=vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"]
    ]


@pytest.mark.parametrize(
    ("known", "comment"),
    [
        (Known(frozenset({"IDLE"}), ""), True),
        (Known(frozenset({"IDLE", "DRAIN"}), "vitald: it was drained by the prolog", "vitald: older"), True),
        (Known(frozenset({"IDLE"}), "", "rack 7, ask Bob"), False),  # somebody's comment stays
    ],
)
def test_hyperpod(known: Known, comment: bool, said: list[list[str]]) -> None:
    """In one call: nobody comes between."""
    words = ["comment=vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"]
    done = withdrawn(said, known, Settings(hyperpod=True))
    assert done == [["state=fail", "reason=Action:Reboot", *(words if comment else [])]]


def test_hyperpod_without_a_comment_where_slurm_takes_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[str]] = []

    def scontrol(arguments: list[str], seconds: float) -> tuple[str, str]:
        assert 0.0 < seconds <= 1.0
        asked.append(arguments[2:])
        return "", "no such word" if any(word.startswith("comment=") for word in arguments) else ""

    monkeypatch.setattr(slurm, "_scontrol", scontrol)
    slurm.withdraw(Settings(hyperpod=True), verdict(), "gpu01", Known(frozenset({"IDLE"}), ""), 1.0)
    assert [words[:2] for words in asked] == [["state=fail", "reason=Action:Reboot"]] * 2
    printed = capsys.readouterr().err
    assert "no such word" in printed and "not drained" not in printed


@pytest.mark.parametrize(
    ("flags", "action"),
    [
        ({}, "Action:Reboot"),
        ({"replacementConfirmed": True}, "Action:Replace"),
        ({"rebootConfirmed": False, "replacementConfirmed": True}, "Action:Replace"),
        ({"rebootConfirmed": False}, ""),  # required, and unconfirmed: the node is only drained
        ({"replacementRequired": True, "rebootConfirmed": False}, ""),
        ({"simulated": True, "findings": [{"simulated": True, "confirmed": True, "action": "reboot_node"}]}, ""),
        ({"simulated": True, "findings": []}, ""),
        # All that is read is simulated.
        ({"simulated": True, "findings": [{"simulated": False, "confirmed": True, "action": "reboot_node"}]}, ""),
        (
            {
                "simulated": True,
                "replacementConfirmed": True,
                "findings": [
                    {"simulated": True, "confirmed": True, "action": "replace_node"},
                    {"simulated": False, "confirmed": True, "action": "reboot_node"},
                ],
            },
            "Action:Reboot",
        ),
        (
            {
                "simulated": True,
                "findings": [
                    {"simulated": True, "confirmed": True, "action": "reboot_node"},
                    {"simulated": False, "confirmed": False, "action": "reboot_node"},
                ],
            },
            "",
        ),
    ],
)
def test_what_hyperpod_is_to_do(flags: dict[str, object], action: str) -> None:
    assert slurm.hyperpod_action(verdict(**flags)) == action


@FUZZ
@given(st.text(), st.text(min_size=1, max_size=40))
def test_a_reason_is_one_short_line(reason: str, prefix: str) -> None:
    made = slurm.reason_of(Settings(reason="vitald"), verdict(reason=reason))
    assert made.startswith("vitald:") and len(made) <= 200 and made.isascii() and made.isprintable()
    assert not made.startswith("Action:") and not made.endswith('"'), "scontrol would not keep it as it is"


def test_settings_are_those_of_the_configuration(tmp_path: Path) -> None:
    """Read twice, for speed: keys, defaults and values agree."""
    own = config.Slurm()
    assert {name: getattr(Settings(), name) for name in Settings._fields if name not in ("socket", "record")} == {
        name: getattr(own, name) for name, _ in config.settings_of("slurm").values()
    }
    path = tmp_path / "config.toml"
    path.write_text(
        '[slurm]\nunknown = "refuse"\nlevel_1_age = "12h"\nbudget = "500ms"\nlevel_2_after_failure = false\nreason = "NODE"\nhyperpod = true\n'
        f'[paths]\nruntime = "{tmp_path}"\n'
    )
    read, whole = slurm.read_settings(path), config.load(path)
    for name, _ in config.settings_of("slurm").values():
        assert getattr(read, name) == getattr(whole.slurm, name) != getattr(Settings(), name)
    assert read.socket == whole.socket_path
    path.write_text(f'[socket]\npath = "{tmp_path}/s"\n[paths]\nruntime = "/elsewhere"\n')
    assert slurm.read_settings(path).socket == config.load(path).socket_path


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[slurm", "not valid TOML"),
        ('[slurm]\nunknown = "perhaps"\nhyperpod = true', "none of allow, refuse"),
        ('[slurm]\nbudget = "soon"\nhyperpod = true', "not a duration"),
        ("[slurm]\nhyperpod = true\nreason = 7", "expected a text"),
        ("slurm = 3", ""),
    ],
)
def test_what_is_wrong_in_the_file_is_said(text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that is wrong costs no other key."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert slurm.read_settings(path) == Settings(hyperpod="hyperpod = true" in text)
    assert complaint in capsys.readouterr().err
    assert slurm.read_settings(tmp_path / "none") == Settings()


@pytest.mark.parametrize("edge", ["prolog", "epilog", "health"])
def test_asking_loads_little(edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every job, on every node: no rules, no server, and scontrol only where something must be said."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_EXIT_CODE2", "0:0")
    loaded = loaded_by(["slurm", edge, "--socket", "/nonexistent", "--config", "/nonexistent"])
    assert "vitald.cli.slurm" in loaded
    assert (
        forbidden(
            loaded, "vitald.catalog", "vitald.config", "vitald.judge", "vitald.sources", "asyncio", "sqlite3", "subprocess", "dataclasses"
        )
        == []
    )


@pytest.mark.parametrize(("edge", "code"), [("prolog", 20), ("epilog", 0), ("health", 0)])
def test_a_fault_of_ours_is_said_and_the_configuration_decides(
    edge: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: list[list[str]]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[slurm]\nunknown = "refuse"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def broken(*_: object, **__: object) -> dict[str, object]:
        raise KeyError("a mistake")

    monkeypatch.setattr(slurm.client, "ask", broken)
    monkeypatch.setattr(slurm.client, "status", broken)
    parser = argparse.ArgumentParser()
    slurm.options(parser)
    assert slurm.run(parser.parse_args([edge, "--config", str(path)])) == code
    assert "KeyError: 'a mistake'" in capsys.readouterr().err


@pytest.mark.parametrize("trouble", ["absent", "broken"])
def test_a_refusal_stands_whatever_becomes_of_the_drain(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if trouble == "absent":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(slurm, "_PATH", str(tmp_path))
    else:
        monkeypatch.setattr(slurm, "withdraw", None)
        monkeypatch.setattr(slurm, "look", lambda *_: Known(frozenset({"IDLE"}), ""))
    daemon = Daemon(monkeypatch, {"/v1/status": [verdict()]})
    assert daemon.prolog(Settings()) == 20
    printed = capsys.readouterr().err
    assert ("scontrol cannot be run: No such file or directory" if trouble == "absent" else "TypeError") in printed


def test_a_scontrol_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begun = time.monotonic()
    assert slurm.look("gpu01", 0.2) == "scontrol did not answer within 0.2 s"
    assert time.monotonic() - begun < patient(5.0)


def test_what_is_done_is_in_the_systems_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmd keeps what a script prints only where it failed. A log that hangs is not waited for."""
    path = tmp_path / "log"
    monkeypatch.setattr(slurm, "_LOG", str(path))
    slurm._tell("nobody listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        log.settimeout(5.0)
        slurm._tell("gpu01: resumed\n: healthy")
        line = log.recv(4096).decode()
        assert line.startswith("<28>") and line.endswith("]: gpu01: resumed\\x0a: healthy")
        begun = time.monotonic()
        for _ in range(2000):
            slurm._tell("nobody reads")
        assert time.monotonic() - begun < patient(10.0)


class Daemon:
    """Stands for vitald on a socket: one answer for each path; what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[dict[str, object]]]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        monkeypatch.setattr(slurm.client, "status", lambda *_, **__: self._next("/v1/status"))
        monkeypatch.setattr(slurm.client, "ask", lambda _, path, body=None: self._next(path, body))
        monkeypatch.setenv("SLURM_JOB_ID", "7")

    def _next(self, path: str, body: object = None) -> dict[str, object]:
        self.asked.append(f"{path} {json.dumps(body)}" if body else path)
        answers = self._answers[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if "error" in answer:
            raise slurm.client.Refused(404, str(answer["error"]), "")
        return answer

    def prolog(self, settings: Settings) -> int:
        return slurm.prolog(settings, slurm.Asking(None, time.monotonic() + settings.budget_s))


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
    shown = [{"last": runs, "going": []}, {"last": runs, "going": [GOING]}, {"last": runs, "going": []}]
    answers = {
        "/v1/status": [HEALTHY, verdict()],
        "/v1/jobs": [{}],
        "/v1/diagnostics": shown,
        RUN: [{"going": GOING}],
    }
    daemon = Daemon(monkeypatch, answers)  # type: ignore[arg-type]
    assert daemon.prolog(settings) == (20 if is_run else 0)
    assert daemon.asked[:2] == ["/v1/status", TELL]
    assert any(one.startswith(RUN) for one in daemon.asked) is is_run
    if is_run:
        assert daemon.asked[-1] == '/v1/jobs {"event": "end", "job": "7", "user": "", "reason": "refused by the prolog"}'


@pytest.mark.parametrize(
    "shown",
    [
        [{"last": [], "going": [GOING]}],  # another job's prolog asked for it, or the schedule
        [{"last": [], "going": []}, {"last": [], "going": [GOING]}],  # while we asked ourselves
        [{"last": [last(0.1)], "going": [{**GOING, "stage": "ending"}]}],  # what it found is not in the verdict yet
    ],
)
def test_a_level_1_that_runs_already_is_waited_for(
    shown: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, said: list[list[str]]
) -> None:
    answers = {"/v1/status": [HEALTHY, verdict()], "/v1/jobs": [{}], RUN: [{"error": "it is running already"}]}
    daemon = Daemon(monkeypatch, {**answers, "/v1/diagnostics": [*shown, {"last": [last(0.1)], "going": []}]})  # type: ignore[dict-item]
    assert daemon.prolog(Settings(level_1_age_s=3600.0)) == 20


@pytest.mark.parametrize(
    ("then", "resumed"), [("healthy", True), ("degraded", True), ("unhealthy", False), ("unknown", False), ("no answer", False)]
)
def test_what_was_drained_since_we_asked_is_not_resumed(
    then: str, resumed: bool, said: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "look", lambda *_: Known(frozenset({"IDLE", "DRAIN"}), OURS))
    again: dict[str, object] = {"error": "late"} if then == "no answer" else verdict(then)
    Daemon(monkeypatch, {"/v1/status": [HEALTHY, again], "/v1/jobs": [{"running": []}]})
    assert slurm.health(Settings(), slurm.Asking(None, time.monotonic() + 5.0)) == 0
    assert [words[2:] for words in said] == ([["state=resume"]] if resumed else [])


JOBS: dict[str, object] = {"running": [{"job": "12"}, {"job": "4[1]"}], "recent": []}


@pytest.mark.parametrize(
    ("shown", "trouble", "told"),
    [
        ("JobId=12 JobState=RUNNING Reason=None ExitCode=0:0 RunTime=1", "", None),
        ("JobId=12 JobState=COMPLETING Reason=None ExitCode=3:0 RunTime=1", "", None),  # its epilog may be running
        ("JobId=12 JobState=SUSPENDED Reason=None ExitCode=0:0 RunTime=1", "", None),
        ("JobId=12 JobState=SOMETHING_NEW Reason=None ExitCode=0:0 RunTime=1", "", None),
        ("", "scontrol show failed: Unable to contact slurm controller", None),
        ("", "scontrol did not answer within 5.0 s", None),
        ("JobId=12 JobState=COMPLETED Reason=None ExitCode=0:0 RunTime=1", "", {"exitCode": 0, "signal": 0}),
        ("JobId=12 JobState=PENDING Reason=Priority ExitCode=0:0 RunTime=1", "", {"reason": "requeued"}),
        (
            "JobId=12 ArrayJobId=12 ArrayTaskId=2 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0 RunTime=1\n"
            "JobId=13 ArrayJobId=12 ArrayTaskId=1 JobState=RUNNING Reason=None ExitCode=0:0 RunTime=1\n",
            "",
            {"exitCode": 3, "signal": 0, "reason": "NonZeroExitCode"},
        ),
        (
            "JobId=13 ArrayJobId=12 ArrayTaskId=1 JobState=FAILED Reason=None ExitCode=3:0 RunTime=1\n"
            "JobId=12 ArrayJobId=12 ArrayTaskId=2 JobState=RUNNING Reason=None ExitCode=0:0 RunTime=1\n",
            "",
            None,
        ),
        ("", "scontrol show failed: slurm_load_jobs error: Invalid job id specified", {}),
    ],
)
def test_the_end_of_a_job_that_nobody_told(
    shown: str, trouble: str, told: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm is asked by the health check; where it does not say so for certain, the job runs."""
    asked: list[list[str]] = []

    def scontrol(arguments: list[str], seconds: float) -> tuple[str, str]:
        asked.append(arguments)
        return shown, trouble

    monkeypatch.setattr(slurm, "_scontrol", scontrol)
    daemon = Daemon(monkeypatch, {"/v1/jobs": [JOBS, {}]})
    slurm._untold(Settings(), slurm.Asking(None, time.monotonic() + 5.0))
    assert asked == [["show", "job", "12", "-o"]], "what is no number of Slurm's, another scheduler told"
    ends = [json.loads(one.partition(" ")[2]) for one in daemon.asked[1:]]
    assert ends == ([{"event": "end", "job": "12", **told, "diagnose": True}] if told is not None else [])


@pytest.mark.parametrize(
    "diagnostics",
    [
        {"/v1/diagnostics": [{"error": "no such path"}]},
        {"/v1/diagnostics": [{"last": [], "going": []}], RUN: [{"error": "dcgmi is not installed"}]},
        {"/v1/diagnostics": [{"last": [{"check": "dcgm", "level": 1}], "going": []}]},
        {"/v1/diagnostics": [{"last": [], "going": []}, {"last": [], "going": [GOING]}], RUN: [{"going": GOING}]},  # does not end in time
    ],
)
def test_a_level_1_that_does_not_come_changes_nothing(
    diagnostics: dict[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(monkeypatch, {"/v1/status": [HEALTHY], "/v1/jobs": [{}], **diagnostics})
    begun = time.monotonic()
    assert daemon.prolog(Settings(level_1_age_s=3600.0, budget_s=0.5)) == 0
    assert time.monotonic() - begun < patient(0.5)
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
