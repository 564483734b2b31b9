"""`vitald publish` with the real daemon and a real Kubernetes API server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest

from tests.control_plane.audit import AuditedRequest, count_busiest_minute
from tests.control_plane.cluster_node import HEALTHY, PREFIX, REBOOT, REPLACEMENT, ClusterNode
from tests.control_plane.plane import MERGE, PUBLISHERS_RULES, ControlPlane
from tests.control_plane.publisher import Publisher
from tests.control_plane.relay import Relay
from tests.harness import Node
from tests.system.lines import dated, dbe, xid
from tests.waiting import until
from vitald.judge.open_findings import MAX_FINDINGS
from vitald.publish.daemon_feed import GRACE_S
from vitald.publish.kubernetes.desired import MAX_ANNOTATION_BYTES, MAX_MESSAGE_BYTES
from vitald.publish.retry import RateLimit
from vitald.publish.sink import BETTER_S
from vitald.timestamps import parse_rfc3339

MakePublisher = Callable[..., Publisher]
WRITES_PER_MINUTE, BURST = 12, 8
MEMORY_KIB = 40 * 1024


@pytest.fixture
def publisher(make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode) -> Publisher:
    """Running, and the node is well."""
    running = make_publisher(node)
    running.start()
    cluster_node.wait_for_status("True")
    return running


def clear_findings(node: Node) -> None:
    for finding in node.findings():
        status, answer = node.request(
            "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "replaced"}
        )
        assert status == 200, answer


def assert_transitions_move_with_the_status(writes: Sequence[AuditedRequest]) -> None:
    """In each pair of writes, for each condition. After a silence it may be the time before."""
    known: set[tuple[str, str, str]] = set()
    for before, after in pairwise(writes):
        known |= {
            (type_, each["status"], each["lastTransitionTime"])
            for type_, each in before.conditions.items()
        }
        for type_, now in after.conditions.items():
            then = before.conditions.get(type_, now)
            since, former = (each["lastTransitionTime"] for each in (now, then))
            if now["status"] == then["status"]:
                assert since == former, (then, now)
            else:  # the same second where a status did not last longer
                was_silent = then["status"] == "Unknown"
                is_known = (type_, now["status"], since) in known
                assert since >= former or (was_silent and is_known), (then, now)


def test_a_fault_is_visible_within_a_second(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    for round_ in range(3):
        node.write(xid(1000 + round_))
        took = cluster_node.wait_for_status("False")
        print(f"fault line to condition: {took:.2f} s")
        assert cluster_node.read_reason() == "Xid79"
        assert cluster_node.read_status(REBOOT) == "False", "the kernel's text alone"
        assert cluster_node.labels == {"status": "unhealthy", "action": "reboot_node"}
        assert [finding["code"] for finding in cluster_node.findings["findings"]] == ["xid/79"]
        clear_findings(node)
        took = cluster_node.wait_for_status("True")
        print(f"cleared to condition: {took:.2f} s")
        assert cluster_node.read_status(REBOOT) == "False"
        assert cluster_node.labels == {"status": "healthy", "action": "none"}
        assert cluster_node.findings == {"open": 0, "findings": []}
    assert_transitions_move_with_the_status(cluster_node.read_writes())
    for kind in ("Rss", "Pss"):
        kib = publisher.read_memory_kib(kind)
        print(f"vitald publish: {kind} {kib / 1024:.1f} MiB")
    assert publisher.read_memory_kib("Pss") < MEMORY_KIB


def test_a_reboot_is_required_for_what_two_sources_report(node_with_lost_gpu: ClusterNode) -> None:
    assert node_with_lost_gpu.read_reason(REBOOT) == "Xid79"
    assert node_with_lost_gpu.read_status(REPLACEMENT) == "False"


def test_two_faults_have_one_transition_time(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(dbe(1))
    cluster_node.wait_for_status("False")
    first = cluster_node.read_transition()
    time.sleep(1.1)  # times are written in seconds: the next one would differ
    node.write(xid(2, pci="0000:b3:00"))
    until(lambda: cluster_node.read_reason() == "Xid79", "the worse reason")
    assert cluster_node.read_transition() == first
    assert len(cluster_node.findings["findings"]) == 2


def test_the_status_is_right_after_anything_was_killed(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for round_ in range(6):
        victims = dice.choice([(publisher,), (node,), (publisher, node)])
        time.sleep(dice.uniform(0.0, 0.7))
        is_ill = dice.random() < 0.5
        if is_ill:
            node.write(dated(xid(round_)))  # it may be unread when the daemon is killed
        else:
            clear_findings(node)
        time.sleep(dice.uniform(0.0, 0.7))
        for victim in victims:
            victim.kill()
        time.sleep(dice.uniform(0.0, 0.7))
        for victim in victims:
            victim.start()
        expected = {"healthy": "True", "unhealthy": "False"}[node.status()["status"]]
        cluster_node.wait_for_status(expected)
        assert cluster_node.labels["status"] == node.status()["status"]
    assert_transitions_move_with_the_status(cluster_node.read_writes())


def test_a_restarted_publisher_writes_nothing_that_is_there(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    before = cluster_node.read()["metadata"]["resourceVersion"]
    publisher.kill()
    (publisher.folder / "ready").unlink()
    publisher.start()
    until(lambda: not publisher.probe_readiness(), "the node to be compared")
    assert cluster_node.read()["metadata"]["resourceVersion"] == before


def test_a_publisher_that_is_stopped_takes_its_leave_and_a_killed_one_does_not(
    publisher: Publisher, node: Node
) -> None:
    """The daemon expects no more reports of the former, and names the latter once it is silent."""
    node.wait(lambda status: status.get("publishers"))
    publisher.kill()
    assert node.status()["publishers"]["sinks"]
    publisher.start()
    publisher.stop()
    assert not node.status().get("publishers")


def test_a_killed_daemon_is_unknown_within_a_second(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.kill()
    took = cluster_node.wait_for_status("Unknown")
    print(f"daemon killed to Unknown: {took:.2f} s")
    assert cluster_node.read_reason() == "DaemonSilent"
    assert cluster_node.read_status(REBOOT) == "Unknown"
    assert cluster_node.labels == {"status": "unknown", "action": "none"}
    node.start()
    cluster_node.wait_for_status("True")


def test_an_announced_restart_is_never_unknown(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    """But for one that takes long, as on a busy machine, and then not before the grace is over."""
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    restarts = []
    for _ in range(2):
        stopped = time.time()
        node.restart()
        restarts.append((stopped, time.time()))
    node.write(xid(2, pci="0000:b3:00"))
    until(lambda: cluster_node.findings["open"] == 2, "the next write")
    for write in cluster_node.read_writes():
        if write.conditions[HEALTHY]["status"] != "Unknown":
            continue
        stopped, answered = max(restart for restart in restarts if restart[0] < write.received)
        assert answered - stopped > GRACE_S / 2
        assert write.received - stopped >= GRACE_S


def test_a_daemon_that_does_not_come_back_is_unknown_after_its_grace(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.stop()
    took = cluster_node.wait_for_status("Unknown")
    print(f"announced stop to Unknown: {took:.2f} s")
    assert took > 8.0


@pytest.mark.parametrize("outage_s", [20.0])
def test_the_status_is_right_soon_after_an_outage_of_the_api_server(
    publisher: Publisher,
    node: Node,
    cluster_node: ClusterNode,
    control_plane: ControlPlane,
    outage_s: float,
) -> None:
    control_plane.stop_api_server()
    try:
        node.write(xid(1))
        time.sleep(outage_s)
    finally:
        restarted = time.time()
        control_plane.start_api_server()
    took = cluster_node.wait_for_status("False")
    print(f"API server away for {outage_s:g} s, ready to condition: {took:.2f} s")
    written = cluster_node.read_transition()
    opened = parse_rfc3339(node.findings()[0]["since"]).timestamp()
    assert opened - 1.0 <= written < restarted - 1.0, "when the fault came, not after the outage"
    assert_transitions_move_with_the_status(cluster_node.read_writes())


def test_what_others_overwrite_is_repaired(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    since = cluster_node.read_transition()
    until(lambda: list_verbs(cluster_node, 0) >= {"watch"}, "the watch")
    time.sleep(1.1)
    before = len(cluster_node.read_requests())
    # What a controller sends that read the list before our condition was there: the whole list.
    foreign = {"type": "Foreign", "status": "True", "reason": "Other", "message": "another's"}
    cluster_node.patch({"status": {"conditions": [foreign]}}, MERGE)
    labels = {f"{PREFIX}/status": "unhealthy", f"{PREFIX}/action": None, "foreign": "label"}
    cluster_node.patch(
        {"metadata": {"labels": labels, "annotations": {f"{PREFIX}/findings": "[]"}}}, MERGE
    )
    took = cluster_node.wait_for_status("True")
    until(lambda: cluster_node.labels.get("status") == "healthy", "the label")
    print(f"removed by another to repaired: {took:.2f} s")
    assert cluster_node.read_transition() == since
    assert set(cluster_node.conditions) > {"Foreign", HEALTHY}
    assert cluster_node.labels == {"status": "healthy", "action": "none"}
    assert cluster_node.findings == {"open": 0, "findings": []}
    assert cluster_node.read()["metadata"]["labels"]["foreign"] == "label"
    assert list_verbs(cluster_node, before) == {"patch"}, "compared with what the watch sent"


def list_verbs(cluster_node: ClusterNode, first: int) -> set[str]:
    """Of the requests from this one on."""
    return {request.verb for request in cluster_node.read_requests()[first:]}


def test_ten_thousand_faults_are_a_few_writes(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    """They last for more than a minute; MAX_FINDINGS stay open, and one that says that there were
    more.
    """
    begun = time.monotonic()
    for domain in range(100):
        node.write(*(xid(1, pci=f"{domain:04x}:{bus:02x}:00") for bus in range(1, 101)))
        time.sleep(0.7)
    node.wait(lambda status: status["openFindings"] == MAX_FINDINGS + 1)
    until(lambda: cluster_node.findings["open"] == MAX_FINDINGS + 1, "the last write")
    writes = cluster_node.read_writes()
    busiest = count_busiest_minute([write.received for write in writes])
    took = time.monotonic() - begun
    print(f"10,000 faults in {took:.0f} s: {len(writes)} writes, {busiest} in the busiest minute")
    assert busiest <= WRITES_PER_MINUTE
    assert_transitions_move_with_the_status(writes)
    assert "Unknown" not in {write.conditions[HEALTHY]["status"] for write in writes}
    for write in writes:
        for condition in write.conditions.values():
            assert len(condition["message"].encode()) <= MAX_MESSAGE_BYTES
        annotation = write.body["metadata"]["annotations"][f"{PREFIX}/findings"]
        assert len(annotation.encode()) <= MAX_ANNOTATION_BYTES
    print(f"Rss {publisher.read_memory_kib('Rss') / 1024:.1f} MiB")


def test_twenty_flaps_leave_writes_for_worse_news(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    """A fault comes and goes, at first slowly enough that each change is to be written; then the
    daemon dies.
    """
    for flap in range(20):
        node.write(xid(flap))
        node.wait(lambda status: status["status"] == "unhealthy")
        if flap < 6:
            cluster_node.wait_for_status("False")
        clear_findings(node)
        node.wait(lambda status: status["status"] == "healthy")
        if flap < 6:
            late = time.monotonic() + BETTER_S + 1.5
            until(lambda: cluster_node.read_status() == "True" or time.monotonic() > late)
    node.kill()
    took = cluster_node.wait_for_status("Unknown")
    *before, last = cluster_node.read_writes()
    limit = RateLimit(WRITES_PER_MINUTE - BURST, BURST)
    for write in before:
        limit.count(write.received)
    assert limit.find_wait_s(last.received, reserve=1) == 0.0, "one more would have been possible"
    busiest = count_busiest_minute([write.received for write in (*before, last)])
    print(f"20 flaps, then daemon killed to Unknown: {took:.2f} s; {busiest} writes in a minute")
    assert busiest <= WRITES_PER_MINUTE
    assert_transitions_move_with_the_status((*before, last))


def test_a_node_that_was_created_anew_gets_everything(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    before = cluster_node.uid
    cluster_node.delete()
    node.write(xid(2, pci="0000:b3:00"))  # compared while the node is gone
    until(
        lambda: any(request.code == 404 for request in cluster_node.read_requests()),
        "a request that found no node",
    )
    cluster_node.create()
    assert cluster_node.uid != before
    took = cluster_node.wait_for_status("False")
    print(f"created to written: {took:.2f} s")
    assert cluster_node.labels["status"] == "unhealthy"
    assert len(cluster_node.findings["findings"]) == 2
    assert publisher.read_log("sink_failed") == []


def test_without_the_right_to_watch_the_node_is_read(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode
) -> None:
    """As an earlier ClusterRole has it; `vitald status` names what is missing."""
    name, nodes = "vitald-publish-reads", {**PUBLISHERS_RULES[0], "verbs": ["get"]}
    plane = cluster_node.plane
    plane.create_service_account("kube-system", name, (nodes, *PUBLISHERS_RULES[1:]))
    token = plane.create_pod_token(cluster_node.name, "kube-system", name)
    make_publisher(node, token=token).start()
    cluster_node.wait_for_status("True")
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    assert list_verbs(cluster_node, 0) == {"list", "get", "patch"}
    refused = 'publishing to kubernetes-watch: DOWN: API server: 403: nodes "node'
    until(lambda: refused in node.cli("status").stdout, lambda: node.cli("status").stdout)


def test_a_drill_is_not_published(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    done = node.cli("drill", "xid", "79", "--device", "0000:65:00.0")
    assert done.returncode == 0, done.stderr
    node.wait(lambda status: status["findings"] or status["openFindings"])
    node.write(dbe(5, pci="0000:b3:00"))  # a real fault, so that something is written
    cluster_node.wait_for_status("False")
    assert [finding["code"] for finding in cluster_node.findings["findings"]] == ["xid/48"]
    for write in cluster_node.read_writes():
        assert "79" not in str(write.conditions), write.conditions


def test_a_rotated_token_is_used_at_once(
    publisher: Publisher, node: Node, cluster_node: ClusterNode, service_account: str
) -> None:
    first = {request.user for request in cluster_node.read_requests()}
    assert first == {f"system:node:{cluster_node.name}"}
    publisher.write_token(
        cluster_node.plane.create_pod_token(cluster_node.name, "kube-system", service_account)
    )
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    assert cluster_node.read_requests()[-1].user.endswith(f":{service_account}")


def test_a_refused_token_is_read_again_until_it_is_good(
    publisher: Publisher, node: Node, cluster_node: ClusterNode
) -> None:
    publisher.write_token("expired")
    node.write(xid(1))
    until(lambda: publisher.read_log("sink_failed"), "the refusal to be logged")
    assert "401" in publisher.read_log("sink_failed")[0]["error"]
    assert "expired" not in publisher.errors.read_text()
    until(lambda: not publisher.probe_readiness(), "it was written within two heartbeats")
    publisher.write_token(cluster_node.kubelet_token)
    cluster_node.wait_for_status("False")


def test_a_publisher_that_could_never_write_is_not_ready(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode
) -> None:
    """The probe says why: a person reads that in `kubectl describe pod`."""
    publisher = make_publisher(node, token="expired")
    assert publisher.probe_readiness().startswith("the publisher has not started")
    publisher.start()
    until(lambda: "kubernetes: API server: 401" in publisher.probe_readiness(), "the reason")
    publisher.write_token(cluster_node.kubelet_token)
    until(lambda: not publisher.probe_readiness(), "it to be ready")


@pytest.fixture
def relay(control_plane: ControlPlane) -> Iterator[Relay]:
    with Relay(control_plane) as running:
        yield running


def test_the_api_servers_wish_to_wait_is_respected(
    make_publisher: MakePublisher, node: Node, cluster_node: ClusterNode, relay: Relay
) -> None:
    wait_s = 6
    make_publisher(node, server=relay.server, kubernetes="events = false").start()
    cluster_node.wait_for_status("True")
    relay.refusals.append((429, {"Retry-After": str(wait_s)}))
    node.write(xid(1))
    cluster_node.wait_for_status("False")
    statuses = [request.status for request in relay.requests]
    refused, tried = relay.requests[statuses.index(429) :][:2]
    print(f"Retry-After {wait_s} s: tried again after {tried.at - refused.at:.1f} s")
    assert tried.at - refused.at >= wait_s


@pytest.fixture
def service_account(control_plane: ControlPlane) -> str:
    """One that may write the status of nodes."""
    name = "vitald-publish-tests"
    control_plane.create_service_account("kube-system", name, PUBLISHERS_RULES)
    return name
