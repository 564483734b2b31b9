"""
What the API server was asked about nodes and events, by its own audit log: each request with its
body, also those whose effect was gone before a test looked.

Source: kubernetes.io, "Auditing", and the reference of audit.k8s.io/v1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitald.timestamps import parse_rfc3339

Json = dict[str, Any]
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "resources": [
                {"group": "", "resources": ["nodes", "nodes/status"]},
                {"group": "events.k8s.io", "resources": ["events"]},
            ],
        },
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRequest:
    """A request that was answered. `received`: seconds since the epoch."""

    verb: str  # get, patch, create, ...
    resource: str  # nodes, nodes/status, events
    name: str
    user: str
    agent: str
    code: int
    received: float
    body: Json = field(default_factory=dict)

    @property
    def conditions(self) -> dict[str, Json]:
        """Those of a patch, by type."""
        entries = self.body.get("status", {}).get("conditions", [])
        return {entry["type"]: entry for entry in entries}


def read_audit_log(path: Path) -> list[AuditedRequest]:
    """In the order of their answers. A last line that is being written is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [_parse_entry(json.loads(line)) for line in lines]


def count_busiest_minute(moments: Sequence[float]) -> int:
    """The most of these moments that lie within any 60 s."""
    ordered = sorted(moments)
    return max(
        (sum(first <= other < first + 60.0 for other in ordered) for first in ordered), default=0
    )


def _parse_entry(entry: Json) -> AuditedRequest:
    about = entry.get("objectRef", {})
    subresource = about.get("subresource")
    body = entry.get("requestObject")
    return AuditedRequest(
        verb=entry["verb"],
        resource=f"{about.get('resource')}/{subresource}" if subresource else about["resource"],
        name=about.get("name", ""),
        user=entry["user"].get("username", ""),  # none where the token is unknown
        agent=entry.get("userAgent", ""),
        code=entry["responseStatus"]["code"],
        received=parse_rfc3339(entry["requestReceivedTimestamp"]).timestamp(),
        body=body if isinstance(body, dict) else {},
    )
