"""Jobs, and the scheduler's reports about them."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from vitald.server.schema.values import Keywords, Moment, _Positive


class AskedDiagnostic(TypedDict):
    asked: bool
    """Whether it will be run."""
    id: str | None
    """Its run."""
    why: str
    """What for; or why not."""


class ApiJob(TypedDict):
    """A job on this node, as its scheduler reported it."""

    job: str
    """Its id."""
    user: str
    """Its user; empty if not reported."""
    uid: int | None
    """User id of its user."""
    state: Literal["running", "ended", "died", "lost"]
    """`died`: it ended with an exit code or by a signal. `lost`: its end was not reported, for
    example because the node went down; `ended` is then the time from which it cannot have run any
    more."""
    began: Moment | None
    """Null if not reported."""
    ended: Moment | None
    """Null while it runs."""
    exitCode: int | None
    """Null if not reported."""
    signal: int | None
    """That ended it; 0 for none, null if not reported."""
    reason: str
    """Why it ended, if reported."""


class ReportedJob(TypedDict):
    """A job that reports its progress over the job socket. All of it is the job's own claim but
    `slurm`, `pod`, `uid` and `user`. It changes no finding."""

    name: Annotated[str, Keywords(examples=("job 1234 of alice",))]
    """For people."""
    slurm: str
    """The Slurm job that its processes belong to, by their control group; else empty."""
    pod: str
    """The Kubernetes pod, likewise, by its uid."""
    claimed: str
    """The job that it claims to be."""
    uid: int
    """User of its processes."""
    user: str
    """That user's name, if the scheduler reported it; else empty."""
    ranks: Annotated[int, Keywords(minimum=1)]
    """Ranks on this node that are connected."""
    step: int | None
    """The last that all of them have made; null if there was none."""
    stepSeconds: float | None
    """Median duration of a step, over the ranks; null if not reported."""
    lastStep: Moment | None
    """When the rank made its last step that has made none for longest."""
    state: Annotated[
        str,
        Keywords(
            enum=(
                *("", "init", "train", "eval", "checkpoint", "wait"),
                *("stalled", "redone"),
            )
        ),
    ]
    """What most ranks do. `stalled`: a rank makes no step, though it should. `redone`: it makes
    steps that an earlier attempt had made. Empty: it ends."""
    loss: float | None
    """The last one of a rank; null if none is reported, or it is not finite."""
    saved: Moment | None
    """When its ranks here finished a checkpoint last, not one in memory; null if they did not."""


class ApiJobSocket(TypedDict):
    """Where jobs report. What is counted, since the daemon started."""

    error: str
    """Why no job can connect; empty while the socket is open."""
    connections: Annotated[int, Keywords(minimum=0)]
    """Open ones."""
    packetsDropped: Annotated[int, Keywords(minimum=0)]
    """Over the rate of their connection."""
    packetsWrong: Annotated[int, Keywords(minimum=0)]
    """That broke the protocol."""
    refused: Annotated[int, Keywords(minimum=0)]
    """Connections over a limit."""
    eventsDropped: Annotated[int, Keywords(minimum=0)]
    """Transitions that were not stored, because their user had too many."""


class _OptionalApiJobs(TypedDict, total=False):
    reported: Annotated[list[ReportedJob], Keywords(max_items=64)]
    """Those that report their progress."""
    socket: ApiJobSocket


class ApiJobs(_OptionalApiJobs):
    running: list[ApiJob]
    """What runs."""
    recent: list[ApiJob]
    """What ended."""


class JobTold(TypedDict):
    ok: bool
    """True."""
    job: ApiJob | None
    """As it is known now; null if there was nothing to record."""
    left: list[_Positive]
    """Open findings that began while it ran; empty at its begin."""
    unfit: list[_Positive]
    """Those of `left` that make the node unfit for the next job."""
    diagnostic: AskedDiagnostic | None
    """The result of requesting one; null if none was wanted."""


class _OptionalTellJobRequest(TypedDict, total=False):
    user: Annotated[str, Keywords(max_length=64, pattern="^[ -~]*$")]
    """Its user."""
    uid: Annotated[int | None, Keywords(minimum=0, maximum=4294967295)]
    """User id of its user."""
    exitCode: Annotated[int | None, Keywords(minimum=0, maximum=255)]
    """Of its end."""
    signal: Annotated[int | None, Keywords(minimum=0, maximum=127)]
    """That ended it; 0 for none."""
    reason: Annotated[str, Keywords(max_length=200, pattern="^[ -~]*$")]
    """In the scheduler's words."""
    diagnose: Annotated[bool, Keywords(default=False)]
    """At its end: request DCGM's level 2 diagnostic if it failed or left findings."""


class TellJobRequest(_OptionalTellJobRequest):
    event: Literal["begin", "end"]
    """What is reported."""
    job: Annotated[
        str, Keywords(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+\[\]/-]{0,63}$")
    ]
    """Its id, as its scheduler writes it."""
