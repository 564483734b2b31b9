"""What a policy or a webhook refuses of the node's state, and what is written all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clock import StandingClock
from tests.unit.test_publish_kubernetes import HEALTHY, UNHEALTHY
from vitald.publish.kubernetes import sink
from vitald.publish.kubernetes import sink as kubernetes_sink
from vitald.publish.kubernetes.client import REFUSED, ApiRefused, KubernetesClient
from vitald.publish.kubernetes.credentials import ClusterAccess
from vitald.publish.kubernetes.desired import combine
from vitald.publish.kubernetes.node_object import MANAGER, NodeObject
from vitald.publish.kubernetes.sets import build_configured_node
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.sink import KubernetesSink
from vitald.publish.sink import PartlyWritten, SinkFailed
from vitald.publish.state_store import StateStore
from vitald.publish.summary import PublishedState

ALL = KubernetesSettings(conditions=("own", "eks", "npd", "hyperpod"))
FORMER = "former.example.com/status"  # a label of an earlier prefix
NAMES = {
    "own": "vitald.io/Healthy",
    "labels": "vitald.io/status",
    "annotation": "vitald.io/findings",
    "eks": "KernelReady",
    "npd": "KernelDeadlock",
    "hyperpod": "sagemaker.amazonaws.com/node-health-status",
    "former-names": FORMER,
}


PARTS = {*NAMES} - {"former-names"}


class ApiServer(KubernetesClient):
    """Refuses each patch in which one of `refused` is, by default also one that removes it: no more
    than that is simulated.
    """

    def __init__(self, refused: Collection[str] = (), status: int = 422) -> None:
        super().__init__(ClusterAccess(server="https://nowhere"), "n")
        self.refused, self.status, self.may_remove = {*refused}, status, False
        self.metadata: dict[str, dict[str, Any]] = {"labels": {FORMER: "x"}, "annotations": {}}
        self.conditions: dict[str, Mapping[str, Any]] = {}
        self.patches: list[set[str]] = []

    def list_names(self) -> set[str]:
        return {*self.conditions, *(key for table in self.metadata.values() for key in table)}

    async def _request(self, method: str, *request: Any, **more: Any) -> object:
        del more
        if method == "PATCH":
            self._merge(request[1])
        managed = {
            "f:metadata": {
                f"f:{kind}": {f"f:{key}": {} for key in table}
                for kind, table in self.metadata.items()
            },
            "f:status": {
                "f:conditions": {f'k:{{"type":"{type_}"}}': {} for type_ in self.conditions}
            },
        }
        return {
            "metadata": {
                "name": "n",
                "uid": "u",
                "resourceVersion": "1",
                "managedFields": [{"manager": MANAGER, "fieldsV1": managed}],
                **self.metadata,
            },
            "status": {"conditions": [*self.conditions.values()]},
        }

    def _merge(self, patch: Any) -> None:
        tables, conditions = patch["metadata"], patch["status"]["conditions"]
        names = {key for table in tables.values() for key in table}
        names |= {each["type"] for each in conditions}
        self.patches.append(names)
        removed = {key for table in tables.values() for key, word in table.items() if word is None}
        removed |= {each["type"] for each in conditions if "$patch" in each}
        if (names - removed if self.may_remove else names) & self.refused:
            raise ApiRefused(self.status, "denied by the policy")
        for kind, table in tables.items():
            merged = {**self.metadata[kind], **table}
            self.metadata[kind] = {key: word for key, word in merged.items() if word is not None}
        for each in conditions:
            self.conditions.pop(each["type"], None)
            if "$patch" not in each:
                self.conditions[each["type"]] = each


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(kubernetes_sink, "time", clock)
    monkeypatch.setattr(sink, "time", clock)
    return clock


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("publish")


def write(
    sink: KubernetesSink, state: PublishedState = HEALTHY
) -> bool | PartlyWritten | SinkFailed:
    try:
        return asyncio.run(sink.write_state(state))
    except (PartlyWritten, SinkFailed) as error:
        return error


def open_sink(
    server: ApiServer, folder: Path, settings: KubernetesSettings = ALL
) -> KubernetesSink:
    return KubernetesSink(server, settings, StateStore(folder))


def list_names(*parts: str) -> set[str]:
    """Of these parts of the healthy node."""
    state, bare = HEALTHY, NodeObject(name="n", uid="u", resource_version="1")
    desired = combine(build_configured_node(ALL, state, bare).parts[part] for part in parts)
    return {each.type for each in desired.conditions} | {
        key
        for table in (desired.labels, desired.annotations)
        for key, word in table.items()
        if word is not None
    }


@given(st.sets(st.sampled_from(sorted(NAMES))))
def test_what_is_refused_does_not_stop_the_rest(folder: Path, refused: set[str]) -> None:
    server = ApiServer(NAMES[part] for part in refused)
    outcome = write(open_sink(server, folder))
    if refused >= PARTS:
        assert isinstance(outcome, SinkFailed) and "422: denied by the policy" in str(outcome)
    elif refused:
        assert isinstance(outcome, PartlyWritten) and {*outcome.refused} == refused
        assert outcome.did_write
    else:
        assert outcome is True
    assert server.list_names() - {FORMER} == list_names(*PARTS - refused)
    assert (FORMER in server.list_names()) == ("former-names" in refused)
    assert len(server.patches) == (1 + len(NAMES) if refused else 1)


def test_what_is_refused_is_tried_again_by_itself(folder: Path, clock: StandingClock) -> None:
    """Once a minute, and no state waits for it."""
    server = ApiServer({NAMES["eks"]})
    sink = open_sink(server, folder)
    assert isinstance(write(sink), PartlyWritten)
    server.patches.clear()
    clock.now += 10.0
    outcome = write(sink, UNHEALTHY)
    assert isinstance(outcome, PartlyWritten) and outcome.refused == ("eks",)
    assert server.conditions["vitald.io/Healthy"]["status"] == "False"
    assert [NAMES["eks"] in patch for patch in server.patches] == [False]
    clock.now += 60.0
    outcome = write(sink, UNHEALTHY)
    assert isinstance(outcome, PartlyWritten) and not outcome.did_write
    assert [NAMES["eks"] in patch for patch in server.patches] == [False, True]
    assert sink.get_recheck_s(HEALTHY) == 60.0
    server.refused.clear()
    clock.now += 60.0
    assert write(sink, UNHEALTHY) is True
    assert server.conditions["AcceleratedHardwareReady"]["status"] == "False"
    assert sink.get_recheck_s(HEALTHY) > 60.0


@pytest.mark.parametrize("may_remove", [True, False])
@pytest.mark.parametrize("part", sorted(PARTS))
def test_what_was_written_of_a_refused_part_is_removed(
    folder: Path, clock: StandingClock, part: str, may_remove: bool
) -> None:
    """Where that is allowed: as the shipped policy allows it. Nothing keeps it up to date."""
    server = ApiServer()
    sink = open_sink(server, folder)
    assert write(sink) is True
    server.refused, server.may_remove = {NAMES[part]}, may_remove
    clock.now += ALL.heartbeat_s * 2
    outcome = write(sink, UNHEALTHY)
    assert isinstance(outcome, PartlyWritten) and outcome.refused == (part,)
    assert (NAMES[part] in server.list_names()) == (not may_remove)
    assert server.list_names() >= list_names(*PARTS - {part})
    server.patches.clear()
    clock.now += 60.0
    assert isinstance(write(sink, UNHEALTHY), PartlyWritten)
    assert len(server.patches) == (1 if may_remove else 2)
    server.refused.clear()
    clock.now += 60.0
    assert write(sink) is True
    assert NAMES[part] in server.list_names()


def test_without_any_right_it_is_not_tried_in_parts_each_time(
    folder: Path, clock: StandingClock
) -> None:
    """10,000 nodes may lack it together."""
    server = ApiServer(NAMES.values(), status=403)
    sink = open_sink(server, folder)
    errors = set()
    for _ in range(10):
        errors.add(str(write(sink)))
        clock.now += 20.0
    assert len(server.patches) == 10 + len(NAMES)
    assert errors == {"API server: 403: denied by the policy"}
    clock.now += ALL.heartbeat_s
    server.refused = {NAMES["labels"]}
    assert isinstance(write(sink), PartlyWritten)


@pytest.mark.parametrize("status", [404, 409, 429, 500, 503])
def test_what_is_no_refusal_fails_as_a_whole(folder: Path, status: int) -> None:
    server = ApiServer({NAMES["eks"]}, status)
    assert isinstance(write(open_sink(server, folder)), SinkFailed)
    assert len(server.patches) == 1 and status not in REFUSED


def test_what_another_agent_manages_and_nothing_else_is_a_failure(folder: Path) -> None:
    server = ApiServer()
    label = "sagemaker.amazonaws.com/compute-type"
    server.metadata["labels"] = {label: "hyperpod"}
    settings = KubernetesSettings(conditions=("eks",), labels=False, annotation=False)
    outcome = write(open_sink(server, folder, settings))
    assert isinstance(outcome, SinkFailed) and str(outcome).startswith('"eks" not written: ')
