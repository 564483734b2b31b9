"""An audit's three injections, each into a real daemon: from the injection to an unfit node, and
back. `-s` prints the times (docs/audit.md).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.dcgmi import Answer, Dcgmi, diag, health
from tests.harness import Node
from tests.system.lines import about, fresh_pci, xid
from tests.system.nvml import as_if_real
from vitald.simulator.node import SimulatedNode

GPUS = 8
# What DCGM 4.6.0 reports on a PCIe 5.0 x16 GPU after `dcgmi test --inject --gpuid 0 -f 202 -v
# 99999`: a Warning of the PCIe watch with the message and the advice of DCGM_FR_PCI_REPLAY_RATE
# (modules/health/DcgmHealthWatch.cpp MonitorPcie, dcgmlib/dcgm_errors.h).
INJECTED = health(
    {
        0: {
            "PCIe system": (
                "Warning",
                "Detected more than 31 PCIe replays per minute for GPU 0 : 99999 Reconnect PCIe"
                " card. Run system side PCIE diagnostic utilities to verify hops off the GPU board."
                " If issue is on the board, run the field diagnostic.",
            )
        }
    }
)


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
def audited(
    make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode
) -> Callable[[str], Node]:
    """A healthy node with eight GPUs whose DCGM watches are read as often as `every` says. Its
    answers count at once: a minute after the watches were set is not waited for.
    """

    def start(every: str) -> Node:
        extra = f"""
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
most = 1
[dcgm_health]
every = "{every}"
settle = "0.1s"
"""
        node = make_node(gpus=gpus, extra=extra)
        node.start()
        node.wait(lambda status: status["status"] == "healthy", 15.0)
        return node

    return start


def wait_for_exit(node: Node, code: int, seconds: float) -> float:
    """Seconds until `vitald check` exits with this code."""
    began = time.monotonic()
    node.until(lambda: node.cli("check").returncode == code, seconds, f"vitald check to be {code}")
    return time.monotonic() - began


def wait_for_answer(node: Node, outcome: str, seconds: float = 60.0) -> None:
    """Until an answer of DCGM's watches counts."""
    node.until(
        lambda: (
            node.metric(
                "vitald_diagnostic_last_outcome"
                f'{{check="dcgm_health",level="0",outcome="{outcome}"}}'
            )
            == 1
        ),
        seconds,
        f"an answer of DCGM's watches that is {outcome}",
    )


def wait_for_another_answer(node: Node) -> None:
    """Until DCGM's watches were read once more, recorded or not."""

    def read_ended() -> object:
        runs = node.get("/v1/diagnostics")["last"]
        return next(run["ended"] for run in runs if run["check"] == "dcgm_health")

    ended = read_ended()
    node.until(lambda: read_ended() != ended, 60.0, "another answer of DCGM's watches")


def list_recorded(node: Node) -> object:
    """The answers of DCGM's watches in the ledger."""
    return node.get("/v1/diagnostics/runs?check=dcgm_health")["runs"]


def test_dcgm_injection(audited: Callable[[str], Node], dcgmi: Dcgmi) -> None:
    """Level-triggered: the finding follows the answer both ways. Equal answers leave no trace."""
    node = audited("2s")
    wait_for_answer(node, "pass")
    node.until(lambda: list_recorded(node), 10.0, "the answer to be recorded")
    recorded = list_recorded(node)
    calls = len(dcgmi.calls())
    node.until(lambda: len(dcgmi.calls()) >= calls + 3, 30.0, "three more answers")
    assert list_recorded(node) == recorded
    assert len(node.said("diagnostic_began")) == 0, "equal answers are not logged"

    dcgmi.answer("health -c", Answer(stdout=INJECTED))
    unfit_s = wait_for_exit(node, 20, 30.0)
    (finding,) = node.findings()
    assert (finding["code"], finding["action"], finding["when"]) == (
        "dcgm_health/pcie",
        "inspect",
        "now",
    )
    status = node.status()
    assert (status["rebootRequired"], status["replacementRequired"]) == (False, False)
    assert "PCIe replays far above the limit" in node.cli("status").stdout
    dcgmi.answer("health -c", Answer(stdout=health()))
    fit_s = wait_for_exit(node, 0, 30.0)
    assert node.findings() == []
    print(f"\nDCGM, read every 2 s: unfit after {unfit_s:.1f} s, fit after {fit_s:.1f} s")


@pytest.mark.parametrize("level", [2, 0])
def test_the_node_is_back_after_level_2_or_at_once_without_validation(
    make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode, level: int
) -> None:
    node = make_node(
        gpus=as_if_real(gpus),
        extra=f"""
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
[dcgm_health]
every = "2s"
settle = "0.1s"
[validation]
level = {level}
""",
    )
    node.start()
    wait_for_answer(node, "pass")
    dcgmi.answer("diag -r 2", diag(level=2, gpus=GPUS, delay_s=3.0))
    dcgmi.answer("health -c", Answer(stdout=INJECTED))
    wait_for_exit(node, 20, 30.0)
    wait_for_another_answer(node)
    dcgmi.answer("health -c", Answer(stdout=health()))
    began = time.monotonic()
    if level:
        node.until(
            lambda: [finding["code"] for finding in node.findings()] == ["validation/pending"],
            30.0,
            "the validation to be pending",
        )
        assert node.cli("check").returncode == 20
    wait_for_exit(node, 0, 60.0)
    fit_s = time.monotonic() - began
    assert (2 in [run.level for run in dcgmi.runs()]) is (level == 2)
    print(f"\nDCGM healthy again, validation level {level}: fit after {fit_s:.1f} s")


def test_dcgm_is_read_while_a_diagnostic_runs(audited: Callable[[str], Node], dcgmi: Dcgmi) -> None:
    node = audited("2s")
    wait_for_answer(node, "pass")
    dcgmi.answer("diag -r 1", Answer(hang=True))
    status, _ = node.request("POST", "/v1/diagnostics/run", {"level": 1, "reason": "test"})
    assert status == 202
    node.until(lambda: dcgmi.runs(), 10.0, "the diagnostic to run")
    dcgmi.answer("health -c", Answer(stdout=INJECTED))
    wait_for_exit(node, 20, 30.0)
    assert [run["check"] for run in node.get("/v1/diagnostics")["going"]][:1] == ["dcgm"]


def test_an_xid_that_root_writes(
    make_node: Callable[..., Node], kmsg: Callable[[str], None]
) -> None:
    """The time only; what follows from it is tested in test_kernel_log."""
    node, pci = make_node(kernel_log="kmsg", userspace="ignore"), fresh_pci()
    node.start()  # past what other tests left in the ring
    node.wait(lambda status: status["sources"][0]["state"] == "ok", 15.0)
    node.configure('userspace = "ignore"', "")
    assert node.reload()["applied"] == ["[kernel_log] userspace"]
    assert node.cli("check").returncode == 0
    kmsg(f"<3>{xid(1, pci=pci)}")
    began = time.monotonic()
    node.until(lambda: about(node.findings(), pci), 10.0, "the finding")
    found_s = time.monotonic() - began
    print(f"\nXid 79 written by root: finding after {found_s * 1000:.0f} ms,")
    assert node.cli("check").returncode == 20
    print(f"and vitald check exits with 20 after {time.monotonic() - began:.1f} s")
    status = node.status()
    assert (status["rebootRequired"], status["rebootConfirmed"]) == (True, False)


def test_a_gpu_that_leaves_pci(audited: Callable[[str], Node], gpus: SimulatedNode) -> None:
    """As after `echo 1 > /sys/bus/pci/devices/ADDRESS/remove`."""
    node = audited("off")
    address = gpus.addresses[3]
    gpus.remove(3)
    unfit_s = wait_for_exit(node, 20, 60.0)
    status = node.status()
    assert (status["rebootRequired"], status["rebootConfirmed"]) == (True, True)
    assert f"gpu/{address}" in {str(finding["component"]) for finding in node.findings()}
    gpus.put_back(3)
    fit_s = wait_for_exit(node, 0, 120.0)
    print(
        f"\nGPU removed from PCI: unfit after {unfit_s:.1f} s, fit {fit_s:.1f} s after its return"
    )
