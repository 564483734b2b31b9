"""The operation of advice to jobs."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation

OPERATIONS = (
    Operation(
        "advise",
        "post",
        "/v1/advice",
        "jobs",
        "Advise the jobs of this node to save a checkpoint, or end that",
        description=(
            "For root and the daemon's own user: before a planned reset or reboot. User, time and "
            "reason are recorded in an event, `vitald/save_announced` or `vitald/save_withdrawn`. "
            "It changes no verdict. A boot of the node ends it."
        ),
        body=Body(schema.AdviseRequest, "What, for how long, and why.", examples.ADVISE_REQUEST),
        answer=Answer(schema.Advised, "The present advice.", examples.ADVISE),
    ),
)
