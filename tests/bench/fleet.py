"""
fleet: what a cluster's API server gets from `vitald publish`, on paper.

One real node is published to a real API server, with the token of a pod. The bytes of its requests
and answers, as HTTP and without TLS, are multiplied by how often the publisher may send them, for
10,000 nodes: quiet; in a storm, in which all nodes fault within a minute; in the worst minute that
the limits allow; and as the API server returns after an outage. An answer is the whole Node object,
and so is each change that the watch sends, of the kubelet's, too; so the node has what a kubelet
writes: 50 images (its default `nodeStatusMaxImages`), four conditions and capacities. Beside them:
how long the API server takes, over a connection that is kept, on this machine.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from tests.bench.measure import Json, Skipped, load, memory_mib, scratch, spread
from tests.control_plane.build import find_built_programs
from tests.control_plane.cluster_node import NAMES, ClusterNode, create_cluster_node
from tests.control_plane.plane import ADMIN, PUBLISHERS_RULES, ControlPlane
from tests.control_plane.publisher import Publisher
from tests.control_plane.relay import Relay, RelayedRequest
from tests.harness import Node
from tests.system.lines import xid
from tests.waiting import WAIT_S
from vitald.publish.kubernetes import node_events, node_watch
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.retry import _UNREACHABLE
from vitald.publish.sink import _WRITES_PER_MINUTE

NODES = 10_000
FAULTS = 8  # on the node, all its GPUs
LATENCIES = 200
_IMAGES = 50  # KubeletConfiguration, nodeStatusMaxImages
_MINUTE_S = 60.0
_KUBELET_S = 300.0  # KubeletConfiguration, nodeStatusReportFrequency
_ACCOUNT = "vitald-publish"
_SETTLE_S = 8.0  # longer than the pause before better news


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one kind of request on the average, in bytes."""

    sent: float
    received: float

    @staticmethod
    def of(requests: Sequence[RelayedRequest]) -> Cost:
        assert requests
        return Cost(
            sent=mean(each.sent for each in requests),
            received=mean(each.received for each in requests),
        )

    def describe(self) -> Json:
        return {"sent": round(self.sent), "received": round(self.received)}


def run() -> Json:
    if find_built_programs() is None:
        raise Skipped("no Kubernetes control plane: python -m tests.control_plane.build")
    with (
        scratch() as folder,
        ControlPlane(folder / "plane", NAMES) as plane,
        create_cluster_node(plane) as cluster_node,
    ):
        make_realistic(cluster_node)
        plane.create_service_account("kube-system", _ACCOUNT, PUBLISHERS_RULES)
        token = plane.create_pod_token(cluster_node.name, "kube-system", _ACCOUNT)
        with (
            Node(folder / "node") as daemon,
            Relay(plane) as relay,
            Publisher(
                folder / "publish", daemon, cluster_node, server=relay.server, token=token
            ) as publisher,
        ):
            quiet, storm = _measure_requests(daemon, cluster_node, relay)
            assert publisher.process is not None
            memory = memory_mib(publisher.process.pid)
        latency = measure_latency(plane, cluster_node)
    heartbeat_s = KubernetesSettings().heartbeat_s
    watch_s = (node_watch._SHORTEST_S + node_watch._LONGEST_S) / 2
    always = {"WATCH": 1 / watch_s, "CHANGE": 1 / _KUBELET_S}
    return {
        "nodes": NODES,
        "bytes_a_request": {
            "quiet": {kind: cost.describe() for kind, cost in quiet.items()},
            f"with_{FAULTS}_findings": {kind: cost.describe() for kind, cost in storm.items()},
        },
        "a_second": {
            "quiet": _multiply(quiet, always | {"PATCH": 1 / heartbeat_s}),
            "storm": _multiply(
                storm, always | {"PATCH": 1 / _MINUTE_S, "POST": FAULTS / _MINUTE_S}
            ),
            "limit": _multiply(
                storm,
                always
                | {
                    "PATCH": _WRITES_PER_MINUTE / _MINUTE_S,
                    "POST": (node_events._PER_MINUTE + node_events._BURST) / _MINUTE_S,
                },
            ),
            "return_of_the_api_server": _multiply(
                storm,
                dict.fromkeys(("LIST", "WATCH", "PATCH"), 1 / _UNREACHABLE.longest_s),
            ),
        },
        "latency_ms": latency,
        "publisher_mib": memory,
        "load": load(),
    }


def make_realistic(cluster_node: ClusterNode) -> None:
    """What a kubelet adds to its Node object, in its size."""
    name = "registry.example.com/a-team/a-project/an-image-of-usual-length"
    kubelets = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    quantities = {"cpu": "192", "memory": "2113429432Ki", "pods": "110", "nvidia.com/gpu": "8"}
    cluster_node.patch(
        {
            "status": {
                "capacity": quantities,
                "allocatable": quantities,
                "conditions": [
                    {
                        "type": type_,
                        "status": "False",
                        "reason": f"KubeletHasSufficient{type_}",
                        "message": f"kubelet has sufficient {type_} available",
                        "lastHeartbeatTime": moment,
                        "lastTransitionTime": moment,
                    }
                    for type_ in kubelets
                ],
                "images": [
                    {
                        "names": [f"{name}@sha256:{number:064x}", f"{name}:v1.{number}.0"],
                        "sizeBytes": 100_000_000 + number,
                    }
                    for number in range(_IMAGES)
                ],
            }
        }
    )


def _measure_requests(
    daemon: Node, cluster_node: ClusterNode, relay: Relay
) -> tuple[dict[str, Cost], dict[str, Cost]]:
    """By kind: while the node is well, and as it falls ill."""
    cluster_node.wait_for_status("True")
    time.sleep(_SETTLE_S)
    quiet = _group_costs(relay.requests)
    before = len(relay.requests)
    daemon.write(*(xid(number, pci=f"0000:{number + 16:02x}:00") for number in range(FAULTS)))
    cluster_node.wait_for_status("False")
    time.sleep(_SETTLE_S)
    storm = _group_costs(relay.requests[before:])
    return quiet, {**quiet, **storm}  # the watch goes on


def _group_costs(requests: Sequence[RelayedRequest]) -> dict[str, Cost]:
    """LIST, WATCH, PATCH and POST; CHANGE: what the watch sends of one change."""
    found: dict[str, list[RelayedRequest]] = {}
    for request in requests:
        if request.status < 300:
            found.setdefault(_name_kind(request), []).append(request)
    costs = {kind: Cost.of(each) for kind, each in found.items()}
    change = Cost(sent=0.0, received=mean(len(each.answer) for each in found["PATCH"]))
    return {**costs, "CHANGE": change}


def _name_kind(request: RelayedRequest) -> str:
    if "watch=true" in request.path:
        return "WATCH"
    return "LIST" if "fieldSelector" in request.path else request.method


def _multiply(costs: dict[str, Cost], per_s: dict[str, float]) -> Json:
    """All nodes do each kind so often a second. Each patch comes back as a change, too."""
    rates = {kind: NODES * rate for kind, rate in per_s.items()}
    rates["CHANGE"] = rates.get("CHANGE", 0.0) + rates["PATCH"]
    return {
        "requests": {kind: round(rate, 1) for kind, rate in rates.items() if kind != "CHANGE"},
        "sent_kib": _sum_kib(rates, {kind: cost.sent for kind, cost in costs.items()}),
        "received_kib": _sum_kib(rates, {kind: cost.received for kind, cost in costs.items()}),
    }


def _sum_kib(rates: dict[str, float], sizes: dict[str, float]) -> float:
    return round(sum(rate * sizes[kind] for kind, rate in rates.items()) / 1024, 1)


def measure_latency(plane: ControlPlane, cluster_node: ClusterNode) -> Json:
    """As the publisher asks: a GET of the node and a patch of its status."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1",
        plane.port,
        timeout=WAIT_S,
        context=ssl.create_default_context(cafile=str(plane.certificate)),
    )
    taken: dict[str, list[float]] = {"GET": [], "PATCH": []}
    for number in range(LATENCIES):
        annotations = {"vitald.io/findings": "x" * 2048 + str(number)}
        for method, path, body in (
            ("GET", cluster_node.path, None),
            ("PATCH", f"{cluster_node.path}/status", {"metadata": {"annotations": annotations}}),
        ):
            begun = time.perf_counter()
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {
                    "Authorization": f"Bearer {ADMIN}",
                    "Content-Type": "application/strategic-merge-patch+json",
                },
            )
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            taken[method].append(time.perf_counter() - begun)
    connection.close()
    return {method: spread(seconds) for method, seconds in taken.items()}
