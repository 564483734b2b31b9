"""Diagnostics end to end: the real daemon, GPUs simulated below the driver's library, and a
recorded dcgmi.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.clock import HOUR_S
from tests.conftest import NOT_BESIDE_SLURM, require
from tests.dcgmi import Answer, Dcgmi, Fault, diag, refused
from tests.harness import Json, Node
from tests.system.document import conforms
from tests.waiting import until
from vitald.simulator.simulated_node import SimulatedNode

pytestmark = NOT_BESIDE_SLURM

GPUS = 8


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
def make(make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode) -> Callable[..., Node]:
    """A node with eight GPUs. Nothing runs by itself but what findings ask for."""

    def made(dcgm: str = "", diagnostics: str = 'idle = "1s"') -> Node:
        extra = f"""
[diagnostics]
{diagnostics}
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
{dcgm}
[dcgm_health]
enabled = false
"""
        node = make_node(gpus=gpus, extra=extra)
        node.start()
        node.wait(lambda status: status["status"] == "healthy")
        return node

    return made


def state(node: Node) -> Json:
    return node.get("/v1/diagnostics")


def asked(node: Node, level: int = 1, **more: object) -> str:
    status, answer = node.request(
        "POST", "/v1/diagnostics/run", {"level": level, "reason": "test", **more}
    )
    assert status == 202, answer
    return str(cast("Json", answer["active"])["id"])


def ended(node: Node, run: str) -> Json:
    """The run, once it has ended."""
    until(
        lambda: run not in [one["id"] for one in cast("list[Json]", state(node)["active"])],
        f"the end of {run}",
    )
    until(
        lambda: node.request("GET", f"/v1/diagnostics/runs/{run}")[0] == 200,
        f"{run} to be told",
    )
    answer = node.get(f"/v1/diagnostics/runs/{run}")
    conforms("DiagnosticRunInFull", answer)
    return answer


def running(node: Node, run: str) -> None:
    """Once its program has started."""

    def holds() -> bool:
        return any(
            one["id"] == run and one["stage"] == "running"
            for one in cast("list[Json]", state(node)["active"])
        )

    until(holds, f"{run} to run")


def codes(node: Node) -> dict[str, tuple[str, str]]:
    """Open findings: component -> code and action."""
    return {
        str(one["component"]): (str(one["code"]), str(one["action"])) for one in node.findings()
    }


def alive(dcgmi: Dcgmi) -> list[str]:
    """What runs of the stand-in, and of what it started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(
            word.startswith(str(dcgmi.folder)) for word in words
        ):  # empty for one that has ended
            found.append(
                f"{Path(next(word for word in words if word.startswith(str(dcgmi.folder)))).name}"
                f" {folder.name}"
            )
    return sorted(found)


def with_child(node: Node, dcgmi: Dcgmi) -> None:
    until(lambda: {one.split()[0] for one in alive(dcgmi)} == {"dcgmi", "nvvs"}, "its child")


# --- results become findings that can be trusted


@pytest.mark.core
def test_a_pass_is_told_everywhere_and_kept(make: Callable[..., Node], dcgmi: Dcgmi) -> None:
    node = make()
    run = ended(node, asked(node, 1))
    assert (run["outcome"], run["action"], run["exitCode"], run["culprits"]) == (
        "pass",
        "none",
        0,
        [],
    )
    assert run["dcgmVersion"] == dcgmi.version and "DCGM Diagnostic" in str(run["raw"])
    assert node.findings() == []
    assert (
        node.metric('vitald_diagnostic_last_outcome{check="dcgm",level="1",outcome="pass"}') == 1.0
    )
    (said,) = [
        line
        for line in node.errors.read_text().splitlines()
        if "DCGM diagnostic health summary: dcgmCheckLevel: 1" in line
    ]
    assert "rebootRequired:false" in said
    node.restart()
    again = node.get(f"/v1/diagnostics/runs/{run['id']}")
    assert again["raw"] == run["raw"]
    assert [one["id"] for one in cast("list[Json]", state(node)["last"])] == [run["id"]]


@pytest.mark.core
def test_every_gpu_that_failed_is_named(
    make: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    node = make()
    dcgmi.answer("diag -r 2", diag(level=2, faults=[Fault(80, gpu=1), Fault(126, gpu=6)]))
    run = ended(node, asked(node, 2))
    assert (run["outcome"], run["culprits"]) == ("fail", [1, 6])
    assert codes(node) == {
        f"gpu/{gpus.addresses[1]}": ("dcgm/80", "replace_node"),
        f"gpu/{gpus.addresses[6]}": ("dcgm/126", "reboot_node"),
    }
    status = node.status()
    assert (status["status"], status["rebootRequired"], status["replacementRequired"]) == (
        "unhealthy",
        True,
        True,
    )


def test_what_must_be_confirmed_is_a_suspicion_until_it_is_found_again(
    make: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    node = make()
    dcgmi.answer("diag -r 2", diag(level=2, faults=[Fault(58, gpu=3, test="memory")]))
    ended(node, asked(node, 2))
    assert codes(node) == {f"gpu/{gpus.addresses[3]}": ("dcgm/58", "inspect")}
    node.restart()
    ended(node, asked(node, 2))
    assert codes(node) == {f"gpu/{gpus.addresses[3]}": ("dcgm/58", "replace_node")}


def test_a_suspicion_that_is_not_found_again_is_over(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = make()
    dcgmi.answer(
        "diag -r 2", diag(level=2, faults=[Fault(58, gpu=3, test="memory")]), diag(level=2)
    )
    ended(node, asked(node, 2))
    ended(node, asked(node, 1))
    assert [one["code"] for one in node.findings()] == ["dcgm/58"], "a lower level refutes nothing"
    ended(node, asked(node, 2))
    assert node.findings() == []


@pytest.mark.parametrize(
    "answer",
    [
        refused(222),
        refused(226),
        Answer(exit_code=139),
        Answer(stdout='{"DCGM Diagnostic" : {"tes', exit_code=0),
    ],
)
def test_what_could_not_run_says_nothing_of_the_hardware(
    make: Callable[..., Node], dcgmi: Dcgmi, answer: Answer
) -> None:
    node = make()
    dcgmi.answer("diag -r 2", diag(level=2, faults=[Fault(80, gpu=1)]), answer)
    ended(node, asked(node, 2))
    before = codes(node)
    run = ended(node, asked(node, 2))
    assert run["outcome"] in ("error", "inconclusive", "not_applicable") and run["why"]
    assert codes(node) == before


@pytest.mark.core
def test_the_host_engine_is_down(make: Callable[..., Node], dcgmi: Dcgmi) -> None:
    node = make()
    dcgmi.no_engine()
    ended(node, asked(node, 1))
    (found,) = node.findings()
    assert (found["code"], found["component"]) == ("dcgm/engine_down", "node")
    assert "systemctl start" in str(found["advice"])
    dcgmi.answer("discovery -l", Answer(stdout="8 GPUs found.\n"))
    ended(node, asked(node, 1))
    assert node.findings() == []


@pytest.mark.core
def test_a_run_that_left_out_half_of_the_gpus_is_no_pass(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """As by a host engine that was started before the other GPUs were there."""
    node = make()
    dcgmi.answer("diag -r 1", diag(level=1, gpus=4))
    run = ended(node, asked(node, 1))
    assert (run["outcome"], run["why"]) == ("inconclusive", "GPU 4-7 not tested")
    raw = {str(event["code"]): str(event["raw"]) for event in node.events()}
    assert raw["diagnostic/ran"].endswith("inconclusive: GPU 4-7 not tested")
    assert "diagnostic/passed" not in raw


# --- it ends when it should


@pytest.mark.core
def test_cancelling_ends_the_program_and_its_children(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = make()
    dcgmi.answer("diag -r 2", diag(level=2, delay_s=60.0, leaves="child"))
    run = asked(node, 2)
    running(node, run)
    with_child(node, dcgmi)
    status, answer = node.request("POST", "/v1/diagnostics/cancel", {"reason": "enough"})
    assert (status, cast("Json", answer["active"])["stage"]) == (200, "ending")
    over = ended(node, run)
    assert over["outcome"] == "inconclusive" and "enough" in str(over["why"])
    assert alive(dcgmi) == []
    assert node.request("POST", "/v1/diagnostics/cancel", {"reason": "enough"})[0] == 409


@pytest.mark.core
def test_a_deadline_is_held(make: Callable[..., Node], dcgmi: Dcgmi) -> None:
    node = make('deadline_2 = "1s"')
    dcgmi.answer("diag -r 2", Answer(hang=True))
    run = ended(node, asked(node, 2))
    assert run["outcome"] in ("error", "inconclusive")
    assert "1 s" in str(run["why"])


def test_the_daemons_stop_waits_for_no_diagnostic(make: Callable[..., Node], dcgmi: Dcgmi) -> None:
    node = make()
    dcgmi.answer("diag -r 2", Answer(hang=True, ignores_term=True, leaves="deaf child"))
    run = asked(node, 2)
    running(node, run)
    with_child(node, dcgmi)
    node.stop()
    assert alive(dcgmi) == []


def test_what_the_daemons_stop_cut_short_is_remembered(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    """The run under way is recorded and owed, and the one that waited goes on under its id."""
    node = make()
    dcgmi.answer("diag -r 2", diag(level=2, faults=[Fault(80, gpu=1)], delay_s=60.0))
    under_way = asked(node, 2)
    until(dcgmi.runs, "its program")
    waiting = asked(node, 1)
    node.stop()
    assert alive(dcgmi) == []
    node.start()
    over = node.get(f"/v1/diagnostics/runs/{under_way}")
    assert over["outcome"] == "inconclusive" and "stopped" in str(over["why"])
    assert ended(node, waiting)["outcome"] == "pass"
    [owed] = cast("list[Json]", state(node)["active"])
    assert owed["id"] == f"{under_way}.2" and "vitald was stopped" in str(owed["waitsFor"])
    assert node.findings() == []


@pytest.mark.core
def test_a_run_that_the_daemons_death_cut_is_recorded_and_its_tests_are_waited_for(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = make()
    dcgmi.answer("diag -r 2", Answer(hang=True, leaves="deaf child"))
    cut = asked(node, 2)
    with_child(node, dcgmi)
    node.kill()
    assert alive(dcgmi) != []
    node.start()
    waiting = asked(node, 1)
    until(lambda: "nvvs" in str(state(node)["active"]), "its reason to wait")
    dcgmi.end()
    assert ended(node, waiting)["outcome"] == "pass"
    over = ended(node, cut)
    assert over["outcome"] == "inconclusive"
    assert over["why"] == "interrupted: vitald was killed or crashed while it ran"
    [owed] = cast("list[Json]", state(node)["active"])
    assert owed["id"] == f"{cut}.2" and "interrupted" in str(owed["waitsFor"])
    assert f"dcgm level 2: inconclusive: {over['why']}" in [one["raw"] for one in node.events()]
    shown = node.cli("diag", "show", cut).stdout
    assert "no exit code" in shown and "started" not in shown
    node.restart()
    assert node.get(f"/v1/diagnostics/runs/{cut}") == over
    assert [one["id"] for one in cast("list[Json]", state(node)["active"])] == [owed["id"]]


# --- it makes room


def job(node: Node, event: str, number: str = "1234", **more: object) -> None:
    status, answer = node.request(
        "POST", "/v1/jobs", {"event": event, "job": number, "user": "alice", **more}
    )
    assert status == 200, answer


@pytest.mark.parametrize("program", ["tame", "deaf"])
def test_a_job_that_begins_has_the_devices(
    make: Callable[..., Node], dcgmi: Dcgmi, program: str
) -> None:
    node = make()
    hang = (
        diag(level=2, delay_s=HOUR_S, leaves="child")
        if program == "tame"
        else Answer(hang=True, ignores_term=True, leaves="deaf child")
    )
    dcgmi.answer("diag -r 2", hang)
    run = asked(node, 2)
    running(node, run)
    with_child(node, dcgmi)
    job(node, "begin")
    assert alive(dcgmi) == []
    over = ended(node, run)
    assert (over["preempted"], over["outcome"]) == ("job 1234", "inconclusive")
    assert (node.status()["status"], node.findings()) == ("healthy", [])


def test_work_that_nobody_announced_is_seen(
    make: Callable[..., Node], dcgmi: Dcgmi, tmp_path: Path
) -> None:
    """As Slurm's own process shows it."""
    node = make()
    dcgmi.answer("diag -r 2", diag(level=2, delay_s=HOUR_S))
    run = asked(node, 2)
    until(dcgmi.runs, "its program")
    program = tmp_path / "slurmstepd"
    shutil.copy(os.path.realpath("/bin/sleep"), program)
    with subprocess.Popen(["slurmstepd: [77.0]", "60"], executable=program) as step:
        try:
            until(lambda: not alive(dcgmi), "dcgmi to end")
        finally:
            step.kill()
    assert "77" in str(ended(node, run)["preempted"])


@pytest.mark.core
def test_level_2_waits_for_idle_devices_and_level_1_does_not(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = make()
    job(node, "begin")
    second, first = asked(node, 2), asked(node, 1)
    assert ended(node, first)["outcome"] == "pass"
    until(lambda: "job 1234" in str(state(node)["blocked"]), "what it waits for")
    (waiting,) = cast("list[Json]", state(node)["active"])
    assert (waiting["id"], waiting["stage"]) == (second, "waiting") and "job 1234" in str(
        waiting["waitsFor"]
    )
    job(node, "end", exitCode=0)
    assert ended(node, second)["outcome"] == "pass"
    assert [call.level for call in dcgmi.runs()] == [1, 2]


def test_nothing_runs_while_the_devices_are_released(
    make: Callable[..., Node], dcgmi: Dcgmi
) -> None:
    node = make()
    dcgmi.answer("diag -r 1", diag(level=1, delay_s=60.0))
    run = asked(node, 1)
    running(node, run)
    status, _ = node.request("POST", "/v1/release", {"reason": "reset", "seconds": 60}, 15.0)
    assert status == 200
    assert alive(dcgmi) == []
    assert "release" in str(ended(node, run)["why"])
    status, answer = node.request("POST", "/v1/diagnostics/run", {"level": 1, "reason": "test"})
    assert status == 409 and "released" in str(answer["error"])


# --- who asks


@pytest.mark.core
def test_an_unknown_xid_is_settled_step_by_step(
    make: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    node = make()
    node.write(f"kernel: NVRM: Xid (PCI:{gpus.addresses[2][:-2]}): 999, pid=1, something new")
    node.wait(lambda status: status["openFindings"])
    until(lambda: [call.level for call in dcgmi.runs()] == [1, 2], "both levels")
    until(
        lambda: len(cast("list[Json]", node.get("/v1/diagnostics/runs")["runs"])) == 2,
        "their ends",
    )
    runs = cast("list[Json]", node.get("/v1/diagnostics/runs")["runs"])
    assert [str(run["by"]).split()[0] for run in runs] == ["finding", "finding"]
    assert "xid/999" in str(runs[0]["reason"])


@pytest.mark.core
def test_the_schedule_begins_with_level_1_and_a_restart_does_not_repeat_it(
    make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    node = make_node(
        gpus=gpus, extra=f'[dcgm]\nprogram = "{dcgmi.path}"\n[dcgm_health]\nenabled = false\n'
    )
    node.start()
    # settled after boot, and this host's own part of half a minute
    until(lambda: len(dcgmi.runs()) == 1, "level 1", seconds=180.0)
    until(lambda: cast("list[Json]", state(node)["last"]) != [], "its end")
    node.restart()
    due = {
        (one["check"], one["level"]): str(one["at"])
        for one in cast("list[Json]", state(node)["scheduled"])
    }
    until(lambda: state(node)["scheduled"] != [], "the schedule")
    assert due or state(node)["scheduled"]
    assert [call.level for call in dcgmi.runs()] == [1]


def test_without_the_program_it_is_said_once_and_shown(
    make_node: Callable[..., Node], gpus: SimulatedNode, tmp_path: Path
) -> None:
    node = make_node(gpus=gpus, extra=f'[dcgm]\nprogram = "{tmp_path}/dcgmi"\n')
    node.start()
    node.wait(lambda status: status["status"] == "healthy")
    assert "dcgmi" in str(node.get("/v1/components"))
    status, answer = node.request("POST", "/v1/diagnostics/run", {"level": 1, "reason": "test"})
    assert status == 409 and "dcgmi" in str(answer["error"])
