"""Operations on jobs."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation
from vitald.server.operations.parameters import LIMIT

OPERATIONS = (
    Operation(
        "jobs",
        "get",
        "/v1/jobs",
        "jobs",
        "The jobs on this node",
        description=(
            "What runs, and what ended within a day; what was near an incident that is open is "
            "kept for longer."
        ),
        parameters=(LIMIT,),
        answer=Answer(schema.ApiJobs, "The latest first.", examples.JOBS),
    ),
    Operation(
        "tellJob",
        "post",
        "/v1/jobs",
        "jobs",
        "A job begins, or has ended",
        description=(
            "For root and the daemon's own user: a scheduler's prolog and epilog. `begin` is "
            "answered once no diagnostic holds the devices any more, after about 2 s at most. "
            "Each is an event (`job/began`, `job/ended`, `job/died`). The end of a job whose begin "
            "was not reported is recorded only if it failed: Slurm calls the epilog of a job that "
            "the prolog refused, too."
        ),
        body=Body(schema.TellJobRequest, "Which job, and how it ended.", examples.TELL_JOB_REQUEST),
        answer=Answer(schema.JobTold, "It is known, and stored.", examples.TELL_JOB),
    ),
    Operation(
        "noteScheduler",
        "post",
        "/v1/scheduler",
        "jobs",
        "A scheduler has drained the node, or has it in service again",
        description=(
            "For root and the daemon's own user: Slurm's prolog and health check. It changes no "
            "verdict; the metric `vitald_incident_step_seconds` shows when. Repeating it changes "
            "nothing."
        ),
        body=Body(schema.SchedulerRequest, "What it has done.", examples.SCHEDULER_REQUEST),
        answer=Answer(schema.SchedulerNoted, "Taken.", examples.SCHEDULER_NOTED),
    ),
)
