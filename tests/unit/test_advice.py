"""When jobs are advised to save, and that it changes no verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.builders import finding
from vitald.core.advice import MIN_AGE_S, SAVE_CODES, SaveAdvisor, compute_advice
from vitald.core.node_state import NodeState, Subscription
from vitald.judge.engine import Judge
from vitald.model import (
    NODE,
    Acceptance,
    Action,
    Batch,
    Event,
    Finding,
    FindingState,
    Repair,
    Requirement,
    SourceHealth,
    SourceState,
    When,
)
from vitald.model.advice import NO_ADVICE, Advice, AnnouncedSave, RequestedRepair
from vitald.model.cloud_notice import Effect
from vitald.server import serialize
from vitald.server.peer import Peer
from vitald.server.request import RequestRefused, set_client
from vitald.server.routes import library
from vitald.server.routes.advice import AdviceRoutes

NOW = 1_700_000_000.0
OLD = NOW - MIN_AGE_S


def waiting(
    action: Action = Action.RESET_DEVICE, when: When = When.AFTER_JOB, **changes: Any
) -> Finding:
    """A finding whose action waits for the running job."""
    return finding(action, when, **{"since": OLD, "code": "nvml/sram_threshold", **changes})


def announced(seconds: float = 600.0) -> AnnouncedSave:
    return AnnouncedSave(reason="GPU 3 is reset", until=NOW + seconds)


@pytest.mark.parametrize("action", [Action.RESET_DEVICE, Action.REBOOT_NODE, Action.REPLACE_NODE])
def test_an_action_that_waits_for_the_job_advises(action: Action) -> None:
    found = waiting(action, number=7)
    assert compute_advice([found], NOW) == Advice(
        save=True,
        why=f"{found.component.name}: a title (nvml/sram_threshold)",
        action=action.value,
        when="after_job",
        finding=7,
    )


ACCEPTED = Acceptance(
    by="root",
    reason="r",
    since=OLD,
    until=NOW + 1.0,
    asked=Requirement(Action.RESET_DEVICE, When.AFTER_JOB),
)


@pytest.mark.parametrize(
    "found",
    [
        waiting(since=OLD + 1.0),
        waiting(Action.INSPECT),
        waiting(Action.RESTART_WORKLOAD),
        waiting(when=When.NOW),  # the job is hit by it already
        waiting(when=When.MAINTENANCE),
        waiting(simulated_until=NOW + 60.0),
        waiting(on_trial=True),
        waiting(accepted=ACCEPTED),
        waiting(fields={"vouched": False}),
    ],
    ids=[
        *("young", "inspect", "workload", "now", "maintenance"),
        *("drill", "trial", "accepted", "process"),
    ],
)
def test_what_advises_nothing(found: Finding) -> None:
    assert compute_advice([found], NOW) == NO_ADVICE


def test_a_remedy_that_has_begun_still_advises() -> None:
    assert compute_advice([waiting(state=FindingState.IN_REMEDY)], NOW).save


def test_the_strongest_finding_gives_the_text() -> None:
    found = [waiting(number=1), waiting(Action.REPLACE_NODE, number=2)]
    assert compute_advice(found, NOW).finding == 2


@pytest.mark.parametrize(
    ("repair", "action"), [(Repair.REBOOT, "reboot_node"), (Repair.REPLACE, "replace_node")]
)
def test_a_requested_repair_advises(repair: Repair, action: str) -> None:
    found = waiting(Action.REBOOT_NODE, When.NOW, number=4, since=NOW)
    requested = RequestedRepair(repair=repair, findings=(4,))
    advice = compute_advice([found], NOW, requested=requested)
    assert (advice.action, advice.when, advice.finding) == (action, "now", 4)
    assert advice.why.endswith("a title (nvml/sram_threshold)")


def test_a_requested_repair_whose_finding_has_just_gone() -> None:
    advice = compute_advice([], NOW, requested=RequestedRepair(repair=Repair.REBOOT, findings=(4,)))
    assert advice.why == "a reboot is requested"


def notice(effect: Effect, **fields: str) -> Finding:
    return waiting(Action.OBSERVE, When.NOW, component=NODE, code=effect.code, fields=fields)


def test_an_interruption_by_the_provider_comes_first() -> None:
    found = [waiting(), notice(Effect.IMMINENT, notBefore="2023-11-14T22:23:20Z")]
    advice = compute_advice(found, NOW, announced=announced())
    assert (advice.action, advice.when, advice.by) == ("interruption", "now", NOW + 600.0)


@pytest.mark.parametrize("text", ["", "soon", "2023-02-31T00:00:00Z"])
def test_an_interruption_without_a_time(text: str) -> None:
    advice = compute_advice([notice(Effect.IMMINENT, notBefore=text)], NOW)
    assert advice.save and advice.by is None


@pytest.mark.parametrize("effect", [Effect.SCHEDULED, Effect.PAUSE, Effect.REBALANCE])
def test_other_notices_advise_nothing(effect: Effect) -> None:
    """A scheduled event may be weeks ahead; it becomes imminent."""
    assert compute_advice([notice(effect)], NOW) == NO_ADVICE


def test_an_announcement_advises_until_its_end() -> None:
    assert compute_advice([], NOW, announced=announced()) == Advice(
        save=True, why="GPU 3 is reset", action="announced", when="after_job", by=NOW + 600.0
    )
    assert compute_advice([], NOW + 600.0, announced=announced()) == NO_ADVICE


class Node:
    """A node's state with its advisor, a clock that can be set, and what is stored."""

    def __init__(self) -> None:
        self.now = NOW
        self.state = NodeState("boot-a", NOW, device_reset=False)
        self.requested: RequestedRepair | None = None
        self.stored: list[Event] = []
        self.advisor = SaveAdvisor(
            self.state, self._store, lambda: self.requested, clock=lambda: self.now
        )

    async def _store(self, batch: Batch) -> None:
        self.stored += batch.events

    def publish(self, findings: Sequence[Finding]) -> Advice:
        """The advice once these are the findings."""
        judge = SimpleNamespace(open_findings=findings, incidents=())
        self.state.publish_changes(cast("Judge", judge))
        self.advisor.update()
        return self.state.advice


def changes(subscription: Subscription) -> list[object]:
    return [subscription.queue.get_nowait() for _ in range(subscription.queue.qsize())]


def test_subscribers_get_each_change_once() -> None:
    node = Node()
    subscription = node.state.add_subscription()
    first = node.publish([waiting()])
    assert first.save and node.publish([waiting()]) is first
    node.publish([])
    assert changes(subscription) == [first, NO_ADVICE]


def test_a_finding_advises_when_it_is_old_enough() -> None:
    node = Node()
    assert not node.publish([waiting(since=NOW)]).save
    node.now += MIN_AGE_S
    node.advisor.update()
    assert node.state.advice.save


def test_the_verdict_is_the_same_with_and_without_advice() -> None:
    node = Node()
    before = node.state.verdict()
    asyncio.run(node.advisor.announce_save(600.0, "GPU 3 is reset", "root (uid 0)"))
    assert node.state.advice.save and node.state.verdict() == before


def test_simulated_readings_advise_nothing_but_a_person_does() -> None:
    node = Node()
    node.state.sources["nvml"] = SourceHealth(
        name="nvml", state=SourceState.OK, deadline=10.0, simulated=True
    )
    assert not node.publish([waiting()]).save
    asyncio.run(node.advisor.announce_save(600.0, "a test", "root (uid 0)"))
    assert node.state.advice.save


def test_an_announcement_is_an_event_and_ends_by_itself() -> None:
    node = Node()
    asyncio.run(node.advisor.announce_save(600.0, "GPU 3 is reset", "root (uid 0)"))
    (event,) = node.stored
    assert event.code == SAVE_CODES[0]
    assert event.raw == "root (uid 0) advises jobs to save for 10 min: GPU 3 is reset"
    assert event.fields == {
        "by": "root (uid 0)",
        "reason": "GPU 3 is reset",
        "until": NOW + 600.0,
    }
    node.now += 600.0
    node.advisor.update()
    assert node.state.advice == NO_ADVICE


def test_an_announcement_is_withdrawn() -> None:
    node = Node()
    assert not asyncio.run(node.advisor.withdraw_save("no", "root")) and not node.stored
    asyncio.run(node.advisor.announce_save(600.0, "GPU 3 is reset", "root"))
    assert asyncio.run(node.advisor.withdraw_save("put off", "root"))
    assert [event.code for event in node.stored] == [*SAVE_CODES]
    assert node.state.advice == NO_ADVICE


def test_an_announcement_survives_a_restart_but_no_boot() -> None:
    node = Node()
    asyncio.run(node.advisor.announce_save(600.0, "GPU 3 is reset", "root"))
    again = Node()
    again.advisor.restore(node.stored)
    assert again.state.advice == node.state.advice
    asyncio.run(node.advisor.withdraw_save("put off", "root"))
    again.advisor.restore(node.stored)
    assert not again.state.advice.save
    booted = Node()
    booted.state.boot_id = "boot-b"
    booted.advisor.restore(node.stored[:1])
    assert not booted.state.advice.save


def post(node: Node, body: dict[str, object], uid: int = 0) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer."""

    @web.middleware
    async def handle(request: web.Request, handler: Any) -> web.StreamResponse:
        set_client(request, Peer(1, uid, frozenset()), is_publisher=False)
        try:
            answer: web.StreamResponse = await handler(request)
        except RequestRefused as refused:
            return library.make_error(refused.status, refused.error, refused.hint)
        return answer

    async def send() -> tuple[int, dict[str, Any]]:
        app = web.Application(middlewares=[handle])
        AdviceRoutes(node.state, node.advisor).add_routes(app)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post("/v1/advice", json=body)
            return answer.status, await answer.json()

    return asyncio.run(send())


def test_a_person_advises_over_the_socket() -> None:
    node = Node()
    body: dict[str, object] = {"advice": "save", "seconds": 600, "reason": "GPU 3 is reset"}
    status, answer = post(node, body)
    assert (status, answer["changed"]) == (200, True)
    assert answer["advice"] == {
        "save": True,
        "why": "GPU 3 is reset",
        "action": "announced",
        "when": "after_job",
        "by": serialize.format_moment(NOW + 600.0),
        "finding": None,
    }
    none: dict[str, object] = {"advice": "none", "reason": "put off"}
    assert post(node, none) == (200, {"changed": True, "advice": {**EMPTY}})
    assert post(node, none)[1]["changed"] is False


EMPTY = dict.fromkeys(("action", "when", "by", "finding")) | {"save": False, "why": ""}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"advice": "save", "seconds": 59, "reason": "r"}, "seconds: expected a number from 60"),
        ({"advice": "save", "seconds": 600}, "reason: "),
        ({"advice": "die", "seconds": 600, "reason": "r"}, "advice: expected save or none"),
        ({"advice": "none", "reason": "r", "job": "1"}, "unknown key 'job'"),
    ],
)
def test_what_is_refused(body: dict[str, object], error: str) -> None:
    node = Node()
    status, answer = post(node, body)
    assert status == 400 and answer["error"].startswith(error)
    assert not node.stored


def test_it_is_announced_for_twenty_minutes_by_default() -> None:
    node = Node()
    status, answer = post(node, {"advice": "save", "reason": "r"})
    assert (status, answer["advice"]["by"]) == (200, serialize.format_moment(NOW + 1200.0))


def test_only_root_and_the_daemon_may_advise() -> None:
    node = Node()
    body: dict[str, object] = {"advice": "save", "seconds": 600, "reason": "r"}
    assert post(node, body, uid=65534)[0] == 403 and not node.stored
