"""What may be shown of a URL, which may be a secret: `vitald notify list` needs no HTTP client."""

from __future__ import annotations

from urllib.parse import urlsplit


def describe_server(url: str) -> str:
    """`https://hooks.example.com:8443`: without user, path and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
