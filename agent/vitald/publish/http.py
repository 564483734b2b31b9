"""
What the clients of HTTP servers share: bodies of answers with limits, for neither the daemon nor a
server may fill our memory; `Retry-After`; TLS.
"""

from __future__ import annotations

import json
import ssl
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp

from vitald.checking import is_deep

_MAX_RETRY_AFTER_S = 600.0

# The largest real document is a Node object: `managedFields` has some ten tables for each field
# that a manager wrote, nested nine deep.
_MAX_DEPTH, _MAX_PARTS = 32, 64 * 1024


async def read_limited(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The whole body. Raises aiohttp.ClientPayloadError if it is longer than `max_bytes`."""
    content = bytearray()
    async for chunk in answer.content.iter_chunked(64 * 1024):
        content += chunk
        if len(content) > max_bytes:
            raise aiohttp.ClientPayloadError(f"an answer of more than {max_bytes} bytes")
    return bytes(content)


def parse_json(content: bytes) -> object:
    """Raises ValueError for what is no JSON, or has more or deeper parts than any real answer."""
    if content.count(b"{") + content.count(b"[") > _MAX_PARTS:
        raise ValueError(f"JSON of more than {_MAX_PARTS} tables and lists")
    try:
        document: object = json.loads(content)
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {_MAX_DEPTH}") from None
    if is_deep(document, _MAX_DEPTH):
        raise ValueError(f"JSON nested deeper than {_MAX_DEPTH}")
    return document


def read_retry_after(text: str, now: float) -> float | None:
    """Seconds from `now` (since the epoch), ten minutes at most; None if it says neither seconds
    nor a date.

    Source: RFC 9110, section 10.2.3.
    """
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), _MAX_RETRY_AFTER_S)
    try:
        wait = parsedate_to_datetime(text).timestamp() - now
        return min(max(wait, 0.0), _MAX_RETRY_AFTER_S)
    except (ValueError, TypeError, OverflowError):
        return None


def build_tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """For a client: TLS 1.2 or later; `ca_file` in place of the system's certificate authorities.
    Raises OSError, of which ssl.SSLError is one.
    """
    context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        # From Python 3.13 on, the default refuses certificate authorities without key
        # identifiers, such as those of EKS clusters made with Kubernetes 1.16. Chain, host name
        # and dates are checked all the same. Source: kubernetes-client/python#2394.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
