"""The node's summary: the word for its status, what is due, and what `vitald check --due` makes of
it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.examples import get_answer
from tests.harness import Json
from tests.system.document import conforms
from tests.unit.builders import catalogue, finding, gpu
from tests.waiting import WAIT_S
from vitald.cli import client, main
from vitald.core.node_state import NodeState
from vitald.model.finding import Finding, Requirement
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import Action, When
from vitald.server import endpoints
from vitald.server.endpoint import Endpoint
from vitald.server.request import RequestRefused
from vitald.server.routes import summary as routes
from vitald.server.routes.context import RouteContext
from vitald.server.routes.summary import SummaryRoutes

NOTHING = cast("Any", None)  # parts of the context that the summary does not need


class EmptyBus:
    def list_watched(self) -> list[object]:
        return []


DRILL: Json = {"simulated_until": 9e9, "confirmed_by": ""}


def health(state: SourceState = SourceState.OK, *, simulated: bool = False) -> SourceHealth:
    return SourceHealth(
        name="nvml",
        state=state,
        deadline=60.0,
        polled_at=time.monotonic(),
        last_seen=time.time(),
        simulated=simulated,
    )


def board(*findings: Finding, source: SourceHealth | None = None) -> NodeState:
    made = NodeState("boot", 1_760_000_000.0, device_reset=False)
    made.findings = findings
    made.sources = {"nvml": source or health()}
    made.answerable.set()
    made.first_scan.set()
    return made


def ask(
    state: NodeState, query: str = "", *, idle: bool = False, overrides: str = ""
) -> tuple[int, Json]:
    """Status and answer of /v1/summary."""
    context = RouteContext(
        node_state=state,
        pipeline=NOTHING,
        catalog=catalogue(overrides=overrides),
        inventory=cast("Any", EmptyBus()),
        reader=NOTHING,
        is_idle=lambda: idle,
    )

    @web.middleware
    async def outermost(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestRefused as refused:
            return web.json_response({"error": refused.error}, status=refused.status)

    async def send() -> tuple[int, Json]:
        app = web.Application(middlewares=[outermost])
        app.add_routes(SummaryRoutes(context).list_routes())
        async with (
            TestClient(TestServer(app)) as connected,
            connected.get(f"/v1/summary{query}") as answer,
        ):
            return answer.status, await answer.json()

    return asyncio.run(asyncio.wait_for(send(), WAIT_S))


def summarize(*findings: Finding, query: str = "", idle: bool = False) -> Json:
    status, answer = ask(board(*findings), query, idle=idle)
    assert status == 200, answer
    conforms("NodeSummary", answer)
    return answer


def brief(answer: Json) -> tuple[str, str, str | None, str | None]:
    return answer["status"], answer["reason"], answer["rebootDue"], answer["replacementDue"]


MILD = Requirement(Action.INSPECT, When.NOW)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], ("healthy", "Healthy", None, None)),
        ([finding(base=MILD)], ("degraded", "Degraded", None, None)),
        ([finding()], ("unhealthy", "Xid79", "Xid79", None)),
        ([finding(confirmed_by="")], ("unhealthy", "Xid79", None, None)),
        ([finding(code="xid/99999")], ("unhealthy", "XidUnlisted", "XidUnlisted", None)),
        ([finding(**DRILL)], ("healthy", "Healthy", None, None)),
        (
            [finding(base=Requirement(Action.NONE, When.NOW, unknown=True))],
            ("unknown", "Xid79", None, None),
        ),
    ],
)
def test_the_word_for_a_status(
    findings: Sequence[Finding], expected: tuple[str, str, str | None, str | None]
) -> None:
    assert brief(summarize(*findings)) == expected


def test_the_word_is_that_of_what_makes_it_unhealthy() -> None:
    """Not of a stronger finding that may wait for the job."""
    later = finding(Action.REPLACE_NODE, When.AFTER_JOB, 1, code="xid/48")
    now = finding(Action.RESET_DEVICE, When.NOW, 2)
    assert brief(summarize(later, now)) == ("unhealthy", "Xid79", "Xid79", None)
    assert brief(summarize(later, now, idle=True)) == ("unhealthy", "Xid79", "Xid79", "Xid48")
    assert brief(summarize(later)) == ("degraded", "Degraded", None, None)


def test_a_drill_for_those_who_ask_for_drills() -> None:
    answer = summarize(finding(**DRILL), query="?drills=true")
    assert brief(answer) == ("unhealthy", "Xid79", "Xid79", None)
    assert [one["simulated"] for one in answer["findings"]] == [True]
    assert answer["ignoredDrills"] == 0


def test_a_drill_that_is_left_out_is_counted() -> None:
    answer = summarize(finding(number=1, **DRILL), finding(Action.INSPECT, number=2))
    assert (answer["openFindings"], answer["ignoredDrills"]) == (1, 1)


def test_a_code_of_the_site_has_the_site_s_word() -> None:
    status, answer = ask(
        board(finding(code="xid/9999")),
        overrides='[xid.9999]\ntitle = "ours"\nmeaning = "x"\nclass = "hardware"\n'
        'action = "reboot_node"\nclears = ["reboot"]\nescalation = "device"\nsource = "ours"\n',
    )
    assert (status, answer["reason"]) == (200, "CustomRule"), answer


def test_a_source_that_is_not_read() -> None:
    silent = health(SourceState.FAILED)
    assert brief(ask(board(source=silent))[1]) == ("unknown", "SourceNotRead", None, None)
    assert brief(ask(board(finding(), source=silent))[1])[:3] == ("unhealthy", "Xid79", "Xid79")


def test_simulated_readings_are_not_this_node_s() -> None:
    state = board(source=health(simulated=True))
    answer = ask(state)[1]
    assert brief(answer) == ("unknown", "SimulatedReadings", None, None)
    assert answer["reasons"][0].startswith("a source reads a simulated library")
    assert brief(ask(state, "?drills=true")[1]) == ("healthy", "Healthy", None, None)


def test_at_most_a_hundred_findings_the_strongest_first() -> None:
    many = [finding(Action.INSPECT, number=number) for number in range(1, 150)]
    answer = summarize(*many, finding(number=150))
    assert (len(answer["findings"]), answer["openFindings"]) == (100, 150)
    assert (len(answer["reasons"]), answer["findings"][0]["id"]) == (100, 150)


def test_nothing_is_said_before_the_first_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade is not published as an unknown state; a source that hangs is, after a time."""
    state = board(source=health(SourceState.STARTING))
    state.first_scan.clear()
    status, answer = ask(state)
    assert (status, "for the first time" in answer["error"]) == (503, True)
    monkeypatch.setattr(routes, "_START_S", 0.0)
    assert brief(ask(state)[1])[:2] == ("unknown", "SourceNotRead")


@pytest.mark.parametrize("query", ["?drills=yes", "?drill=true", "?drills=true&drills=true"])
def test_a_wrong_question(query: str) -> None:
    assert ask(board(), query)[0] == 400


def test_the_identity_of_a_device_without_a_record() -> None:
    (one,) = summarize(finding())["findings"]
    assert one["device"] == gpu(1).name


# --- vitald check --due


def check(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: Json | Exception,
    *words: str,
) -> tuple[int, str]:
    def get(_: object, endpoint: Endpoint[object], **values: object) -> Json:
        assert (endpoint, values) == (endpoints.SUMMARY, {}), "never a drill"
        if isinstance(answer, Exception):
            raise answer
        return client.AnswerTable({**answer}, "another version")

    monkeypatch.setattr(client, "get", get)
    code = main(["check", *words])
    (line,) = capsys.readouterr().out.splitlines()
    return code, line


DUE: Json = {**get_answer(endpoints.SUMMARY)}
REPLACE: Json = {**DUE, "rebootDue": None, "replacementDue": "Xid79"}
NOT_DUE: Json = {**DUE, "rebootDue": None}
WELL: Json = {**NOT_DUE, "status": "healthy", "reasons": []}
UNKNOWN: Json = {**NOT_DUE, "status": "unknown", "reasons": ["source nvml is not being read"]}


@pytest.mark.parametrize(
    ("repair", "answer", "code", "line"),
    [
        ("reboot", DUE, 0, "reboot due for Xid79: unhealthy: gpu/0000:3b:00.0 (GPU 1, serial"),
        ("replacement", DUE, 10, "no replacement due: unhealthy: gpu/"),
        ("replacement", REPLACE, 0, "replacement due for Xid79: unhealthy: "),
        ("reboot", REPLACE, 10, "no reboot due: "),
        ("reboot", WELL, 10, "no reboot due: healthy: no open findings"),
        (
            "reboot",
            {**WELL, "ignoredDrills": 1},
            10,
            "no reboot due: healthy: no open findings; ignored: 1 finding of a drill",
        ),
        ("reboot", UNKNOWN, 30, "whether a reboot is due is unknown: source nvml is not"),
        ("reboot", {**UNKNOWN, "rebootDue": "Xid79"}, 0, "reboot due for Xid79: unknown: "),
        ("reboot", client.NoAnswer("no daemon"), 30, "whether a reboot is due is unknown: no da"),
        ("reboot", client.DaemonRefused(404, "no such path", ""), 30, "whether a reboot is due"),
        ("reboot", {**DUE, "rebootDue": True}, 30, "whether a reboot is due is unknown: the dae"),
        ("reboot", {**DUE, "rebootDue": ""}, 30, "whether"),
        ("reboot", {**DUE, "rebootDue": "a\x1b[2J"}, 30, "whether"),
        ("reboot", {**DUE, "status": "fine"}, 30, "whether"),
        ("reboot", {**DUE, "reasons": "x"}, 30, "whether"),
        ("reboot", {"status": "unhealthy", "reasons": []}, 30, "whether"),
    ],
)
def test_whether_a_repair_is_due(
    repair: str,
    answer: Json | Exception,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = check(monkeypatch, capsys, answer, "--due", repair)
    assert (told[0], told[1].startswith(line)) == (code, True), told


@pytest.mark.parametrize(
    ("answer", "code", "due", "reason"),
    [
        (DUE, 0, True, "Xid79"),
        (WELL, 10, False, None),
        (UNKNOWN, 30, None, None),
        (client.NoAnswer("no daemon"), 30, None, None),
    ],
)
def test_whether_a_repair_is_due_as_json(
    answer: Json | Exception,
    code: int,
    due: bool | None,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended, line = check(monkeypatch, capsys, answer, "--due", "reboot", "--json")
    told = json.loads(line)
    assert (ended, told["repair"], told["due"], told["reason"]) == (code, "reboot", due, reason)
    assert (told["status"] == "unknown") is (code == 30) and isinstance(told["reasons"], list)
