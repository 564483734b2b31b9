"""
The few requests that the sink makes of the API server.

    GET    /api/v1/nodes/NAME
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
from collections.abc import Mapping
from types import TracebackType

import aiohttp

from vitald import __version__
from vitald.publish.http import read_limited
from vitald.publish.kubernetes.credentials import ClusterAccess, TokenSource
from vitald.publish.kubernetes.node_object import NodeObject, parse_node

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_REQUEST_S = 10.0
_MAX_BYTES = 4 * 1024 * 1024  # a Node object is limited to about 1.5 MiB by etcd
_MANAGER = "vitald"
_JSON = "application/json"
_METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class ApiUnreachable(Exception):
    """No usable answer. The text says why."""


class ApiRefused(Exception):
    """An answer that is an error, with its HTTP status and Kubernetes' text."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retry_after_s = retry_after_s


class KubernetesClient:
    """One connection to the API server, for one node. A context manager."""

    def __init__(self, access: ClusterAccess, node: str, impersonate: str = "") -> None:
        """`impersonate`: a user name for constrained impersonation (1.36 and later)."""
        self.node = node
        self._access = access
        self._tokens = TokenSource(access)
        self._headers = {"User-Agent": f"vitald/{__version__}"}
        if impersonate:
            self._headers["Impersonate-User"] = impersonate
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubernetesClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_session()

    async def read_node(self) -> NodeObject:
        """Raises ApiUnreachable, ApiRefused, NoCredentials."""
        return _parse(await self._request("GET", f"/api/v1/nodes/{self.node}"))

    async def read_metadata(self) -> NodeObject:
        """Labels and annotations only, and from the API server's cache: a request that costs it
        little. Raises as read_node.

        Source: Kubernetes API concepts, "Resource versions" (`resourceVersion=0`) and
        PartialObjectMetadata of meta.k8s.io/v1; tried against 1.36.
        """
        path = f"/api/v1/nodes/{self.node}?resourceVersion=0"
        return _parse(await self._request("GET", path, accept=_METADATA))

    async def patch_status(self, patch: Mapping[str, object]) -> NodeObject:
        """The node after a strategic merge patch of its status. Raises as read_node."""
        path = f"/api/v1/nodes/{self.node}/status?fieldManager={_MANAGER}"
        return _parse(await self._request("PATCH", path, patch, STRATEGIC))

    async def patch_node(self, patch: Mapping[str, object]) -> NodeObject:
        """The node after a merge patch; 409 where `metadata.resourceVersion` is no longer its
        own. Raises as read_node.
        """
        path = f"/api/v1/nodes/{self.node}?fieldManager={_MANAGER}"
        return _parse(await self._request("PATCH", path, patch, MERGE))

    async def create_event(self, event: Mapping[str, object]) -> bool:
        """Whether it was new: an event of that name may exist. Raises as read_node."""
        try:
            await self._request("POST", _EVENTS, event, "application/json")
        except ApiRefused as error:
            if error.status == 409:
                return False
            raise
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
        headers = {**self._headers, "Accept": accept}
        if content_type:
            headers["Content-Type"] = content_type
        try:
            return await self._send(method, path, body, headers)
        except ApiRefused as error:
            if error.status != 401:
                raise
        self._tokens.discard_token()
        return await self._send(method, path, body, headers)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        headers: Mapping[str, str],
    ) -> object:
        headers = dict(headers)
        if token := await self._tokens.read_token(time.time()):
            headers["Authorization"] = f"Bearer {token}"
        try:
            async with self._open_session().request(
                method,
                f"{self._access.server}{path}",
                data=None if body is None else json.dumps(body),
                headers=headers,
                allow_redirects=False,
            ) as answer:
                content = await read_limited(answer, _MAX_BYTES)
                return _read_answer(answer, content)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            # The certificate authority may have been replaced: read again with the next request.
            await self._close_session()
            reason = str(error) or type(error).__name__
            raise ApiUnreachable(f"{self._access.server}: {reason}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._access.build_tls_context(), limit=2),
                timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
            )
        return self._session

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _read_answer(answer: aiohttp.ClientResponse, content: bytes) -> object:
    """Raises ApiRefused; ApiUnreachable where it is no JSON: a proxy answered."""
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if answer.status >= 300:
        message = document.get("message") if isinstance(document, dict) else None
        raise ApiRefused(
            answer.status,
            str(message or answer.reason)[:500],
            _read_retry_after(answer.headers.get("Retry-After", "")),
        )
    if document is None:
        raise ApiUnreachable(f"{answer.url.origin()}: the answer is not JSON")
    return document


def _read_retry_after(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _parse(document: object) -> NodeObject:
    try:
        return parse_node(document)
    except ValueError as error:
        raise ApiUnreachable(f"the answer is no Node: {error}") from error
