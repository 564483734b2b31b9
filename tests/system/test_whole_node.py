"""The daemon on a whole node, with every source on: one fault of each, all of them through a
restart, and all of them hanging.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.harness import Json, Node
from tests.network_tree import EFA, MLX5
from tests.neuron_tree import TRN2
from tests.system.lines import wait_for_pid, xid
from tests.waiting import until
from tests.whole_tree import ADAPTER, DRIVE, ROOT, WholeTree
from vitald.metrics import verdict

LOOKS = ("neuron", "network", "pci", "host")
UNHEALTHY = "stats/hardware/health_status/unhealthy_components"


@pytest.fixture
def tree(tmp_path: Path) -> WholeTree:
    return WholeTree(tmp_path)


@pytest.fixture
def make(tree: WholeTree, make_node: Callable[..., Node]) -> Callable[..., Node]:
    """Nodes that run, on this machine."""

    def start(extra: str = "", deadline: str = "1m") -> Node:
        often = (f'[{one}]\nevery = "200ms"\ndeadline = "{deadline}"\n' for one in LOOKS)
        node = make_node(sysfs=tree.root, looks=LOOKS, extra="".join(often) + extra)
        node.configure("[paths]\n", f'[paths]\nprocfs = "{tree.proc.root}"\n')
        node.start()
        node.wait(lambda status: status["status"] == "healthy")
        return node

    return start


def codes(node: Node) -> set[tuple[str, str]]:
    return {(str(one["code"]), str(one["component"])) for one in node.findings()}


def sources(node: Node) -> dict[str, str]:
    return {
        str(one["name"]): str(one["state"]) for one in cast("list[Json]", node.status()["sources"])
    }


@pytest.mark.core
def test_a_healthy_node_takes_work(make: Callable[..., Node]) -> None:
    node = make()
    assert sources(node) == dict.fromkeys(("kernel_log", *LOOKS, "expect"), "ok") | dict.fromkeys(
        ("nvml", "diagnostics"), "not present"
    )
    done = node.cli("check", "--strict")
    assert (done.returncode, done.stdout) == (0, "healthy: no open findings\n")
    node.wait_for_polls(*LOOKS)  # and stays so
    assert node.findings() == []
    assert {one["status"] for one in cast("list[Json]", node.status()["components"])} == {"healthy"}
    names = {str(one["name"]) for one in cast("list[Json]", node.status()["components"])}
    assert names >= {
        f"neuron/{TRN2[15]}",
        f"nic/{EFA[0]}",
        f"nic/{MLX5[2]}",
        f"nic/{ADAPTER}",
        "dimm/MC1.dimm0",
        "disk/nvme0",
        "disk/nvme0n1p1",
    }
    assert node.metric("vitald_neuron_devices") == 16
    assert node.metric("vitald_rdma_ports_up") == 3


Change = Callable[[WholeTree], object]
FAULTS: dict[
    str, tuple[Change, Change, str, str, bool]
] = {  # what breaks, what mends it, code, component, whether it asks for a reboot
    "neuron": (
        lambda tree: tree.neuron.put(7, UNHEALTHY, "device_unreachable"),
        lambda tree: tree.neuron.put(7, UNHEALTHY, ""),
        *("neuron/unreachable", f"neuron/{TRN2[7]}", True),
    ),
    "network": (
        lambda tree: tree.network.down("mlx5_5"),
        lambda tree: tree.network.up("mlx5_5"),
        *("ib/port_down", f"nic/{MLX5[1]}", False),
    ),
    "pci": (
        lambda tree: tree.network.off_the_bus(ADAPTER),
        lambda tree: tree.add_adapter(),
        *("pci/adapter_removed", f"nic/{ADAPTER}", False),
    ),
    "host": (
        lambda tree: tree.proc.write("1/mountinfo", ROOT.replace("rw,errors", "ro,errors")),
        lambda tree: tree.proc.write("1/mountinfo", ROOT),
        *("fs/remounted_readonly", "disk/nvme0n1p1", True),
    ),
}


@pytest.mark.parametrize("source", FAULTS)
@pytest.mark.core
def test_a_fault_of_each_source_comes_and_goes(
    make: Callable[..., Node], tree: WholeTree, source: str
) -> None:
    breaks, mends, code, component, reboot = FAULTS[source]
    node = make()
    kind, _, _ = component.partition("/")
    pci = verdict.find_pci_bus_id(component)
    labels = f'component="{component}",component_kind="{kind}",pci_bus_id="{pci}",status="healthy"'
    series = f"vitald_component_status{{{labels}}}"
    assert node.metric(series) == 1
    breaks(tree)
    node.wait(lambda _: codes(node) == {(code, component)})
    status = node.status()
    assert status["rebootRequired"] is reboot
    assert status["replacementRequired"] is False
    assert node.metric("vitald_reboot_required") == reboot
    assert "vitald_findings{" in node.metrics()
    assert node.metric(series) in (0, None)
    assert node.cli("check", "--strict").returncode == (20 if reboot else 10)
    mends(tree)
    status = node.wait(lambda status: status["status"] == "healthy")
    assert (codes(node), status["rebootRequired"]) == (set(), False)
    assert node.metric("vitald_reboot_required") == 0
    assert "vitald_findings{" not in node.metrics()
    assert node.metric(series) == 1
    assert node.cli("check").returncode == 0


def test_what_this_node_should_run(make: Callable[..., Node], tree: WholeTree) -> None:
    """Counted once a minute: a restart looks at once."""
    node = make('[expect]\nkernel = ["6.8.0-1021-aws"]\n')
    tree.proc.write("sys/kernel/osrelease", "6.8.0-9999-aws")
    node.restart()
    node.wait(lambda _: codes(node) == {("expect/kernel", "node")})
    tree.proc.write("sys/kernel/osrelease", "6.8.0-1021-aws")
    node.restart()
    node.wait(lambda status: status["status"] == "healthy" and not codes(node))


# --- restarts and reloads


def break_all(tree: WholeTree) -> set[tuple[str, str]]:
    """Something of each source that lasts. What is told of it."""
    tree.neuron.ecc(3, "mem_ecc_repairable_uncorrected", 2)
    tree.neuron.count(4, 5, "hw_hbm_ue_error", 1)
    tree.neuron.lose(5)
    tree.network.put(f"rdmap{0x20}s{0x19}", {"hw_counters/no_completion_cmds": 1})
    tree.network.down("mlx5_4")
    tree.network.off_the_bus(ADAPTER)
    tree.neuron.write(f"{tree.function(EFA[2])}/aer_dev_fatal", "DLP 2\nTOTAL_ERR_FATAL 2")
    tree.neuron.write(f"{tree.edac(1)}/dimm0/dimm_ue_count", 1)
    tree.neuron.write(f"class/nvme/{DRIVE}/state", "dead")
    return {
        ("neuron/hbm_ecc_repairable", f"neuron/{TRN2[3]}"),
        ("neuron/runtime_hbm", f"neuron/{TRN2[4]}"),
        ("neuron/lost", f"neuron/{TRN2[5]}"),
        ("efa/not_answering", f"nic/{EFA[1]}"),
        ("ib/port_down", f"nic/{MLX5[0]}"),
        ("pci/adapter_removed", f"nic/{ADAPTER}"),
        ("pci/fatal_errors", f"nic/{EFA[2]}"),
        ("edac/uncorrected_counted", "dimm/MC1.dimm0"),
        ("nvme/lost", "disk/nvme0"),
    }


def told(node: Node) -> Counter[tuple[str, str]]:
    """How often each thing was said, in all runs together. Not who is who."""
    return Counter(
        (str(one["code"]), str(one["component"]))
        for one in node.events()
        if one["kind"] not in ("device", "vitald")
    )


@pytest.mark.core
def test_what_stands_outlives_every_end_and_is_told_once(
    make: Callable[..., Node], tree: WholeTree
) -> None:
    node = make()
    expected = break_all(tree)
    node.wait(lambda _: codes(node) == expected)
    before = [(one["id"], one["code"], one["action"], one["since"]) for one in node.findings()]
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        node.restart(number)
        node.wait_for_polls(*LOOKS)
        assert [
            (one["id"], one["code"], one["action"], one["since"]) for one in node.findings()
        ] == before
        assert told(node) == Counter(dict.fromkeys(expected, 1))
    status = node.status()
    assert (status["status"], status["rebootRequired"], status["replacementRequired"]) == (
        "unhealthy",
        True,
        True,
    )


@pytest.mark.core
def test_a_reload_goes_on_where_it_was(make: Callable[..., Node], tree: WholeTree) -> None:
    node = make("[catalog]\n")
    expected = break_all(tree)
    node.wait(lambda _: codes(node) == expected)
    node.configure(
        "[catalog]\n", '[catalog.overrides.efa.not_answering]\naction = "replace_node"\n[catalog]\n'
    )
    assert node.reload()["event"] == "reloaded"
    node.wait(
        lambda _: (
            {one["action"] for one in node.findings() if one["code"] == "efa/not_answering"}
            == {"replace_node"}
        ),
    )
    node.wait_for_polls(*LOOKS)
    assert codes(node) == expected
    assert told(node) == Counter(dict.fromkeys(expected, 1))
    tree.neuron.ecc(11, "sram_ecc_uncorrected", 1)
    node.wait(lambda _: codes(node) == {*expected, ("neuron/sram_ecc", f"neuron/{TRN2[11]}")})


# --- all of it hangs at once


def let_go(tree: WholeTree, file: str, content: bytes) -> None:
    """Whoever waits for this file reads its end, and whoever asks again reads what was there."""

    def is_left_alone() -> bool:
        try:
            os.close(os.open(tree.root / file, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody waits
            return True
        return False

    until(is_left_alone, "the readers to go")
    tree.neuron.write(file, content)


def test_while_the_devices_cannot_be_listed_those_that_are_known_are_looked_at(
    make: Callable[..., Node], tree: WholeTree
) -> None:
    node = make(deadline="1s")
    file = f"{tree.function(TRN2[2])}/class"
    content = (tree.root / file).read_bytes()
    tree.neuron.hang(file)
    node.wait(lambda _: codes(node) == {("neuron/hung", "node"), ("pci/hung", "node")})
    assert node.status()["status"] == "unknown"
    tree.neuron.ecc(10, "sram_ecc_uncorrected", 1)
    node.wait(lambda status: status["replacementRequired"])
    let_go(tree, file, content)
    node.wait(lambda _: codes(node) == {("neuron/sram_ecc", f"neuron/{TRN2[10]}")})
    assert {
        state for name, state in sources(node).items() if name not in ("nvml", "diagnostics")
    } == {"ok"}


def threads(node: Node) -> int:
    assert node.process is not None
    return int(
        Path(f"/proc/{node.process.pid}/status").read_text().partition("Threads:")[2].split()[0]
    )


def hang_all(tree: WholeTree) -> set[tuple[str, str]]:
    """A file of a device of each source. Who hangs then."""
    tree.neuron.hang(tree.neuron.path(9, "stats/hardware/sram_ecc_uncorrected"))
    tree.neuron.hang(f"{tree.network.path('mlx5_5')}/ports/1/state")
    tree.neuron.hang(f"{tree.function(TRN2[2])}/current_link_width")
    tree.neuron.hang(f"{tree.edac(0)}/dimm0/dimm_ce_count")
    return {
        ("neuron/hung", f"neuron/{TRN2[9]}"),
        ("network/hung", f"nic/{MLX5[1]}"),
        ("pci/hung", f"neuron/{TRN2[2]}"),
        ("host/hung", "dimm/MC0.dimm0"),
    }


def test_nobody_waits_for_what_hangs(make: Callable[..., Node], tree: WholeTree) -> None:
    """With a round each fifth of a second: the answers, the kernel log, the other devices, and the
    end. The files hang to the end of the test: who waited for one would not come back.
    """
    node = make(deadline="1s")
    calm = max(threads(node) for _ in range(50))
    hung = hang_all(tree)
    node.wait(lambda _: codes(node) == hung)
    assert node.status()["status"] == "unknown"
    unseen = {
        one["name"]
        for one in cast("list[Json]", node.status()["components"])
        if one["unknownReasons"]
    }
    assert unseen == {component for _, component in hung}
    most = 0
    for number in range(20):
        node.status()
        most = max(most, threads(node))
        node.write(xid(number, pci="0000:66:00"))
        wait_for_pid(node, number)
    assert most <= calm + 2 * len(LOOKS), (
        "one thread for each look that hangs, and at times one for a round"
    )
    tree.neuron.ecc(10, "sram_ecc_uncorrected", 1)
    node.wait(lambda status: status["replacementRequired"])
    assert Counter(told(node))[("neuron/hung", f"neuron/{TRN2[9]}")] == 1
    node.stop()
