"""Operations on diagnostics."""

from __future__ import annotations

from typing import Annotated

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation, Parameter
from vitald.server.operations.parameters import LIMIT
from vitald.server.operations.problems import NOT_FOUND, NOT_RUNNABLE, NOTHING_RUNS

OPERATIONS = (
    Operation(
        "diagnostics",
        "get",
        "/v1/diagnostics",
        "diagnostics",
        "What can be run here, what runs, what comes next",
        answer=Answer(
            schema.ApiDiagnostics,
            "The checks, the runs under way, and the last ones.",
            examples.DIAGNOSTICS,
        ),
    ),
    Operation(
        "diagnosticRuns",
        "get",
        "/v1/diagnostics/runs",
        "diagnostics",
        "Runs that have ended, the newest first",
        parameters=(
            LIMIT,
            Parameter("check", "query", "Only of this check.", str, example="dcgm"),
        ),
        answer=Answer(schema.DiagnosticRuns, "The runs.", examples.DIAGNOSTIC_RUNS),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "diagnosticRun",
        "get",
        "/v1/diagnostics/runs/{id}",
        "diagnostics",
        "One run in full, with what was printed",
        parameters=(
            Parameter(
                "id",
                "path",
                "The run's id.",
                Annotated[str, schema.Keywords(pattern="^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$")],
                example="20261120T114808-2-dcgm-1",
            ),
        ),
        answer=Answer(schema.DiagnosticRunInFull, "The run.", examples.DIAGNOSTIC_RUN),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "runDiagnostic",
        "post",
        "/v1/diagnostics/run",
        "diagnostics",
        "Request a run",
        description=(
            "For root and the daemon's own user. Answers at once: the run begins when its turn "
            "comes and, if it needs idle devices, once they are idle. Levels 3 and 4 "
            "load every GPU fully, for half an hour and up to two hours. Its results are reported "
            "as events and findings."
        ),
        body=Body(
            schema.RunDiagnosticRequest,
            "What to run, on what, and what for.",
            examples.RUN_DIAGNOSTIC_REQUEST,
        ),
        answer=Answer(schema.OneGoing, "Requested.", examples.RUN_DIAGNOSTIC, status=202),
        problems=(
            NOT_FOUND,
            NOT_RUNNABLE,
        ),
    ),
    Operation(
        "cancelDiagnostic",
        "post",
        "/v1/diagnostics/cancel",
        "diagnostics",
        "End a run, or take it out of the queue",
        description=(
            "For root and the daemon's own user. Answers at once; the run's programs get a few "
            "seconds to end by themselves."
        ),
        body=Body(
            schema.CancelDiagnosticRequest, "Which, and why.", examples.CANCEL_DIAGNOSTIC_REQUEST
        ),
        answer=Answer(schema.OneGoing, "It is being stopped.", examples.CANCEL_DIAGNOSTIC),
        problems=(NOTHING_RUNS,),
    ),
)
