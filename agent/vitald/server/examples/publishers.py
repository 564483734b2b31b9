"""Examples of the route of publishers."""

from __future__ import annotations

from vitald.server import schema

SINK: schema.SinkReport = {
    "name": "kubernetes",
    "up": False,
    "lastSuccess": "2026-11-20T13:40:02.310Z",
    "error": "HTTP 503: the server is currently unable to handle the request",
    "refused": [],
    "waiting": 1,
    "waitingSince": "2026-11-20T13:46:40.300Z",
    "writes": 42,
    "failures": 3,
}

REPORT_SINKS_REQUEST: schema.ReportSinksRequest = {"sinks": [SINK]}

REPORT_SINKS: schema.SinksReported = {"ok": True}
