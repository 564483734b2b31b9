"""What followed a fault that made the node unfit: the fold over events, and the seconds of each
step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import event, finding
from vitald.core.daemon_events import DaemonEvents
from vitald.core.fitness_monitor import FitnessMonitor
from vitald.core.node_state import NodeState
from vitald.core.responses import MAX_SCHEDULERS, Responses
from vitald.ledger import Ledger, LedgerEntry
from vitald.model import NODE, Action, Batch, Event, Finding, FindingState, Transition, When
from vitald.model.codes import CLOCK_STEPPED, DRAINED, FIT, IN_SERVICE, UNFIT, VALIDATION_PENDING
from vitald.model.response import Response, ServiceState, Step, compute_steps
from vitald.server.peer import Peer
from vitald.server.request import RequestRefused, set_client
from vitald.server.routes.scheduler import SchedulerRoutes, describe_response, read_response_facts

FIRST = 1000.0  # of the fault
DRILL_END = 9000.0


def unfit(at: float = FIRST + 2.0, number: int = 1, *, simulated: bool = False) -> Event:
    fields = {
        "finding": number,
        "incident": number,
        "component": "gpu/0000:01:00.0",
        "code": "xid/79",
        "detected": 1.0,
        "seconds": at - FIRST,
    }
    until = DRILL_END if simulated else None
    return event(UNFIT, NODE, at, fields=fields, simulated_until=until)


def fit(at: float, *, simulated: bool = False) -> Event:
    return event(FIT, NODE, at, simulated_until=at if simulated else None)


def slurm(code: str, at: float, scheduler: str = "slurm") -> Event:
    return event(code, NODE, at, fields={"scheduler": scheduler})


def validation(
    at: float | None, by: str = "a level 2 diagnostic passed", code: str = VALIDATION_PENDING
) -> Finding:
    made = finding(Action.INSPECT, number=9, component=NODE, code=code)
    made = replace(made, base=replace(made.base, unusable=True))
    if at is None:
        return made
    return replace(made, state=FindingState.CLEARED, cleared_at=at, cleared_by=by)


def fold(*events: Event) -> Responses:
    made = Responses()
    made.restore(events, None)
    return made


def steps(responses: Responses, *, simulated: bool = False) -> dict[str, float]:
    response = responses.get_latest(simulated=simulated)
    assert response is not None
    return {step.value: seconds for step, seconds in compute_steps(response).items()}


def test_the_whole_of_a_response() -> None:
    responses = fold(unfit(), slurm(DRAINED, FIRST + 5.0), fit(FIRST + 700.0))
    responses.take_validation(validation(FIRST + 690.0))
    assert steps(responses) == {"detected": 1.0, "unfit": 2.0, "drained": 5.0, "validated": 690.0}
    responses.take_event(slurm(IN_SERVICE, FIRST + 720.0))
    assert steps(responses)["back"] == 720.0
    [response] = responses.latest
    assert response.is_over
    described = describe_response(response)
    assert (described["finding"], described["over"]) == (1, True)
    assert described["first"] == "1970-01-01T00:16:40.000Z"


def test_without_a_scheduler_it_is_back_once_it_is_fit() -> None:
    responses = fold(unfit(), fit(FIRST + 60.0))
    assert steps(responses) == {"detected": 1.0, "unfit": 2.0, "back": 60.0}


@pytest.mark.parametrize(
    "by", ["cleared by root: not needed", "[validation] level is 0", "the node was rebooted"]
)
def test_only_a_passed_diagnostic_validates(by: str) -> None:
    responses = fold(unfit())
    responses.take_validation(validation(FIRST + 50.0, by))
    assert "validated" not in steps(responses)


@pytest.mark.parametrize("at", [FIRST + 1.0, FIRST + 61.0])
def test_a_validation_before_or_after_the_response_is_of_another(at: float) -> None:
    responses = fold(unfit(), fit(FIRST + 60.0))
    responses.take_validation(validation(at))
    assert "validated" not in steps(responses)


def test_a_second_fault_on_a_drained_node_is_drained_from_the_start() -> None:
    responses = fold(
        unfit(),
        slurm(DRAINED, FIRST + 5.0),
        fit(FIRST + 10.0),
        unfit(FIRST + 12.0, 2),
        fit(FIRST + 20.0),
        slurm(IN_SERVICE, FIRST + 25.0),
    )
    assert steps(responses) == {"detected": 1.0, "unfit": 12.0, "drained": 12.0, "back": 25.0}


def test_a_person_who_resumes_an_unfit_node_has_not_brought_it_back() -> None:
    responses = fold(unfit(), slurm(DRAINED, FIRST + 5.0), slurm(IN_SERVICE, FIRST + 8.0))
    assert "back" not in steps(responses)
    responses.take_event(fit(FIRST + 30.0))
    assert steps(responses)["back"] == 30.0


def test_with_two_schedulers_the_first_drains_and_the_last_brings_back() -> None:
    responses = fold(
        unfit(),
        slurm(DRAINED, FIRST + 5.0),
        slurm(DRAINED, FIRST + 6.0, "kubernetes"),
        fit(FIRST + 10.0),
        slurm(IN_SERVICE, FIRST + 11.0),
    )
    assert steps(responses)["drained"] == 5.0 and "back" not in steps(responses)
    responses.take_event(slurm(IN_SERVICE, FIRST + 14.0, "kubernetes"))
    assert steps(responses)["back"] == 14.0


def test_a_drain_after_the_node_was_fit_again_is_no_step() -> None:
    responses = fold(unfit(), fit(FIRST + 3.0), slurm(DRAINED, FIRST + 4.0))
    assert steps(responses) == {"detected": 1.0, "unfit": 2.0, "back": 3.0}


def test_a_drill_is_timed_apart() -> None:
    responses = fold(unfit(), unfit(FIRST + 3.0, 2, simulated=True), fit(FIRST + 9.0))
    assert steps(responses)["back"] == 9.0
    assert "back" not in steps(responses, simulated=True)
    assert [response.simulated for response in responses.latest] == [False, True]


def test_a_step_of_the_clock_changes_no_duration() -> None:
    hour = event(CLOCK_STEPPED, NODE, FIRST + 3605.0, fields={"seconds": 3600.0})
    responses = fold(unfit(), slurm(DRAINED, FIRST + 5.0), hour, fit(FIRST + 3610.0))
    assert steps(responses) == {"detected": 1.0, "unfit": 2.0, "drained": 5.0}
    responses.take_event(slurm(IN_SERVICE, FIRST + 3612.0))
    assert steps(responses)["back"] == 12.0


def test_names_of_schedulers_are_bounded() -> None:
    responses = fold(*(slurm(DRAINED, FIRST, f"s{number}") for number in range(100)))
    assert len(responses.schedulers) == MAX_SCHEDULERS


TIMES = st.floats(0.0, 1e9)


@given(st.tuples(TIMES, TIMES, TIMES), st.tuples(*[st.none() | TIMES] * 4))
def test_steps_come_in_order_and_are_never_negative(
    sure: tuple[float, float, float],
    perhaps: tuple[float | None, float | None, float | None, float | None],
) -> None:
    drained, validated, is_fit, in_service = perhaps
    reached = compute_steps(
        Response(
            finding=1,
            incident=1,
            component=NODE,
            code="xid/79",
            simulated=False,
            first=sure[0],
            detected=sure[1],
            unfit=sure[2],
            drained=drained,
            validated=validated,
            fit=is_fit,
            in_service=in_service,
        )
    )
    assert [*reached] == [step for step in Step if step in reached]
    assert [*reached.values()] == sorted(reached.values())
    assert min(reached.values()) >= 0.0


# When a response begins and ends


def monitor(*opened: Finding, responses: Responses | None = None) -> FitnessMonitor:
    made = FitnessMonitor(DaemonEvents("boot-a"))
    made.start(opened, responses or Responses())
    return made


def opening(found: Finding, at: float = FIRST) -> Transition:
    return Transition(time=at, finding=found, cause="seen", event="i", opened=True)


def codes(events: list[Event]) -> list[str]:
    return [each.code for each in events]


def test_the_event_of_an_unfit_node_has_the_times() -> None:
    made, fault = monitor(), finding()
    [begun] = made.compare([fault], [opening(fault)], FIRST + 0.5, FIRST + 0.75)
    assert (begun.code, begun.time) == (UNFIT, FIRST + 0.75)
    assert (begun.fields["detected"], begun.fields["seconds"]) == (0.5, 0.75)
    assert made.compare([fault], [], FIRST + 1.0, FIRST + 1.0) == []
    [ended] = made.compare([], [], FIRST + 9.0, FIRST + 9.0)
    assert (ended.code, ended.time) == (FIT, FIRST + 9.0)


def test_the_fault_that_made_it_unfit_begins_it_not_what_was_open_before() -> None:
    made = monitor()
    mild = finding(Action.OBSERVE)
    assert made.compare([mild], [opening(mild)], FIRST, FIRST) == []
    worse = finding()
    changes = [
        opening(mild, FIRST + 50.0),
        Transition(time=FIRST + 60.0, finding=worse, cause="raised"),
    ]
    [begun] = made.compare([worse], changes, FIRST + 61.0, FIRST + 62.0)
    assert begun.fields["seconds"] == 2.0


def test_what_makes_no_node_unfit_begins_nothing() -> None:
    made = monitor()
    for mild in (finding(Action.OBSERVE), finding(Action.REBOOT_NODE, When.MAINTENANCE)):
        assert made.compare([mild], [opening(mild)], FIRST, FIRST) == []


@pytest.mark.parametrize("code", [VALIDATION_PENDING, "validation/failed"])
def test_a_validation_holds_a_response_open_and_begins_none(code: str) -> None:
    made, fault, pending = monitor(), finding(), validation(None, code=code)
    assert made.compare([pending], [opening(pending)], FIRST, FIRST) == []
    assert codes(made.compare([fault, pending], [opening(fault)], FIRST, FIRST)) == [UNFIT]
    assert made.compare([pending], [], FIRST, FIRST) == []
    assert codes(made.compare([], [], FIRST, FIRST)) == [FIT]


def test_a_real_fault_during_a_drill_has_its_own_response() -> None:
    made, real = monitor(), finding()
    drill = finding(number=2, simulated_until=DRILL_END)
    [begun] = made.compare([drill], [opening(drill)], FIRST, FIRST)
    assert begun.simulated_until == DRILL_END
    [begun] = made.compare([drill, real], [opening(real)], FIRST, FIRST)
    assert not begun.is_simulated and begun.fields["finding"] == real.id
    [ended] = made.compare([real], [], FIRST, FIRST)
    assert ended.is_simulated


def test_after_a_start_an_open_response_goes_on_and_an_unknown_one_is_not_made_up() -> None:
    fault = finding()
    assert monitor(fault).compare([fault], [], FIRST, FIRST) == []
    assert codes(monitor(fault).compare([], [], FIRST, FIRST)) == [FIT]
    restored = monitor(responses=fold(unfit()))  # it was repaired while the daemon was away
    assert codes(restored.compare([], [], FIRST, FIRST)) == [FIT]
    assert monitor(fault).compare([fault, finding(number=2)], [], FIRST, FIRST) == []


@pytest.mark.parametrize("code", [VALIDATION_PENDING, "validation/failed"])
def test_a_fault_after_a_start_during_a_validation_has_its_response(code: str) -> None:
    pending, fault = validation(None, code=code), finding()
    made = monitor(pending)
    [begun] = made.compare([pending, fault], [opening(fault)], FIRST + 0.5, FIRST + 0.75)
    assert (begun.code, begun.fields["finding"]) == (UNFIT, fault.id)
    assert made.compare([pending], [], FIRST + 5.0, FIRST + 5.0) == []
    assert codes(made.compare([], [], FIRST + 9.0, FIRST + 9.0)) == [FIT]


@pytest.mark.parametrize("code", [VALIDATION_PENDING, "validation/failed"])
def test_a_start_during_a_validation_keeps_its_response_open_and_makes_none_up(code: str) -> None:
    pending = validation(None, code=code)
    assert monitor(pending).compare([], [], FIRST, FIRST) == []
    kept = monitor(pending, responses=fold(unfit()))
    assert kept.compare([pending], [], FIRST, FIRST) == []
    assert codes(kept.compare([], [], FIRST, FIRST)) == [FIT]


def test_before_the_start_nothing_is_compared() -> None:
    fault = finding()
    made = FitnessMonitor(DaemonEvents("boot-a"))
    assert made.compare([fault], [opening(fault)], FIRST, FIRST) == []


def test_the_facts_are_in_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.open()
    passed = Transition(time=FIRST + 20.0, finding=validation(FIRST + 20.0), cause="passed")
    later = fit(FIRST + 20.0), slurm(IN_SERVICE, FIRST + 22.0)
    ledger.commit(
        [
            LedgerEntry(events=(unfit(), slurm(DRAINED, FIRST + 5.0)), transitions=(passed,)),
            LedgerEntry(events=later),
        ]
    )
    responses = Responses()
    responses.restore(*read_response_facts(ledger.path))
    ledger.close()
    assert steps(responses) == {
        "detected": 1.0,
        "unfit": 2.0,
        "drained": 5.0,
        "validated": 20.0,
        "back": 22.0,
    }


# What may be reported


def report(
    *bodies: object,
    uid: int = 0,
    publishes: bool = False,
    every_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[tuple[int, object]], list[Event]]:
    """The answers to these requests of one peer, and the stored events."""
    node_state = NodeState("boot-a", 0.0, device_reset=False)
    stored: list[Event] = []

    async def store(batch: Batch) -> None:
        stored.extend(batch.events)
        for each in batch.events:
            node_state.responses.take_event(each)

    @web.middleware
    async def handle(request: web.Request, handler: object) -> web.StreamResponse:
        set_client(request, Peer(1, uid, frozenset()), is_publisher=publishes)
        try:
            response: web.StreamResponse = await handler(request)  # type: ignore[operator]
        except RequestRefused as refused:
            return web.json_response({"error": refused.error}, status=refused.status)
        return response

    async def work() -> list[tuple[int, object]]:
        app = web.Application(middlewares=[handle])
        SchedulerRoutes(node_state, store, event_every_s=every_s, clock=clock).add_routes(app)
        async with TestClient(TestServer(app)) as client:
            answers = []
            for body in bodies:
                async with client.post("/v1/scheduler", json=body) as answer:
                    answers.append((answer.status, await answer.json()))
            return answers

    return asyncio.run(work()), stored


def state(value: str, scheduler: str = "slurm", **more: object) -> dict[str, object]:
    return {"scheduler": scheduler, "state": value, **more}


def test_only_changes_are_stored() -> None:
    answers, stored = report(
        *(state(value) for value in ("in_service", "drained", "drained", "in_service"))
    )
    changed = [answer["changed"] for _, answer in answers if isinstance(answer, dict)]
    assert changed == [False, True, False, True]
    assert [each.code for each in stored] == [DRAINED, IN_SERVICE]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (state("drained", "lsf"), "scheduler: expected slurm or kubernetes"),
        (state("down"), "state: expected drained or in_service"),
        ({"state": "drained"}, "scheduler: expected slurm or kubernetes"),
        (state("drained", since="yesterday"), "since: expected null or a time such as"),
        (state("drained", by="me"), "unknown key 'by'"),
    ],
)
def test_anything_else_is_refused(body: object, problem: str) -> None:
    [(status, answer)], stored = report(body)
    assert status == 400 and isinstance(answer, dict) and problem in answer["error"]
    assert stored == []


def test_the_publisher_may_report_for_kubernetes_only() -> None:
    bodies = state("drained", "kubernetes"), state("drained")
    answers, stored = report(*bodies, uid=4711, publishes=True)
    assert [status for status, _ in answers] == [200, 403]
    assert [each.fields["scheduler"] for each in stored] == ["kubernetes"]


def test_the_publisher_may_not_write_the_ledger_at_will() -> None:
    """Of each state, one change at first; what is refused is not forgotten. Root may."""
    bodies = [state(value, "kubernetes") for value in ("drained", "in_service")] * 50
    answers, stored = report(*bodies, uid=4711, publishes=True)
    assert [each.code for each in stored] == [DRAINED, IN_SERVICE]
    assert [status for status, _ in answers[:4]] == [200, 200, 429, 200]
    assert answers[2][1] == {"error": "drained: too soon after the last change to be stored"}
    assert len(report(*bodies)[1]) == 100


def test_a_state_that_alternates_for_a_day_is_stored_less_and_less_often() -> None:
    bodies = [state(value, "kubernetes") for value in ("drained", "in_service")] * 720
    moments = iter(range(0, 1440 * 60, 30))
    _, stored = report(*bodies, uid=4711, publishes=True, clock=lambda: float(next(moments)))
    assert 2 * 8 < len(stored) < 2 * 6 * 24


def test_a_change_is_stored_again_after_that_time() -> None:
    bodies = [state(value, "kubernetes") for value in ("drained", "in_service")] * 3
    _, stored = report(*bodies, uid=4711, publishes=True, every_s=0.0)
    assert len(stored) == 6


@pytest.mark.parametrize("since", ["1999-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z"])
def test_an_unlikely_time_is_not_taken(since: str) -> None:
    _, [stored] = report(state("drained", since=since))
    assert stored.time > 1.6e9 and stored.time < 3e10


def test_the_codes_are_those_that_state_a_service() -> None:
    assert {ServiceState.DRAINED.value, ServiceState.IN_SERVICE.value} == {
        code.partition("/")[2] for code in (DRAINED, IN_SERVICE)
    }
