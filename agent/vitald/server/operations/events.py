"""Operations on events."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Operation
from vitald.server.operations.parameters import CODE, COMPONENT, KIND, LIMIT, NEWEST, SINCE

OPERATIONS = (
    Operation(
        "events",
        "get",
        "/v1/events",
        "events",
        "What has happened",
        description=(
            "From the ledger, oldest first. While the ledger cannot be read, the last thousand "
            "come from memory."
        ),
        parameters=(
            SINCE,
            LIMIT,
            COMPONENT,
            CODE,
            KIND,
            NEWEST,
        ),
        answer=Answer(schema.Events, "A page of events.", examples.EVENTS),
    ),
    Operation(
        "watch",
        "get",
        "/v1/watch",
        "events",
        "A stream of what happens",
        description=(
            "A client that reads too slowly gets the line `lagged`, and its connection is closed: "
            "what it missed is in `/v1/events`."
        ),
        answer=Answer(
            schema.WatchLine,
            (
                "An endless stream: one JSON object a line, each a `WatchLine`. The verdict "
                "comes first."
            ),
            examples.WATCH,
            stream=True,
            headers={
                "Cache-Control": {
                    "description": "It is not to be kept.",
                    "schema": {"const": "no-store"},
                }
            },
        ),
    ),
)
