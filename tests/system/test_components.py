"""What is watched, on the socket and on the command line: the real daemon."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.system.document import conforms
from tests.system.lines import wait_for_pid, xid
from tests.waiting import WAIT_S, until
from vitald.simulator.simulated_node import SimulatedNode


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SimulatedNode, Node]]:
    """Eight H100, for tests that change nothing."""
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    folder = tmp_path_factory.mktemp("h100")
    simulated = SimulatedNode(folder / "gpus", "h100")
    with Node(folder / "node", gpus=simulated) as node:
        until(
            lambda: "identity" in gpu(node, simulated.addresses[7]),
            "the last GPU's slow readings",
        )
        yield simulated, node


def answer(node: Node) -> Json:
    told = node.get("/v1/components")
    conforms("Components", told)
    return told


def gpu(node: Node, address: str) -> Json:
    return next(
        (
            one
            for one in cast("list[Json]", answer(node)["components"])
            if one["id"] == address and one["identity"]
        ),
        {},
    )


@pytest.mark.core
def test_a_gpu(gpus: tuple[SimulatedNode, Node]) -> None:
    simulated, node = gpus
    one = gpu(node, simulated.addresses[3])
    assert (one["kind"], one["identity"], one["status"], one["unknownReasons"]) == (
        "gpu",
        simulated.uuids[3],
        "healthy",
        [],
    )
    assert "nvml" in cast("list[str]", one["sources"])
    sight = next(
        sight for sight in cast("list[Json]", one["observations"]) if sight["name"] == "nvml"
    )
    assert cast("Json", sight["readings"])["temperature_celsius"] == 35
    assert cast("Json", sight["notObservable"])["retired_pages"] == "not supported"
    assert 0 < cast("int", sight["observable"]) < cast("int", sight["attempted"])


@pytest.mark.core
def test_coverage(gpus: tuple[SimulatedNode, Node]) -> None:
    """What the simulated H100 does not have is told once for all eight."""
    _, node = gpus
    told = next(
        one
        for one in cast("list[Json]", answer(node)["coverage"])
        if (one["source"], one["kind"]) == ("nvml", "gpu")
    )
    gap = next(
        gap
        for gap in cast("list[Json]", told["gaps"])
        if "retired_pages" in cast("list[str]", gap["readings"])
    )
    assert (told["components"], gap["reason"], len(cast("list[str]", gap["components"]))) == (
        8,
        "not supported",
        8,
    )
    ratio = node.metric('vitald_coverage_ratio{component_kind="gpu",source="nvml"}')
    assert ratio == pytest.approx(cast("int", told["observable"]) / cast("int", told["attempted"]))
    assert (
        node.metric(
            'vitald_not_observable{component_kind="gpu",reading="retired_pages",source="nvml"}'
        )
        == 8
    )
    assert [
        node.metric(f'vitald_components{{component_kind="gpu",status="{status}"}}')
        for status in ("healthy", "unknown")
    ] == [8, 0]


@pytest.mark.core
def test_the_command_line(gpus: tuple[SimulatedNode, Node]) -> None:
    simulated, node = gpus
    done = node.cli("components")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].split()[:2] == ["component", "status"]
    (row,) = [line for line in lines if line.startswith(f"gpu/{simulated.addresses[2]}")]
    assert row.split()[1] == "healthy"
    assert "nvml " in row
    assert row.endswith(f"GPU 2, serial {simulated.serials[2]}, slot 3, module 3")
    assert any(
        "c2c_links" in line and line.endswith(": not supported")
        for line in lines[lines.index("") :]
    )
    only = json.loads(node.cli("components", "--kind", "gpu", "--json").stdout)
    assert [one["id"] for one in only["components"]] == simulated.addresses
    assert {one["kind"] for one in only["coverage"]} == {"gpu"}


def test_a_source_that_lets_go(gpus: tuple[SimulatedNode, Node]) -> None:
    """While nobody looks nobody knows, and who they are stays known. Comes last: it takes the
    shared node's GPUs away.
    """
    simulated, node = gpus
    node.request("POST", "/v1/release", {"reason": "test", "seconds": 60}, timeout=WAIT_S)
    one = gpu(node, simulated.addresses[0])
    assert (one["status"], one["identity"]) == ("unknown", simulated.uuids[0])
    assert [
        reason
        for reason in cast("list[str]", one["unknownReasons"])
        if reason.startswith("nvml: released")
    ]
    assert node.metric('vitald_coverage_ratio{component_kind="gpu",source="nvml"}') == 0
    assert "not known: nvml: released" in node.cli("components").stdout
    assert "status unknown: gpu/" in node.cli("status").stdout


def test_a_node_with_nothing(make_node: Callable[..., Node]) -> None:
    """What is not there is said so, and what is switched off too."""
    node = make_node(extra="[nvml]\nenabled = false\n[neuron]\nenabled = false")
    node.start()
    told = answer(node)
    assert {"nvml", "neuron"} <= set(cast("list[str]", told["off"]))
    assert "nvml: switched off, [nvml] enabled = false" in node.cli("components").stdout


def test_nobody_looks_at_it(node: Node) -> None:
    """What only the kernel log told of; text from the log drives no terminal."""
    node.write("EXT4-fs error (device sd\x1ba1): ext4_find_entry:1455: inode #2", xid(1))
    wait_for_pid(node, 1)
    done = node.cli("components")
    assert "\x1b" not in done.stdout
    assert "no source reads them; only the kernel log can report on them" in done.stdout


def test_the_driver_of_the_gpu_operator_is_used_once_it_is_there(tmp_path: Path) -> None:
    """The operator mounts it while vitald runs; nothing names its library."""
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    simulated = SimulatedNode(tmp_path / "gpus", "h100", gpus=1)
    root = tmp_path / "driver"
    node = Node(tmp_path / "node", gpus=simulated)
    named = f'library = "{simulated.library}"'
    assert named in node.settings
    node.config.write_text(node.settings.replace(named, f'driver_root = "{root}"'))
    with node:
        until(lambda: "nvml/unavailable" in open_codes(node), "no library")
        library = root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
        library.parent.mkdir(parents=True)
        library.symlink_to(simulated.library)
        until(lambda: gpu(node, simulated.addresses[0]), "the GPU's identity", seconds=120.0)


def open_codes(node: Node) -> list[str]:
    return [finding["code"] for finding in node.status()["findings"]]
