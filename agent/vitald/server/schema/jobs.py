"""Jobs, and the scheduler's reports about them."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from vitald.server.schema.value_types import Keywords, Moment, _Positive


class RequestedDiagnostic(TypedDict):
    requested: bool
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


class ApiJobs(TypedDict):
    running: list[ApiJob]
    """What runs."""
    recent: list[ApiJob]
    """What ended."""
    more: bool
    """Whether there are more than `limit` of either."""


class JobReported(TypedDict):
    ok: bool
    """True."""
    job: ApiJob | None
    """As it is known now; null if there was nothing to record."""
    findings: list[_Positive]
    """Open findings that began while it ran; empty at its begin."""
    diagnostic: RequestedDiagnostic | None
    """The result of requesting one; null if none was wanted."""


class _OptionalReportJobRequest(TypedDict, total=False):
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


class ReportJobRequest(_OptionalReportJobRequest):
    event: Literal["begin", "end"]
    """What is reported."""
    job: Annotated[
        str, Keywords(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+\[\]/-]{0,63}$")
    ]
    """Its id, as its scheduler writes it."""


class SchedulerRequest(TypedDict):
    state: Literal["drained", "in_service"]
    """What the scheduler has done: it gives the node no more work, or work again."""


class SchedulerReported(TypedDict):
    """The report was taken."""

    ok: Literal[True]
