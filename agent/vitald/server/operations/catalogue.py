"""Operations on the catalogue."""

from __future__ import annotations

from typing import Annotated

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Operation, Parameter
from vitald.server.operations.problems import NOT_FOUND

OPERATIONS = (
    Operation(
        "rule",
        "get",
        "/v1/rules/{kind}/{code}",
        "catalogue",
        "What a code means",
        description="A code that is not listed gets an answer too: its `known` is false.",
        parameters=(
            Parameter(
                "kind",
                "path",
                "Kind of the fault.",
                Annotated[str, schema.Keywords(min_length=1)],
                example="xid",
            ),
            Parameter(
                "code",
                "path",
                "Its code.",
                Annotated[str, schema.Keywords(min_length=1)],
                example="79",
            ),
        ),
        answer=Answer(
            schema.ApiRule, "The catalogue's entry, or its kind's default.", examples.RULE
        ),
        problems=(NOT_FOUND,),
    ),
)
