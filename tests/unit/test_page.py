"""The status page: text from outside stays text, each word of the API has its words on the page,
and vitald accepts the commands on it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import itertools
import re
import shlex
import threading
import types
import typing
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import EnumMeta
from html.parser import HTMLParser
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from tests.examples import get_answer
from tests.waiting import WAIT_S
from vitald.cli import build_parser, client, finding_text
from vitald.cli.page import server, wording
from vitald.cli.page.build import Answers, build_error_page, build_page, read_answers
from vitald.cli.page.cards import list_commands
from vitald.cli.page.model import Page, Span, Tone
from vitald.cli.page.template import PageTemplate
from vitald.cli.page.timeline import build_timeline
from vitald.model.words import Action, Outcome, Status
from vitald.server import endpoints, schema
from vitald.server.endpoint import Endpoint

NOW = datetime(2026, 11, 18, 13, 0, 0, tzinfo=timezone.utc)
TEMPLATE = PageTemplate()
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</style><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- --><![CDATA[ ]]>",
    "&lt;b&gt;&#60;b&#62;",
    "javascript:alert(1)",
    "\u202egpj.exe\u2066\u200f",
    "\x00\x1b[31m\r\n\t\u2028",
    "\udc80\udcff",
    "A" * 5000,
)
# Attributes of which the value is made of data.
_OF_DATA = {"datetime", "title"}
_VOID = {"meta", "path", "circle", "rect", "br"}


class Structure(HTMLParser):
    """The elements of a document with their attributes, the values that are data left out."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.text: list[str] = []
        self.style = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(
            (tag, tuple((name, "" if name in _OF_DATA else value) for name, value in attrs))
        )
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")


def fill(kind: Any, text: typing.Callable[[], str]) -> Any:
    """A value of a type of the page's model, with `text()` wherever it holds text."""
    if kind is str:
        return text()
    if kind in (int, bool):
        return kind(7)
    if isinstance(kind, EnumMeta):
        return next(iter(kind))
    if typing.get_origin(kind) is tuple:
        return (fill(typing.get_args(kind)[0], text), fill(typing.get_args(kind)[0], text))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return fill(typing.get_args(kind)[0], text)
    assert is_dataclass(kind), kind
    hints = typing.get_type_hints(kind)
    return typing.cast("Any", kind)(
        **{each.name: fill(hints[each.name], text) for each in fields(kind)}
    )


def make_page(text: typing.Callable[[], str], *, away: bool = False) -> Page:
    page: Page = fill(Page, text)
    return page if away else replace(page, error="")


@pytest.mark.parametrize("away", [False, True])
@settings(deadline=None)
@given(data=st.data())
def test_text_makes_no_element(away: bool, data: st.DataObject) -> None:
    texts = st.one_of(st.text(min_size=1), st.sampled_from(HOSTILE))
    given = data.draw(st.lists(texts, min_size=1, max_size=8))
    turns = iter(range(10**6))
    hostile = TEMPLATE.render_page(
        make_page(lambda: given[next(turns) % len(given)], away=away), is_live=True
    )
    plain = TEMPLATE.render_page(make_page(lambda: "x", away=away), is_live=True)
    assert Structure(hostile).elements == Structure(plain).elements
    assert all(char.isprintable() or char == "\n" for char in hostile)


def test_hostile_text_can_be_read() -> None:
    for text in HOSTILE[:6]:
        shown = "".join(Structure(TEMPLATE.render_page(make_page(lambda: text))).text)
        assert text in shown
    shown = "".join(Structure(TEMPLATE.render_page(make_page(lambda: "a\u202eb\x1b"))).text)
    assert "a\\x202eb\\x1b" in shown


def test_nothing_is_loaded_and_no_script_is_there() -> None:
    document = Structure(TEMPLATE.render_page(make_page(lambda: "x"), is_live=True))
    tags = {tag for tag, _ in document.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    links = {value for _, found in document.elements for name, value in found if name == "href"}
    assert links == {
        "?",
        "?span=day&refresh=off",
        "?span=week&refresh=off",
        "?span=month&refresh=off",
    }
    names = {name for _, found in document.elements for name, _ in found}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "style"}
    assert "url(" not in document.style and "@import" not in document.style


def test_the_policy_allows_this_style_sheet_alone() -> None:
    style = Structure(TEMPLATE.render_page(make_page(lambda: "x"))).style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert TEMPLATE.policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")


@pytest.mark.parametrize("span", [None, *Span])
def test_refreshing_can_be_paused(span: Span | None) -> None:
    """And keeps the span."""
    page = make_page(lambda: "x")
    chosen = f"span={span.value}" if span else ""
    running = TEMPLATE.render_page(page, is_live=True, is_refreshing=True, span=span)
    paused = TEMPLATE.render_page(page, is_live=True, span=span)
    a_file = TEMPLATE.render_page(page)
    assert '<meta http-equiv="refresh" content="10">' in running
    pause = "&amp;".join(filter(None, (chosen, "refresh=off")))
    assert f'href="?{pause}">Pause' in running
    assert f'href="?{chosen}">Resume' in paused
    assert 'http-equiv="refresh"' not in paused + a_file and "href" not in a_file
    for each in Span:
        assert f'href="?span={each.value}"' in running
        assert f'href="?span={each.value}&amp;refresh=off"' in paused


def test_headings_follow_one_another_and_headers_have_a_scope() -> None:
    elements = Structure(TEMPLATE.render_page(make_page(lambda: "x"))).elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(dict(found).get("scope") for tag, found in elements if tag == "th")
    assert ("html", (("lang", "en"),)) in elements
    assert {"header", "main", "footer"} <= {tag for tag, _ in elements}


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        TEMPLATE._template.render(page=make_page(lambda: "x"))


def test_secrets_are_taken_out_before_escaping() -> None:
    template = PageTemplate(lambda text: text.replace("<&secret>", "[redacted]"))
    text = template.render_page(make_page(lambda: "a<&secret>b"))
    assert "a[redacted]b" in text and "secret" not in text


def words_of(answer: type, key: str) -> set[str]:
    return set(typing.get_args(typing.get_type_hints(answer)[key]))


def test_each_word_of_the_api_has_its_own() -> None:
    assert (
        set(wording.STATUS_TONES)
        == set(wording.STATUS_LEADS)
        == {status.value for status in Status}
    )
    assert set(wording.ACTION_TONES) == {action.value for action in Action}
    assert set(wording.OUTCOME_TONES) <= {outcome.value for outcome in Outcome}
    assert set(wording.JOB_TONES) == words_of(schema.ApiJob, "state")
    assert set(wording.SOURCE_TONES) == words_of(schema.ApiSource, "state")
    layers = typing.get_type_hints(schema.Layer, include_extras=True)["layer"]
    assert [*wording.LAYERS] == [*layers.__metadata__[0].enum]


def finding(**changed: object) -> schema.ApiFinding:
    """An open finding of the API, as far as the page needs it."""
    found = {
        "id": 12,
        "component": "gpu/0000:65:00.0",
        "code": "xid/79",
        "title": "GPU has fallen off the bus",
        "action": "reboot_node",
        "when": "now",
        "accepted": None,
        "simulated": False,
        "simulatedUntil": None,
        "since": "2026-11-18T12:30:00.000Z",
        "clearedAt": None,
        **changed,
    }
    return typing.cast("schema.ApiFinding", found)


def test_no_command_has_text_of_the_answer() -> None:
    """A person may copy it into a shell of root."""
    hostile = finding(action="reset_device", component="gpu/0;rm -rf /")
    assert "nvidia-smi -r -i ADDRESS" in [command.line for command in list_commands(hostile)]
    with pytest.raises(ValueError):
        [*list_commands(finding(id="1;rm -rf /"))]


@pytest.mark.parametrize("action", [action.value for action in Action])
@pytest.mark.parametrize("component", ["gpu/0000:65:00.0", "nic/mlx5_0", "node"])
@pytest.mark.parametrize("drill", [None, "2026-11-18T14:00:00.000Z"])
def test_the_commands_are_ones_that_vitald_takes(
    action: str, component: str, drill: str | None
) -> None:
    found = finding(action=action, component=component, simulated=bool(drill), simulatedUntil=drill)
    lines = [command.line for command in list_commands(found)]
    assert lines[-1] == "vitald why 12"
    for line in lines:
        assert "{" not in line
        words = shlex.split(line)
        if words[0] == "vitald":
            build_parser([words[1]]).parse_args(words[1:])
    assert ("nvidia-smi -r -i 0000:65:00.0" in lines) == (
        action == "reset_device" and component.startswith("gpu/") and not drill
    )
    assert ("vitald clear 12 --reason 'drill over'".replace("'", '"') in lines) == bool(drill)


def bars_of(*findings: schema.ApiFinding, span: Span | None = None) -> list[tuple[int, int]]:
    """Begin and width of each bar of a timeline."""
    timeline = build_timeline(findings, [], NOW, span)
    assert timeline is not None and len(timeline.ticks) == 5
    return [(bar.begin, bar.width) for bar in timeline.bars]


@pytest.mark.parametrize(
    ("ago", "span", "begin", "width"),
    [
        (timedelta(hours=12), Span.DAY, 500, 500),
        (timedelta(hours=24), Span.DAY, 0, 1000),
        (timedelta(hours=25), Span.WEEK, 851, 149),
        (timedelta(days=7), Span.WEEK, 0, 1000),
        (timedelta(days=14), Span.MONTH, 500, 500),
        (timedelta(days=400), Span.MONTH, 0, 1000),
        (timedelta(), Span.DAY, 992, 8),
        (timedelta(hours=-5), Span.DAY, 992, 8),
    ],
)
def test_the_timeline_holds_the_oldest_finding(
    ago: timedelta, span: Span, begin: int, width: int
) -> None:
    since = (NOW - ago).isoformat().replace("+00:00", "Z")
    timeline = build_timeline([finding(since=since)], [], NOW)
    assert timeline is not None and timeline.span is span
    assert bars_of(finding(since=since)) == [(begin, width)]


def test_a_span_can_be_chosen() -> None:
    """What began before it, or ended before it, is cut off or left out."""
    old = finding(since="2026-11-01T13:00:00.000Z", clearedAt="2026-11-04T13:00:00.000Z")
    recent = finding(since="2026-11-15T01:00:00.000Z")
    assert bars_of(old, recent, span=Span.MONTH) == [(393, 107), (875, 125)]
    assert bars_of(old, recent, span=Span.WEEK) == [(500, 500)]
    assert bars_of(old, recent, span=Span.DAY) == [(0, 1000)]
    assert bars_of(old, span=Span.DAY) == []


def test_the_timeline_has_what_ended_lately() -> None:
    ended = finding(id=1, since="2026-11-18T01:00:00.000Z", clearedAt="2026-11-18T07:00:00.000Z")
    ancient = finding(id=2, since="2026-10-01T12:00:00.000Z", clearedAt="2026-10-02T12:15:00.000Z")
    timeline = build_timeline([], [ended, ancient], NOW)
    assert timeline is not None
    (bar,) = timeline.bars
    assert (bar.is_open, bar.begin, bar.width, bar.duration) == (False, 500, 250, "lasted 6 h")
    assert build_timeline([], [ancient], NOW) is None
    many = build_timeline([finding()] * 15, [], NOW)
    assert many is not None and (len(many.bars), many.more) == (12, 3)


def test_the_timeline_shows_that_it_does_not_have_all() -> None:
    """Where more have ended than were read, and the earliest of these lies within the span."""
    ended = finding(id=1, since="2026-11-17T14:00:00.000Z", clearedAt="2026-11-17T15:00:00.000Z")
    before = finding(id=2, since="2026-11-14T14:00:00.000Z", clearedAt="2026-11-15T15:00:00.000Z")
    for cleared, span, is_cut in (
        ([ended], Span.DAY, True),
        ([ended, before], Span.DAY, False),
        ([ended, before], Span.WEEK, True),
    ):
        timeline = build_timeline([], cleared, NOW, span, is_cut=True)
        assert timeline is not None and timeline.is_cut == is_cut
        timeline = build_timeline([], cleared, NOW, span)
        assert timeline is not None and not timeline.is_cut


def test_what_does_not_take_the_node_out_is_less_urgent() -> None:
    assert wording.find_tone(finding()) is Tone.BAD
    assert wording.find_tone(finding(when="maintenance")) is Tone.WARNING
    assert wording.find_tone(finding(accepted={"by": "x"})) is Tone.NOTE


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("127.0.0.1:9821", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("[::1]:9821", True),
        ("127.8.8.8", True),
        ("evil.example:9821", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:9821", False),
        ("192.0.2.1:9821", False),
        ("", False),
        ("[::1", False),
        ("localhost:x", False),
    ],
)
def test_only_the_loopback_is_answered(header: str, expected: bool) -> None:
    assert server.is_loopback(header) is expected


# --- from the answers of the daemon: those of its contract, changed


STATUS, WHY, JOBS = map(get_answer, (endpoints.STATUS, endpoints.WHY, endpoints.JOBS))
TRANSITIONS, DIAGNOSTICS = map(get_answer, (endpoints.TRANSITIONS, endpoints.DIAGNOSTICS))
NUMBER, LINE = STATUS["findings"][0]["id"], STATUS["findings"][0]["raw"]
GPU = next(
    each for each in STATUS["components"] if each["status"] == "unhealthy" and each["device"]
)
CLEARED: schema.Findings = {
    "damaged": 0,
    "findings": [get_answer(endpoints.CLEAR)["finding"]],
    "more": False,
}


def build(status: typing.Mapping[str, object] | None = None, **answers: Any) -> Page:
    changed = typing.cast("schema.NodeStatus", {**STATUS, **(status or {})})
    page = build_page(Answers(changed, **answers), NOW)
    TEMPLATE.render_page(page, is_live=True)
    return page


def test_the_page_of_the_contract() -> None:
    page = build(
        {"configuration": {**STATUS["configuration"], "needsRestart": ["[metrics] listen"]}},
        chains={NUMBER: WHY},
        changes=TRANSITIONS,
        jobs=JOBS,
        cleared=CLEARED,
    )
    (card,) = page.cards
    assert (page.tone, page.drill, page.host) == (Tone.BAD, "", "gpu-node-17")
    assert (card.title, card.code, card.tone) == (
        "GPU has fallen off the bus",
        "xid/79",
        Tone.BAD,
    )
    assert card.raw == LINE and card.since is not None
    assert card.device == finding_text.describe_device(STATUS["findings"][0]["device"]) != ""
    assert any(requirement.decides for requirement in card.requirements)
    assert [notice.partition(":")[0] for notice in page.notices] == [
        "publishing to kubernetes",
        "configuration",
    ]
    assert page.advice == ()
    (job,) = page.jobs
    assert (job.name, job.state, job.detail) == (
        "1234 of alice",
        "died",
        "ended with exit 1",
    )
    assert [row.name for row in page.publishers] == [STATUS["publishers"]["sinks"][0]["name"]]
    group = page.groups[0]
    assert (group.kind, group.summary) == ("GPU", "1 healthy, 1 unhealthy")
    assert group.parts[0].note == GPU["device"]["text"] != ""
    assert page.changes and page.timeline is not None and len(page.timeline.bars) == 2


@pytest.mark.parametrize(
    ("action", "when", "due"),
    [
        ("reboot_node", "now", "now"),
        ("reboot_node", "after_job", "after the running job"),
        ("reset_device", "maintenance", "at the next maintenance"),
        ("observe", "now", ""),  # to keep an eye on it is no matter of now
    ],
)
def test_when_an_action_is_due(action: str, when: str, due: str) -> None:
    found = {**STATUS["findings"][0], "action": action, "when": when}
    (card,) = build({"findings": [found]}).cards
    assert card.when == due


def test_the_lines_of_a_finding_are_shown_once() -> None:
    """The only one is its evidence; of several, all are listed."""
    assert [event["raw"] for event in WHY["events"]] == [LINE]
    (card,) = build(chains={NUMBER: WHY}).cards
    assert card.lines == ()
    twice = {**WHY, "events": [*WHY["events"]] * 2}
    (card,) = build(chains={NUMBER: twice}).cards
    assert [line.raw for line in card.lines] == [LINE] * 2


def test_what_is_not_healthy_comes_first() -> None:
    states = ["healthy", "degraded", "unknown", "unhealthy", "healthy"]
    parts = [{**GPU, "id": str(n), "status": word} for n, word in enumerate(states)]
    parts[2]["unknownReasons"] = ["nvml: not read for 20 s"]
    (group,) = build({"components": parts}).groups
    assert [part.status for part in group.parts] == [
        *("unhealthy", "unknown", "degraded", "healthy", "healthy")
    ]
    assert group.parts[1].note == "nvml: not read for 20 s"
    (many,) = build({"components": [GPU] * 100}).groups
    assert (len(many.parts), many.more) == (64, 36)


@pytest.mark.parametrize("device", [{}, {"pci": "0000:65:00.0"}])
def test_a_device_without_names(device: dict[str, str]) -> None:
    page = build(
        {
            "components": [{**each, "device": device} for each in STATUS["components"]],
            "findings": [{**each, "device": device} for each in STATUS["findings"]],
        }
    )
    assert [card.device for card in page.cards] == [""]
    assert {part.note for group in page.groups for part in group.parts} == {""}


def test_more_incidents_than_cards() -> None:
    incident, found = STATUS["incidents"][0], STATUS["findings"][0]
    incidents = [{**incident, "id": n, "findings": [n], "line": f"line {n}"} for n in range(1, 101)]
    findings = [{**found, "id": n} for n in range(1, 101)]
    page = build({"incidents": incidents, "findings": findings, "openFindings": 140})
    assert (len(page.cards), page.other_incidents[0]) == (8, "line 9")
    assert len(page.other_incidents) == 51
    assert page.other_incidents[-1] == "140 findings are open in all: vitald findings"


def test_findings_beyond_those_of_the_answer_are_counted() -> None:
    """As of an incident with more findings than an answer has."""
    assert build({"openFindings": 1}).other_incidents == ()
    assert build({"openFindings": 2}).other_incidents == (
        "2 findings are open in all: vitald findings",
    )


@pytest.mark.parametrize(
    ("changed", "silent", "state", "tone"),
    [
        ({"up": True, "waitingSince": None}, False, "up", Tone.OK),
        ({"up": True, "waitingSince": "2026-11-20T13:40:00.000Z"}, False, "behind", Tone.WARNING),
        ({"up": False, "refused": []}, False, "down", Tone.BAD),
        ({"up": False, "refused": ["labels"]}, False, "partly", Tone.BAD),
        ({"up": True, "waitingSince": None}, True, "unknown", Tone.UNKNOWN),
    ],
)
def test_a_sink_is_shown_as_vitald_status_has_it(
    changed: dict[str, object], silent: bool, state: str, tone: Tone
) -> None:
    """What a publisher that is silent once reported is not taken for its present state."""
    publishers = STATUS["publishers"]
    sink = {**publishers["sinks"][0], **changed}
    page = build({"publishers": {**publishers, "silent": silent, "sinks": [sink]}})
    assert [(row.state, row.tone) for row in page.publishers] == [(state, tone)]
    assert any(f": {state}" in text.lower() for text in page.notices) == (
        state not in ("up", "unknown")
    )
    assert any("vitald publish: SILENT" in text for text in page.notices) == silent


def test_what_else_is_wrong_is_shown() -> None:
    """What `vitald status` shows besides the findings, and what the page lacks."""
    status = STATUS
    sink = {**status["publishers"]["sinks"][0], "up": False, "waitingSince": None, "error": "403"}
    request = {
        "id": "x",
        "action": "reboot",
        "since": "2026-11-18T12:30:00.000Z",
        "findings": [1, 2],
        "decision": None,
    }
    going, last = DIAGNOSTICS["active"], DIAGNOSTICS["last"]
    page = build(
        {
            "reasons": [*status["reasons"], "nvml has not been read for 20 s"],
            "ledger": {**status["ledger"], "ok": False, "error": "disk full"},
            "kernelLog": {"recordsRead": 1, "recordsLost": 3, "untrusted": 2},
            "recovery": {"mode": "automatic", "brake": "none: no scheduler", "request": request},
            "publishers": {**status["publishers"], "sinks": [sink]},
            "configuration": {**status["configuration"], "errors": ["x.toml:1: [hots]: unknown"]},
            "suspects": [{**status["suspects"][0], "suspect": True}],
            "diagnostics": {"active": going, "last": last},
        },
        missing=("changes: no answer",),
    )
    notices = " | ".join(page.notices)
    for words in (
        "nvml has not been read",
        "CANNOT BE WRITTEN: disk full",
        "3 records lost",
        "2 fault-like lines",
        "no brake: no scheduler",
        "a reboot is requested since",
        "for #1, #2",
        "DOWN: 403",
        "REFUSED: x.toml:1: [hots]: unknown",
        "Not on this page: changes: no answer",
    ):
        assert words in notices
    (suspect,) = page.advice
    assert suspect.startswith(f"suspect {status['suspects'][0]['component']} (GPU-")
    assert len(page.diagnostics) == len(going) + len(last)


@pytest.mark.parametrize(
    ("marked", "opened", "words"),
    [
        ([], 0, "A source is simulated"),
        ([True, True], 2, "Every open finding is simulated"),
        ([True, True], 3, "Findings marked DRILL are simulated"),
        ([True, False], 2, "Findings marked DRILL are simulated"),
    ],
)
def test_a_drill_is_shown(marked: list[bool], opened: int, words: str) -> None:
    """Also where not all open findings are among the answer's."""
    found = STATUS["findings"][0]
    findings = [{**found, "id": n, "simulated": drill} for n, drill in enumerate(marked, 1)]
    page = build({"simulated": True, "findings": findings, "openFindings": opened})
    assert page.drill.startswith(words)


def test_what_could_not_be_read_is_not_shown_as_empty() -> None:
    def texts_of(page: Page) -> str:
        return "".join(Structure(TEMPLATE.render_page(page)).text)

    nothing = {"damaged": 0, "transitions": [], "next": None, "newestId": 0}
    empty = texts_of(
        build(
            {"diagnostics": {"active": [], "last": []}},
            changes=nothing,
            jobs={"running": [], "recent": [], "more": False},
        )
    )
    unreadable = texts_of(build({"diagnostics": None}))
    for sentence in ("No finding has changed", "has reported no job", "No diagnostic has run"):
        assert sentence in empty and sentence not in unreadable
    assert (empty.count("could not be read"), unreadable.count("could not be read")) == (0, 3)


def test_a_daemon_that_is_away_is_shown() -> None:
    page = build_error_page("node1", "no socket", NOW)
    text = "".join(Structure(TEMPLATE.render_page(page)).text)
    assert "Unknown" in text and "no socket" in text and "systemctl status vitald" in text


# --- reading and serving


REFUSED = client.DaemonRefused(500, "vitald failed to answer", "")


def answer_from_contract(
    unavailable: typing.Collection[Endpoint[typing.Any]] = (),
    damaged: int = 0,
    error: client.CommandFailed = REFUSED,
) -> typing.Callable[..., object]:
    """What stands for `client.get`: the examples of the API."""
    answers: dict[Endpoint[typing.Any], typing.Mapping[str, object]] = {
        endpoints.STATUS: STATUS,
        endpoints.FINDINGS: {**CLEARED, "damaged": damaged},
        endpoints.WHY: WHY,
        endpoints.TRANSITIONS: {**TRANSITIONS, "damaged": damaged},
        endpoints.JOBS: JOBS,
    }

    def answer(_: object, endpoint: Endpoint[object], **values: object) -> object:
        if endpoint in unavailable:
            raise error
        assert values.get("id", NUMBER) == NUMBER
        return answers.pop(endpoint)  # each is queried once at most

    return answer


def test_what_the_page_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "get", answer_from_contract())
    answers = read_answers(argparse.Namespace(socket=None))
    assert (answers.chains, answers.missing) == ({NUMBER: WHY}, ())
    assert (answers.cleared, answers.changes, answers.jobs) == (
        CLEARED,
        {**TRANSITIONS, "damaged": 0},
        JOBS,
    )


def test_a_part_that_cannot_be_read_or_is_damaged_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = (endpoints.FINDINGS, endpoints.WHY, endpoints.TRANSITIONS, endpoints.JOBS)
    monkeypatch.setattr(client, "get", answer_from_contract(refused))
    answers = read_answers(argparse.Namespace(socket=None))
    assert answers == Answers(STATUS, missing=answers.missing)
    assert answers.missing == tuple(
        f"{part}: vitald failed to answer"
        for part in (f"how #{NUMBER} came to be", "findings that ended", "changes", "jobs")
    )
    monkeypatch.setattr(client, "get", answer_from_contract(damaged=2))
    assert read_answers(argparse.Namespace(socket=None)).missing == (
        "findings that ended: 2 rows damaged in the ledger",
        "changes: 2 rows damaged in the ledger",
    )
    monkeypatch.setattr(client, "get", answer_from_contract([endpoints.STATUS]))
    with pytest.raises(client.DaemonRefused):
        read_answers(argparse.Namespace(socket=None))


def test_after_silence_the_rest_is_not_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers that did not come are named all the same."""
    silence = answer_from_contract([endpoints.FINDINGS], error=client.NoAnswer("in time"))
    monkeypatch.setattr(client, "get", silence)
    answers = read_answers(argparse.Namespace(socket=None))
    assert answers.missing == ("findings that ended: in time", "changes", "jobs")
    assert (answers.changes, answers.jobs) == (None, None)


def test_changes_and_jobs_are_in_the_order_of_a_reader() -> None:
    """The newest changes first; the jobs that run before those that ended, eight of all."""
    job = JOBS["recent"][0]
    running = [{**job, "job": f"r{number}", "state": "running", "ended": None} for number in (1, 2)]
    recent = [{**job, "job": f"e{number}"} for number in range(20)]
    change = TRANSITIONS["transitions"][0]
    page = build(
        changes={"transitions": [{**change, "id": n, "finding": n} for n in (1, 2, 3)]},
        jobs={"running": running, "recent": recent, "more": False},
    )
    assert [change.number for change in page.changes or ()] == [3, 2, 1]
    assert [row.name.partition(" ")[0] for row in page.jobs or ()] == [
        *("r1", "r2", "e0", "e1", "e2", "e3", "e4", "e5")
    ]


def test_reading_that_takes_too_long_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what hangs holds nothing but its own thread."""
    monkeypatch.setattr(server, "_MAX_READ_S", 0.01)
    released = threading.Event()

    def hang(_: Span | None) -> Page:
        released.wait(WAIT_S)
        raise AssertionError("too late")

    async def request_twice() -> list[tuple[int, str]]:
        page_server = server.PageServer(
            "token", hang, lambda error: build_error_page("node1", error, NOW)
        )
        answers = []
        async with TestClient(TestServer(page_server.build_application())) as browser:
            for _ in range(2):
                answer = await browser.get("/token/")
                answers.append((answer.status, await answer.text()))
        return answers

    try:
        for status, text in asyncio.run(request_twice()):
            assert status == 503 and "the daemon takes too long to answer" in text
    finally:
        released.set()
