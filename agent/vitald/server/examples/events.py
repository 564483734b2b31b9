"""Examples of the routes of events and drills."""

from __future__ import annotations

from vitald.server import schema
from vitald.server.examples.facts import (
    DEVICE,
    EVENT,
    FINDING,
    IDENTITY,
    INCIDENT,
    LINE,
    REASON,
    ROOT,
    SEEN,
)

EVENTS: schema.Events = {"events": [EVENT], "damaged": 0, "next": None}

TRANSITIONS: schema.Transitions = {
    "transitions": [
        {
            "id": 42,
            "time": "2026-11-20T13:46:40.250Z",
            "change": "opened",
            "finding": 7,
            "component": "gpu/0000:65:00.0",
            "device": DEVICE,
            "code": "xid/79",
            "reason": "Xid79",
            "title": "GPU has fallen off the bus",
            "state": "open",
            "action": "reboot_node",
            "cause": "xid/79 seen",
            "simulated": False,
            "onTrial": False,
        }
    ],
    "damaged": 0,
    "next": None,
    "newestId": 42,
}

WATCH: tuple[schema.WatchLine, ...] = (
    {
        "type": "verdict",
        "status": "healthy",
        "rebootRequired": False,
        "rebootConfirmed": False,
        "replacementRequired": False,
        "replacementConfirmed": False,
        "action": "none",
        "simulated": False,
        "reasons": [],
    },
    {"type": "event", "event": {**EVENT, "id": 0}},
    {
        "type": "finding",
        "cause": "xid/79 seen",
        "event": IDENTITY,
        "finding": {
            **FINDING,
            "confirmed": False,
            "confirmedBy": None,
            "confirmedAction": None,
            "witnesses": ["expect", "nvml", "pci"],
        },
    },
    {"type": "incident", "incident": {**INCIDENT, "last": SEEN, "count": 1, "members": [ROOT]}},
    {
        "type": "verdict",
        "status": "unhealthy",
        "rebootRequired": True,
        "rebootConfirmed": True,
        "replacementRequired": False,
        "replacementConfirmed": False,
        "action": "reboot_node",
        "simulated": False,
        "reasons": [REASON],
    },
    {"type": "heartbeat", "time": "2026-11-20T13:48:24.001Z"},
)

ANNOUNCE_REQUEST: schema.AnnounceRequest = {"line": LINE, "holdSeconds": 600}

ANNOUNCE: schema.AnnouncedDrill = {
    "id": "e7670eded13c",
    "line": LINE,
    "state": "announced",
    "finding": None,
    "simulatedUntil": "2026-11-20T13:58:08.562Z",
    "writeTo": "/dev/kmsg",
    "windowSeconds": 10.0,
}

DRILL: schema.Drill = {
    "id": "e7670eded13c",
    "line": LINE,
    "state": "seen",
    "finding": 8,
    "simulatedUntil": "2026-11-20T13:58:08.562Z",
}
