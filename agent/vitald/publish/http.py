"""Bodies of HTTP answers, with limits: neither the daemon nor a server may fill our memory."""

from __future__ import annotations

import json

import aiohttp

from vitald.checking import is_deep

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
