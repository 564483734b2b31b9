"""
One POST: TLS 1.2 or later, no redirect, no proxy of the environment, a limit for the whole request.

Of the answer, the status and `Retry-After` decide; the beginning of its body is for `vitald notify
test` only. A URL may be a secret (Slack), so no text has more of it than the server's address.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from vitald import __version__
from vitald.publish.http import build_tls_context, read_retry_after
from vitald.publish.notify.receiver import NotificationRefused
from vitald.publish.notify.settings import describe_server
from vitald.publish.sink import SinkFailed
from vitald.text import replace_unprintable

_RETRIED = frozenset({408, 425, 429})  # of 4xx
_READ_BYTES, _READ_S = 4096, 1.0
_MAX_REASON = 200
# Shared, by the file of the authority: those of the system take 1 MiB each time.
_tls_contexts: dict[Path | None, ssl.SSLContext] = {}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`text`: the beginning of the body, printable."""

    status: int
    retry_after_s: float | None
    text: str


class HttpPoster:
    """Sends to one URL. Each request has a connection of its own, because they are rare."""

    def __init__(self, url: str, *, ca: Path | None, timeout_s: float) -> None:
        self.server = describe_server(url)
        self._url = url
        self._ca = ca
        self._timeout_s = timeout_s

    async def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Raises SinkFailed where there is no answer or a later attempt may succeed,
        NotificationRefused where it cannot.
        """
        answer = await self.send(body, headers)
        check_answer(self.server, answer)
        return answer

    async def send(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Whatever was answered. Raises SinkFailed where nothing was."""
        tls = self._get_tls_context()
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=tls, limit=1, force_close=True),
                    timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    trust_env=False,
                ) as session,
                session.post(
                    self._url,
                    data=body,
                    headers={
                        "User-Agent": f"vitald/{__version__}",
                        "Accept-Encoding": "identity",
                        **headers,
                    },
                    allow_redirects=False,
                ) as answer,
            ):
                return HttpAnswer(
                    answer.status,
                    read_retry_after(answer.headers.get("Retry-After", ""), time.time()),
                    await _read_beginning(answer),
                )
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            # ValueError: a host name that cannot be resolved.
            # The authorities may have been replaced since.
            _tls_contexts.pop(self._ca, None)
            # Without the cause, which has the whole URL.
            raise SinkFailed(
                f"{self.server}: {self._explain(error)}", is_unreachable=True
            ) from None

    def _get_tls_context(self) -> ssl.SSLContext:
        if self._ca not in _tls_contexts:
            try:
                _tls_contexts[self._ca] = build_tls_context(self._ca)
            except OSError as error:
                raise SinkFailed(f"certificate authority {self._ca}: {error}") from error
        return _tls_contexts[self._ca]

    def _explain(self, error: Exception) -> str:
        if isinstance(error, asyncio.TimeoutError):
            return f"no answer within {self._timeout_s:g} s"
        if isinstance(error, aiohttp.ClientResponseError):
            text = f"no valid HTTP: {error.message}"
        elif isinstance(error, aiohttp.InvalidURL):
            text = "the address is no valid URL"
        elif isinstance(error, aiohttp.ClientConnectorCertificateError):
            text = f"certificate: {error.certificate_error}"
        elif isinstance(error, aiohttp.ClientConnectorError):
            text = _explain_connect(error.os_error)
        else:
            text = str(error) or type(error).__name__
        return replace_unprintable(text.replace(self._url, self.server), " ")[:_MAX_REASON]


def _explain_connect(error: OSError) -> str:
    """`Connection refused`: asyncio's text repeats the address."""
    if isinstance(error, ssl.SSLError) or not error.errno or error.errno < 0:
        return str(error)
    return os.strerror(error.errno)


def check_answer(server: str, answer: HttpAnswer) -> None:
    """Raises SinkFailed or NotificationRefused for a status other than 2xx."""
    status = answer.status
    if 200 <= status < 300:
        return
    if 400 <= status < 500 and status not in _RETRIED:
        raise NotificationRefused(f"{server} answered {status}: `vitald notify test` shows why")
    hint = ""
    if 300 <= status < 400:
        hint = " (a redirect, which is not followed): set url to the final address"
    raise SinkFailed(f"{server} answered {status}{hint}", retry_after_s=answer.retry_after_s)


async def _read_beginning(answer: aiohttp.ClientResponse) -> str:
    """A body that is endless, slow or broken changes nothing: the status says all."""
    try:
        content = await asyncio.wait_for(answer.content.read(_READ_BYTES), _READ_S)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
        return ""
    return replace_unprintable(content.decode(errors="replace"), " ").strip()
