"""The advice to save, as a packet to a rank."""

from __future__ import annotations

import json

from vitald.model.advice import Advice
from vitald.model.job_page import VERSION, PacketKind
from vitald.text import limit_bytes
from vitald.timestamps import format_rfc3339

_MAX_WHY = 300  # bytes


def format_advice(advice: Advice) -> bytes:
    packet: dict[str, object] = {"v": VERSION, "kind": PacketKind.ADVICE.value}
    if not advice.save:
        return json.dumps({**packet, "advice": "none"}).encode()
    packet |= {
        "advice": "save",
        "why": limit_bytes(advice.why, _MAX_WHY),
        "action": advice.action,
        "when": advice.when,
        "by": format_rfc3339(advice.by, "seconds") if advice.by is not None else None,
        "finding": advice.finding,
    }
    return json.dumps(packet).encode()
