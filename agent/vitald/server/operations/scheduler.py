"""The operation of schedulers."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation
from vitald.server.operations.problems import TOO_OFTEN

OPERATIONS = (
    Operation(
        "reportScheduler",
        "post",
        "/v1/scheduler",
        "jobs",
        "Report that a scheduler drained the node, or has it in service",
        description=(
            "For root and the daemon's own user; the user of `vitald publish` may report for "
            "kubernetes. Sent by Slurm's scripts and by the publisher after the scheduler has "
            "accepted a change. A change is stored as an event, and ends a step of `responses` in "
            "`/v1/status`; no finding follows from it. From the user of `vitald publish`, a "
            "change to each state is stored 10 s after the last one at the earliest; each doubles "
            "that time, up to 10 minutes, until there was none for an hour."
        ),
        body=Body(
            schema.ReportSchedulerRequest,
            "The scheduler and its state.",
            examples.REPORT_SCHEDULER_REQUEST,
        ),
        answer=Answer(schema.SchedulerReported, "Taken.", examples.REPORT_SCHEDULER),
        problems=(TOO_OFTEN,),
    ),
)
