"""Operations on events."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Operation
from vitald.server.operations.parameters import CODE, COMPONENT, KIND, LIMIT, NEWEST, SINCE
from vitald.server.operations.problems import NOT_FOUND

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
        problems=(NOT_FOUND,),
    ),
    Operation(
        "transitions",
        "get",
        "/v1/transitions",
        "events",
        "How findings changed",
        description=(
            "From the ledger, oldest first, with rules on trial and drills. An id does not appear "
            "after a higher one, so a client that keeps the last id misses nothing."
        ),
        parameters=(
            SINCE,
            LIMIT,
            COMPONENT,
            CODE,
            KIND,
            NEWEST,
        ),
        answer=Answer(schema.Transitions, "A page of transitions.", examples.TRANSITIONS),
        problems=(NOT_FOUND,),
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
