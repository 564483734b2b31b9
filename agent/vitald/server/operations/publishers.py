"""The operation of publishers."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation

OPERATIONS = (
    Operation(
        "reportSinks",
        "post",
        "/v1/publishers",
        "node",
        "Report how the sinks of `vitald publish` fare",
        description=(
            "For root, the daemon's own user and the user that `[publish] user` names. Sent by "
            "`vitald publish` every 15 s; `/v1/status` and the metrics show it. It is kept in "
            "memory, and takes the place of the report before."
        ),
        body=Body(
            schema.ReportSinksRequest, "All sinks of the publisher.", examples.REPORT_SINKS_REQUEST
        ),
        answer=Answer(schema.SinksReported, "Taken.", examples.REPORT_SINKS),
    ),
)
