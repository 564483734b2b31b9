"""
The reports of publishers over the socket: `POST /v1/publishers`.

Owns     what a publisher may say: sizes, names and times are checked, for the report is shown to
         people and exported.
Refuses  keeping it: that is the node's state. A report is no change of the node, so neither the
         ledger nor the log gets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from vitald.checking import (
    Unexpected,
    read_flag,
    read_line,
    read_list,
    read_match,
    read_whole,
)
from vitald.core.node_state import NodeState
from vitald.core.publisher_reports import MAX_REFUSED, MAX_SINKS, PublisherReport, SinkReport
from vitald.server import endpoints, serialize
from vitald.server.request import RequestRefused, make_route, read_body, require_publisher_right
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_MAX_ERROR, _MAX_COUNT = 300, 10**15
_KEYS = (
    *("name", "up", "lastSuccess", "error", "refused"),
    *("waiting", "waitingSince", "writes", "failures"),
)


class PublisherRoutes:
    """The handler."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state

    def list_routes(self) -> list[web.RouteDef]:
        return [make_route(endpoints.REPORT_SINKS, self.store_report)]

    async def store_report(self, request: web.Request) -> schema.SinksReported:
        """Replace the last report by this one."""
        require_publisher_right(request)
        body = await read_body(request, "sinks")
        try:
            sinks = _read_sinks(body.get("sinks"))
        except ValueError as error:
            raise RequestRefused(400, str(error), "see /v1/openapi.json") from None
        self._node_state.publishers.store_report(sinks)
        self._node_state.incident_steps.note_publication(sinks)
        return {"ok": True}


def describe_report(report: PublisherReport, *, silent: bool) -> schema.ApiPublishers:
    """For /v1/status."""
    return {
        "reported": serialize.format_moment(report.time),
        "silent": silent,
        "sinks": [
            {
                "name": sink.name,
                "up": sink.up,
                "lastSuccess": serialize.format_moment(sink.last_success),
                "error": sink.error,
                "refused": [*sink.refused],
                "waiting": sink.waiting,
                "waitingSince": serialize.format_moment(sink.waiting_since),
                "writes": sink.writes,
                "failures": sink.failures,
            }
            for sink in report.sinks
        ],
    }


def _read_sinks(value: object) -> tuple[SinkReport, ...]:
    """Raises ValueError that names the key."""
    try:
        listed = read_list(value, 0, MAX_SINKS)
    except Unexpected as error:
        raise ValueError(f"sinks: expected {error.expected}") from None
    sinks = tuple(_read_sink(sink, f"sinks[{position}]") for position, sink in enumerate(listed))
    names = [sink.name for sink in sinks]
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"sinks: {repeated!r} is there more than once")
    return sinks


def _read_sink(value: object, place: str) -> SinkReport:
    """Raises ValueError that begins with the place."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}: expected an object")
    if unknown := next((str(key) for key in value if key not in _KEYS), ""):
        raise ValueError(f"{place}: unknown key {unknown[:80]!r}")

    def read(key: str, read_value: Callable[[object], T]) -> T:
        if key not in value:
            raise ValueError(f"{place}.{key}: it is missing")
        try:
            return read_value(value[key])
        except Unexpected as error:  # without the value, which may be long
            raise ValueError(f"{place}.{key}: expected {error.expected}") from None

    return SinkReport(
        name=read("name", _read_name),
        up=read("up", read_flag),
        last_success=read("lastSuccess", _read_moment),
        error=read("error", partial(read_line, least=0, most=_MAX_ERROR)),
        refused=read("refused", _read_refused),
        waiting=read("waiting", _read_count),
        waiting_since=read("waitingSince", _read_moment),
        writes=read("writes", _read_count),
        failures=read("failures", _read_count),
    )


def _read_name(value: object) -> str:
    return read_match(value, _NAME, "1 to 32 small letters, digits, _ or -, a letter first")


def _read_refused(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_read_name(each) for each in read_list(value, 0, MAX_REFUSED)))


def _read_count(value: object) -> int:
    expected = f"a number from 0 to {_MAX_COUNT}"
    return read_whole(value, 0, _MAX_COUNT, expected, from_json=True)


def _read_moment(value: object) -> float | None:
    """Seconds since the epoch."""
    if value is None:
        return None
    expected = "null or a time such as 2026-11-20T13:46:40.300Z"
    try:
        return parse_rfc3339(read_match(value, _MOMENT, expected)).timestamp()
    except Unexpected:
        raise
    except (ValueError, OverflowError):  # the 31st of February
        raise Unexpected(expected, value) from None
