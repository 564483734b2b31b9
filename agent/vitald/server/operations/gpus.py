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
        "Each GPU: its identity, its status and its readings",
        description=(
            "Every GPU that PCI shows, that the driver reported, or that has an open finding, "
            "ordered by address. From memory: no call into the driver is made for this."
        ),
        answer=Answer(schema.Gpus, "The GPUs.", examples.GPUS),
    ),
    Operation(
        "release",
        "post",
        "/v1/release",
        "gpus",
        "Release the GPUs for a while, so that they can be reset",
        description=(
            "For root, the daemon's own user and that of `[publish] user`, for driver upgrades. "
            "Answers once vitald does not hold the devices any "
            "more, or it is known which process does. Until the time is over, or "
            "`/v1/release/end`, the source `nvml` is `released`, and a node that would be healthy "
            "is `unknown`; then the GPUs are read again."
        ),
        body=Body(
            schema.ReleaseRequest, "What for, for how long, and which.", examples.RELEASE_REQUEST
        ),
        answer=Answer(schema.Released, "Released.", examples.RELEASE),
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
        description=(
            "For root, the daemon's own user and that of `[publish] user`. Ends all releases, or"
            " those with this reason."
        ),
        body=Body(schema.EndReleaseRequest, "Which; empty for all.", examples.END_RELEASE_REQUEST),
        answer=Answer(schema.ReleaseEnded, "Taken back.", examples.END_RELEASE),
        problems=(NOT_ASKED,),
    ),
)
