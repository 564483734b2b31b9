"""
Reading of requests: parameters, bodies, the right to change something, and the refusal that the
outermost handler turns into JSON; and the route of an endpoint, which checks the query.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timezone
from typing import TypeVar

import structlog
from aiohttp import web

from vitald import tomlfile
from vitald.checking import Unexpected, read_line, read_number
from vitald.http_server.peer import Peer
from vitald.server.endpoint import MAX_PAGE, PAGE, Answer, Endpoint
from vitald.timestamps import parse_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

T = TypeVar("T")

PUBLISHES = "publishes"  # of a request: it comes from the publisher's user
_BODY_S = 5.0
_SECONDS = (1.0, 86400.0)
_REASON = 500


class RequestRefused(Exception):
    """A request that is answered with an error. `hint` says what to do instead."""

    def __init__(self, status: int, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint


def make_route(
    endpoint: Endpoint[Answer],
    answer: Callable[[web.Request], Awaitable[Answer | web.StreamResponse]],
) -> web.RouteDef:
    """The route of an endpoint. `answer` makes its answer of a request whose query was checked, or
    writes the response itself.
    """
    known = [str(each["name"]) for each in endpoint.parameters if each["in"] == "query"]

    async def handle_request(request: web.Request) -> web.StreamResponse:
        _check_query(request, known)
        answered = await answer(request)
        if isinstance(answered, web.StreamResponse):
            return answered
        return web.json_response(answered, status=endpoint.status)

    route = web.get if endpoint.method == "GET" else web.post
    return route(endpoint.path, handle_request)


def _check_query(request: web.Request, known: Sequence[str]) -> None:
    """Each parameter at most once, and all of them known."""
    for name in request.query:
        if name not in known:
            raise RequestRefused(
                400,
                f"unknown parameter {name[:80]!r}{tomlfile.suggest_word(name, known)}",
                "see /v1/openapi.json",
            )
        if len(request.query.getall(name)) > 1:
            raise RequestRefused(400, f"{name}: given more than once")


def read_limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(PAGE))
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_PAGE:
        raise RequestRefused(
            400, f"limit: expected a number from 1 to {MAX_PAGE}, found {text[:80]!r}"
        )
    return int(text)


def read_flag_parameter(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise RequestRefused(400, f"{name}: expected true or false, found {text[:80]!r}")
    return text == "true"


def read_since(text: str | None) -> tuple[int, float | None]:
    """An event's id (what `next` gives), an RFC 3339 time, or a duration back from now."""
    if text is None:
        return 0, None
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text), None
    try:
        return 0, time.time() - tomlfile.parse_duration(text)
    except ValueError:
        pass
    try:
        moment = parse_rfc3339(text)
        return 0, (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise RequestRefused(
            400, f"since: {text[:80]!r} is no event id, RFC 3339 time or duration such as 30m"
        ) from None


async def read_body(request: web.Request, *known: str) -> dict[str, object]:
    try:
        body = await asyncio.wait_for(request.read(), _BODY_S)
    except asyncio.TimeoutError:
        raise RequestRefused(408, f"the body did not come within {_BODY_S:g} s") from None
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the body is not JSON") from None
    if not isinstance(values, dict):
        raise RequestRefused(400, "the body is not a JSON object")
    for name in values:
        if name not in known:
            raise RequestRefused(
                400, f"unknown key {name[:80]!r}{tomlfile.suggest_word(name, known)}"
            )
    return values


def read_value(
    body: dict[str, object],
    name: str,
    read: Callable[[object], T],
    default: object = None,
    hint: str = "",
) -> T:
    """What `read` makes of a value; `default` if the key is absent. Raises RequestRefused."""
    try:
        return read(body.get(name, default))
    except Unexpected as error:
        raise RequestRefused(400, f"{name}: expected {error.expected}", hint) from None


def read_seconds(
    body: dict[str, object],
    name: str,
    default: float | None,
    *,
    least: float = _SECONDS[0],
    most: float = _SECONDS[1],
) -> float:
    """`default`: where the body does not say; None: it must."""
    expected = f"a number from {least:.0f} to {most:.0f}"
    return read_value(body, name, lambda value: read_number(value, least, most, expected), default)


def read_reason(body: dict[str, object]) -> str:
    """Why something is changed. A change without a reason is refused."""

    def read(value: object) -> str:
        return read_line(value.strip() if isinstance(value, str) else value, 1, _REASON)

    hint = 'send {"reason": "replaced the riser, ticket 4711"}'
    return read_value(body, "reason", read, hint=hint)


def require_publisher_right(request: web.Request) -> Peer:
    """The peer, if it is the publisher's user or may change something. A refusal is not logged: a
    publisher repeats its reports.
    """
    peer: Peer = request["peer"]
    if not (peer.may_change or request[PUBLISHES]):
        raise RequestRefused(
            403,
            f"uid {peer.uid} may not change anything",
            "only root, the daemon's own user and that of [publish] user may report sinks",
        )
    return peer


def require_release_right(request: web.Request) -> Peer:
    """The peer, if it may release the GPUs: the publisher's user may, for driver upgrades."""
    if request[PUBLISHES]:
        return require_publisher_right(request)
    return require_change_right(request)


def require_change_right(request: web.Request) -> Peer:
    """The peer, if it may change something: root or the daemon's user."""
    peer: Peer = request["peer"]
    if not peer.may_change:
        log.warning("change_refused", path=request.path, uid=peer.uid, pid=peer.pid)
        raise RequestRefused(
            403,
            f"uid {peer.uid} may not change anything",
            "only root and the daemon's own user may",
        )
    return peer
