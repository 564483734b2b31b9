"""
How an open notice came to be: what reported it, since when, what else happened on the node around
its beginning, and what to look at. For `vitald why job/stalled`.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitald.cli import client, layout, render
from vitald.model.notice import JOB_COLLECTIVE, WAITING
from vitald.timestamps import format_rfc3339, parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

# As the story of the daemon: around the beginning of a notice
_BEFORE_S, _AFTER_S = 600.0, 120.0
_MAX_READ, _MAX_EVENTS = 1000, 20
_CLAIM = "claim:"  # of a job that neither Slurm nor a pod's control group names


@dataclass(frozen=True, slots=True)
class NoticeHistory:
    """An open notice, and the events of the node around its beginning, oldest first. `has_more`:
    there are others.
    """

    notice: schema.WorkNotice
    events: list[schema.ApiEvent]
    has_more: bool


def read_history(arguments: argparse.Namespace, notice: schema.WorkNotice) -> NoticeHistory:
    """The events around the beginning of a notice, and those of its code since then."""
    began = parse_rfc3339(notice["since"]).timestamp()
    begin, end = format_rfc3339(began - _BEFORE_S), format_rfc3339(began + _AFTER_S)
    around = client.call_api(arguments, "/v1/events", since=begin, limit=_MAX_READ)
    later = client.call_api(
        arguments, "/v1/events", code=notice["code"], since=notice["since"], limit=_MAX_READ
    )
    found = {event["id"]: event for event in around["events"] if event["time"] <= end}
    found.update((event["id"], event) for event in later["events"] if _is_of(event, notice))
    chosen = sorted(found.values(), key=lambda event: _rank_event(event, began))
    return NoticeHistory(
        notice=notice,
        events=sorted(chosen[:_MAX_EVENTS], key=lambda event: event["time"]),
        has_more=len(chosen) > _MAX_EVENTS or around["next"] is not None,
    )


def _is_of(event: schema.ApiEvent, notice: schema.WorkNotice) -> bool:
    """Whether an event of the notice's code is about the same job."""
    own = notice["fields"]
    return all(event["fields"].get(name) == own.get(name) for name in ("job", "uid"))


def _rank_event(event: schema.ApiEvent, began: float) -> tuple[bool, float]:
    """What is listed if there is too much: what no job wrote, as any user can write many events,
    then what is nearest to the beginning.
    """
    distance = abs(parse_rfc3339(event["time"]).timestamp() - began)
    return event["trust"] == "job", distance


def format_history(history: NoticeHistory) -> Iterator[str]:
    notice = history.notice
    yield render.colour_text(f"{notice['code']}  {render.escape_text(notice['title'])}", "bold")
    yield from _wrap("notice", notice["text"])
    seen = f"observed last {render.format_time(notice['last'])}"
    yield from _wrap("since", f"{render.format_time(notice['since'])}, {seen}")
    yield from _wrap("reported", f"by {_describe_reporter(notice)}")
    if notice["story"]:
        yield from _wrap("story", notice["story"])
    yield from _wrap("look at", notice["advice"])
    yield from _wrap("effect", "none: a notice changes neither status nor flags")
    yield "  events from 10 minutes before it began to 2 minutes after, and its own since"
    for event in history.events:
        yield f"    {render.format_event(event)}"
    if not history.events:
        yield "    none is stored"
    if history.has_more:
        begin = format_rfc3339(parse_rfc3339(notice["since"]).timestamp() - _BEFORE_S)
        yield f"    and more: vitald events --since {begin}"


def _describe_reporter(notice: schema.WorkNotice) -> str:
    """Whose word it is. What a job says of itself is called a claim."""
    if notice["code"] == WAITING:
        return "vitald itself, which reads the GPUs and the network adapters"
    claim = notice["subject"].startswith(_CLAIM)
    identity = "the job's id is its own claim" if claim else "the kernel names the job"
    owner = f"processes of uid {notice['fields'].get('uid', '?')} ({identity})"
    if notice["code"] == JOB_COLLECTIVE:
        return f"NCCL in {owner}, whom vitald asked: their own claim, not checked"
    return f"{owner}, over the job socket: their own claim, not checked"


def _wrap(label: str, text: str) -> Iterable[str]:
    width = max(layout.get_width() - 13, 20)
    lines = textwrap.wrap(render.escape_text(text), width) or [""]
    yield f"  {label:<9}{lines[0]}"
    yield from (f"  {'':<9}{line}" for line in lines[1:])
