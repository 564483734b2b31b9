"""Operations on findings and incidents."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation, Parameter
from vitald.server.operations.parameters import COMPONENT, FINDING_ID, LIMIT, STATE
from vitald.server.operations.problems import NOT_FOUND

OPERATIONS = (
    Operation(
        "findings",
        "get",
        "/v1/findings",
        "findings",
        "What is wrong now, or was",
        parameters=(
            STATE,
            LIMIT,
            COMPONENT,
            Parameter(
                "code", "query", "Of this code only, written kind/code.", str, example="xid/79"
            ),
        ),
        answer=Answer(schema.Findings, "The findings.", examples.FINDINGS),
    ),
    Operation(
        "clear",
        "post",
        "/v1/findings/{id}/clear",
        "findings",
        "Close a finding, with a reason",
        description=(
            "For root and the daemon's own user. User, time and reason are recorded. An old line "
            "does not open the finding again."
        ),
        parameters=(FINDING_ID,),
        body=Body(schema.ClearRequest, "Why it is no longer true.", examples.CLEAR_REQUEST),
        answer=Answer(schema.OneFinding, "Closed, and stored.", examples.CLEAR),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "accept",
        "post",
        "/v1/findings/{id}/accept",
        "findings",
        "Accept a finding for a time",
        description=(
            "For root and the daemon's own user. User, time and reason are recorded. The finding "
            "stays open and shown; it affects neither fitness nor flags until its time is over, "
            "or until it requires more. 0 seconds end an earlier acceptance."
        ),
        parameters=(FINDING_ID,),
        body=Body(schema.AcceptRequest, "For how long, and why.", examples.ACCEPT_REQUEST),
        answer=Answer(schema.OneFinding, "Accepted, and stored.", examples.ACCEPT),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "remedy",
        "post",
        "/v1/findings/{id}/remedy",
        "findings",
        "Record that the required action of a finding has begun",
        description=(
            "For root and the daemon's own user. User, time and reason are recorded. The finding "
            "stays open, as `in_remedy`, until evidence shows that the remedy worked."
        ),
        parameters=(FINDING_ID,),
        body=Body(schema.RemedyRequest, "What is being done.", examples.REMEDY_REQUEST),
        answer=Answer(schema.OneFinding, "Begun, and stored.", examples.REMEDY),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "why",
        "get",
        "/v1/findings/{id}/why",
        "findings",
        "The chain of a finding, from the raw lines to the flags",
        description=(
            "Of an open finding, one of a rule on trial, or a cleared one that the ledger still "
            "keeps."
        ),
        parameters=(FINDING_ID,),
        answer=Answer(schema.Why, "The chain.", examples.WHY),
        problems=(NOT_FOUND,),
    ),
    Operation(
        "incidents",
        "get",
        "/v1/incidents",
        "findings",
        "Incidents: root causes with their consequences",
        description=(
            "The open ones, the strongest first. Then those that are over, the youngest first, as "
            "long as a late line could still join them."
        ),
        parameters=(LIMIT,),
        answer=Answer(schema.Incidents, "The incidents.", examples.INCIDENTS),
    ),
)
