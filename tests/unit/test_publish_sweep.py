"""What the sweep does, and when. The rest is in tests/system/test_publish_sweep.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.desired import HEARTBEAT_STALE, ConditionStatus, DesiredCondition
from vitald.publish.kubernetes.lease import DURATION_S, Lease
from vitald.publish.kubernetes.node_object import (
    MANAGER,
    NodeCondition,
    NodeObject,
)
from vitald.publish.kubernetes.reconcile import LastTransition, decide_transition
from vitald.publish.kubernetes.stale import build_stale_patch
from vitald.publish.kubernetes.sweep import LOOK_S, Sweep
from vitald.publish_sections import KubernetesSettings
from vitald.timestamps import format_rfc3339

NOW = 1_760_000_000.0
LONG_AGO = format_rfc3339(NOW - 10_000, "seconds")
ORDERS = KubernetesSettings(conditions=("own", "hyperpod"))
STATUS = "sagemaker.amazonaws.com/node-health-status"


def condition(type_: str, status: str, reason: str = "Xid79") -> NodeCondition:
    return NodeCondition(
        type=type_,
        status=status,
        reason=reason,
        message="text",
        last_transition=LONG_AGO,
        last_heartbeat=LONG_AGO,
    )


def build_node(*conditions: NodeCondition, **labels: str) -> NodeObject:
    """All of it vitald's. A label's name has no prefix where it is our own."""
    named = {name if "/" in name else f"vitald.io/{name}": word for name, word in labels.items()}
    bare = NodeObject(
        name="n",
        uid="u",
        resource_version="7",
        labels=named,
        annotations={"vitald.io/findings": "{}"},
        conditions={each.type: each for each in conditions},
        written_at=LONG_AGO,
    )
    return replace(bare, managers=dict.fromkeys(bare.list_names(), frozenset({MANAGER})))


def patch_of(node: NodeObject, settings: KubernetesSettings) -> tuple[Any, Any]:
    patch = cast("Any", build_stale_patch(node, settings, NOW))
    assert patch["metadata"]["resourceVersion"] == "7"
    return patch["metadata"], patch["status"]["conditions"]


def test_what_a_silent_publisher_said_becomes_unknown() -> None:
    node = build_node(
        condition("vitald.io/Healthy", "False"),
        condition("vitald.io/RebootRequired", "Unknown", "DaemonSilent"),
        status="unhealthy",
        action="reboot_node",
    )
    metadata, (healthy, reboot) = patch_of(node, KubernetesSettings())
    assert metadata["labels"] == {"vitald.io/status": "unknown", "vitald.io/action": "none"}
    assert metadata["annotations"] == {"vitald.io/findings": None}
    assert (healthy["status"], healthy["reason"]) == ("Unknown", HEARTBEAT_STALE)
    assert healthy["lastTransitionTime"] == format_rfc3339(NOW, "seconds")
    assert healthy["lastHeartbeatTime"] == LONG_AGO
    assert (reboot["reason"], reboot["lastTransitionTime"]) == (HEARTBEAT_STALE, LONG_AGO)


def test_what_is_said_is_not_said_again() -> None:
    node = build_node(condition("vitald.io/Healthy", "False"), status="unhealthy", action="none")
    _, (written,) = patch_of(node, KubernetesSettings())
    said = NodeCondition(
        type=written["type"],
        status=written["status"],
        reason=written["reason"],
        message=written["message"],
        last_transition=written["lastTransitionTime"],
        last_heartbeat=written["lastHeartbeatTime"],
    )
    after = replace(build_node(said, status="unknown", action="none"), annotations={})
    assert build_stale_patch(after, KubernetesSettings(), NOW + 900) is None


def test_without_a_condition_there_is_no_heartbeat_to_miss() -> None:
    """With `conditions = []`, a publisher writes only what changes."""
    node = build_node(status="healthy", action="none")
    assert build_stale_patch(node, KubernetesSettings(conditions=()), NOW) is None


def test_what_others_manage_is_not_touched() -> None:
    node = build_node(condition("vitald.io/Healthy", "False"), status="healthy")
    others = replace(node, managers=dict.fromkeys(node.list_names(), frozenset({"somebody"})))
    assert build_stale_patch(others, KubernetesSettings(), NOW) is None


def test_what_a_former_configuration_wrote_is_removed() -> None:
    node = build_node(condition("KernelReady", "False"), condition("vitald.io/Healthy", "True"))
    _, (healthy, kernel) = patch_of(node, KubernetesSettings())
    assert healthy["type"] == "vitald.io/Healthy"
    assert kernel == {"type": "KernelReady", "$patch": "delete"}


@pytest.mark.parametrize(
    ("word", "removed"),
    [("Schedulable", {STATUS: None}), ("UnschedulablePendingReplacement", {})],
)
def test_an_order_to_hyperpod_stays_and_fitness_does_not(
    word: str, removed: dict[str, None]
) -> None:
    node = build_node(condition("vitald.io/Healthy", "False"), **{STATUS: word})
    metadata, _ = patch_of(node, ORDERS)
    assert metadata["labels"] == removed


def test_a_publisher_that_returns_begins_a_new_transition() -> None:
    """Whoever waits ten minutes waits again: meanwhile nobody knew."""
    stale = replace(
        condition("vitald.io/Healthy", "Unknown", HEARTBEAT_STALE),
        last_transition=format_rfc3339(NOW - 600, "seconds"),
    )
    wanted = DesiredCondition(
        type=stale.type,
        status=ConditionStatus.FALSE,
        reason="Xid79",
        message="",
        changed_at=NOW - 10_000,
    )
    remembered = LastTransition("False", NOW - 10_000)
    assert decide_transition(wanted, remembered, stale, NOW) == LastTransition("False", NOW)


# --- when


@dataclass
class Cluster:
    """An API server with one node of vitald, and Leases."""

    present: NodeObject = field(
        default_factory=lambda: build_node(condition("vitald.io/Healthy", "True"))
    )
    node: str = ""
    has_pod: bool = True
    lease: dict[str, Any] | None = None
    failures: list[Exception] = field(default_factory=list)
    patches: list[Mapping[str, object]] = field(default_factory=list)
    reads: int = 0

    async def list_metadata(self) -> AsyncIterator[NodeObject]:
        yield self.present

    async def read_node(self) -> NodeObject:
        self.reads += 1
        if self.failures:
            raise self.failures.pop()
        return self.present

    async def has_publisher(self, namespace: str, labels: str, node: str) -> bool:
        return self.has_pod

    async def patch_status(self, patch: Mapping[str, object]) -> NodeObject:
        self.patches.append(patch)
        return self.present

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.lease

    async def create_lease(self, namespace: str, lease: dict[str, Any]) -> dict[str, Any]:
        self.lease = {"metadata": {"resourceVersion": "1"}, "spec": lease["spec"]}
        return self.lease

    async def patch_lease(self, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        version = self.lease["metadata"]["resourceVersion"]
        if patch["metadata"]["resourceVersion"] != version:
            raise ApiRefused(409, "changed")
        spec = {**self.lease["spec"], **patch["spec"]}
        self.lease = {"metadata": {"resourceVersion": str(int(version) + 1)}, "spec": spec}
        return self.lease


class Looking:
    """The sweep of a cluster, and its clock."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.now = 0.0
        self.ready_file = folder / "sweep"
        self._cluster = cluster
        client = cast("ClusterClient", cluster)
        self.sweep = Sweep(
            client,
            KubernetesSettings(),
            Lease(client=client, namespace="n", name="l", identity="me"),
            pods="a=b",
            ready_file=self.ready_file,
            clock=lambda: self.now,
        )

    def look_on(self, minutes: int) -> int:
        """How many patches there are now."""
        for _ in range(minutes):
            self.now += LOOK_S
            asyncio.run(self.sweep.look())
        return len(self._cluster.patches)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def looking(cluster: Cluster, tmp_path: Path) -> Looking:
    return Looking(cluster, tmp_path)


def test_three_heartbeats_that_were_missed_are_silence(looking: Looking) -> None:
    assert looking.look_on(15) == 0
    assert looking.look_on(1) == 1


def test_every_write_begins_anew(looking: Looking, cluster: Cluster) -> None:
    for minute in range(5):
        assert looking.look_on(10) == 0
        cluster.present = replace(cluster.present, written_at=f"2026-11-28T00:{minute:02}:00Z")


def test_a_node_that_was_created_anew_begins_anew(looking: Looking, cluster: Cluster) -> None:
    looking.look_on(10)
    cluster.present = replace(cluster.present, uid="another")
    assert looking.look_on(15) == 0


def test_a_gap_begins_anew(looking: Looking) -> None:
    looking.look_on(10)
    looking.now += 2 * LOOK_S
    assert looking.look_on(15) == 0
    assert looking.look_on(1) == 1


def test_a_node_that_was_written_since_the_list_is_left(looking: Looking, cluster: Cluster) -> None:
    looking.look_on(15)
    listed = cluster.present

    async def read_node() -> NodeObject:
        return replace(listed, written_at="2026-11-28T00:00:00Z")

    cluster.read_node = read_node  # type: ignore[method-assign]
    assert looking.look_on(1) == 0


def test_a_silent_node_is_looked_at_once_in_a_while(looking: Looking, cluster: Cluster) -> None:
    looking.look_on(60)
    assert cluster.reads == 3


@pytest.mark.parametrize("status", [403, 409, 422])
def test_what_is_refused_is_tried_again_with_the_next_look(
    looking: Looking, cluster: Cluster, status: int
) -> None:
    looking.look_on(15)
    cluster.failures.append(ApiRefused(status, "no"))
    looking.ready_file.unlink()
    assert looking.look_on(1) == 0
    assert looking.ready_file.exists() == (status == 409)
    assert looking.look_on(1) == 1
    assert looking.ready_file.exists()


@pytest.mark.parametrize("error", [ApiUnreachable("gone"), ApiRefused(429, "slowly")])
def test_a_failed_look_is_no_success(looking: Looking, cluster: Cluster, error: Exception) -> None:
    looking.look_on(15)
    looking.ready_file.unlink()
    cluster.failures.append(error)
    with pytest.raises(type(error)):
        looking.look_on(1)
    assert not looking.ready_file.exists()
    assert looking.look_on(1) == 1


# --- the Lease


def hold(lease: Lease, now: float) -> bool:
    return asyncio.run(lease.hold(now))


def make_lease(cluster: Cluster, identity: str) -> Lease:
    return Lease(client=cast("ClusterClient", cluster), namespace="n", name="l", identity=identity)


def test_one_holds_it_while_it_renews_it(cluster: Cluster) -> None:
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    for now in range(0, 1200, 60):
        assert hold(first, now)
        assert not hold(second, now)


def test_it_expires_by_the_clock_of_who_waits(cluster: Cluster) -> None:
    """Whatever the holder's clock says."""
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    assert hold(first, 0)
    assert cluster.lease is not None
    cluster.lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
    assert not hold(second, 10_000)
    assert not hold(second, 10_000 + DURATION_S - 1)
    assert hold(second, 10_000 + DURATION_S)
    assert not hold(first, 20_000)


def test_what_was_released_is_free(cluster: Cluster) -> None:
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    assert hold(first, 0)
    asyncio.run(first.release())
    assert hold(second, 1)
    asyncio.run(first.release())
    assert not hold(first, 2)
    assert cluster.lease is not None
    assert cluster.lease["spec"]["leaseTransitions"] == 2


def test_of_two_one_is_faster(cluster: Cluster) -> None:
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    assert hold(first, 0)
    asyncio.run(first.release())
    seen = cluster.lease

    async def read_lease(namespace: str, name: str) -> dict[str, Any] | None:
        return seen

    cluster.read_lease = read_lease  # type: ignore[method-assign]
    assert hold(first, 1)
    assert not hold(second, 1)


def test_one_that_is_no_lease_of_ours_is_left_until_it_expires(cluster: Cluster) -> None:
    cluster.lease = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": ["x"]}}
    lease = make_lease(cluster, "me")
    assert not hold(lease, 0)
    assert hold(lease, DURATION_S)
