"""The times of an incident's steps on Kubernetes: a real API server, and the publisher's taint."""

from __future__ import annotations

import json
import time

import pytest

from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.publisher import Publisher
from tests.harness import Node
from tests.pace import patient
from tests.system.lines import xid
from tests.system.test_publish_events import (
    clear_findings,
    list_own_keys,
    publisher,
)
from tests.system.test_slurm_steps import check_order, response, steps
from vitald.model.response import Step
from vitald.publish.sink import BETTER_S

__all__ = ["publisher"]  # a fixture

pytestmark = pytest.mark.control_plane


def test_the_taint_is_timed_once_the_api_server_has_it(
    publisher: Publisher,
    node: Node,
    cluster_node: ClusterNode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = time.monotonic()
    node.write(xid(1))
    node.until(lambda: "drained" in steps(node), 15.0, "the report")
    took = time.monotonic() - begun
    assert list_own_keys(cluster_node) == ["vitald.io/unhealthy"]
    check_order(steps(node), Step.DETECTED, Step.UNFIT, Step.DRAINED)
    assert steps(node)["drained"] <= took < patient(5.0)

    node.restart()
    clear_findings(node)
    node.until(lambda: response(node)["over"], BETTER_S + 20.0, "the report")
    assert list_own_keys(cluster_node) == []
    check_order(steps(node), Step.DETECTED, Step.UNFIT, Step.DRAINED, Step.BACK)
    events = [(each["code"], each["fields"]) for each in node.events("&kind=scheduler")]
    by_kubernetes = {"scheduler": "kubernetes"}
    assert events == [
        ("scheduler/drained", by_kubernetes),
        ("scheduler/in_service", by_kubernetes),
    ]
    with capsys.disabled():
        print(f"\nwith a real API server, steps: {json.dumps(steps(node))}")
