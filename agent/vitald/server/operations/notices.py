"""The operation of the cloud provider's notices."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation

OPERATIONS = (
    Operation(
        "storeNotices",
        "post",
        "/v1/notices",
        "node",
        "Report the maintenance notices of the cloud provider that stand",
        description=(
            "For root, the daemon's own user and the user that `[publish] user` names. Sent by "
            "`vitald publish` when a notice appears, changes or is gone, and every 30 s. Each "
            "request has all notices: the findings of those that are gone end. A change of a "
            "code that comes less than 10 s after the last one is stored then, as it stands by "
            "then; with each change, a change of text and an end have to wait twice as long, up to "
            "10 minutes, until there was none for an hour. "
            "After 30 minutes without a request, the findings end."
        ),
        body=Body(
            schema.StoreNoticesRequest, "All notices that stand.", examples.STORE_NOTICES_REQUEST
        ),
        answer=Answer(schema.NoticesStored, "Stored.", examples.STORE_NOTICES),
    ),
)
