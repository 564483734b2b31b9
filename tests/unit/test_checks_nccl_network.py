"""The all-reduce over the network adapters: what differs from `nccl`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.network_tree import NetworkTree
from tests.trees import NVIDIA
from tests.unit.builders import catalogue
from tests.unit.checking import asked, config, install, perform, printed
from tests.unit.test_checks_nccl import FAILURE, TABLE
from vitald.diagnostics.checks.nccl_network import NcclNetworkCheck
from vitald.diagnostics_sections import NcclNetwork
from vitald.model import Action
from vitald.model.diagnostic import Outcome


def used(network: str, table: str = TABLE) -> str:
    """NCCL's debug line is among the program's own (init.cc, 2.12 to 2.30)."""
    return f"node7:31337:31402 [0] NCCL INFO Using network {network}\n{table}"


@pytest.fixture
def tree(tmp_path: Path) -> NetworkTree:
    tree = NetworkTree(tmp_path / "sys")
    for bus in ("18", "2a", "3a", "5d"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    return tree


def check(tree: NetworkTree, **settings: float) -> NcclNetworkCheck:
    section = NcclNetwork(**settings)  # type: ignore[arg-type]
    return NcclNetworkCheck(config(tree.root, nccl_network=section))


def test_peer_access_shared_memory_and_nvlink_are_off(tree: NetworkTree) -> None:
    (command,) = asked(check(tree), printed(used("IB")))
    for name, value in (("P2P_DISABLE", "1"), ("SHM_DISABLE", "1"), ("NVLS_ENABLE", "0")):
        assert command.environment[f"NCCL_{name}"] == value
    assert command.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("network", ["IB", "AWS Libfabric"])
def test_it_passes_over_a_network_of_adapters(tree: NetworkTree, network: str) -> None:
    report = perform(check(tree), printed(used(network)))
    assert (report.outcome, report.reason) == (Outcome.PASS, "")
    assert report.tests[0].category == "nccl_network"


def test_sockets_or_no_word_about_the_network_are_no_pass(tree: NetworkTree) -> None:
    report = perform(check(tree), printed(used("Socket")))
    assert report.outcome is Outcome.CONFIG and "TCP sockets" in report.reason
    assert perform(check(tree), printed(TABLE)).outcome is Outcome.INCONCLUSIVE


def test_its_faults_have_codes_of_their_own(tree: NetworkTree) -> None:
    slow = perform(check(tree, least_gbytes=470.0), printed(used("IB")))
    failed = perform(check(tree), printed(used("IB", FAILURE), 1))
    wrong = perform(check(tree), printed(used("IB", TABLE.replace(": 0 OK", ": 3 FAILED")), 1))
    codes = [fault.code for report in (slow, failed, wrong) for fault in report.faults]
    assert codes == [f"nccl_network/{code}" for code in ("slow", "failed", "wrong")]
    for code in codes:
        rule = catalogue().find_rule(code)
        assert (rule.action, rule.state) == (Action.INSPECT, True)


def test_it_never_starts_without_an_rdma_device(
    tree: NetworkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", monkeypatch, "all_reduce_perf")
    assert "no RDMA device" in check(tree).find_obstacle()
    tree.mlx5("0000:9a:00.0", "ib0")
    assert check(tree).find_obstacle() == ""
