"""Examples of the route of schedulers."""

from __future__ import annotations

from vitald.server import schema

REPORT_SCHEDULER_REQUEST: schema.ReportSchedulerRequest = {
    "scheduler": "slurm",
    "state": "drained",
    "since": "2026-11-20T13:46:41.902Z",
}

REPORT_SCHEDULER: schema.SchedulerReported = {"ok": True, "changed": True}

RESPONSE: schema.ApiResponse = {
    "finding": 1,
    "incident": 1,
    "component": "gpu/0000:65:00.0",
    "code": "xid/79",
    "simulated": False,
    "first": "2026-11-20T13:46:40.300Z",
    "over": False,
    "steps": {"detected": 0.004, "unfit": 0.011, "drained": 1.602},
}
