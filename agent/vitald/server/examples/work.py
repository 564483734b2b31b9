"""Example of a notice about the work on the node."""

from __future__ import annotations

from vitald.server import schema

NOTICE: schema.WorkNotice = {
    "code": "nvml/waiting",
    "title": "The GPUs only wait",
    "component": "node",
    "subject": "",
    "since": "2026-11-20T13:36:02.120Z",
    "last": "2026-11-20T13:48:02.120Z",
    "count": 1,
    "text": "8 GPUs have only waited for 12 min: 100 % busy, 128 W each, nothing moves. "
    "The cause may be on another node.",
    "advice": "Compare with the other nodes of the job.",
    "story": "This node looks well: no fault of it was observed in the 10 minutes before. Look at "
    "the nodes that do not wait.",
    "fields": {"gpus": 8, "watts": 128},
}
