"""Operations on GPUs."""

from __future__ import annotations

from vitald.server import examples, schema
from vitald.server.operations.operation import Answer, Body, Operation
from vitald.server.operations.problems import NOT_ASKED, NOT_FOUND

OPERATIONS = (
    Operation(
        "gpus",
        "get",
        "/v1/gpus",
        "gpus",
        "Each GPU: who it is, how it is, what the driver says of it",
        description=(
            "Every GPU that PCI shows, that the driver told of, or that has an open finding, "
            "ordered by address. From memory: no call into the driver is made for this."
        ),
        answer=Answer(schema.Gpus, "The GPUs.", examples.GPUS),
    ),
    Operation(
        "release",
        "post",
        "/v1/release",
        "gpus",
        "Let go of the GPUs for a while, so that somebody can reset them",
        description=(
            "For root and the daemon's own user. Answers once nothing of vitald's holds the "
            "devices, or it is known what does. Until the time is over, or `/v1/release/end`, the "
            "source `nvml` is `released`, and a node that would be fit is `unknown`; then they "
            "are looked at again."
        ),
        body=Body(
            schema.ReleaseRequest, "What for, for how long, and which.", examples.RELEASE_REQUEST
        ),
        answer=Answer(schema.Released, "Let go of.", examples.RELEASE),
        problems=(
            NOT_FOUND,
            NOT_ASKED,
        ),
    ),
    Operation(
        "endRelease",
        "post",
        "/v1/release/end",
        "gpus",
        "Take everything back now",
        description="For root and the daemon's own user. Ends every release that runs.",
        body=Body(schema.EndReleaseRequest, "An empty object.", examples.END_RELEASE_REQUEST),
        answer=Answer(schema.ReleaseEnded, "Taken back.", examples.END_RELEASE),
        problems=(NOT_ASKED,),
    ),
)
