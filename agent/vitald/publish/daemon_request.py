"""One request to the daemon over its socket, with a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from vitald.publish.http import parse_json, read_limited
from vitald.server.endpoint import Endpoint
from vitald.text import replace_unprintable

_ANSWER_S = 10.0
_MAX_BYTES = 8 * 1024 * 1024
_MAX_ERROR = 300


class DaemonAway(Exception):
    """The daemon does not answer."""


class AnswerUnusable(Exception):
    """The daemon's answer is an error, or no answer to the request. The text says why.

    `status`: that of HTTP.
    """

    def __init__(self, detail: str, status: int = 200) -> None:
        super().__init__(detail)
        self.status = status


async def request_daemon(
    socket: Path,
    endpoint: Endpoint[object],
    body: Mapping[str, object] | None = None,
    *,
    answer_s: float = _ANSWER_S,
    **values: object,
) -> Mapping[str, object]:
    """The JSON object that it answers. `values`: of the parameters of path and query. Raises
    DaemonAway, AnswerUnusable.
    """
    target = endpoint.make_target(values)
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)),
                timeout=aiohttp.ClientTimeout(total=answer_s),
            ) as session,
            session.request(endpoint.method, f"http://vitald{target}", json=body) as answer,
        ):
            content = await read_limited(answer, _MAX_BYTES)
    except asyncio.TimeoutError:
        raise DaemonAway(f"{target}: no answer within {answer_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise DaemonAway(f"{target}: {str(error) or type(error).__name__}") from error
    return _read_object(target, answer.status, content)


def _read_object(target: str, status: int, content: bytes) -> Mapping[str, object]:
    try:
        document = parse_json(content)
    except ValueError as error:
        raise AnswerUnusable(f"{target}: HTTP {status}: {error}", status) from error
    if not isinstance(document, dict):
        raise AnswerUnusable(f"{target}: HTTP {status}: the answer is no object", status)
    if status != 200:
        problem = replace_unprintable(str(document.get("error", ""))[:_MAX_ERROR])
        raise AnswerUnusable(f"{target}: {problem} (HTTP {status})", status)
    return document
