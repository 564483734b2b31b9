"""GPUs that only wait: the real daemon over the simulated library. A notice, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.system.document import conforms
from tests.system.lines import vouched, xid
from vitald.simulator.node import SimulatedNode

ALL_LINKS = 0xFFFFFFFF
MOVING = {
    "rate.fi.197.0": 4 * 10**9,
    f"rate.fi.138.{ALL_LINKS}": 10**7,  # KiB
}
TRAINS = {"utilization": "100 60", "power_mw": 640000, "procs": "4242:70000000000", **MOVING}
WAITS = {"utilization": "100 0", "power_mw": 128000, **dict.fromkeys(MOVING)}


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )


def waiting(node: Node) -> Json | None:
    """The notice of the GPUs."""
    status = node.get("/v1/status")
    conforms("NodeStatus", status)
    notices = cast("list[Json]", status["notices"])
    return next((each for each in notices if each["code"] == "nvml/waiting"), None)


def verdict(node: Node) -> tuple[object, ...]:
    """All that a notice must not change."""
    status = node.status()
    names = ("status", "action", "reasons", "rebootRequired", "replacementRequired", "openFindings")
    return (*(status[name] for name in names), node.cli("check", "--strict").returncode)


def test_a_hang_becomes_a_notice_and_changes_no_status(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    gpus = SimulatedNode(tmp_path / "gpus", "h100")
    gpus.set_values(None, TRAINS)
    node = make_node(gpus=gpus, extra='waiting_after = "4s"\n')
    node.start()
    node.wait(lambda status: status["status"] == "healthy", 15.0)
    node.wait(lambda status: status["waitingSeconds"] == 0, 15.0)
    before = verdict(node)
    assert before[-1] == 0
    gpus.set_values(None, WAITS)
    gpus.set_values(3, {"utilization": "0 0", "power_mw": 80000})
    node.until(lambda: waiting(node) is not None, 30.0, "the notice")
    notice = waiting(node)
    assert notice is not None
    text = str(notice["text"])
    assert text.startswith("7 GPUs have only waited for ")
    assert "100 % busy, 128 W each, nothing moves. The cause may be on another node." in text
    assert text.endswith(f"gpu/{gpus.addresses[3]} does not take part.")
    assert verdict(node) == before
    assert node.status()["waitingSeconds"] >= 4
    assert 'vitald_notices{code="waiting",kind="nvml"} 1' in node.metrics()
    seconds = next(
        line
        for line in node.metrics().splitlines()
        if line.startswith("vitald_node_waiting_seconds")
    )
    assert float(seconds.split()[1]) >= 4
    shown = node.cli("status").stdout
    assert "notices (change no status):" in shown
    assert "7 GPUs have only waited" in shown
    assert notice["story"] == "What happened before it began is not known: vitald started later."
    events = [each for each in node.events() if each["code"] == "nvml/waiting"]
    assert [each["trust"] for each in events] == ["daemon"]
    gpus.set_values(None, TRAINS)
    node.until(lambda: waiting(node) is None, 30.0, "the end of the notice")
    assert 'vitald_notices{code="waiting",kind="nvml"} 0' in node.metrics()
    assert verdict(node) == before
    events = [each for each in node.events() if each["code"] == "nvml/waiting"]
    assert [each["fields"].get("recovered") for each in events] == [None, True]


def test_an_inference_server_is_excluded_by_its_control_group(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """Its GPUs spin while it has no request."""
    gpus = SimulatedNode(tmp_path / "gpus", "h100")
    gpus.set_values(None, {**WAITS, "procs": "4242:1"})
    procfs = tmp_path / "proc"
    (procfs / "4242").mkdir(parents=True)
    (procfs / "4242/cgroup").write_text("0::/system.slice/vllm@1.service\n")
    for name in Path("/proc").iterdir():
        if not name.name.isdecimal():
            (procfs / name.name).symlink_to(name)
    node = make_node(
        gpus=gpus, extra='waiting_after = "4s"\nwaiting_exclude = ["/system.slice/vllm*"]\n'
    )
    node.configure("[paths]", f'[paths]\nprocfs = "{procfs}"')
    node.start()
    node.wait(lambda status: status["waitingSeconds"] == 0, 15.0)
    (procfs / "4242/cgroup").write_text("0::/slurm/job_1\n")
    node.until(lambda: waiting(node) is not None, 30.0, "the notice")
    (procfs / "4242/cgroup").write_text("0::/system.slice/vllm@1.service\n")
    node.until(lambda: waiting(node) is None, 30.0, "the end of the notice")


def test_the_fault_that_came_with_it_is_named(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    gpus = SimulatedNode(tmp_path / "gpus", "h100")
    gpus.set_values(None, {**WAITS, "procs": "4242:1"})
    node = make_node(gpus=gpus, extra='waiting_after = "4s"\n')
    node.start()
    node.until(lambda: waiting(node) is not None, 30.0, "the notice")
    node.write(vouched(xid(4242, pci=gpus.addresses[3].rpartition(".")[0])))
    node.until(lambda: "xid/79" in str((waiting(node) or {}).get("story")), 15.0, "the cause")
    shown = node.cli("status").stdout
    told = next((row for row in shown.splitlines() if " it began: " in row), shown)
    assert f"gpu/{gpus.addresses[3]} (gpu 3): GPU has fallen off the bus (xid/79)." in told


def test_off_means_that_nothing_is_watched(make_node: Callable[..., Node], tmp_path: Path) -> None:
    gpus = SimulatedNode(tmp_path / "gpus", "h100", gpus=1)
    node = make_node(gpus=gpus, extra='waiting_after = "off"\n')
    node.start()
    node.wait(lambda status: status["status"] == "healthy", 15.0)
    assert node.status()["waitingSeconds"] is None
    assert "\nvitald_node_waiting_seconds " not in node.metrics()
