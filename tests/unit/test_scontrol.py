"""What scontrol prints of nodes and jobs: what it means, and what becomes of a scontrol
that hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.slurm import scontrol
from vitald.slurm.scontrol import SlurmNode

# As scontrol of 22.05 prints it.
NODE = """NodeName=gpu01 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.22
   NodeAddr=127.0.0.1 NodeHostName=gpu01 Version=22.05.8
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
{more}
"""
JOB = (
    "JobId=9 JobName=s.sh UserId=root(0) Nice=0 JobState=COMPLETING Reason={reason}"
    " Dependency=(null) Reboot=0 ExitCode={code} RunTime=00:00:01"
)
OURS = "vitald: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"


@pytest.mark.parametrize(
    ("state", "more", "known"),
    [
        ("IDLE", "", SlurmNode(frozenset({"IDLE"}), "")),
        (
            "MIXED+DRAIN",
            f"   Reason={OURS} [root@2026-11-21T21:12:13]",
            SlurmNode(frozenset({"MIXED", "DRAIN"}), OURS),
        ),
        (
            "DOWN*+DRAIN",
            "   Reason=a [b] [c@d] [root@2026-11-21T21:12:13]",
            SlurmNode(frozenset({"DOWN", "DRAIN"}), "a [b] [c@d]"),
        ),
        ("IDLE+NOT_RESPONDING", "", SlurmNode(frozenset({"IDLE", "NOT_RESPONDING"}), "")),
        (
            "IDLE+FAIL",
            "   Reason=Action:Reboot [root@2026-11-21T21:26:31]\n   Comment=vitald: why = this",
            SlurmNode(frozenset({"IDLE", "FAIL"}), "Action:Reboot", "vitald: why = this"),
        ),
    ],
)
def test_how_slurm_has_a_node(state: str, more: str, known: SlurmNode) -> None:
    shown = scontrol.parse_node_state(NODE.format(state=state, more=more))
    assert shown == known._replace(name="gpu01", partitions=("all",))
    assert known.held is not (known.states <= {"IDLE", "NOT_RESPONDING"})


@given(st.text(), st.text())
def test_what_scontrol_may_print(state: str, more: str) -> None:
    """Whatever is there, it is read or it is not known; never an error."""
    for text in (state, NODE.format(state=state, more=more)):
        known = scontrol.parse_node_state(text)
        assert known is None or isinstance(known.reason, str)
    assert set(scontrol.parse_exit_state(state)) <= {"exitCode", "signal", "reason"}


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
    assert scontrol.parse_exit_state(JOB.format(code=code, reason=reason)) == state


def test_a_scontrol_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert scontrol.read_node_state("gpu01", 0.2) == "scontrol did not answer within 0.2 s"
