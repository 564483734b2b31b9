"""The examples of openapi.json: one node, one lost GPU, and what follows from it."""

from __future__ import annotations

from vitald.server.examples.diagnostics import (
    CANCEL_DIAGNOSTIC,
    CANCEL_DIAGNOSTIC_REQUEST,
    DIAGNOSTIC_RUN,
    DIAGNOSTIC_RUNS,
    DIAGNOSTICS,
    RUN_DIAGNOSTIC,
    RUN_DIAGNOSTIC_REQUEST,
)
from vitald.server.examples.events import (
    ANNOUNCE,
    ANNOUNCE_REQUEST,
    DRILL,
    EVENTS,
    TRANSITIONS,
    WATCH,
)
from vitald.server.examples.facts import BOOT_ID, IDENTITY, LINE, RULE, SEEN
from vitald.server.examples.findings import (
    ACCEPT,
    ACCEPT_REQUEST,
    CLEAR,
    CLEAR_REQUEST,
    FINDINGS,
    INCIDENTS,
    REMEDY,
    REMEDY_REQUEST,
    WHY,
)
from vitald.server.examples.gpus import (
    END_RELEASE,
    END_RELEASE_REQUEST,
    GPUS,
    RELEASE,
    RELEASE_REQUEST,
)
from vitald.server.examples.jobs import JOBS, TELL_JOB, TELL_JOB_REQUEST
from vitald.server.examples.node import (
    COMPONENTS,
    CONFIRM,
    CONFIRM_REQUEST,
    EXPECT,
    HEALTHZ,
    NODE_SUMMARY,
    RELOAD_REQUEST,
    RELOADED,
    STATUS,
)
from vitald.server.examples.publishers import REPORT_SINKS, REPORT_SINKS_REQUEST, SINK

__all__ = [
    "ACCEPT",
    "ACCEPT_REQUEST",
    "ANNOUNCE",
    "ANNOUNCE_REQUEST",
    "BOOT_ID",
    "CANCEL_DIAGNOSTIC",
    "CANCEL_DIAGNOSTIC_REQUEST",
    "CLEAR",
    "CLEAR_REQUEST",
    "COMPONENTS",
    "CONFIRM",
    "CONFIRM_REQUEST",
    "DIAGNOSTICS",
    "DIAGNOSTIC_RUN",
    "DIAGNOSTIC_RUNS",
    "DRILL",
    "END_RELEASE",
    "END_RELEASE_REQUEST",
    "EVENTS",
    "EXPECT",
    "FINDINGS",
    "GPUS",
    "HEALTHZ",
    "IDENTITY",
    "INCIDENTS",
    "JOBS",
    "LINE",
    "NODE_SUMMARY",
    "RELEASE",
    "RELEASE_REQUEST",
    "RELOADED",
    "RELOAD_REQUEST",
    "REMEDY",
    "REMEDY_REQUEST",
    "REPORT_SINKS",
    "REPORT_SINKS_REQUEST",
    "RULE",
    "RUN_DIAGNOSTIC",
    "RUN_DIAGNOSTIC_REQUEST",
    "SEEN",
    "SINK",
    "STATUS",
    "TELL_JOB",
    "TELL_JOB_REQUEST",
    "TRANSITIONS",
    "WATCH",
    "WHY",
]
