"""The daemon on a Trainium node: a fake tree, a kernel log, and what people and schedulers are
told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Node
from tests.neuron_tree import TRN2, NeuronTree


@pytest.fixture
def tree(tmp_path: Path) -> NeuronTree:
    return NeuronTree(tmp_path / "sys")


@pytest.fixture
def node(tmp_path: Path, tree: NeuronTree) -> Iterator[Node]:
    with Node(
        tmp_path,
        sysfs=tree.root,
        looks=["neuron"],
        extra='[neuron]\nevery = "200ms"\ndeadline = "1s"',
    ) as started:
        yield started


def codes(node: Node) -> set[tuple[str, str]]:
    return {(str(one["code"]), str(one["component"])) for one in node.findings()}


@pytest.mark.core
def test_a_lost_card_asks_for_a_reboot_and_says_which(node: Node, tree: NeuronTree) -> None:
    assert node.status()["status"] == "healthy"
    tree.lose(5)
    status = node.wait(lambda status: status["rebootRequired"])
    assert codes(node) == {("neuron/lost", f"neuron/{TRN2[5]}")}
    assert tree.serial(5) in str(node.findings()[0])
    assert status["status"] == "unhealthy"


def test_line_counter_and_runtime_are_one_story(node: Node, tree: NeuronTree) -> None:
    """The driver says at load where each device sits, so that lines which name only an index find
    their card.
    """
    node.write(
        "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i-0 hostname=h nd-id=3 nc-id=1"
        f" serial-num={tree.serial(3)} action=REPLACE"
    )
    tree.ecc(3, "mem_ecc_repairable_uncorrected", 1)
    tree.count(3, 1, "hw_hbm_ue_error", 1)
    node.wait(lambda _: len(codes(node)) == 3)
    assert {component for _, component in codes(node)} == {f"neuron/{TRN2[3]}"}
    status = node.wait(lambda status: not status["replacementRequired"])
    assert status["rebootRequired"], "the card counts the error as repairable"
    assert len(node.get("/v1/incidents")["incidents"]) == 1


@pytest.mark.core
def test_where_a_device_sits_is_remembered(tmp_path: Path) -> None:
    addresses = [f"0000:{0x20 + index:02x}:00.0" for index in range(4)]
    tree = NeuronTree(tmp_path / "sys", addresses, machine="unknown")
    with Node(tmp_path, sysfs=tree.root, looks=["neuron"]) as node:
        for index, address in enumerate(reversed(addresses)):
            node.write(
                f"neuron:neuron_pci_get_device_id_v3: ** BDF: {address[5:]} => nd[{index}] (routing"
                f" id: {index})"
            )
        node.wait(
            lambda _: any(
                one["name"] == f"neuron/{addresses[0]}" for one in node.status()["components"]
            )
        )
        node.write(
            "neuron:nr_wait_for_reset_completion: nd3: reset request 17 was initiated, but failed"
            " to complete"
        )
        node.wait(lambda _: codes(node) == {("neuron/reset_failed", f"neuron/{addresses[0]}")})
        node.restart()
        node.write("neuron:ncdev_open: nd2 is in an invalid state")
        node.wait(lambda _: ("neuron/invalid_state", f"neuron/{addresses[1]}") in codes(node))


@pytest.mark.core
def test_a_reader_that_hangs_makes_its_device_unknown_and_delays_nothing(
    node: Node, tree: NeuronTree
) -> None:
    tree.hang(tree.path(4, "stats/hardware/sram_ecc_uncorrected"))
    node.wait(lambda status: status["status"] == "unknown")
    components = {one["name"]: one["status"] for one in node.status()["components"]}
    assert components[f"neuron/{TRN2[4]}"] in ("unknown", "degraded")
    assert components[f"neuron/{TRN2[3]}"] == "healthy"
    tree.ecc(6, "sram_ecc_uncorrected", 1)
    node.wait(lambda status: status["replacementRequired"])
    node.stop()  # while the read still hangs
