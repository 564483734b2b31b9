"""The findings of the last day, week or month as bars: from when to when each was open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

from vitald.cli import render
from vitald.cli.page.model import Bar, Span, Timeline
from vitald.cli.page.wording import find_tone

if TYPE_CHECKING:
    from vitald.server import schema

_WIDTH = 1000
_MAX_BARS = 12
_MIN_WIDTH = 8  # so that a short finding can be seen
_TICKS = 4


class _Scale(NamedTuple):
    length: timedelta
    title: str
    tick: str  # of strftime


_SCALES = {
    Span.DAY: _Scale(timedelta(hours=24), "the last 24 hours", "%H:%M"),
    Span.WEEK: _Scale(timedelta(days=7), "the last 7 days", "%d %b"),
    Span.MONTH: _Scale(timedelta(days=28), "the last 28 days", "%d %b"),
}


def build_timeline(
    opened: Iterable[schema.ApiFinding],
    cleared: Sequence[schema.ApiFinding],
    now: datetime,
    span: Span | None = None,
    *,
    is_cut: bool = False,
) -> Timeline | None:
    """The open findings, the strongest first, then those that ended within the span, the last
    first. Without a span, the shortest that holds the begin of each finding of the last month. None
    where there was none in that month.

    `is_cut`: more have ended, before those of `cleared`.
    """
    findings = _list_since([*opened, *cleared], now - _SCALES[Span.MONTH].length, now)
    if not findings:
        return None
    span = span or _find_span(min(_find_begin(finding, now) for finding in findings), now)
    scale = _SCALES[span]
    begin = now - scale.length
    inside = _list_since(findings, begin, now)
    ticks = (begin + scale.length * number / _TICKS for number in range(_TICKS + 1))
    return Timeline(
        span,
        scale.title,
        tuple(f"{tick.astimezone(timezone.utc):{scale.tick}}" for tick in ticks),
        tuple(_build_bar(finding, begin, scale.length, now) for finding in inside[:_MAX_BARS]),
        max(0, len(inside) - _MAX_BARS),
        is_cut and all(_find_end(finding, now) > begin for finding in cleared),
    )


def _list_since(
    findings: Iterable[schema.ApiFinding], begin: datetime, now: datetime
) -> list[schema.ApiFinding]:
    """Those that were open at some time after `begin`."""
    return [finding for finding in findings if _find_end(finding, now) > begin]


def _find_span(first: datetime, now: datetime) -> Span:
    return next((span for span in Span if now - first <= _SCALES[span].length), Span.MONTH)


def _build_bar(
    finding: schema.ApiFinding, begin: datetime, length: timedelta, now: datetime
) -> Bar:
    since, until = _find_begin(finding, now), _find_end(finding, now)
    left = _place(since, begin, length)
    width = max(_MIN_WIDTH, _place(until, begin, length) - left)
    is_open = not finding["clearedAt"]
    lasted = render.format_span(max(0.0, (until - since).total_seconds()))
    return Bar(
        finding["title"],
        finding["component"],
        find_tone(finding),
        finding["simulated"],
        is_open,
        min(left, _WIDTH - width),
        width,
        f"open for {lasted}" if is_open else f"lasted {lasted}",
    )


def _place(when: datetime, begin: datetime, length: timedelta) -> int:
    return round(min(max((when - begin) / length, 0.0), 1.0) * _WIDTH)


def _find_begin(finding: schema.ApiFinding, now: datetime) -> datetime:
    return min(render.parse_time(finding["since"]) or now, now)


def _find_end(finding: schema.ApiFinding, now: datetime) -> datetime:
    return min(render.parse_time(finding["clearedAt"]) or now, now)
