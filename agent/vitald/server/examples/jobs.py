"""Examples of the routes of jobs."""

from __future__ import annotations

from vitald.server import schema
from vitald.server.examples.facts import JOB

JOBS: schema.ApiJobs = {"running": [], "recent": [JOB], "more": False}

TELL_JOB_REQUEST: schema.TellJobRequest = {
    "event": "end",
    "job": "1234",
    "user": "alice",
    "uid": 1000,
    "exitCode": 1,
    "signal": 0,
    "diagnose": True,
}

TELL_JOB: schema.JobTold = {
    "ok": True,
    "job": JOB,
    "left": [7],
    "diagnostic": {
        "asked": True,
        "id": "20261120T134820-1",
        "why": "job 1234 of alice ended with exit 1 and left #7",
    },
}

SCHEDULER_REQUEST: schema.SchedulerRequest = {"state": "drained"}

SCHEDULER_NOTED: schema.SchedulerNoted = {"ok": True}
