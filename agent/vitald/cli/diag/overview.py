"""What `vitald diag list` prints: the checks of this node, the queue, and the last runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from vitald.cli import render
from vitald.cli.diag import views
from vitald.cli.table import format_table

if TYPE_CHECKING:
    from vitald.server import schema

_CHECK_TITLES = ("check", "level", "last", "took", "every", "next")
_RUN_TITLES = ("began", "run", "outcome", "took", "id", "requested by", "why")
_MAX_WHY = 160  # characters; the whole reason is in `vitald diag show`


def format_overview(
    answer: schema.ApiDiagnostics, runs: Sequence[schema.DiagnosticRun]
) -> Iterator[str]:
    yield from format_table(_CHECK_TITLES, _build_check_rows(answer))
    if answer["blocked"]:
        yield ""
        yield f"what needs idle devices waits: {render.escape_text(answer['blocked'])}"
    if answer["active"]:
        yield ""
        for active in answer["active"]:
            waiting = active["stage"] == "waiting"
            name, id_ = views.format_name(active), render.escape_text(active["id"])
            since = f"requested {render.format_age(active['requestedAt'])} ago"
            by = views.format_requester(active)
            yield f"{'waits' if waiting else 'runs '}  {name}  {id_}, {since} by {by}"
            if waiting and active["waitsFor"]:
                yield f"       for {render.escape_text(active['waitsFor'])}"
    yield ""
    if not runs:
        yield "no runs yet"
        return
    yield from format_table(_RUN_TITLES, [_build_run_row(run) for run in runs])


def _build_check_rows(answer: schema.ApiDiagnostics) -> list[tuple[str, ...]]:
    last = {(run["check"], run["level"]): run for run in answer["last"]}
    due = {(run["check"], run["level"]): run for run in answer["scheduled"]}
    rows = []
    for check in answer["checks"]:
        for level in check["levels"] or [0]:
            key = (check["name"], level)
            active = next(
                (run for run in answer["active"] if (run["check"], run["level"]) == key), None
            )
            coming = _describe_next(check, level, due.get(key), active)
            rows.append(_build_check_row(check, level, last.get(key), coming))
    return rows


def _build_check_row(
    check: schema.DiagnosticCheck, level: int, last: schema.DiagnosticRun | None, coming: str
) -> tuple[str, ...]:
    every = check["every"].get(str(level), 0.0)
    ended, took = "never", "-"
    if last is not None:
        ended = f"{views.name_outcome(last)}, {render.format_age(last['ended'])} ago"
        took = views.format_duration(last["seconds"])
    return (
        render.escape_text(check["name"]),
        str(level) if level else "-",
        ended,
        took,
        views.format_duration(every) if every and not check["missing"] else "-",
        coming,
    )


def _describe_next(
    check: schema.DiagnosticCheck,
    level: int,
    due: schema.ScheduledDiagnostic | None,
    active: schema.ActiveDiagnostic | None,
) -> str:
    """The run that is active or queued; else when the next is due, or why there is none."""
    if active is not None and active["stage"] == "waiting":
        waits = f"waits for {render.escape_text(active['waitsFor']) or 'its turn'}"
        coming = _format_due(due["at"]) if due is not None else ""
        return f"{coming}, {waits}" if coming.startswith("in ") else waits
    if active is not None:
        expected = views.format_duration(active["expected"])
        return f"runs: {views.format_duration(active['elapsed'])} of about {expected}"
    if check["missing"]:
        return f"cannot run: {render.escape_text(check['missing'])}"
    if due is not None:
        waits = f", waits for {render.escape_text(due['waitsFor'])}" if due["waitsFor"] else ""
        return f"{_format_due(due['at'])}{waits}"
    return "not scheduled" if check["every"].get(str(level), 0.0) else "on request"


def _build_run_row(run: schema.DiagnosticRun) -> tuple[str, ...]:
    why = render.escape_text(run["why"])
    if not why and run["preempted"]:
        why = f"made room for {render.escape_text(run['preempted'])}"
    return (
        render.describe_time(run["began"]),
        views.format_name(run),
        views.name_outcome(run),
        views.format_duration(run["seconds"]),
        render.escape_text(run["id"]),
        render.escape_text(run["by"]),
        render.cut_text(why, _MAX_WHY),
    )


def _format_due(moment: object) -> str:
    when = render.parse_time(moment)
    if when is None:
        return "-"
    left = (when - datetime.now(timezone.utc)).total_seconds()
    return f"in {views.format_duration(left)}" if left > 0 else "now"
