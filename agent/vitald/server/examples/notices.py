"""Examples of the route of notices. Source: Amazon EC2 User Guide, scheduled events."""

from __future__ import annotations

from vitald.server import schema

STORE_NOTICES_REQUEST: schema.StoreNoticesRequest = {
    "provider": "aws",
    "notices": [
        {
            "effect": "interruption_scheduled",
            "kind": "system-reboot",
            "id": "instance-event-0d59937288b749b32",
            "notBefore": "2019-01-21T09:00:43.000Z",
            "description": "scheduled reboot",
        }
    ],
}

STORE_NOTICES: schema.NoticesStored = {"ok": True}
