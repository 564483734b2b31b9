"""The GPUs on the socket, the port and the command line: the real daemon over the simulated library."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from agent.simulator.node import SimulatedNode
from tests.conftest import require
from tests.harness import PYTHON, ROOT, Json, Node
from tests.system.document import conforms
from tests.system.people import cli_as_nobody, request_as_nobody
from tests.system.test_metrics import complaints

MODEL = "NVIDIA H100 80GB HBM3"
NOT_HELD = re.compile(r"^vitald_gpu_(?!lost\b|info\b|recovery_action\b)\w+\{")
Pair = tuple[SimulatedNode, Node]


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    require(shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Eight H100, for tests that change nothing."""
    folder = tmp_path_factory.mktemp("h100")
    gpus = SimulatedNode(folder / "gpus", "h100")
    with Node(folder / "node", gpus=gpus) as node:
        node.wait(lambda status: status["status"] == "healthy", 15.0)
        yield gpus, node


@pytest.fixture
def make_pair(make_node: Callable[..., Node], tmp_path: Path) -> Callable[..., Pair]:
    """A node with GPUs, made to order and started."""

    def make(profile: str = "h100", *, trace: bool = False, **settings: object) -> Pair:
        gpus = SimulatedNode(tmp_path / "gpus", profile, trace=trace)
        node = make_node(gpus=gpus, **settings)
        node.start()
        node.wait(lambda status: status["status"] == "healthy", 15.0)
        return gpus, node

    return make


def listed(node: Node) -> list[Json]:
    """What /v1/gpus says, which is as its document says."""
    answer = node.get("/v1/gpus")
    conforms("Gpus", answer)
    return cast("list[Json]", answer["gpus"])


def source(status: Json) -> Json:
    return next(one for one in cast("list[Json]", status["sources"]) if one["name"] == "nvml")


def samples(node: Node, gpu: str = "") -> list[str]:
    """The series of GPUs, or of one of them."""
    lines = [line for line in node.metrics().splitlines() if line.startswith("vitald_gpu_")]
    return [line for line in lines if f'pci_bus_id="{gpu}' in line]


def workers(node: Node) -> list[int]:
    """The daemon's children that hold NVML."""
    assert node.process is not None
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(node.process.pid) and b"agent.sources.nvml.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return found


def release(node: Node, seconds: float = 60.0, *gpus: str) -> Json:
    status, answer = node.request("POST", "/v1/release", {"reason": "test", "seconds": seconds, "gpus": [*gpus]}, timeout=12.0)
    assert status == 200, answer
    conforms("Released", answer)
    return answer


# --- what is shown


def test_who_and_how_each_gpu_is(shared: Pair) -> None:
    gpus, node = shared
    shown = listed(node)
    assert [one["pci"] for one in shown] == gpus.addresses
    identities = [cast("Json", one["identity"]) for one in shown]
    assert [one["uuid"] for one in identities] == gpus.uuids
    assert [one["serial"] for one in identities] == gpus.serials
    assert [one["minor"] for one in identities] == [*range(8)]
    assert {one["name"] for one in identities} == {MODEL}
    assert [one["slot"] for one in shown] == [str(number) for number in range(1, 9)]
    for one in shown:
        assert (one["status"], one["findings"], one["fresh"], one["simulated"]) == ("healthy", [], True, True)
        readings = cast("Json", one["readings"])
        assert (readings["temperature_celsius"], readings["power_watts"], readings["power_limit_watts"]) == (35, 70, 700)
        assert (readings["lost"], readings["recovery"], readings["nvlink_active"]) == (0, 0, [1] * 18)
        assert not {"uuid", "serial", "name"} & readings.keys()
        assert cast("Json", one["notObservable"])["retired_pages"] == "not supported"
    told = source(node.status())
    assert (told["state"], told["detail"]) == ("ok", "SIMULATED: no real GPU")
    assert (node.status()["simulated"], node.status()["status"]) == (True, "healthy")


def test_the_command_line(shared: Pair) -> None:
    """One line a GPU, and said to be simulated; as JSON what the socket says."""
    gpus, node = shared
    done = node.cli("gpus")
    first, titles, *rows = done.stdout.splitlines()
    assert (done.returncode, done.stderr, first) == (0, "", "SIMULATED: none of these GPUs is real")
    assert titles.split()[:4] == ["gpu", "model", "serial", "temp"]
    assert [row.split()[0] for row in rows] == gpus.addresses
    for row, serial in zip(rows, gpus.serials):
        assert re.sub(r"  +", "|", row).split("|")[1:] == [
            *(MODEL.removeprefix("NVIDIA "), serial, "35C", "70W", "0%", "0/80G", "0", "0", "18/18", "5x16", "healthy")
        ]
    asked = json.loads(node.cli("gpus", "--json").stdout)
    assert [one["identity"] for one in asked["gpus"]] == [one["identity"] for one in listed(node)]


def test_a_node_without_gpus(shared_node: Node) -> None:
    """Nothing is missing there: healthy, and nothing is said of GPUs."""
    node = shared_node
    answer = node.get("/v1/gpus")
    conforms("Gpus", answer)
    assert answer["gpus"] == []
    told = cast("Json", answer["source"])
    assert (told["state"], told["detail"]) == ("not present", "no NVIDIA GPU on PCI")
    assert (node.status()["status"], node.status()["simulated"]) == ("healthy", False)
    assert (samples(node), node.metric('vitald_source_up{source="nvml"}'), node.metric("vitald_simulated")) == ([], 1, 0)
    assert node.cli("gpus").stdout.splitlines()[-1].startswith(("no GPU on PCI", "these are not the present values"))


def test_nvml_switched_off(make_node: Callable[..., Node]) -> None:
    node = make_node(extra="[nvml]\nenabled = false")
    node.start()
    answer = node.get("/v1/gpus")
    conforms("Gpus", answer)
    assert answer == {"gpus": [], "source": None}
    assert [one["name"] for one in cast("list[Json]", node.status()["sources"])] == ["kernel_log"]
    for path, body in (("/v1/release", {"reason": "test"}), ("/v1/release/end", {})):
        status, refused = node.request("POST", path, body)
        assert (status, refused["error"]) == (409, "NVML is not asked on this node"), path
    done = node.cli("release", "--reason", "test")
    assert (done.returncode, "NVML is not asked on this node" in done.stderr) == (69, True)
    assert "NVML is not asked on this node" in node.cli("gpus").stdout
