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
from vitald.publish.kubernetes.node_object import (
    MANAGER,
    NodeCondition,
    NodeObject,
)
from vitald.publish.kubernetes.reconcile import LastTransition, decide_transition
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.sweep import (
    INTERVAL_S,
    LEASE_RENEW_S,
    LEASE_S,
    Lease,
    Sweep,
    build_stale_patch,
)
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


def test_what_a_silent_publisher_wrote_becomes_unknown() -> None:
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


def test_what_is_written_is_not_written_again() -> None:
    node = build_node(condition("vitald.io/Healthy", "False"), status="unhealthy", action="none")
    _, (written,) = patch_of(node, KubernetesSettings())
    unknown = NodeCondition(
        type=written["type"],
        status=written["status"],
        reason=written["reason"],
        message=written["message"],
        last_transition=written["lastTransitionTime"],
        last_heartbeat=written["lastHeartbeatTime"],
    )
    after = replace(build_node(unknown, status="unknown", action="none"), annotations={})
    assert build_stale_patch(after, KubernetesSettings(), NOW + 900) is None


def test_without_a_condition_there_is_no_heartbeat_to_miss() -> None:
    """With `conditions = []`, a publisher writes only what changes."""
    node = build_node(status="healthy", action="none")
    assert build_stale_patch(node, KubernetesSettings(conditions=()), NOW) is None


def test_what_others_manage_is_not_touched() -> None:
    node = build_node(condition("vitald.io/Healthy", "False"), status="healthy")
    others = replace(node, managers=dict.fromkeys(node.list_names(), frozenset({"another"})))
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
    """A reader that waits for ten minutes waits again."""
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
    assert decide_transition(wanted, remembered, stale, NOW) == LastTransition(
        "False", NOW, wanted.reason
    )


# --- when


@dataclass
class Cluster:
    """An API server with one node of vitald, and Leases."""

    present: NodeObject = field(
        default_factory=lambda: build_node(condition("vitald.io/Healthy", "True"))
    )
    node: str = ""
    reread: NodeObject | None = None  # where it was written to since the list
    has_pod: bool = True
    lease: dict[str, Any] | None = None
    cached_lease: dict[str, Any] | None = None  # an older version, as a slow API server gives it
    failures: list[Exception] = field(default_factory=list)
    patches: list[Mapping[str, object]] = field(default_factory=list)
    reads: int = 0

    async def list_metadata(self) -> AsyncIterator[NodeObject]:
        yield self.present

    async def read_node(self) -> NodeObject:
        self.reads += 1
        if self.failures:
            raise self.failures.pop()
        return self.present if self.reread is None else self.reread

    async def has_publisher(self, namespace: str, labels: str, node: str) -> bool:
        return self.has_pod

    async def patch_status(self, patch: Mapping[str, object]) -> NodeObject:
        self.patches.append(patch)
        return self.present

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.cached_lease or self.lease

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


class RunningSweep:
    """A sweep of the cluster, on a clock that the test turns."""

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

    def observe(self, minutes: int) -> int:
        """How many patches there are now."""
        for _ in range(minutes):
            self.now += INTERVAL_S
            asyncio.run(self.sweep.check_nodes())
        return len(self._cluster.patches)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def running(cluster: Cluster, tmp_path: Path) -> RunningSweep:
    return RunningSweep(cluster, tmp_path)


def test_three_heartbeats_that_were_missed_are_silence(running: RunningSweep) -> None:
    assert running.observe(15) == 0
    assert running.observe(1) == 1


def test_every_write_begins_anew(running: RunningSweep, cluster: Cluster) -> None:
    for minute in range(5):
        assert running.observe(10) == 0
        cluster.present = replace(cluster.present, written_at=f"2026-11-28T00:{minute:02}:00Z")


def test_a_node_that_was_created_anew_begins_anew(running: RunningSweep, cluster: Cluster) -> None:
    running.observe(10)
    cluster.present = replace(cluster.present, uid="another")
    assert running.observe(15) == 0


def test_a_gap_begins_anew(running: RunningSweep) -> None:
    running.observe(10)
    running.now += 2 * INTERVAL_S
    assert running.observe(15) == 0
    assert running.observe(1) == 1


def test_a_node_that_was_written_since_the_list_is_left(
    running: RunningSweep, cluster: Cluster
) -> None:
    running.observe(15)
    cluster.reread = replace(cluster.present, written_at="2026-11-28T00:00:00Z")
    assert running.observe(1) == 0


def test_a_silent_node_is_checked_once_in_a_while(running: RunningSweep, cluster: Cluster) -> None:
    running.observe(60)
    assert cluster.reads == 3


@pytest.mark.parametrize("status", [403, 409, 422])
def test_what_is_refused_is_tried_again_with_the_next_check(
    running: RunningSweep, cluster: Cluster, status: int
) -> None:
    running.observe(15)
    cluster.failures.append(ApiRefused(status, "no"))
    running.ready_file.unlink()
    assert running.observe(1) == 0
    assert running.ready_file.exists() == (status == 409)
    assert running.observe(1) == 1
    assert running.ready_file.exists()


@pytest.mark.parametrize("error", [ApiUnreachable("gone"), ApiRefused(429, "slowly")])
def test_a_failed_check_is_no_success(
    running: RunningSweep, cluster: Cluster, error: Exception
) -> None:
    running.observe(15)
    running.ready_file.unlink()
    cluster.failures.append(error)
    with pytest.raises(type(error)):
        running.observe(1)
    assert not running.ready_file.exists()
    assert running.observe(1) == 1


def test_a_follower_observes_and_corrects_once_it_leads(
    running: RunningSweep, cluster: Cluster, tmp_path: Path
) -> None:
    other = make_lease(cluster, "other")
    assert hold(other, 0)
    for minute in range(15):
        assert running.observe(1) == 0
        assert hold(other, (minute + 1) * INTERVAL_S)
    assert running.ready_file.exists()
    assert running.observe(1) == 0
    asyncio.run(other.release())
    assert running.observe(1) == 1


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
    """Not by that of the holder."""
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    assert hold(first, 0)
    assert cluster.lease is not None
    cluster.lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
    assert not hold(second, 10_000)
    assert not hold(second, 10_000 + LEASE_S - LEASE_RENEW_S)
    assert hold(second, 10_000 + LEASE_S)
    assert not hold(first, 20_000)


def test_what_was_released_is_free(cluster: Cluster) -> None:
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    assert hold(first, 0)
    asyncio.run(first.release())
    assert hold(second, 1)
    asyncio.run(first.release())
    assert not hold(first, 2)
    assert cluster.lease is not None
    assert cluster.lease["spec"]["holderIdentity"] == "second"


def test_of_two_one_is_faster(cluster: Cluster) -> None:
    first, second = (make_lease(cluster, name) for name in ("first", "second"))
    assert hold(first, 0)
    asyncio.run(first.release())
    cluster.cached_lease = cluster.lease
    assert hold(first, 1)
    assert not hold(second, 1)


def test_one_that_is_no_lease_of_ours_is_left_until_it_expires(cluster: Cluster) -> None:
    cluster.lease = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": ["x"]}}
    lease = make_lease(cluster, "me")
    assert not hold(lease, 0)
    assert hold(lease, LEASE_S)
