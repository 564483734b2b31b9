"""`[slurm] expedite`: when the epilog fails on purpose, and that nothing else makes it fail."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.builders import ROOT
from tests.unit.slurm_made import verdict
from vitald.cli.slurm import command
from vitald.slurm import scontrol
from vitald.slurm.settings import Settings

EXPEDITE = Settings(expedite=True)
# As src/scontrol/info_job.c of Slurm 25.11 prints it.
JOB = "JobId=7 JobName=train UserId=alice(1000) JobState=COMPLETING Requeue=1 ExpeditedRequeue=Yes"
PLAIN = "JobId=7 JobName=train UserId=alice(1000) JobState=COMPLETING Requeue=1"
NODE = "NodeName=gpu01\n   State={state}\n"
BLAMED: dict[str, object] = {"left": [2], "unfit": [2]}


class Slurm:
    """Stands for scontrol: a job, and a node that an update drains."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, job: str = JOB, can_drain: bool = True
    ) -> None:
        self.calls: list[list[str]] = []
        self._job, self._can_drain = job, can_drain
        self.node = NODE.format(state="IDLE")
        monkeypatch.setattr(scontrol, "run_scontrol", self._run)

    def _run(self, arguments: list[str], seconds: float) -> tuple[str, str]:
        assert seconds > 0
        self.calls.append(arguments)
        if arguments[:2] == ["show", "job"]:
            return self._job, "" if self._job else "scontrol show failed: no answer"
        if arguments[0] == "show":
            return self.node, ""
        if not self._can_drain:
            return "", "scontrol update failed: Access/permission denied"
        self.node = NODE.format(state="IDLE+DRAIN") + "   Reason=vitald: broken\n"
        if "state=fail" in arguments:
            self.node = NODE.format(state="IDLE+FAIL") + "   Reason=Action:Reboot\n"
        return "", ""

    @property
    def updates(self) -> list[list[str]]:
        return [call for call in self.calls if call[0] == "update"]


def run_epilog(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings = EXPEDITE,
    *,
    end: str = "3:0",
    answer: dict[str, object] = BLAMED,
    status: str = "unhealthy",
) -> int:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_EXIT_CODE2", end)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    monkeypatch.setattr(command.client, "call_api", lambda *_: answer)
    monkeypatch.setattr(command.client, "read_status", lambda *_, **__: verdict(status))
    return command.run_epilog(settings, command.DaemonClient(None, time.monotonic() + 5.0))


@pytest.mark.parametrize("end", ["3:0", "0:9"])
def test_the_epilog_fails_once_the_node_is_drained(
    end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Slurm(monkeypatch)
    assert run_epilog(monkeypatch, end=end) == 20
    assert [call[0] for call in slurm.calls] == ["show", "show", "update", "show"]
    [update] = slurm.updates
    assert "state=drain" in update
    assert any(part.startswith("reason=vitald: gpu/0000:65:00.0") for part in update)
    assert "job 7 died of a fault of this node" in capsys.readouterr().err


def test_a_node_that_others_drained_keeps_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(monkeypatch)
    slurm.node = NODE.format(state="IDLE+DRAIN") + "   Reason=ticket 4711\n"
    assert run_epilog(monkeypatch) == 20
    assert slurm.updates == []


@pytest.mark.parametrize(
    ("settings", "end", "answer"),
    [
        (Settings(), "3:0", BLAMED),  # off, the default
        (EXPEDITE, "0:0", BLAMED),  # the job succeeded, was cancelled, or out of time
        (EXPEDITE, "3:0", {"left": [2], "unfit": []}),  # its own fault
        (EXPEDITE, "3:0", {}),  # a daemon before this version
    ],
)
def test_slurm_is_not_asked_where_nothing_is_to_be_done(
    settings: Settings, end: str, answer: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(monkeypatch)
    assert run_epilog(monkeypatch, settings, end=end, answer=answer) == 0
    assert slurm.calls == []


@pytest.mark.parametrize(
    ("job", "status", "can_drain", "complaint"),
    [
        (PLAIN, "unhealthy", True, ""),  # not requested, or a Slurm before 25.11
        ("", "unhealthy", True, "not known whether it was submitted with --requeue=expedite"),
        (JOB, "degraded", True, "the node is degraded"),  # cleared meanwhile
        (JOB, "unknown", True, "the node is unknown"),
        (JOB, "unhealthy", False, "gpu01 was not drained"),
    ],
)
def test_the_epilog_succeeds_where_the_job_or_the_node_is_not_ready_for_it(
    job: str,
    status: str,
    can_drain: bool,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    slurm = Slurm(monkeypatch, job=job, can_drain=can_drain)
    assert run_epilog(monkeypatch, status=status) == 0
    assert complaint in capsys.readouterr().err
    assert bool(slurm.updates) is (not can_drain)


def test_hyperpod_requeues_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Slurm(monkeypatch)
    assert run_epilog(monkeypatch, Settings(expedite=True, hyperpod=True)) == 0
    assert any("state=fail" in call for call in slurm.updates)
    assert "HyperPod acts on gpu01" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "script_code"), [(0, 0), (1, 0), (2, 0), (20, 1), (127, 0)])
def test_the_script_fails_only_for_20(code: int, script_code: int, tmp_path: Path) -> None:
    """A traceback exits 1, and a broken installation must not drain the cluster."""
    program = tmp_path / "vitald"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexit {code}\n')
    program.chmod(0o755)
    environment = {"VITALD": str(program) if code != 127 else "/nonexistent", "PATH": os.defpath}
    done = subprocess.run(
        [ROOT / "packaging/slurm/epilog"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == script_code, json.dumps(done.stderr.decode())
