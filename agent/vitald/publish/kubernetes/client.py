"""
The few requests that the sink makes of the API server.

    GET    /api/v1/nodes/NAME
    GET    /api/v1/nodes?fieldSelector=...   the own node, and how it changes: node_watch.py
    PATCH  /api/v1/nodes/NAME/status      conditions, labels and annotations, in one request
    PATCH  /api/v1/nodes/NAME             taints, with the resource version they were read at
    POST   /apis/events.k8s.io/v1/namespaces/default/events

`nodes/status` accepts labels and annotations too, so that no right to patch nodes is needed.
Conditions are merged by type. Source: Kubernetes API reference, NodeStatus (patch strategy merge,
key type), tried against 1.36.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from vitald import __version__
from vitald.publish.http import parse_json, read_limited, read_retry_after
from vitald.publish.kubernetes.credentials import ClusterAccess, NoCredentials, TokenSource
from vitald.publish.kubernetes.node_object import MANAGER, NodeObject, parse_node
from vitald.publish.sink import SinkFailed
from vitald.text import replace_unprintable

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_GONE = 404
_TOO_MANY = 429
# What a right, an admission policy or a webhook answers; and a size that is too large. Source:
# Kubernetes API concepts, and ValidatingAdmissionPolicy ("reason", by default Invalid: 422).
REFUSED = frozenset({400, 403, 413, 422})
_REQUEST_S = 10.0
_TIMEOUT = aiohttp.ClientTimeout(total=_REQUEST_S)
_SILENCE_S = 120.0  # of a stream: about once a minute the API server sends a bookmark
_MAX_BYTES = 4 * 1024 * 1024  # a Node object is limited to about 1.5 MiB by etcd
_MAX_ERROR = 500
_CONNECTIONS = 4  # one of them for the watch
_JSON = "application/json"
Document = Mapping[str, object]


_Client = TypeVar("_Client", bound="KubernetesClient")


class ApiUnreachable(Exception):
    """No usable answer. The text says why."""


class ApiRefused(Exception):
    """An answer that is an error, with its HTTP status and Kubernetes' word and text for it."""

    def __init__(
        self,
        status: int,
        message: str,
        retry_after_s: float | None = None,
        *,
        reason: str = "",
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.reason = reason
        self.retry_after_s = retry_after_s


@contextmanager
def report_failures() -> Iterator[None]:
    """Raises SinkFailed where a request fails."""
    try:
        yield
    except ApiRefused as error:
        raise SinkFailed(
            f"API server: {error}",
            retry_after_s=error.retry_after_s,
            is_expected=error.status == _GONE,
        ) from error
    except ApiUnreachable as error:
        raise SinkFailed(str(error), is_unreachable=True) from error
    except NoCredentials as error:
        raise SinkFailed(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    accept: str = _JSON
    content: str | None = None
    content_type: str = ""

    @property
    def headers(self) -> dict[str, str]:
        typed = {"Content-Type": self.content_type} if self.content_type else {}
        return {"Accept": self.accept, **typed}


class KubernetesClient:
    """One connection to the API server, for one node. A context manager."""

    def __init__(self, access: ClusterAccess, node: str, impersonate: str = "") -> None:
        """`impersonate`: a user name for constrained impersonation (1.36 and later)."""
        self.node = node
        self._access = access
        self._tokens = TokenSource(access)
        self._headers = {
            "User-Agent": f"vitald/{__version__}",
            "Accept-Encoding": "identity",  # what is unpacked has no limit
        }
        if impersonate:
            self._headers["Impersonate-User"] = impersonate
        self._session: _Session | None = None
        self._deferral: ApiRefused | None = None  # the last answer with a Retry-After
        self._deferred_until = 0.0  # on the monotonic clock

    async def __aenter__(self: _Client) -> _Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.http.close()

    async def read_node(self) -> NodeObject:
        """Raises ApiUnreachable, ApiRefused, NoCredentials."""
        return read_node_object(await self._request("GET", f"/api/v1/nodes/{quote(self.node)}"))

    async def patch_status(self, patch: Mapping[str, object]) -> NodeObject:
        """The node after a strategic merge patch of its status. Raises as read_node."""
        path = f"/api/v1/nodes/{quote(self.node)}/status?fieldManager={MANAGER}"
        return read_node_object(await self._request("PATCH", path, patch, STRATEGIC))

    async def patch_node(self, patch: Mapping[str, object]) -> NodeObject:
        """The node after a merge patch; 409 where `metadata.resourceVersion` is no longer its
        own. Raises as read_node.
        """
        path = f"/api/v1/nodes/{quote(self.node)}?fieldManager={MANAGER}"
        return read_node_object(await self._request("PATCH", path, patch, MERGE))

    async def create_event(self, event: Mapping[str, object]) -> bool:
        """Whether it was new: an event of that name may exist. Raises as read_node."""
        try:
            answer = await self._request("POST", _EVENTS, event, "application/json")
        except ApiRefused as error:
            if error.reason == "AlreadyExists":
                return False
            raise
        if not isinstance(answer, dict) or answer.get("kind") != "Event":
            raise ApiUnreachable("the answer is no Event")
        return True

    # --- transport

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        content_type: str = "",
        accept: str = _JSON,
    ) -> object:
        """The answer's JSON. A token that is refused is read again, once."""
        content = None if body is None else json.dumps(body)
        request = _Request(method, path, accept, content, content_type)
        try:
            return await self._send(request)
        except ApiRefused as error:
            if error.status != 401:
                raise
        self._tokens.discard_token()
        return await self._send(request)

    async def _send(self, request: _Request) -> object:
        async with self._open(request) as answer:
            return _read_document(answer, await read_limited(answer, _MAX_BYTES))

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[AsyncIterator[Document]]:
        """An answer that has begun: each of its lines as it arrives. Raises as read_node."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S, sock_read=_SILENCE_S)
        async with self._open(_Request("GET", path), timeout) as answer:
            yield _read_lines(answer)

    @asynccontextmanager
    async def _open(
        self, request: _Request, timeout: aiohttp.ClientTimeout = _TIMEOUT
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is no error, whose body has not been read."""
        self._check_deferral()
        headers = {**self._headers, **request.headers}
        token = await self._tokens.read_token(time.time())
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with (
                self._use_session() as session,
                session.request(
                    request.method,
                    f"{self._access.server}{request.path}",
                    data=request.content,
                    headers=headers,
                    allow_redirects=False,
                    timeout=timeout,
                    read_bufsize=_MAX_BYTES // 2,  # a line may have twice that
                ) as answer,
            ):
                if answer.status >= 300:
                    content = await read_limited(answer, _MAX_BYTES)
                    raise self._note_deferral(_read_refusal(answer, content, token))
                yield answer
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise ApiUnreachable(f"{self._access.server}: {reason}") from error

    def _note_deferral(self, error: ApiRefused) -> ApiRefused:
        if error.retry_after_s is not None:
            self._deferral = error
            self._deferred_until = time.monotonic() + error.retry_after_s
        return error

    def _check_deferral(self) -> None:
        """A Retry-After of one answer holds for all requests. Raises ApiRefused."""
        wait = self._deferred_until - time.monotonic()
        if self._deferral is not None and wait > 0:
            raise ApiRefused(
                self._deferral.status, self._deferral.message, wait, reason=self._deferral.reason
            )

    @asynccontextmanager
    async def _use_session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """One session for all requests. After a failure the next request opens another, because the
        certificate authority may have been replaced. Requests that are under way keep theirs:
        aiohttp cancels those whose session is closed. Raises NoCredentials.
        """
        used = self._session
        if used is None:
            used = self._session = _Session(self._access)
        used.requests += 1
        try:
            yield used.http
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            if self._session is used:
                self._session = None
            raise
        finally:
            used.requests -= 1
            if self._session is not used and not used.requests:
                await used.http.close()


class _Session:
    """`requests`: how many are under way."""

    def __init__(self, access: ClusterAccess) -> None:
        self.requests = 0
        self.http = aiohttp.ClientSession(
            connector=_build_connector(access),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,  # no proxy and no password that the environment names
        )


def _build_connector(access: ClusterAccess) -> aiohttp.BaseConnector:
    """Raises NoCredentials."""
    if access.socket is not None:
        return aiohttp.UnixConnector(path=str(access.socket), limit=_CONNECTIONS)
    return aiohttp.TCPConnector(ssl=access.build_tls_context(), limit=_CONNECTIONS)


async def _read_lines(answer: aiohttp.ClientResponse) -> AsyncIterator[Document]:
    try:
        while line := await answer.content.readline():
            yield read_object(parse_json(line))
    except (ValueError, HttpProcessingError) as error:  # the latter: of a line that is too long
        reason = str(error)[:_MAX_ERROR]
        raise ApiUnreachable(f"{answer.url.origin()}: {reason}") from error


def _read_document(answer: aiohttp.ClientResponse, content: bytes) -> object:
    """Raises ApiUnreachable where it is no JSON: a proxy answered."""
    try:
        return parse_json(content)
    except ValueError as error:
        raise ApiUnreachable(f"{answer.url.origin()}: the answer is not JSON") from error


def _read_refusal(answer: aiohttp.ClientResponse, content: bytes, token: str) -> ApiRefused:
    try:
        document = parse_json(content)
    except ValueError:
        document = None
    problem = document if isinstance(document, dict) else {}
    text = str(problem.get("message") or answer.reason)
    if token:  # some proxies say what they were sent
        text = text.replace(token, "[token]")
    # As client-go reads it: of other answers it says nothing about the server.
    may_defer = answer.status == _TOO_MANY or answer.status >= 500
    header = answer.headers.get("Retry-After", "") if may_defer else ""
    return ApiRefused(
        answer.status,
        replace_unprintable(text[:_MAX_ERROR]),
        read_retry_after(header, time.time()),
        reason=str(problem.get("reason", ""))[:100],
    )


def read_node_object(document: object) -> NodeObject:
    """Raises ApiUnreachable for what is no Node."""
    try:
        return parse_node(document)
    except ValueError as error:
        raise ApiUnreachable(f"the answer is no Node: {error}") from error


def read_object(document: object) -> Document:
    """Raises ApiUnreachable for what is no object."""
    if not isinstance(document, dict):
        raise ApiUnreachable("the answer is no object")
    return document


def read_list(document: object, what: str) -> tuple[list[Document], Document]:
    """The items and the metadata. Those of an empty PartialObjectMetadataList are null. Raises
    ApiUnreachable for what is no list.
    """
    answer = read_object(document)
    items, metadata = answer.get("items"), answer.get("metadata")
    if items is None and answer.get("kind") == "PartialObjectMetadataList":
        items = []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ApiUnreachable(f"the answer is no list of {what}")
    return items, metadata if isinstance(metadata, dict) else {}
