"""The words of other agents on a real API server: they appear and come back with the fault, and
what another agent manages is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.plane import ADMIN
from tests.control_plane.publisher import Publisher
from tests.harness import Node
from tests.neuron_tree import TRN2
from tests.waiting import until
from tests.whole_tree import ROOT as WRITABLE
from tests.whole_tree import WholeTree

pytestmark = pytest.mark.control_plane

UNHEALTHY = "stats/hardware/health_status/unhealthy_components"
LOOKS = ("neuron", "network", "pci", "host")
OFTEN = "".join(f'[{section}]\nevery = "200ms"\ndeadline = "5s"\n' for section in LOOKS)
HEALTH_STATUS = "sagemaker.amazonaws.com/node-health-status"
FAULTS = ("sagemaker.amazonaws.com/fault-types", "sagemaker.amazonaws.com/fault-reasons")
FAULT_DETAILS = "sagemaker.amazonaws.com/fault-details"
WELL = {
    "AcceleratedHardwareReady": ("True", "NeuronAcceleratedHardwareIsReady"),
    "KernelReady": ("True", "KernelIsReady"),
    "NetworkingReady": ("True", "NetworkingIsReady"),
    "StorageReady": ("True", "DiskIsReady"),
}

Conditions = dict[str, "tuple[str, str]"]


class Publishing:
    """A daemon on a machine of files, a Node object, and `vitald publish` between them."""

    def __init__(self, folder: Path, node: ClusterNode, tree: WholeTree, daemon: Node) -> None:
        self.folder, self.node, self.tree, self.daemon = folder, node, tree, daemon
        self.publisher: Publisher | None = None

    def start(self, *profiles: str) -> None:
        """With these profiles; again, with the state of the former."""
        self.stop()
        self.publisher = Publisher(
            self.folder / "publisher",
            self.daemon,
            self.node,
            kubernetes=f"""conditions = {json.dumps(["own", *profiles])}
[recovery]
mode = "automatic"
""",
        )
        self.publisher.start()

    def stop(self) -> None:
        if self.publisher is not None:
            self.publisher.stop()

    # --- faults

    def hurt_neuron(self) -> None:
        self.tree.neuron.put(7, UNHEALTHY, "device_unreachable")

    def mend_neuron(self) -> None:
        self.tree.neuron.put(7, UNHEALTHY, "")

    def hurt_disk(self) -> None:
        self.tree.proc.write("1/mountinfo", WRITABLE.replace("rw,errors", "ro,errors"))

    def mend_disk(self) -> None:
        self.tree.proc.write("1/mountinfo", WRITABLE)

    # --- the node

    def read_conditions(self) -> Conditions:
        return {
            type_: (one["status"], one["reason"]) for type_, one in self.node.conditions.items()
        }

    def read_labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.node.read()["metadata"]["labels"]
        return labels

    def wait_for_conditions(self, wanted: Conditions) -> None:
        until(lambda: self.read_conditions().items() >= wanted.items(), str(wanted))

    def wait_for_labels(self, wanted: dict[str, str]) -> None:
        until(lambda: self.read_labels().items() >= wanted.items(), str(wanted))

    def wait_for_refusal(self, text: str) -> None:
        """Until the log says that something is not written, with this text."""
        publisher = self.publisher
        assert publisher is not None
        until(
            lambda: any(text in entry["error"] for entry in publisher.read_log("sink_refused")),
            text,
        )

    def write_as(self, manager: str, patch: object, token: str = ADMIN) -> None:
        path = f"{self.node.path}/status?fieldManager={manager}"
        self.node.plane.demand("PATCH", path, patch, token=token)

    def write_condition_as(self, manager: str, type_: str, token: str = ADMIN) -> dict[str, Any]:
        """Of another agent. Returns it as the node has it."""
        moment = "2026-01-01T00:00:00Z"
        condition = {
            "type": type_,
            "status": "True",
            "reason": "TheirWord",
            "message": "theirs",
            "lastTransitionTime": moment,
            "lastHeartbeatTime": moment,
        }
        self.write_as(manager, {"status": {"conditions": [condition]}}, token)
        return condition


@pytest.fixture
def publishing(
    tmp_path: Path, cluster_node: ClusterNode, make_node: Callable[..., Node]
) -> Iterator[Publishing]:
    tree = WholeTree(tmp_path)
    daemon = make_node(sysfs=tree.root, looks=LOOKS, extra=OFTEN)
    daemon.configure("[paths]\n", f'[paths]\nprocfs = "{tree.proc.root}"\n')
    daemon.start()
    daemon.wait(lambda status: status["status"] == "healthy")
    made = Publishing(tmp_path, cluster_node, tree, daemon)
    yield made
    made.stop()


def test_the_summary_says_what_is_due(publishing: Publishing) -> None:
    daemon = publishing.daemon
    assert daemon.get("/v1/summary")["accelerators"] == ["neuron"]
    publishing.hurt_neuron()
    daemon.wait(lambda status: status["rebootConfirmed"])
    summary = daemon.get("/v1/summary")
    assert [(one["code"], one["due"]) for one in summary["findings"]] == [
        ("neuron/unreachable", True)
    ]
    assert summary["findings"][0]["component"] == f"neuron/{TRN2[7]}"


def test_eks(publishing: Publishing) -> None:
    """Two faults of one condition, a second condition, a restart, and all well again."""
    publishing.start("eks")
    publishing.wait_for_conditions(WELL)
    publishing.hurt_neuron()
    hurt: Conditions = {
        **WELL,
        "AcceleratedHardwareReady": ("False", "NeuronNCUncorrectableError"),
    }
    publishing.wait_for_conditions(hurt)
    since = publishing.node.read_transition("AcceleratedHardwareReady")
    publishing.tree.neuron.put(3, UNHEALTHY, "device_unreachable")
    publishing.hurt_disk()
    both: Conditions = {**hurt, "StorageReady": ("False", "BlockDeviceIOError")}
    publishing.wait_for_conditions(both)
    until(lambda: f"neuron/{TRN2[3]}" in json.dumps(publishing.node.findings), "the second fault")
    publishing.start("eks")
    publishing.wait_for_conditions(both)
    assert publishing.node.read_transition("AcceleratedHardwareReady") == since
    publishing.tree.neuron.put(3, UNHEALTHY, "")
    publishing.mend_neuron()
    publishing.mend_disk()
    publishing.wait_for_conditions(WELL)
    publishing.daemon.kill()
    publishing.wait_for_conditions(dict.fromkeys(WELL, ("Unknown", "DaemonSilent")))


def test_a_person_holds_the_repair(publishing: Publishing) -> None:
    publishing.start("eks")
    publishing.hurt_neuron()
    due: Conditions = {
        "vitald.io/Healthy": ("False", "NeuronUnreachable"),
        "vitald.io/RebootRequired": ("True", "NeuronUnreachable"),
        "AcceleratedHardwareReady": ("False", "NeuronNCUncorrectableError"),
    }
    publishing.wait_for_conditions(due)
    plane, name = publishing.node.plane, publishing.node.name
    plane.kubectl("annotate", "node", name, "vitald.io/hold=ticket 4711")
    publishing.wait_for_conditions(
        {
            "vitald.io/Healthy": ("False", "NeuronUnreachable"),
            "vitald.io/RebootRequired": ("False", "Held"),
            "AcceleratedHardwareReady": ("True", "Held"),
        }
    )
    assert publishing.node.read()["metadata"]["annotations"]["vitald.io/hold"] == "ticket 4711"
    plane.kubectl("annotate", "node", name, "vitald.io/hold-")
    publishing.wait_for_conditions(due)


def test_npd(publishing: Publishing) -> None:
    publishing.start("npd")
    well = {
        "KernelDeadlock": ("False", "KernelHasNoDeadlock"),
        "ReadonlyFilesystem": ("False", "FilesystemIsNotReadOnly"),
    }
    publishing.wait_for_conditions(well)
    publishing.hurt_disk()
    publishing.wait_for_conditions({**well, "ReadonlyFilesystem": ("True", "FilesystemIsReadOnly")})
    publishing.mend_disk()
    publishing.wait_for_conditions(well)


def test_hyperpod(publishing: Publishing) -> None:
    publishing.start("hyperpod")
    publishing.wait_for_labels({HEALTH_STATUS: "Schedulable"})
    publishing.hurt_neuron()
    publishing.wait_for_labels(
        {
            HEALTH_STATUS: "UnschedulablePendingReboot",
            FAULTS[0]: "NeuronHealth",
            FAULTS[1]: "NeuronUnreachable",
        }
    )
    details = json.loads(publishing.node.read()["metadata"]["annotations"][FAULT_DETAILS])
    assert [(one["type"], one["reason"]) for one in details] == [
        ("NeuronHealth", "NeuronUnreachable")
    ]
    publishing.mend_neuron()
    publishing.wait_for_labels({HEALTH_STATUS: "Schedulable"})
    assert not publishing.read_labels().keys() & {*FAULTS}
    assert FAULT_DETAILS not in publishing.node.read()["metadata"]["annotations"]


@pytest.mark.parametrize("who", ["admin", "kubelet"])
def test_what_another_agent_manages_is_left_alone(publishing: Publishing, who: str) -> None:
    """The rest is written. Once the other is gone, the profile is."""
    token = publishing.node.kubelet_token if who == "kubelet" else ADMIN
    theirs = publishing.write_condition_as("eks-node-monitoring-agent", "KernelReady", token)
    publishing.start("eks", "npd")
    publishing.wait_for_conditions({"KernelDeadlock": ("False", "KernelHasNoDeadlock")})
    assert publishing.node.read_status() == "True"
    publishing.wait_for_refusal("KernelReady is managed by eks-node-monitoring-agent")
    publishing.hurt_disk()
    publishing.wait_for_conditions(
        {
            "vitald.io/RebootRequired": ("True", "FsRemountedReadonly"),
            "ReadonlyFilesystem": ("True", "FilesystemIsReadOnly"),
        }
    )
    assert publishing.node.conditions["KernelReady"] == theirs
    assert not publishing.read_conditions().keys() & (WELL.keys() - {"KernelReady"})
    gone = {"status": {"conditions": [{"type": "KernelReady", "$patch": "delete"}]}}
    publishing.write_as("kubectl", gone)
    publishing.mend_disk()
    publishing.wait_for_conditions(WELL)


def test_what_was_written_goes_when_another_agent_comes(publishing: Publishing) -> None:
    publishing.start("eks")
    publishing.wait_for_conditions(WELL)
    publishing.write_condition_as("eks-node-monitoring-agent", "KernelReady")
    publishing.hurt_disk()
    publishing.wait_for_conditions({"vitald.io/Healthy": ("False", "FsRemountedReadonly")})
    until(
        lambda: publishing.read_conditions().keys() & WELL.keys() == {"KernelReady"},
        "the others to go",
    )
    assert publishing.read_conditions()["KernelReady"] == ("True", "TheirWord")


def test_eks_is_not_written_on_a_node_of_hyperpod(publishing: Publishing) -> None:
    label = {"sagemaker.amazonaws.com/compute-type": "hyperpod"}
    publishing.write_as("admin", {"metadata": {"labels": label}})
    publishing.start("eks")
    publishing.wait_for_refusal("sagemaker.amazonaws.com/compute-type=hyperpod")
    publishing.node.wait_for_status("True")
    assert not publishing.read_conditions().keys() & WELL.keys()


def test_no_repair_is_ordered_where_the_agent_of_hyperpod_runs(publishing: Publishing) -> None:
    publishing.write_as(
        "health-monitoring-agent", {"metadata": {"labels": {HEALTH_STATUS: "Schedulable"}}}
    )
    publishing.start("hyperpod")
    publishing.hurt_neuron()
    publishing.wait_for_conditions({"vitald.io/Healthy": ("False", "NeuronUnreachable")})
    publishing.wait_for_refusal("node-health-status is managed by health-monitoring-agent")
    assert publishing.read_labels()[HEALTH_STATUS] == "Schedulable"
    assert not publishing.read_labels().keys() & {*FAULTS}


def test_a_profile_that_is_taken_out_leaves_nothing(publishing: Publishing) -> None:
    publishing.start("eks", "npd", "hyperpod")
    publishing.wait_for_conditions(WELL)
    publishing.wait_for_labels({HEALTH_STATUS: "Schedulable"})
    publishing.start()
    until(
        lambda: (
            {one.partition("/")[0] for one in publishing.read_conditions()} == {"vitald.io"}
            and HEALTH_STATUS not in publishing.read_labels()
        ),
        "the profiles to go",
    )
