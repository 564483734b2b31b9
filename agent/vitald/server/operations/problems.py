"""Error answers that several operations share."""

from __future__ import annotations

from vitald.server.operations.operation import Problem

BAD_REQUEST = Problem(
    "BadRequest",
    400,
    (
        "A parameter or the body is wrong; the text names it and the mistake. What is not HTTP "
        "at all, or a header above 8 KiB, gets an answer in plain text."
    ),
    {"error": "limit: expected a number from 1 to 1000, found '0'"},
    plain=True,
)
MAY_NOT_READ = Problem(
    "MayNotRead",
    403,
    "Neither root, nor the daemon's own user, nor in the socket's group.",
    {"error": "uid 1000 may not read", "hint": "join the socket's group, or run this as root"},
)
MAY_NOT_CHANGE = Problem(
    "MayNotChange",
    403,
    "Only root and the daemon's own user may change anything, and that of `vitald publish` what "
    "its operation says.",
    {
        "error": "uid 1000 may not change anything",
        "hint": "only root and the daemon's own user may",
    },
)
NOT_FOUND = Problem(
    "NotFound",
    404,
    "There is no such thing.",
    {"error": "no open finding 7", "hint": "vitald findings shows the open ones"},
)
METHOD_NOT_ALLOWED = Problem(
    "MethodNotAllowed",
    405,
    "The path does not have this method.",
    {"error": "Method Not Allowed", "hint": "see /v1/openapi.json"},
    headers={
        "Allow": {
            "description": "The methods that it has.",
            "required": True,
            "schema": {"type": "string"},
        }
    },
)
SLOW = Problem(
    "Slow", 408, "The body did not come within 5 s.", {"error": "the body did not come within 5 s"}
)
NOT_ASKED = Problem(
    "NotAsked",
    409,
    "NVML is not used on this node, or it has no GPU on PCI: vitald holds no GPU.",
    {
        "error": "NVML is not asked on this node",
        "hint": "[nvml] enabled = false: nothing of ours holds a GPU",
    },
)
NOT_RUNNABLE = Problem(
    "NotRunnable",
    409,
    (
        "It cannot run here, or not now: its program is not installed, the GPUs are released, "
        "it was requested already."
    ),
    {"error": "dcgm level 2 is waiting already, requested by schedule", "hint": "vitald diag list"},
)
NOTHING_RUNS = Problem(
    "NothingRuns",
    409,
    "No such run runs or waits.",
    {"error": "no diagnostic runs", "hint": "vitald diag list shows what does"},
)
NOT_SETTLED = Problem(
    "NotSettled",
    409,
    "The counts have not been equal for long enough, or the configuration sets all of them.",
    {
        "error": "nothing has been counted yet",
        "hint": "try again in a few minutes; vitald expect shows what is counted",
    },
)
TOO_LARGE = Problem(
    "TooLarge", 413, "The body is larger than 16 KiB.", {"error": "Request Entity Too Large"}
)
BROKEN = Problem(
    "Broken",
    500,
    "A defect of vitald: see its log, and please report it.",
    {"error": "vitald failed to answer", "hint": "its log says why; please report it"},
)
UNAVAILABLE = Problem(
    "Unavailable",
    503,
    (
        "Too many clients (128) or watchers (32), the ledger cannot be read, the judge is "
        "stuck, the first reading is not complete, or the GPUs could not be released within 10 s."
    ),
    {"error": "too many clients", "hint": "128 at once; try again later"},
)
_ALWAYS = (BAD_REQUEST, METHOD_NOT_ALLOWED, BROKEN, UNAVAILABLE)
# By method: whatever is changed has a body.
PROBLEMS = {
    "get": (*_ALWAYS, MAY_NOT_READ),
    "post": (*_ALWAYS, MAY_NOT_CHANGE, SLOW, TOO_LARGE),
}
