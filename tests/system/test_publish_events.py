"""Events and the taint of a node, and their removal, with a real Kubernetes API server."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.plane import ADMIN, MERGE, ControlPlane, Json
from tests.control_plane.publisher import Publisher
from tests.harness import Node
from tests.system.lines import xid
from tests.waiting import until
from vitald.timestamps import format_rfc3339

pytestmark = pytest.mark.control_plane

MakePublisher = Callable[..., Publisher]
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_KEY = "vitald.io/unhealthy"
_FOREIGN = {"key": "example.com/maintenance", "value": "yes", "effect": "NoSchedule"}
_TAINTS = 'taint = "NoSchedule"'


def list_events(cluster_node: ClusterNode) -> list[Json]:
    """Those of the node, from the oldest."""
    items = cluster_node.plane.demand("GET", _EVENTS)["items"]
    own = [each for each in items if each["regarding"].get("name") == cluster_node.name]
    return sorted(own, key=lambda event: str(event["eventTime"]))


def list_actions(cluster_node: ClusterNode) -> list[str]:
    return [event["action"] for event in list_events(cluster_node)]


def wait_for_actions(cluster_node: ClusterNode, *actions: str) -> list[Json]:
    until(lambda: list_actions(cluster_node) == [*actions], f"the events {actions}")
    return list_events(cluster_node)


def clear_findings(node: Node) -> None:
    for finding in node.findings():
        status, answer = node.request(
            "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "replaced"}
        )
        assert status == 200, answer


def read_taints(cluster_node: ClusterNode) -> list[Json]:
    return cluster_node.read()["spec"].get("taints", [])


def list_own_keys(cluster_node: ClusterNode) -> list[str]:
    """The keys of ours: the API server adds one of its own to a new node."""
    keys = [taint["key"] for taint in read_taints(cluster_node)]
    return [key for key in keys if key.endswith("/unhealthy")]


def set_taints(cluster_node: ClusterNode, *taints: Json) -> None:
    cluster_node.plane.demand(
        "PATCH", cluster_node.path, {"spec": {"taints": [*taints]}}, content_type=MERGE
    )


@pytest.fixture
def publisher(make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode) -> Publisher:
    """Running, with the right to set taints, and the node is well."""
    running = make_publisher(node, token=ADMIN, kubernetes=_TAINTS)
    running.start()
    cluster_node.wait_for_status("True")
    return running


# --- events


def test_each_change_of_a_finding_is_one_event(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    (opened,) = wait_for_actions(cluster_node, "Opened")
    assert (opened["type"], opened["reason"]) == ("Warning", "Xid79")
    assert opened["regarding"]["uid"] == cluster_node.uid
    assert opened["note"] == (
        "gpu/0000:65:00.0: GPU has fallen off the bus (xid/79), opened: reboot the node;"
        " xid/79 seen"
    )
    (finding,) = node.findings()
    node.request("POST", f"/v1/findings/{finding['id']}/remedy", {"reason": "rebooting"})
    clear_findings(node)
    *_, remedy, cleared = wait_for_actions(cluster_node, "Opened", "InRemedy", "Cleared")
    assert (remedy["type"], cleared["type"]) == ("Normal", "Normal")
    publisher.stop()
    publisher.start()
    node.write(xid(2, pci="0000:66:00"))
    wait_for_actions(cluster_node, "Opened", "InRemedy", "Cleared", "Opened")
    described = cluster_node.plane.kubectl("describe", "node", cluster_node.name)
    assert "GPU has fallen off the bus" in described


def test_what_was_open_at_the_first_start_is_not_announced(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    node.wait(lambda status: status["status"] == "unhealthy")
    make_publisher(node).start()
    cluster_node.wait_for_status("False")
    node.write(xid(2, pci="0000:66:00"))
    (event,) = wait_for_actions(cluster_node, "Opened")
    assert "0000:66:00" in event["note"]


def test_every_change_comes_once_though_all_are_killed(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for number in range(8):
        node.write(xid(number, pci=f"0000:{0x60 + number:02x}:00"))
        time.sleep(dice.uniform(0.0, 0.4))
        if dice.random() < 0.5:
            clear_findings(node)
            time.sleep(dice.uniform(0.0, 0.1))
        for victim in dice.choice([(publisher,), (node,), (publisher, node)]):
            victim.kill()
            victim.start()
    clear_findings(node)
    changes = node.get("/v1/transitions?limit=1000")["transitions"]
    words = {"opened": "Opened", "cleared": "Cleared"}
    expected = Counter((words[each["change"]], each["component"]) for each in changes)
    assert len(expected) == 16

    def count_events() -> Counter[tuple[str, str]]:
        return Counter(
            (event["action"], event["note"].partition(": ")[0])
            for event in list_events(cluster_node)
        )

    until(lambda: count_events().total() >= len(changes), "all events")
    # Nothing is under way any more once a later change has been announced.
    node.write(xid(99, pci="0000:aa:00"))
    last = ("Opened", "gpu/0000:aa:00.0")
    until(lambda: last in count_events(), "the last event")
    assert count_events() == expected + Counter([last])


def test_many_changes_become_few_events(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    faults = 60
    node.write(*(xid(number, pci=f"0000:{number:02x}:00") for number in range(1, faults + 1)))

    def count_changes() -> int:
        notes = [event["note"] for event in list_events(cluster_node)]
        combined = [re.fullmatch(r"and (\d+) more changes of findings: .*", note) for note in notes]
        return sum(1 if found is None else int(found[1]) for found in combined)

    until(lambda: count_changes() >= faults, "all changes in events")
    assert count_changes() == faults
    assert 20 < len(list_events(cluster_node)) <= 25


def test_a_node_that_is_made_anew_has_its_own_events(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    wait_for_actions(cluster_node, "Opened")
    former = cluster_node.uid
    cluster_node.delete()
    node.write(xid(2, pci="0000:66:00"))
    until(lambda: 404 in {request.code for request in cluster_node.read_requests()}, "a 404")
    time.sleep(1.1)  # its creation is written in whole seconds
    cluster_node.create()
    assert cluster_node.uid != former
    node.write(xid(3, pci="0000:67:00"))

    def list_new() -> list[Json]:
        events = list_events(cluster_node)
        return [event for event in events if event["regarding"]["uid"] == cluster_node.uid]

    until(lambda: len(list_new()) == 1, "the new node's event", 70.0)
    (event,) = list_new()
    assert "0000:67:00" in event["note"]
    cluster_node.wait_for_status("False", seconds=70.0)
    assert publisher.read_log("sink_failed") == [], "a node that is gone is no error"


# --- the taint


def test_the_taint_stands_beside_those_of_others(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    set_taints(cluster_node, _FOREIGN)
    node.write(xid(1))
    own = {"key": _KEY, "value": "reboot_node", "effect": "NoSchedule"}
    until(lambda: own in read_taints(cluster_node), "the taint")
    assert read_taints(cluster_node) == [_FOREIGN, own]
    node.kill()
    cluster_node.wait_for_status("Unknown")
    assert own in read_taints(cluster_node), "nobody knows that the node is well"
    node.start()
    clear_findings(node)
    until(lambda: read_taints(cluster_node) == [_FOREIGN], "no taint of ours")


@pytest.mark.usefixtures("publisher")
def test_the_taint_drains_the_node(node: Node, cluster_node: ClusterNode) -> None:
    """In the metric: as late as it was written, not as it was reported."""
    step = 'vitald_incident_step_seconds{{simulated="false",step="{}"}}'
    node.write(xid(1))
    until(lambda: node.metric(step.format("drained")) is not None, "the step")
    assert _KEY in [taint["key"] for taint in read_taints(cluster_node)]
    assert node.metric(step.format("back")) is None
    (finding,) = node.findings("&code=xid/79")
    node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "over"})
    until(lambda: node.metric(step.format("back")) is not None, "the end")
    steps = [node.metric(step.format(name)) or 0 for name in ("drained", "remedied", "back")]
    assert steps == sorted(steps)
    assert _KEY not in [taint["key"] for taint in read_taints(cluster_node)]


def test_the_taint_is_set_while_others_change_the_node(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    """A conflict is resolved by reading again, and nobody's taint is lost."""
    ended = threading.Event()

    def disturb() -> None:
        while not ended.wait(0.02):
            patch = {"metadata": {"annotations": {"example.com/now": str(time.time())}}}
            cluster_node.plane.demand("PATCH", cluster_node.path, patch, content_type=MERGE)

    set_taints(cluster_node, _FOREIGN)
    other = threading.Thread(target=disturb)
    other.start()
    try:
        node.write(xid(1))
        until(lambda: len(read_taints(cluster_node)) == 2, "both taints")
    finally:
        ended.set()
        other.join()
    assert [taint["key"] for taint in read_taints(cluster_node)] == [_FOREIGN["key"], _KEY]


def test_without_the_right_to_taint_the_conditions_are_written(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode
) -> None:
    """A kubelet may not taint its own node."""
    publisher = make_publisher(node, kubernetes=_TAINTS)
    publisher.start()
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    until(lambda: publisher.read_log("sink_failed"), "the refusal")
    (failed,) = publisher.read_log("sink_failed")
    assert (failed["sink"], "403" in failed["error"]) == ("kubernetes-taint", True)
    assert list_own_keys(cluster_node) == []


def test_a_taint_that_is_no_longer_wanted_is_removed(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    until(lambda: list_own_keys(cluster_node) == [_KEY], "the taint")
    publisher.stop()
    publisher.config.write_text(publisher.config.read_text().replace(_TAINTS, ""))
    publisher.start()
    until(lambda: not list_own_keys(cluster_node), "no taint")
    assert cluster_node.read_status() == "False"


# --- removal


def read_lasting(cluster_node: ClusterNode) -> Json:
    """The node, without what the API server counts."""
    node = cluster_node.read()
    for name in ("resourceVersion", "managedFields"):
        node["metadata"].pop(name)
    return node


def test_nothing_is_left_of_a_node_that_retires(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode
) -> None:
    set_taints(cluster_node, _FOREIGN)
    before = read_lasting(cluster_node)
    publisher = make_publisher(
        node, token=ADMIN, kubernetes=f'{_TAINTS}\nconditions = ["own", "eks", "npd"]'
    )
    publisher.start()
    node.write(xid(1))
    until(lambda: len(read_taints(cluster_node)) == 2, "the taint")
    cluster_node.wait_for_status("False")
    refused = publisher.run("kubernetes", "--retire")
    assert (refused.returncode, "another vitald publish" in refused.stderr) == (69, True)
    publisher.stop()
    done = publisher.run("kubernetes", "--retire")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"condition vitald.io/Healthy", "condition KernelReady", f"taint {_KEY}"} <= {
        *done.stdout.splitlines()
    }
    assert read_lasting(cluster_node) == before
    again = publisher.run("kubernetes", "--retire")
    assert (again.returncode, again.stdout) == (0, "nothing of vitald is on the node\n")
    cluster_node.delete()
    gone = publisher.run("kubernetes", "--retire")
    assert (gone.returncode, gone.stdout) == (0, f"node {cluster_node.name} does not exist\n")


def test_a_node_without_state_retires_by_its_configuration(
    publisher: Publisher, cluster_node: ClusterNode
) -> None:
    publisher.stop()
    (publisher.state / "publish.db").unlink()
    done = publisher.run("kubernetes", "--retire")
    assert "condition vitald.io/Healthy" in done.stdout.splitlines()
    assert (cluster_node.conditions, cluster_node.labels) == ({}, {})
    assert not (publisher.state / "publish.db").exists(), "whoever runs it need not own the folder"


_OTHERS: Json = {
    "metadata": {
        "labels": {"example.com/pool": "a", "example.com/rack": "b"},
        "annotations": {"example.com/owner": "c", "example.com/drained": "d"},
    },
    "status": {"conditions": [{"type": "example.com/Cooling", "status": "True"}]},
}
_OWN_NAMED = {"key": "example.com/unhealthy", "value": "yes", "effect": "NoExecute"}


@pytest.mark.parametrize("whence", [(), ("--all-nodes",)])
def test_what_others_have_under_the_prefix_survives(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode, whence: tuple[str, ...]
) -> None:
    """The write, the removal, and the removal from a node that vitald never wrote to."""
    cluster_node.patch(_OTHERS)
    set_taints(cluster_node, _OWN_NAMED)
    before = read_lasting(cluster_node)
    publisher = make_publisher(
        node, token=ADMIN, kubernetes=f'{_TAINTS}\nprefix = "example.com"\nlabels = true'
    )
    done = publisher.run("kubernetes", "--retire", *whence)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_lasting(cluster_node) == before
    publisher.start()
    node.write(xid(1))
    until(lambda: len(list_own_keys(cluster_node)) == 2, "the taint")
    cluster_node.wait_for_status("False", "example.com/Healthy")
    publisher.stop()
    assert (
        _OTHERS["metadata"]["labels"].items() <= cluster_node.read()["metadata"]["labels"].items()
    )
    done = publisher.run("kubernetes", "--retire", *whence)
    assert (done.returncode, "1 of" in done.stdout) == (0, bool(whence)), done
    assert read_lasting(cluster_node) == before


def test_a_name_that_others_had_first_is_neither_written_nor_removed(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode
) -> None:
    cluster_node.patch({"metadata": {"labels": {"example.com/status": "in-service"}}})
    before = read_lasting(cluster_node)
    publisher = make_publisher(node, kubernetes='prefix = "example.com"')
    publisher.start()
    named = "label example.com/status is managed by vitald-tests"
    until(lambda: named in str(publisher.read_log("sink_failed")), named)
    node.wait(lambda status: named in str(status.get("publishers")))
    publisher.stop()
    done = publisher.run("kubernetes", "--retire")
    assert done.stdout == f"kept: {named.replace(' is', ',')}\n"
    publisher.write_token(ADMIN)
    done = publisher.run("kubernetes", "--retire", "--all-nodes")
    assert named.replace(" is", ",") in done.stderr
    assert read_lasting(cluster_node) == before


def test_what_others_take_over_stays_theirs_after_the_removal(
    publisher: Publisher, cluster_node: ClusterNode
) -> None:
    """Also when a publisher comes back: it has not written to the node then."""
    publisher.stop()
    cluster_node.patch({"metadata": {"labels": {"vitald.io/status": "theirs"}}})
    done = publisher.run("kubernetes", "--retire")
    assert "kept: label vitald.io/status, managed by vitald-tests" in done.stdout.splitlines()
    publisher.start()
    until(lambda: publisher.read_log("sink_failed"), "the refusal")
    assert (cluster_node.labels, cluster_node.conditions) == ({"status": "theirs"}, {})


def test_a_refusal_is_told(publisher: Publisher) -> None:
    publisher.stop()
    publisher.write_token("nobody")
    done = publisher.run("kubernetes", "--retire")
    assert (done.returncode, "401" in done.stderr) == (69, True)


def test_another_prefix_takes_the_place_of_the_former(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    until(lambda: list_own_keys(cluster_node) == [_KEY], "the taint")
    publisher.stop()
    text = publisher.config.read_text()
    publisher.config.write_text(f'{text}\nprefix = "gpu.example.com"\nannotation = false\n')
    publisher.start()
    cluster_node.wait_for_status("False", "gpu.example.com/Healthy")
    until(lambda: not cluster_node.annotations, "no annotation")
    assert {type_.partition("/")[0] for type_ in cluster_node.conditions} == {"gpu.example.com"}
    assert cluster_node.labels == {}
    until(
        lambda: list_own_keys(cluster_node) == ["gpu.example.com/unhealthy"],
        "the new taint alone",
    )


# --- the scheduler


@contextmanager
def play_kubelet(cluster_node: ClusterNode) -> Iterator[None]:
    """Ready, with capacity, and its lease renewed."""
    ended = threading.Event()
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    plane, name = cluster_node.plane, cluster_node.name

    def show_life() -> None:
        now = time.time()
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": format_rfc3339(now, "microseconds"),
            },
        }
        if plane.call("POST", leases, lease)[0] == 409:
            plane.demand("PATCH", f"{leases}/{name}", {"spec": lease["spec"]}, content_type=MERGE)

    def live() -> None:
        while not ended.wait(2.0):
            show_life()

    moment = format_rfc3339(time.time(), "seconds")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastTransitionTime": moment,
        "lastHeartbeatTime": moment,
    }
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    show_life()
    cluster_node.patch(
        {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    )
    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def create_pod(cluster_node: ClusterNode, name: str) -> Callable[[], Json]:
    """A pod for this node only. Returns what reads it."""
    pods = "/api/v1/namespaces/default/pods"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": cluster_node.name},
            "automountServiceAccountToken": False,
            "containers": [{"name": "job", "image": "job"}],
        },
    }
    cluster_node.plane.demand("POST", pods, pod)
    return lambda: cluster_node.plane.demand("GET", f"{pods}/{name}")


def test_no_pod_lands_on_a_node_that_the_taint_closed(
    publisher: Publisher, node: Node, cluster_node: ClusterNode, control_plane: ControlPlane
) -> None:
    controllers = control_plane.controllers(
        *("node-lifecycle-controller", "taint-eviction-controller"),
        *("serviceaccount-controller", "namespace-controller"),
    )
    with controllers, play_kubelet(cluster_node):
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        until(lambda: control_plane.call("GET", account)[0] == 200, "the default account")
        first = create_pod(cluster_node, f"first-{cluster_node.name}")
        until(lambda: "nodeName" in first()["spec"], "the first pod's node")
        node.write(xid(1))
        until(lambda: list_own_keys(cluster_node) == [_KEY], "the taint")
        second = create_pod(cluster_node, f"second-{cluster_node.name}")

        def read_obstacle() -> str:
            conditions = second().get("status", {}).get("conditions", [])
            return " ".join(each.get("message", "") for each in conditions)

        until(lambda: "untolerated taint" in read_obstacle(), "the obstacle")
        assert "nodeName" not in second()["spec"]
        clear_findings(node)
        until(lambda: "nodeName" in second()["spec"], "the second pod's node")
        assert second()["spec"]["nodeName"] == cluster_node.name
