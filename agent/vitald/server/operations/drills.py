"""Operations on drills."""

from __future__ import annotations

from typing import Annotated

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation, Parameter
from vitald.server.operations.problems import NOT_FOUND

OPERATIONS = (
    Operation(
        "announce",
        "post",
        "/v1/injections",
        "drills",
        "Announce a drill",
        description=(
            "For root and the daemon's own user. The next record with exactly this text is taken "
            "once, although a process wrote it, and everything that it causes is marked as "
            "simulated. `vitald inject` does both steps."
        ),
        body=Body(schema.AnnounceRequest, "The line to expect.", examples.ANNOUNCE_REQUEST),
        answer=Answer(
            schema.AnnouncedDrill,
            "Announced: now write the line, within the window.",
            examples.ANNOUNCE,
            status=201,
        ),
    ),
    Operation(
        "drill",
        "get",
        "/v1/injections/{id}",
        "drills",
        "How a drill goes",
        parameters=(
            Parameter(
                "id",
                "path",
                "The drill's number.",
                Annotated[str, schema.Keywords(pattern="^[0-9a-f]{12}$")],
                example="e7670eded13c",
            ),
        ),
        answer=Answer(schema.Drill, "The drill.", examples.DRILL),
        problems=(NOT_FOUND,),
    ),
)
