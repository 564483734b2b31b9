"""
Notices of the cloud provider over the socket: `POST /v1/notices`, from `vitald publish`.

Owns     checking a request: effects, sizes and times.
Refuses  what becomes of the notices, which is `CloudNotices`', and reading them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from vitald.checking import Unexpected, read_line, read_list, read_match, read_member
from vitald.core.cloud_notices import CloudNotice, CloudNotices
from vitald.model.cloud_notice import (
    MAX_DESCRIPTION,
    MAX_ID,
    MAX_KIND,
    MAX_NOTICES,
    Effect,
    Provider,
)
from vitald.server.request import RequestRefused, read_body, require_publisher_right
from vitald.timestamps import parse_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

T = TypeVar("T")

_KEYS = ("effect", "kind", "id", "notBefore", "description")
_KIND = re.compile(rf"[ -~]{{1,{MAX_KIND}}}")
_ID = re.compile(rf"[ -~]{{0,{MAX_ID}}}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


class NoticeRoutes:
    """The handler."""

    def __init__(self, cloud_notices: CloudNotices) -> None:
        self._cloud_notices = cloud_notices

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/notices", self.store_notices)

    async def store_notices(self, request: web.Request) -> web.Response:
        """Open, update and end the findings of the provider's notices."""
        require_publisher_right(request)
        body = await read_body(request, "provider", "notices")
        try:
            provider = _read("provider", body, partial(read_member, enum=Provider))
            notices = _read_notices(body)
        except ValueError as error:
            raise RequestRefused(400, str(error), "see /v1/openapi.json") from None
        await self._cloud_notices.store_report(provider, notices)
        answer: schema.NoticesStored = {"ok": True}
        return web.json_response(answer)


def _read_notices(body: Mapping[str, object]) -> list[CloudNotice]:
    """Raises ValueError that names the key."""
    listed = _read("notices", body, partial(read_list, least=0, most=MAX_NOTICES))
    return [_read_notice(value, f"notices[{place}]") for place, value in enumerate(listed)]


def _read_notice(value: object, place: str) -> CloudNotice:
    """Raises ValueError that begins with the place."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}: expected an object")
    if unknown := next((str(key) for key in value if key not in _KEYS), ""):
        raise ValueError(f"{place}: unknown key {unknown[:80]!r}")
    at = f"{place}."
    return CloudNotice(
        effect=_read("effect", value, partial(read_member, enum=Effect), at),
        kind=_read("kind", value, _read_kind, at),
        id=_read("id", value, _read_id, at),
        not_before=_read("notBefore", value, _read_moment, at),
        description=_read(
            "description", value, partial(read_line, least=0, most=MAX_DESCRIPTION), at
        ),
    )


def _read(
    key: str, values: Mapping[str, object], read_value: Callable[[object], T], at: str = ""
) -> T:
    if key not in values:
        raise ValueError(f"{at}{key}: it is missing")
    try:
        return read_value(values[key])
    except Unexpected as error:  # without the value, which may be long
        raise ValueError(f"{at}{key}: expected {error.expected}") from None
    except ValueError as error:
        raise ValueError(f"{at}{key}: {str(error)[:200]}") from None


_read_kind = partial(
    read_match, pattern=_KIND, expected=f"1 to {MAX_KIND} printable characters of ASCII"
)
_read_id = partial(
    read_match, pattern=_ID, expected=f"at most {MAX_ID} printable characters of ASCII"
)


def _read_moment(value: object) -> float | None:
    """Seconds since the epoch."""
    if value is None:
        return None
    expected = "null or a time such as 2026-11-20T13:46:40.300Z"
    text = read_match(value, _MOMENT, expected)
    try:
        return parse_rfc3339(text).timestamp()
    except (ValueError, OverflowError):  # the 31st of February
        raise Unexpected(expected, value) from None
