"""What schedulers do with the node: `/v1/scheduler`, and the times of a response."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypedDict

from vitald.server.schema.values import Code, ComponentName, Keywords, Moment, _Count

_Seconds: TypeAlias = Annotated[float, Keywords(minimum=0)]


class _OptionalReportSchedulerRequest(TypedDict, total=False):
    since: Moment | None
    """Since when; now if it is left out. A report that is older than a minute is dated by its
    arrival."""


class ReportSchedulerRequest(_OptionalReportSchedulerRequest):
    scheduler: Annotated[str, Keywords(enum=("slurm", "kubernetes"))]
    """Which."""
    state: Annotated[str, Keywords(enum=("drained", "in_service"))]
    """`drained`: it gives the node no more work, for a reason of vitald's. `in_service`: it may."""


class SchedulerReported(TypedDict):
    """The report was taken."""

    ok: Literal[True]
    changed: bool
    """It was news, and is stored. A scheduler that never drained the node has it in service."""


class ResponseSteps(TypedDict, total=False):
    """Seconds from the time of the fault, by its source's own clock, to each step that was reached.
    A step that was not reached, or that nothing reports, is absent."""

    detected: _Seconds
    """vitald had read the fault."""
    unfit: _Seconds
    """The verdict was stored and could be read."""
    drained: _Seconds
    """A scheduler gave the node no more work."""
    validated: _Seconds
    """A diagnostic had passed after the repair."""
    back: _Seconds
    """The scheduler gave it work again; without a scheduler that had drained it: it was fit."""


class ApiResponse(TypedDict):
    """What followed the last fault that made the node unfit, and when."""

    finding: _Count
    """The finding that made it unfit."""
    incident: _Count
    """Its incident."""
    component: ComponentName
    code: Code
    simulated: bool
    """The fault was a drill's."""
    first: Moment
    """When the fault was, by its source's own time: that of the kernel's record, or of the poll."""
    over: bool
    """The node is back."""
    steps: ResponseSteps
