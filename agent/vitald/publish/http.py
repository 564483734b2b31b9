"""Bodies of HTTP answers, with a limit: neither the daemon nor a server may fill our memory."""

from __future__ import annotations

import aiohttp


async def read_limited(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The whole body. Raises aiohttp.ClientPayloadError if it is longer than `max_bytes`."""
    content = bytearray()
    async for chunk in answer.content.iter_chunked(64 * 1024):
        content += chunk
        if len(content) > max_bytes:
            raise aiohttp.ClientPayloadError(f"an answer of more than {max_bytes} bytes")
    return bytes(content)
