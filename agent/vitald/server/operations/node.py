"""Operations on the node."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation
from vitald.server.operations.parameters import COMPONENT, DRILLS, WORK
from vitald.server.operations.problems import NOT_FOUND, NOT_SETTLED

OPERATIONS = (
    Operation(
        "healthz",
        "get",
        "/healthz",
        "node",
        "Does the daemon itself work?",
        description="About the daemon only; the node's health is `/v1/status`.",
        answer=Answer(schema.Health, "It works.", examples.HEALTHZ),
    ),
    Operation(
        "status",
        "get",
        "/v1/status",
        "node",
        "Can this node be trusted with work, and if not, what must be done?",
        parameters=(WORK,),
        answer=Answer(
            schema.NodeStatus, "The verdict, and all that it is computed from.", examples.STATUS
        ),
    ),
    Operation(
        "summary",
        "get",
        "/v1/summary",
        "node",
        "The node's state in the words that other systems match, and which repairs are due now",
        description=(
            "What publishers write to Kubernetes and others: without drills, and with a stable "
            "word for each fault. 503 for up to 10 s after a start, while the sources are read for "
            "the first time."
        ),
        parameters=(DRILLS,),
        answer=Answer(schema.NodeSummary, "The summary.", examples.NODE_SUMMARY),
    ),
    Operation(
        "components",
        "get",
        "/v1/components",
        "node",
        ("What is watched, each with its own verdict, and what cannot be observed here"),
        parameters=(COMPONENT,),
        answer=Answer(schema.Components, "The components.", examples.COMPONENTS),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "expect",
        "get",
        "/v1/expect",
        "node",
        "What this node should have, where that comes from, and what is here",
        answer=Answer(
            schema.ApiExpected,
            "Of each kind of device how many, and the versions that may run.",
            examples.EXPECT,
        ),
    ),
    Operation(
        "confirm",
        "post",
        "/v1/expect/confirm",
        "node",
        "Confirm that what is here now is right",
        description=(
            "For root and the daemon's own user. What is here now is expected from now on, except "
            "for what the configuration sets, and for GPUs if NVML is used. User, time and reason "
            "are recorded in an event, `vitald/confirmed`. Findings about differing counts are "
            "closed at the next count."
        ),
        body=Body(schema.ConfirmRequest, "Why it is right.", examples.CONFIRM_REQUEST),
        answer=Answer(schema.Confirmed, "Expected from now on.", examples.CONFIRM),
        problems=(NOT_SETTLED,),
    ),
    Operation(
        "reload",
        "post",
        "/v1/reload",
        "node",
        "Read the configuration file again",
        description=(
            "For root and the daemon's own user. A file with a mistake is refused as a whole: see "
            "`errors`. Its keys that need no restart are in force before this is answered."
        ),
        body=Body(schema.ReloadRequest, "Nothing.", examples.RELOAD_REQUEST),
        answer=Answer(schema.Reloaded, "What came of it.", examples.RELOADED),
    ),
)
