"""Examples of the routes of jobs."""

from __future__ import annotations

from vitald.server import schema
from vitald.server.examples.facts import JOB

REPORTED_JOB: schema.ReportedJob = {
    "name": "job 1235 of alice",
    "slurm": "1235",
    "pod": "",
    "claimed": "1235",
    "uid": 1000,
    "user": "alice",
    "ranks": 8,
    "step": 5210,
    "stepSeconds": 1.93,
    "lastStep": "2026-11-20T13:48:19.120Z",
    "state": "train",
    "loss": 2.31,
    "saved": "2026-11-20T13:40:02.480Z",
}

JOBS: schema.ApiJobs = {
    "running": [],
    "recent": [JOB],
    "reported": [REPORTED_JOB],
    "socket": {
        "error": "",
        "connections": 8,
        "packetsDropped": 0,
        "packetsWrong": 0,
        "refused": 0,
        "eventsDropped": 0,
    },
}

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
    "unfit": [7],
    "diagnostic": {
        "asked": True,
        "id": "20261120T134820-1",
        "why": "job 1234 of alice ended with exit 1 and left #7",
    },
}
