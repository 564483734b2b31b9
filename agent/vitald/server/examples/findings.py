"""Examples of the routes of findings and incidents."""

from __future__ import annotations

from vitald.server import schema
from vitald.server.examples.facts import EVENT, FINDING, FLAGS, IDENTITY, INCIDENT, RULE, SEEN

FINDINGS: schema.Findings = {"damaged": 0, "findings": [FINDING], "more": False}

CLEAR_REQUEST: schema.ClearRequest = {"reason": "replaced the board, ticket 4711", "replaced": True}

CLEAR: schema.OneFinding = {
    "finding": {
        **FINDING,
        "state": "cleared",
        "clearedAt": "2026-11-20T14:02:11.004Z",
        "clearedBy": "cleared by root (uid 0): replaced the board, ticket 4711",
    }
}

ACCEPT_REQUEST: schema.AcceptRequest = {
    "reason": "spare node comes Monday, ticket 4711",
    "seconds": 604800,
}

ACCEPT: schema.OneFinding = {
    "finding": {
        **FINDING,
        "accepted": {
            "by": "root",
            "reason": "spare node comes Monday, ticket 4711",
            "since": "2026-11-20T14:02:00.000Z",
            "until": "2026-11-27T14:02:00.000Z",
        },
    }
}

REMEDY_REQUEST: schema.RemedyRequest = {"reason": "drained, reboot at 15:00"}

REMEDY: schema.OneFinding = {"finding": {**FINDING, "state": "in_remedy"}}

WHY: schema.Why = {
    "finding": FINDING,
    "events": [EVENT],
    "incident": INCIDENT,
    "rule": RULE,
    "asked": [
        {
            "layer": "table",
            "action": "reboot_node",
            "when": "now",
            "because": "NVIDIA Xid catalogue: REBOOT_NODE; nverror.h (profile nvidia, xid.toml)",
            "decides": True,
        }
    ],
    "flags": FLAGS,
    "transitions": [
        {
            "time": SEEN,
            "state": "open",
            "action": "reboot_node",
            "cause": "xid/79 seen",
            "event": IDENTITY,
        }
    ],
}

INCIDENTS: schema.Incidents = {"incidents": [INCIDENT], "more": False}
