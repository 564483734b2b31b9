"""Examples of advice to jobs."""

from __future__ import annotations

from vitald.server import schema

NO_ADVICE: schema.ApiAdvice = {
    "save": False,
    "why": "",
    "action": None,
    "when": None,
    "by": None,
    "finding": None,
}
ADVISE_REQUEST: schema.AdviseRequest = {
    "advice": "save",
    "seconds": 1200,
    "reason": "GPU 3 is reset at 14:10, ticket 4711",
}
ADVISE: schema.Advised = {
    "changed": True,
    "advice": {
        "save": True,
        "why": "GPU 3 is reset at 14:10, ticket 4711",
        "action": "announced",
        "when": "after_job",
        "by": "2026-11-20T14:08:09.069Z",
        "finding": None,
    },
}
