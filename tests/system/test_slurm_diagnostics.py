"""Jobs and diagnostics on one node: a real Slurm, the real daemon, simulated GPUs and a stand-in
for dcgmi.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.clock import HOUR_S
from tests.conftest import require
from tests.dcgmi import Answer, Dcgmi, Fault, diag
from tests.harness import Json, Node
from tests.system.lines import remap
from tests.system.test_diagnostics import alive, asked, ended, running, state, with_child
from tests.system.test_slurm import HOST, Slurm, installed, jobs, slurm
from tests.waiting import WAIT_S, until
from vitald.ledger.store import Ledger
from vitald.simulator.simulated_node import SimulatedNode

__all__ = ["installed", "slurm"]  # fixtures

GPUS = 8
# When, and all that run
PROCESSES = r"""
date +%s.%N
for one in /proc/[0-9]*; do tr '\0' ' ' < $one/cmdline; echo; done 2>/dev/null
""".strip()


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )


@pytest.fixture
def dcgmi(tmp_path: Path) -> Iterator[Dcgmi]:
    with Dcgmi(tmp_path / "bin", gpus=GPUS) as made:
        yield made


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path / "gpus", "h100")


@pytest.fixture
def on(
    slurm: Slurm, make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> Callable[..., Node]:
    """A node with eight GPUs that Slurm's scripts ask. Nothing runs by itself but what findings and
    jobs ask for.
    """

    def begin(settings: str = "", dcgm: str = 'level_2 = "off"', diagnostics: str = "") -> Node:
        extra = f"""
[slurm]
{slurm.settings}
{settings}
[diagnostics]
idle = "1s"
{diagnostics}
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
{dcgm}
[dcgm_health]
enabled = false
"""
        node = make_node(gpus=gpus, extra=extra)
        slurm.config.unlink(missing_ok=True)
        slurm.config.symlink_to(node.config)
        node.start()
        node.wait(lambda status: status["status"] == "healthy")
        return node

    return begin


def levels(dcgmi: Dcgmi) -> list[int]:
    return [call.level for call in dcgmi.runs()]


def waiting(node: Node) -> str:
    """For what the only run in line waits, once that is known. What another test's diagnostic has
    left on this machine goes first.
    """
    reasons: list[str] = []

    def is_known() -> bool:
        (one,) = cast("list[Json]", state(node)["active"])
        reasons.append(str(one["waitsFor"]))
        return reasons[-1] != "" and not reasons[-1].startswith("the end of an earlier diagnostic")

    until(is_known, "a run that waits")
    return reasons[-1]


def begun(slurm: Slurm, node: Node, *options: str) -> tuple[str, Path]:
    """A job that runs until a file is there, and that file."""
    go = slurm.folder / f"go-{time.monotonic_ns()}"
    path = slurm.folder / "job"
    path.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done; exit $(cat {go})\n")
    job = slurm("sbatch", "--parsable", "--output=/dev/null", *options, str(path)).strip()
    return job, go


# --- a job comes while a diagnostic runs


@pytest.mark.parametrize("program", ["tame", "deaf"])
def test_a_job_finds_nothing_of_the_diagnostic(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi, program: str
) -> None:
    """It ends before the job runs, with all that it had started; it is no result, and the node's
    verdict is as before.
    """
    node = on()
    tame = diag(level=2, delay_s=HOUR_S, leaves="child")
    dcgmi.answer(
        "diag -r 2",
        tame if program == "tame" else Answer(hang=True, ignores_term=True, leaves="deaf child"),
    )
    run = asked(node, 2)
    running(node, run)
    with_child(node, dcgmi)
    processes = slurm("srun", "-n1", "sh", "-c", PROCESSES)
    assert "slurmd" in processes and str(dcgmi.folder) not in processes
    [job] = jobs(node, "recent") or jobs(node, "running")
    over = ended(node, run)
    assert (over["preempted"], over["outcome"]) == (f"job {job}", "inconclusive")
    assert (node.status()["status"], node.findings()) == ("healthy", [])
    assert slurm.said.read_text() == ""


def test_what_made_room_has_settled_nothing(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    """The finding that asked for it stays, and asks again later (when: tests/unit/test_ladder)."""
    node = on()
    dcgmi.answer("diag -r 2", diag(level=2, delay_s=60.0), diag(level=2))
    node.write(f"kernel: NVRM: Xid (PCI:{gpus.addresses[2][:-2]}): 999, pid=1, something new")
    until(lambda: levels(dcgmi) == [1, 2], "both levels")
    slurm("srun", "-n1", "true")
    until(lambda: alive(dcgmi) == [], "dcgmi to end")
    until(lambda: [one["code"] for one in node.findings()] == ["xid/999"], "the finding")
    last = {one["level"]: one for one in cast("list[Json]", state(node)["last"])}
    assert last[2]["preempted"] and last[2]["action"] == "retry"


# --- before a job


def test_the_prolog_runs_level_1_where_the_last_one_is_old(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = on('level_1_age = "1h"\nbudget = "10s"')
    dcgmi.answer("diag -r 1", diag(level=1, delay_s=0.5))
    said = slurm("srun", "-n1", "cat", str(dcgmi.folder / "calls.jsonl"))
    assert '"exit_code": 0' in said, "it had ended when the job ran"
    [run] = cast("list[Json]", node.get("/v1/diagnostics/runs")["runs"])
    assert (run["level"], run["outcome"], "the prolog of job" in str(run["reason"])) == (
        1,
        "pass",
        True,
    )
    slurm("srun", "-n1", "true")
    assert levels(dcgmi) == [1]


def test_a_slow_level_1_does_not_hold_up_the_job(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    on('level_1_age = "1h"')
    dcgmi.answer("diag -r 1", diag(level=1, delay_s=HOUR_S))
    slurm("srun", "-n1", "true")
    assert "has not ended in time" in slurm.said.read_text()


@pytest.mark.core
def test_level_1_finds_what_refuses_the_job(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    """Drained with its words. Only a pass brings the node back: not time, not a daemon that is
    silent.
    """
    node = on('level_1_age = "1h"\nbudget = "10s"')
    dcgmi.answer("diag -r 1", diag(level=1, faults=[Fault(126, gpu=6)]))
    job = slurm.submit("exit 0")
    known = slurm.wait(lambda known: known.held, "the node to be drained")
    assert (
        known.reason.startswith(
            f"vitald: gpu/{gpus.addresses[6]} (GPU 6, serial {gpus.serials[6]}, slot 7, module 7): "
        )
        and "(dcgm/126): reboot the node" in known.reason
    )
    until(lambda: slurm.state(job).startswith("PENDING"), "the job to wait")
    until(lambda: jobs(node, "running") == {}, "the job to be over here")
    slurm("scancel", job)
    known = slurm.wait(
        lambda known: known.states == {"IDLE", "DRAIN"}, "the refused job to be gone"
    )
    slurm.by_hand("healthcheck")
    assert slurm.known() == known
    with node.frozen():
        assert "unknown, nothing done" in slurm.by_hand("healthcheck").stderr
    assert slurm.known() == known
    node.restart()
    slurm.by_hand("healthcheck")
    assert slurm.known() == known

    dcgmi.answer("diag -r 1", diag(level=1))
    assert ended(node, asked(node, 1))["outcome"] == "pass"
    node.wait(lambda status: status["status"] == "healthy")
    slurm.by_hand("healthcheck")
    assert not slurm.known().held


def test_two_jobs_begin_at_once_and_both_mind_the_same_level_1(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = on('level_1_age = "1h"\nbudget = "10s"')
    dcgmi.answer("diag -r 1", diag(level=1, delay_s=2.0, faults=[Fault(126, gpu=6)]))
    environment = {"SLURM_CONF": slurm.environment["SLURM_CONF"], "SLURMD_NODENAME": HOST}
    environment |= {"VITALD": str(slurm.folder / "vitald"), "VITALD_CONFIG": str(slurm.config)}
    prologs = [
        subprocess.Popen(
            [slurm.script("prolog")],
            env={**environment, "SLURM_JOB_ID": number},
            stderr=subprocess.PIPE,
        )
        for number in ("91", "92")
    ]
    said = [one.communicate(timeout=WAIT_S)[1].decode() for one in prologs]
    assert [one.returncode for one in prologs] == [1, 1], said
    assert levels(dcgmi) == [1]
    assert jobs(node, "running") == {}


def test_a_job_that_is_cancelled_in_its_prolog(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = on('level_1_age = "1h"\nbudget = "4s"')
    dcgmi.answer("diag -r 1", diag(level=1, delay_s=60.0))
    job = slurm.submit("exit 0")
    until(lambda: job in jobs(node, "running"), "the prolog")
    slurm("scancel", job)
    slurm.wait_job(job, "CANCELLED")
    until(lambda: jobs(node, "running") == {}, "the job to be over here")
    slurm.wait(lambda known: known.states == {"IDLE"}, "the node to be free")


# --- after a job


@pytest.mark.core
def test_level_2_after_a_job_that_failed(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """Asked for by the epilog, and run as soon as nobody is on the node; after a good one nothing
    is.
    """
    node = on()
    slurm.wait_job(slurm.submit("exit 0"), "COMPLETED")
    until(lambda: jobs(node, "recent"), "the job's end")
    failed = slurm.submit("exit 3")
    slurm.wait_job(failed, "FAILED")
    until(lambda: levels(dcgmi) == [2], "level 2")
    until(lambda: node.get("/v1/diagnostics/runs")["runs"], "its end")
    [run] = cast("list[Json]", node.get("/v1/diagnostics/runs")["runs"])
    assert (run["by"], run["outcome"]) == (f"job {failed}", "pass")
    assert "exit 3" in str(run["reason"])


def test_level_2_after_a_job_that_left_a_finding(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    node = on()
    job, go = begun(slurm, node)
    until(lambda: job in jobs(node, "running"), "the job to begin")
    node.write(remap(1, pci=gpus.addresses[2][:-2]))  # it asks for no diagnostic itself
    node.wait(lambda status: status["openFindings"])
    go.write_text("0")
    slurm.wait_job(job, "COMPLETED")
    until(lambda: 2 in levels(dcgmi), "level 2")
    assert jobs(node, "recent")[job]["state"] == "ended"
    until(lambda: node.get("/v1/diagnostics/runs")["runs"], "its end")
    [run] = cast("list[Json]", node.get("/v1/diagnostics/runs")["runs"])
    assert run["by"] == f"job {job}" and "left #" in str(run["reason"])


def running_level_2(slurm: Slurm, node: Node, dcgmi: Dcgmi) -> str:
    """A job fails, and the level 2 that its epilog requested begins and would take a minute."""
    dcgmi.answer("diag -r 2", diag(level=2, delay_s=60.0), diag(level=2))
    failed = slurm.submit("exit 3")
    slurm.wait_job(failed, "FAILED")
    until(lambda: levels(dcgmi) == [2], "level 2")
    return failed


@pytest.mark.core
def test_level_2_after_a_job_is_owed_until_it_has_a_verdict(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """It makes room for a job, and the daemon is killed (when it is tried again:
    tests/unit/test_owed_runs).
    """
    node = on()
    failed = running_level_2(slurm, node, dcgmi)
    slurm("srun", "-n1", "true")
    until(lambda: not jobs(node, "running"), "the job's end")
    assert "the next attempt at" in waiting(node) and "it made room for job" in waiting(node)
    node.kill()
    node.start()
    assert "the next attempt at" in waiting(node)
    [owed] = cast("list[Json]", state(node)["active"])
    assert (owed["by"], "exit 3" in str(owed["reason"])) == (f"job {failed}", True)
    assert f" ago by job {failed}: " in node.cli("diag", "list").stdout
    node.request("POST", "/v1/diagnostics/run", {"level": 2, "reason": "now"})
    until(lambda: state(node)["active"] == [], "its verdict")
    last, made_room = cast("list[Json]", node.get("/v1/diagnostics/runs")["runs"])
    assert (last["id"], last["reason"], last["outcome"]) == (owed["id"], owed["reason"], "pass")
    assert made_room["preempted"] and made_room["reason"] == owed["reason"]


def make_requests_older(node: Node, seconds: float) -> None:
    """While the daemon is stopped."""
    ledger = Ledger(node.state)
    ledger.open()
    position = ledger.read_state().positions["diagnostics"]
    memory = json.loads(position.cursor)
    for owed in memory["owed"]:
        owed["since"] -= seconds
    ledger.store_position(replace(position, cursor=json.dumps(memory)))
    ledger.close()


def test_a_node_is_drained_for_a_level_2_that_is_overdue(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """Slurm sends no job any more, the running one ends, level 2 runs, and the node is resumed."""
    node = on(diagnostics='overdue = "drain"')
    slurm.health_checks(wanted=True)
    job, go = begun(slurm, node)
    until(lambda: job in jobs(node, "running"), "the job to begin")
    slurm.wait_job(slurm.submit("exit 3"), "FAILED")
    assert "idle devices: job" in waiting(node)
    node.kill()
    make_requests_older(node, 24 * HOUR_S)
    node.start()
    slurm.wait(lambda known: known.held, "the node to be drained")
    assert slurm.known().reason.startswith("vitald: node/dcgm-2: The node is held")
    assert levels(dcgmi) == []
    go.write_text("0")
    slurm.wait(lambda known: known.states == {"IDLE"}, "the node to be resumed")
    assert levels(dcgmi) == [2] and node.findings() == []


# --- who is on the node


def test_a_job_is_known_after_a_restart(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """What the ledger has, and for a job that began meanwhile what Slurm's processes say."""
    node = on()
    first, go = begun(slurm, node, "-n1")
    until(lambda: first in jobs(node, "running"), "the job to begin")
    node.restart()
    asked(node, 2)
    assert f"job {first}" in waiting(node)
    node.stop()
    go.write_text("0")
    slurm.wait_job(first, "COMPLETED")
    second, go = begun(slurm, node, "-n1")
    slurm.wait_job(second, "RUNNING")
    node.start()
    said = waiting(node)
    assert f"job {second} (slurm)" in said
    go.write_text("0")
    slurm.wait_job(second, "COMPLETED")


def test_the_end_of_a_job_that_nobody_told_is_found_out(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """vitald was stopped when the epilog ran: the health check asks Slurm, else the node would
    never be idle again.
    """
    node = on()
    job, go = begun(slurm, node)
    until(lambda: job in jobs(node, "running"), "the job to begin")
    node.stop()
    go.write_text("3")
    slurm.wait_job(job, "FAILED")
    until(lambda: f"the end of job {job} was not noted" in slurm.said.read_text(), "the epilog")
    node.start()
    assert set(jobs(node, "running")) == {job}
    slurm.by_hand("healthcheck")
    assert jobs(node, "running") == {}
    told = jobs(node, "recent")[job]
    assert (told["state"], told["exitCode"]) == ("died", 3)


def test_the_health_check_ends_no_job_that_runs(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = on()
    job, go = begun(slurm, node)
    until(lambda: job in jobs(node, "running"), "the job to begin")
    slurm.by_hand("healthcheck")
    assert set(jobs(node, "running")) == {job}
    go.write_text("0")
    slurm.wait_job(job, "COMPLETED")


def test_jobs_beside_each_other(slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi) -> None:
    """Of an array too: level 2 waits for the last one."""
    node = on()
    array, go = begun(slurm, node, "-n1", "--array=1-2")
    until(lambda: len(jobs(node, "running")) == 2, "both to begin")
    numbers = set(jobs(node, "running"))
    assert array in numbers and all(number.isdigit() for number in numbers), (
        "each by the number of its own"
    )
    asked(node, 2)
    assert all(f"job {number}" in waiting(node) for number in numbers)
    go.write_text("0")
    until(lambda: levels(dcgmi) == [2], "level 2")
    assert set(jobs(node, "recent")) == numbers


def test_a_job_does_not_outlive_its_boot(
    slurm: Slurm, on: Callable[..., Node], dcgmi: Dcgmi, tmp_path: Path
) -> None:
    node = on()
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("11111111-0000-4000-8000-000000000000\n")
    node.configure("[paths]\n", f'[paths]\nprocfs = "{tmp_path}/proc"\n')
    node.restart()
    assert (
        node.request("POST", "/v1/jobs", {"event": "begin", "job": "77", "user": "alice"})[0] == 200
    )
    asked(node, 2)
    assert "job 77" in waiting(node)
    node.kill()
    boot.write_text("22222222-0000-4000-8000-000000000000\n")
    node.start()
    assert jobs(node, "running") == {}
    assert jobs(node, "recent")["77"]["state"] == "lost"
    # procfs is a tree that was laid out: no program can be ended by it, so none is run here.
    assert "job" not in str(state(node)["blocked"])
