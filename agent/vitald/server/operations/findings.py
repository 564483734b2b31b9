"""Operations on findings and incidents."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation, Parameter
from vitald.server.operations.parameters import COMPONENT, FINDING_ID, LIMIT, STATE
from vitald.server.operations.problems import NOT_FOUND


def _define_action(
    name: str, summary: str, *, effect: str, body: Body, answer: Answer
) -> Operation:
    """An action on one finding. Its name is the last part of its path; `effect` ends its
    description.
    """
    recorded = "For root and the daemon's own user. User, time and reason are recorded."
    return Operation(
        name,
        "post",
        f"/v1/findings/{{id}}/{name}",
        "findings",
        summary,
        description=f"{recorded} {effect}",
        parameters=(FINDING_ID,),
        body=body,
        answer=answer,
        problems=(NOT_FOUND,),
    )


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
        problems=(NOT_FOUND,),
    ),
    _define_action(
        "clear",
        "Close a finding, with a reason",
        effect="An old line does not open the finding again.",
        body=Body(schema.ClearRequest, "Why it is no longer true.", examples.CLEAR_REQUEST),
        answer=Answer(schema.OneFinding, "Closed, and stored.", examples.CLEAR),
    ),
    _define_action(
        "accept",
        "Accept a finding for a time",
        effect=(
            "The finding stays open and shown; it affects neither fitness nor flags until its time "
            "is over, or until it requires more. 0 seconds end an earlier acceptance."
        ),
        body=Body(schema.AcceptRequest, "For how long, and why.", examples.ACCEPT_REQUEST),
        answer=Answer(schema.OneFinding, "Accepted, and stored.", examples.ACCEPT),
    ),
    _define_action(
        "remedy",
        "Record that the required action of a finding has begun",
        effect=(
            "The finding stays open, as `in_remedy`, until evidence shows that the remedy worked."
        ),
        body=Body(schema.RemedyRequest, "What is being done.", examples.REMEDY_REQUEST),
        answer=Answer(schema.OneFinding, "Begun, and stored.", examples.REMEDY),
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
