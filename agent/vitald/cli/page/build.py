"""
The status page from the daemon's answers, which are read with the rights of the caller; or the page
that says why they cannot be read. Building reads no clock: an age is counted from `now`.
"""

from __future__ import annotations

import argparse
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from vitald import __version__
from vitald.cli import CommandFailed, client, finding_text, render
from vitald.cli.notices import are_all_simulated, find_sink_state, list_advice, list_notices
from vitald.cli.page import wording
from vitald.cli.page.cards import build_card
from vitald.cli.page.model import (
    Card,
    Change,
    Command,
    Fact,
    Page,
    Part,
    PartGroup,
    Row,
    Span,
    Timeline,
    Tone,
)
from vitald.cli.page.timeline import build_timeline
from vitald.server import endpoints
from vitald.server.endpoint import Get
from vitald.text import count_noun

if TYPE_CHECKING:
    from vitald.server import schema


_MAX_LINES, _MAX_PARTS = 50, 64
_WORST_FIRST = (Tone.BAD, Tone.UNKNOWN, Tone.WARNING, Tone.NOTE, Tone.OK)
MAX_INCIDENTS = 8  # in full; the others have a line each
MAX_JOBS = 8
_MAX_CLEARED, _MAX_CHANGES = 50, 20


def build_page(answers: Answers, now: datetime, span: Span | None = None) -> Page:
    """The page of a daemon that answered. `now`: with a time zone. `span`: of the timeline."""
    status = answers.status
    cards = tuple(_build_cards(answers, now))
    lines = [incident["line"] for incident in status["incidents"]]
    return Page(
        host=status["host"],
        tone=wording.STATUS_TONES[status["status"]],
        status=status["status"],
        lead=wording.STATUS_LEADS[status["status"]],
        flags=tuple(finding_text.describe_flags(status["findings"], status)),
        moment=wording.describe_moment(now, now),
        drill=_describe_drill(status),
        cards=cards,
        other_incidents=_list_other_incidents(status, lines[len(cards) :]),
        notices=tuple(_list_notices(answers, lines)),
        advice=tuple(notice.text for notice in list_advice(status)),
        timeline=_build_timeline(answers, now, span),
        changes=_list_changes(answers.changes, now),
        groups=tuple(_list_groups(status["components"])),
        sources=tuple(_list_sources(status, now)),
        diagnostics=_list_diagnostics(status.get("diagnostics"), now),
        jobs=_list_jobs(answers.jobs, now),
        publishers=tuple(_list_sinks(status, now)),
        daemon=tuple(_list_daemon_facts(status, now)),
    )


def build_error_page(host: str, error: str, now: datetime) -> Page:
    """The page of a daemon that did not answer. `error`: why, for a person."""
    return Page(
        host=host,
        tone=Tone.UNKNOWN,
        status="unknown",
        lead="No usable answer from vitald: nothing is known of this node.",
        moment=wording.describe_moment(now, now),
        error=error,
        remedies=tuple(Command(*command) for command in wording.AWAY_COMMANDS),
    )


def _build_cards(answers: Answers, now: datetime) -> Iterator[Card]:
    """The first incidents, up to the first whose findings are not among the answer's."""
    findings = {finding["id"]: finding for finding in answers.status["findings"]}
    for incident in answers.status["incidents"][:MAX_INCIDENTS]:
        own = [findings[number] for number in incident["findings"] if number in findings]
        if not own:
            return
        yield build_card(incident, own, answers.chains.get(incident["findings"][0]), now)


def _list_other_incidents(status: schema.NodeStatus, lines: list[str]) -> tuple[str, ...]:
    """A line for each incident that has no card, and how many findings there are if not all are
    shown.
    """
    opened = status["openFindings"]
    if len(lines) <= _MAX_LINES and opened <= len(status["findings"]):
        return tuple(lines)
    return (*lines[:_MAX_LINES], f"{opened} findings are open in all: vitald findings")


def _describe_drill(status: schema.NodeStatus) -> str:
    if not status["simulated"]:
        return ""
    if not any(finding["simulated"] for finding in status["findings"]):
        return "A source is simulated: what it reads is not of real hardware."
    if not are_all_simulated(status):
        return "Findings marked DRILL are simulated. Those without the mark are real."
    return "Every open finding is simulated: by a drill, or by a simulated source."


def _list_notices(answers: Answers, lines: Iterable[str]) -> Iterator[str]:
    """What else keeps the node from being healthy, or this page from being complete."""
    status, incidents = answers.status, set(lines)
    yield from (reason for reason in status["reasons"] if reason not in incidents)
    yield from (notice.text for notice in list_notices(status))
    yield from (f"Not on this page: {part}" for part in answers.missing)


def _build_timeline(answers: Answers, now: datetime, span: Span | None) -> Timeline | None:
    opened, cleared = answers.status["findings"], answers.cleared
    if cleared is None:
        return build_timeline(opened, (), now, span)
    return build_timeline(opened, cleared["findings"], now, span, is_cut=cleared["more"])


def _list_changes(answer: schema.Transitions | None, now: datetime) -> tuple[Change, ...] | None:
    if answer is None:
        return None
    newest_first = sorted(answer["transitions"], key=lambda change: change["id"], reverse=True)
    return tuple(_build_change(change, now) for change in newest_first)


def _build_change(change: schema.ApiTransition, now: datetime) -> Change:
    return Change(
        wording.make_moment(change["time"], now),
        finding_text.CHANGE_WORDS.get(change["change"], change["change"]),
        change["finding"],
        change["title"],
        change["component"],
        change["cause"],
        change["simulated"],
    )


def _list_groups(components: Iterable[schema.ApiComponent]) -> Iterator[PartGroup]:
    """The components by kind, without the node itself: it has the verdict."""
    by_kind: dict[str, list[schema.ApiComponent]] = {}
    for component in components:
        if component["kind"] != "node":
            by_kind.setdefault(component["kind"], []).append(component)
    for kind, members in by_kind.items():
        counts = Counter(component["status"] for component in members)
        parts = sorted(map(_build_part, members), key=lambda part: _WORST_FIRST.index(part.tone))
        yield PartGroup(
            render.name_kind(kind),
            ", ".join(f"{counts[word]} {word}" for word in wording.STATUS_TONES if counts[word]),
            tuple(parts[:_MAX_PARTS]),
            max(0, len(parts) - _MAX_PARTS),
        )


def _build_part(component: schema.ApiComponent) -> Part:
    return Part(
        component["id"] or component["name"],
        wording.STATUS_TONES[component["status"]],
        component["status"],
        "; ".join(component["unknownReasons"]) or component["device"].get("text", ""),
    )


def _list_sources(status: schema.NodeStatus, now: datetime) -> Iterator[Row]:
    for source in status["sources"]:
        yield Row(
            source["name"],
            wording.SOURCE_TONES[source["state"]],
            source["state"],
            wording.make_moment(source["lastRead"], now),
            source["detail"],
        )


def _list_diagnostics(
    outline: schema.DiagnosticOutline | None, now: datetime
) -> tuple[Row, ...] | None:
    if outline is None:
        return None
    active = (_build_active(run, now) for run in outline["active"])
    return (*active, *(_build_run(run, now) for run in outline["last"]))


def _build_active(run: schema.ActiveDiagnostic, now: datetime) -> Row:
    return Row(
        _name_run(run),
        Tone.NOTE,
        run["stage"],
        wording.make_moment(run["began"] or run["requestedAt"], now),
        run["waitsFor"] or run["test"] or run["reason"],
    )


def _build_run(run: schema.DiagnosticRun, now: datetime) -> Row:
    return Row(
        _name_run(run),
        wording.OUTCOME_TONES.get(run["outcome"], Tone.WARNING),
        run["outcome"].replace("_", " "),
        wording.make_moment(run["ended"], now),
        run["why"],
    )


def _name_run(run: schema.DiagnosticRequest) -> str:
    return f"{run['check']} level {run['level']}" if run["level"] else run["check"]


def _list_jobs(answer: schema.ApiJobs | None, now: datetime) -> tuple[Row, ...] | None:
    """Those that run first."""
    if answer is None:
        return None
    jobs = (*answer["running"], *answer["recent"])
    return tuple(_build_job(job, now) for job in jobs[:MAX_JOBS])


def _build_job(job: schema.ApiJob, now: datetime) -> Row:
    how = finding_text.describe_end(job) if job["state"] == "died" else ""
    return Row(
        f"{job['job']} of {job['user']}" if job["user"] else job["job"],
        wording.JOB_TONES[job["state"]],
        job["state"],
        wording.make_moment(job["ended"] or job["began"], now),
        ": ".join(filter(None, (how, job["reason"]))),
    )


def _list_sinks(status: schema.NodeStatus, now: datetime) -> Iterator[Row]:
    """The sinks of `vitald publish`; unknown while it is silent."""
    publishers = status.get("publishers")
    if publishers is None:
        return
    for sink in publishers["sinks"]:
        is_known = not publishers["silent"]
        state = find_sink_state(sink, status["time"]).lower() if is_known else "unknown"
        waiting = f"{sink['waiting']} waiting" if sink["waiting"] else ""
        yield Row(
            sink["name"],
            wording.SINK_TONES[state],
            state,
            wording.make_moment(sink["lastSuccess"], now),
            "; ".join(filter(None, (sink["error"], waiting))),
        )


def _list_daemon_facts(status: schema.NodeStatus, now: datetime) -> Iterator[Fact]:
    other = f" (this page: {__version__})" if status["version"] != __version__ else ""
    yield Fact("vitald", f"{status['version']}{other}, pid {status['pid']}")
    yield Fact("Started", "", wording.make_moment(status["startedAt"], now))
    yield Fact("Profile", status["profile"])
    yield Fact("Boot", status["bootId"])


@dataclass(frozen=True, slots=True)
class Answers:
    """None: it could not be read. `missing`: what could not be read, or is damaged."""

    status: schema.NodeStatus
    chains: dict[int, schema.Why] = field(default_factory=dict)  # by the finding's number
    cleared: schema.Findings | None = None  # the newest first
    changes: schema.Transitions | None = None  # the newest ones, the oldest of them first
    jobs: schema.ApiJobs | None = None
    missing: tuple[str, ...] = ()


def read_answers(arguments: argparse.Namespace) -> Answers:
    """Query the daemon on `arguments.socket`, with `arguments.timeout` seconds for each answer.

    Raises CommandFailed where there is no verdict. After another answer that does not come at all,
    the rest is not queried.
    """
    status = client.read_status(arguments)
    missing: list[str] = []
    is_silent = False

    def read_part(name: str, endpoint: Get[Any], **values: object) -> Any:
        nonlocal is_silent
        if is_silent:
            missing.append(name)
            return None
        try:
            answer = client.get(arguments, endpoint, **values)
        except CommandFailed as error:
            is_silent = isinstance(error, client.NoAnswer)
            missing.append(f"{name}: {error}")
            return None
        if damaged := answer.get("damaged"):
            missing.append(f"{name}: {count_noun(damaged, 'row')} damaged in the ledger")
        return answer

    heads = [incident["findings"][0] for incident in status["incidents"] if incident["findings"]]
    chains = {
        number: read_part(f"how #{number} came to be", endpoints.WHY, id=int(number))
        for number in heads[:MAX_INCIDENTS]
    }
    return Answers(
        status,
        {number: chain for number, chain in chains.items() if chain is not None},
        read_part("findings that ended", endpoints.FINDINGS, state="cleared", limit=_MAX_CLEARED),
        read_part("changes", endpoints.TRANSITIONS, newest="true", limit=_MAX_CHANGES),
        read_part("jobs", endpoints.JOBS, limit=MAX_JOBS),
        tuple(missing),
    )


def read_page(arguments: argparse.Namespace, span: Span | None = None) -> Page:
    """The page of the daemon on `arguments.socket`, with `arguments.timeout` seconds for each
    answer; without a verdict the page that says why. `span`: of the timeline.
    """
    try:
        return build_page(read_answers(arguments), datetime.now(timezone.utc), span)
    except CommandFailed as error:
        return describe_failure(str(error))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of a daemon of another version, or of something that is no daemon
        return describe_failure(f"the daemon's answer cannot be read: {error!r:.200}")


def describe_failure(error: str) -> Page:
    """The page of a daemon that did not answer."""
    return build_error_page(socket.gethostname(), error, datetime.now(timezone.utc))
