"""The findings of the last time as bars: from when to when each was open."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

from vitald.cli import render
from vitald.cli.page.model import Bar, Timeline
from vitald.cli.page.wording import find_tone

if TYPE_CHECKING:
    from vitald.server import schema

_WIDTH = 1000
_MAX_BARS = 12
_MIN_WIDTH = 8  # so that a short finding can be seen
_TICKS = 4


class _Scale(NamedTuple):
    span: timedelta
    title: str
    tick: str  # of strftime


_SCALES = (
    _Scale(timedelta(hours=1), "the last hour", "%H:%M"),
    _Scale(timedelta(hours=6), "the last 6 hours", "%H:%M"),
    _Scale(timedelta(hours=24), "the last 24 hours", "%H:%M"),
    _Scale(timedelta(days=7), "the last 7 days", "%d %b"),
    _Scale(timedelta(days=28), "the last 28 days", "%d %b"),
)


def build_timeline(
    opened: Iterable[schema.ApiFinding], cleared: Iterable[schema.ApiFinding], now: datetime
) -> Timeline | None:
    """The open findings, the strongest first, then those that ended within the last 28 days. None
    where there are none.
    """
    oldest = now - _SCALES[-1].span
    findings = [*opened, *(one for one in cleared if _find_end(one, now) > oldest)]
    shown = findings[:_MAX_BARS]
    if not shown:
        return None
    first = min(_find_begin(finding, now) for finding in shown)
    scale = next((each for each in _SCALES if now - first <= each.span), _SCALES[-1])
    begin = now - scale.span
    ticks = (begin + scale.span * number / _TICKS for number in range(_TICKS + 1))
    return Timeline(
        scale.title,
        tuple(f"{tick.astimezone(timezone.utc):{scale.tick}}" for tick in ticks),
        tuple(_build_bar(finding, begin, scale.span, now) for finding in shown),
        len(findings) - len(shown),
    )


def _build_bar(finding: schema.ApiFinding, begin: datetime, span: timedelta, now: datetime) -> Bar:
    since, until = _find_begin(finding, now), _find_end(finding, now)
    left = _place(since, begin, span)
    width = max(_MIN_WIDTH, _place(until, begin, span) - left)
    is_open = not finding["clearedAt"]
    lasted = render.format_span(max(0.0, (until - since).total_seconds()))
    return Bar(
        finding["title"],
        finding["code"],
        finding["component"],
        find_tone(finding),
        finding["simulated"],
        is_open,
        min(left, _WIDTH - width),
        width,
        f"open for {lasted}" if is_open else f"lasted {lasted}",
    )


def _place(when: datetime, begin: datetime, span: timedelta) -> int:
    return round(min(max((when - begin) / span, 0.0), 1.0) * _WIDTH)


def _find_begin(finding: schema.ApiFinding, now: datetime) -> datetime:
    return min(render.parse_time(finding["since"]) or now, now)


def _find_end(finding: schema.ApiFinding, now: datetime) -> datetime:
    return min(render.parse_time(finding["clearedAt"]) or now, now)
