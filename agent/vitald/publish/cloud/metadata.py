"""
Requests to the metadata service of an instance: link-local, without TLS, with a limit for each.

Owns     limits, and what counts as no answer. No redirect, no proxy of the environment.
Refuses  the meaning of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from vitald import __version__
from vitald.publish.http import parse_json, read_limited

# Of all three providers; AWS, Microsoft and Google document this address.
ENDPOINT = "http://169.254.169.254"
_MAX_BYTES = 64 * 1024
_OK, NOT_FOUND = 200, 404


class MetadataFailed(Exception):
    """The service does not answer, or not as documented: nothing is known of notices.

    `is_unreachable`: there was no answer.
    """

    def __init__(self, detail: str, *, is_unreachable: bool = False) -> None:
        super().__init__(detail)
        self.is_unreachable = is_unreachable


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer of any status."""

    status: int
    headers: Mapping[str, str]  # by name, in any case
    body: bytes

    @property
    def is_found(self) -> bool:
        return self.status == _OK

    def read_text(self) -> str:
        """Raises ValueError."""
        return self.body.decode("utf-8").strip()

    def read_json(self) -> object:
        """Raises ValueError."""
        return parse_json(self.body)


class MetadataService:
    """The service behind one address. Each request has a connection of its own."""

    def __init__(self, endpoint: str = ENDPOINT, *, timeout_s: float) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._timeout_s = timeout_s

    async def get(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Raises MetadataFailed if there is no answer."""
        return await self._request("GET", path, headers)

    async def put(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Raises MetadataFailed if there is no answer."""
        return await self._request("PUT", path, headers)

    async def _request(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=1, force_close=True),
                    timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    trust_env=False,
                ) as session,
                session.request(
                    method,
                    f"{self._endpoint}{path}",
                    headers={
                        "User-Agent": f"vitald/{__version__}",
                        "Accept-Encoding": "identity",
                        **headers,
                    },
                    allow_redirects=False,
                ) as answer,
            ):
                body = await read_limited(answer, _MAX_BYTES)
                return Answer(answer.status, answer.headers, body)
        except asyncio.TimeoutError:
            problem = f"no answer within {self._timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
        raise MetadataFailed(f"{path.partition('?')[0]}: {problem}", is_unreachable=True)


def refuse_answer(path: str, answer: Answer) -> MetadataFailed:
    """The error for a status that is not documented for this path."""
    return MetadataFailed(f"{path.partition('?')[0]}: HTTP {answer.status}")
