"""The operation that returns openapi.json."""

from __future__ import annotations

from vitald.server.operations.operation import Answer, Operation
from vitald.server.schema.answers import _Document

OPERATIONS = (
    Operation(
        "openapi",
        "get",
        "/v1/openapi.json",
        "node",
        "This document",
        answer=Answer(_Document, "This document."),
    ),
)
