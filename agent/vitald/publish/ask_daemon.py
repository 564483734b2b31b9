"""One request to the daemon over its socket, with a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from vitald.publish.http import parse_json, read_limited

_ANSWER_S = 10.0


class DaemonAway(Exception):
    """The daemon does not answer."""


class NotAnswered(Exception):
    """The daemon's answer is not what was asked for. The text says why."""


async def ask_daemon(
    socket: Path,
    path: str,
    query: Mapping[str, str],
    max_bytes: int,
    *,
    body: Mapping[str, object] | None = None,
) -> object:
    """The JSON document that answers a GET, or with a body a POST. Raises DaemonAway,
    NotAnswered.
    """
    method = "GET" if body is None else "POST"
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)),
                timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            ) as session,
            session.request(method, f"http://vitald{path}", params=query, json=body) as answer,
        ):
            content = await read_limited(answer, max_bytes)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        raise DaemonAway(str(error) or type(error).__name__) from error
    if answer.status != 200:
        raise NotAnswered(f"HTTP {answer.status}: {content[:200].decode(errors='replace')}")
    try:
        return parse_json(content)
    except ValueError as error:
        raise NotAnswered("the answer is not JSON") from error
