"""Examples of the routes of diagnostics."""

from __future__ import annotations

from vitald.server import schema
from vitald.server.examples.facts import GOING, RUN

DIAGNOSTICS: schema.ApiDiagnostics = {
    "checks": [
        {
            "name": "dcgm",
            "title": "DCGM diagnostic",
            "levels": [1, 2],
            "missing": "",
            "every": {"1": 3600.0, "2": 86400.0},
            "expected": {"1": 20.0, "2": 480.0},
            "needsIdle": {"1": False, "2": True},
        }
    ],
    "going": [GOING],
    "last": [RUN],
    "due": [{"check": "dcgm", "level": 1, "at": "2026-11-20T14:31:40.000Z", "waitsFor": ""}],
    "blocked": "",
}

DIAGNOSTIC_RUNS: schema.DiagnosticRuns = {"damaged": 0, "runs": [RUN], "more": False}

DIAGNOSTIC_RUN: schema.DiagnosticRunInFull = {
    **RUN,
    "command": "dcgmi diag -r 1 -j",
    "tests": [
        {
            "name": "Page Retirement/Row Remap",
            "category": "Deployment",
            "status": "",
            "gpus": {"0": "Pass", "3": "Fail"},
            "cpus": {},
        }
    ],
    "faults": [
        {
            "code": "dcgm/84",
            "test": "Page Retirement/Row Remap",
            "text": "GPU 3 had uncorrectable memory errors and row remapping failed.",
            "gpu": 3,
            "device": "",
            "errorId": 84,
            "category": 2,
            "severity": 2,
            "action": "replace",
            "confirm": False,
            "confirmed": False,
        }
    ],
    "measures": [],
    "raw": '{"DCGM GPU Diagnostic": …}',
}

RUN_DIAGNOSTIC_REQUEST: schema.RunDiagnosticRequest = {
    "level": 2,
    "reason": "before the big run, ticket 4711",
}

RUN_DIAGNOSTIC: schema.OneGoing = {
    "going": {
        **GOING,
        "stage": "waiting",
        "began": None,
        "elapsed": 0.0,
        "waitsFor": "idle devices: job 815",
        "test": "",
    }
}

CANCEL_DIAGNOSTIC_REQUEST: schema.CancelDiagnosticRequest = {
    "reason": "a job needs the node, ticket 4711"
}

CANCEL_DIAGNOSTIC: schema.OneGoing = {"going": {**GOING, "stage": "ending"}}
