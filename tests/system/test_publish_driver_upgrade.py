"""A driver upgrade of the GPU Operator, with the real daemon over the simulated library: its worker
lets go of the driver in time, and comes back.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.system.test_gpus_api import is_healthy, is_released, source, workers
from tests.waiting import until
from vitald.publish import driver_upgrade
from vitald.publish.driver_upgrade import (
    LABEL,
    RELEASE_REASON,
    DriverUpgradeMonitor,
    GpuReleases,
    ReleaseFailed,
)
from vitald.publish.kubernetes.client import KubernetesClient
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.state_store import StateStore
from vitald.simulator.simulated_node import SimulatedNode


class Label:
    """The node's label, as the API server gives it."""

    def __init__(self, state: str) -> None:
        self.state = state

    async def read_node(self) -> NodeObject:
        return NodeObject(name="n", uid="u", resource_version="1", labels={LABEL: self.state})


@pytest.fixture
def node(make_node: Callable[..., Node], tmp_path: Path) -> Node:
    require(shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc)")
    made = make_node(gpus=SimulatedNode(tmp_path / "gpus", "t4"))
    made.start()
    made.wait(is_healthy)
    return made


async def wait_for(node: Node, holds: Callable[[Json], bool]) -> None:
    await asyncio.to_thread(node.wait, holds)


def test_the_gpus_are_released_and_taken_back(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_upgrade, "_POLL_S", 0.2)
    monkeypatch.setattr(driver_upgrade, "_IDLE_POLL_S", 0.2)
    label = Label("wait-for-jobs-required")

    async def upgrade() -> None:
        store = StateStore(tmp_path / "publish")
        monitor = DriverUpgradeMonitor(
            cast("KubernetesClient", label), GpuReleases(node.socket), store
        )
        task = asyncio.ensure_future(monitor.run())
        label.state = "pod-deletion-required"
        await wait_for(node, is_released)
        assert workers(node) == [], "no process of ours has the driver open"
        assert RELEASE_REASON in str(source(node.status())["detail"])

        await asyncio.to_thread(node.restart)  # the new daemon knows of no release
        await wait_for(node, is_released)
        await asyncio.to_thread(until, lambda: not workers(node), "the workers' end")

        label.state = "upgrade-done"
        await wait_for(node, is_healthy)
        assert monitor.health.is_up
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.close()

    asyncio.run(upgrade())
    events = node.events("&kind=nvml")
    assert {cast("Json", event["fields"])["reason"] for event in events} == {RELEASE_REASON}


def test_another_release_is_not_ended(node: Node) -> None:
    ours = GpuReleases(node.socket)

    async def release_and_end() -> None:
        assert await ours.begin_release(60.0)
        done = await asyncio.to_thread(
            node.cli, "release", "--for", "1h", "--reason", "a person's reset"
        )
        assert done.returncode in (0, 10), done
        await ours.end_release()
        assert (await ours.read_state()).is_released

    asyncio.run(release_and_end())
    details = node.wait(lambda status: RELEASE_REASON not in str(source(status)["detail"]))
    assert "a person's reset" in str(source(details)["detail"])
    assert node.request("POST", "/v1/release/end", {"reason": "nobody's"}) == (200, {"ended": 0})
    assert node.request("POST", "/v1/release/end", {}) == (200, {"ended": 1})
    node.wait(is_healthy)


def test_a_node_without_gpus_has_nothing_to_release(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.start()
    assert asyncio.run(GpuReleases(node.socket).begin_release(60.0)) is False
    asyncio.run(GpuReleases(node.socket).end_release())
    node.kill()
    with pytest.raises(ReleaseFailed) as failed:
        asyncio.run(GpuReleases(node.socket).read_state())
    assert not failed.value.is_final
