"""Diagnostic checks, and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict, Union

from vitald.server.endpoint import MAX_PAGE
from vitald.server.schema.value_types import (
    Keywords,
    Moment,
    Outcome,
    Remedy,
    _CheckName,
    _Count,
    _Level,
    _Reason,
    _RequestedRunId,
    _RunId,
)


class DiagnosticCheck(TypedDict):
    """A kind of diagnostic. Figures are by level; `0` for a check that has none."""

    name: _CheckName
    """Name of the check."""
    title: str
    """What it is."""
    levels: Annotated[list[_Count], Keywords(min_items=1)]
    """At which it can be run; `[0]` if it has none."""
    missing: str
    """Why it cannot run on this node, such as that its program is not installed; empty where it
    can."""
    every: Mapping[_Level, Annotated[float, Keywords(minimum=0)]]
    """Its period in seconds; 0: on request only."""
    expected: Mapping[_Level, Annotated[float, Keywords(minimum=0)]]
    """How long it usually takes, in seconds."""
    needsIdle: Mapping[_Level, bool]
    """Whether it waits until the devices are idle."""


class DiagnosticRequest(TypedDict):
    """The request of a run, active or ended."""

    id: _RunId
    """Its id, unique on this node; it contains the time of the request."""
    check: _CheckName
    """Name of the check."""
    level: _Count
    """DCGM's level, 1 to 4; 0 for checks that have none."""
    gpus: list[_Count]
    """Only these GPUs, by index; empty for all."""
    by: Annotated[str, Keywords(examples=("root (uid 0), pid 4711",))]
    """The requester: `schedule`, `finding #12`, a user with the process, a job."""
    reason: str
    """What for; may be empty."""


class ActiveDiagnostic(DiagnosticRequest):
    """A requested run without a verdict so far."""

    stage: Literal["waiting", "running", "ending"]
    """`ending`: it is being stopped."""
    requestedAt: Moment
    """When it was requested; kept over restarts and attempts that came to nothing."""
    began: Moment | None
    """When it began; null while it waits."""
    elapsed: Annotated[float, Keywords(minimum=0)]
    """For how long it has run; 0 while it waits."""
    expected: Annotated[float, Keywords(minimum=0)]
    """How long it usually takes; 0 where that is not known."""
    waitsFor: Annotated[str, Keywords(examples=("idle devices: job 4711",))]
    """What it waits for, in words; may be empty. After an attempt that came to nothing: when the
    next one is, and why."""
    test: str
    """The current test, if the program reports it; may be empty."""


class ScheduledDiagnostic(TypedDict):
    """When the schedule runs a check next."""

    check: _CheckName
    """Name of the check."""
    level: _Count
    """DCGM's level, 1 to 4; 0 for checks that have none."""
    at: Moment
    """When. In the past: it waits."""
    waitsFor: str
    """What it waits for, in words; may be empty."""


class DiagnosticRun(DiagnosticRequest):
    """A run that has ended."""

    began: Moment
    """When it began."""
    ended: Moment
    """When it ended."""
    seconds: Annotated[float, Keywords(minimum=0)]
    """How long it took."""
    outcome: Outcome
    why: str
    """The reason, in one line; empty where all passed."""
    action: Remedy
    rebootRequired: bool
    """Its result requires a reboot. The node's own flag is in `/v1/status`."""
    replacementRequired: bool
    """Its result requires replacement of the node. The node's own flag is in `/v1/status`."""
    exitCode: int | None
    """Of its last program; below 0 the signal that ended it; null where none was started."""
    culprits: list[_Count]
    """Faulty GPUs, by index."""
    preempted: str
    """The work for which it was stopped: such a run has no result. Empty otherwise."""
    dcgmVersion: str
    """As printed; may be empty."""
    driverVersion: str
    """As printed; may be empty."""
    deviceIds: list[str]
    """PCI device ids, one for each GPU, as printed."""


class DiagnosticRunInFull(DiagnosticRun):
    """A run that has ended, with what was printed and all that was read out of it."""

    command: str
    """The last program with its arguments; empty where none was started."""
    tests: list[DiagnosticTest]
    """What was tested, with the statuses as printed."""
    faults: list[DiagnosticFault]
    """What it complains of."""
    measures: list[DiagnosticMeasure]
    """What it measured."""
    raw: str
    """What its programs printed, as far as it was kept (`[diagnostics] keep`)."""


class DiagnosticTest(TypedDict):
    """One test of a run."""

    name: str
    """As printed."""
    category: str
    """As printed; may be empty."""
    status: Annotated[str, Keywords(examples=("Pass", "Fail", "Skip"))]
    """As printed; empty where only its devices have one."""
    gpus: Mapping[str, str]
    """The status of each GPU, by index."""
    cpus: Mapping[str, str]
    """The same of CPUs."""


class DiagnosticFault(TypedDict):
    """A problem that a run reported."""

    code: Annotated[str, Keywords(examples=("dcgm/58",))]
    """Its entry in the catalogue: `/v1/rules/{kind}/{code}`."""
    test: str
    """The test that found it."""
    text: str
    """What was printed of it."""
    gpu: Annotated[int | None, Keywords(minimum=0)]
    """GPU, by index; null where none is named."""
    device: Annotated[str, Keywords(examples=("rdmap0s6",))]
    """Another device, by its name; may be empty."""
    errorId: int | None
    """DCGM's number of the error."""
    category: int | None
    """DCGM's category of the error."""
    severity: int | None
    """DCGM's severity of the error."""
    action: Remedy
    confirm: bool
    """It counts only if a second run finds it too."""
    confirmed: bool
    """An earlier run had found it, so it counts."""


class DiagnosticMeasure(TypedDict):
    """A measured value, in base units, and its limits."""

    name: Annotated[str, Keywords(examples=("busbw_bytes_per_second", "latency_seconds"))]
    """What was measured."""
    device: str
    """Of which device; may be empty."""
    value: float | None
    """The figure; null where none was printed that is a number."""
    minimum: float | None
    """It should be at least this."""
    maximum: float | None
    """It should be at most this."""


class ApiDiagnostics(TypedDict):
    """The checks that can be run here, the active and the next runs, and the last results."""

    checks: list[DiagnosticCheck]
    """The kinds of diagnostics."""
    active: list[ActiveDiagnostic]
    """The one that runs first, then those that wait for their turn, or for their next attempt."""
    last: list[DiagnosticRun]
    """The last run of each check and level."""
    scheduled: list[ScheduledDiagnostic]
    """What the schedule runs next."""
    blocked: str
    """Why no check that needs idle devices may run now; empty if it may."""


class DiagnosticOutline(TypedDict):
    """Diagnostics at a glance."""

    active: list[ActiveDiagnostic]
    """The one that runs first, then those that wait for their turn, or for their next attempt."""
    last: list[DiagnosticRun]
    """The last run of each check and level."""


class DiagnosticRuns(TypedDict):
    """Runs that have ended."""

    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    runs: Annotated[list[DiagnosticRun], Keywords(max_items=MAX_PAGE)]
    """The newest first."""
    more: bool
    """Whether there are more than `limit`."""


class OneActiveDiagnostic(TypedDict):
    """The current state of the run."""

    active: ActiveDiagnostic


class _OptionalRunDiagnosticRequest(TypedDict, total=False):
    check: Annotated[str, Keywords(default="dcgm")]
    """Which check."""
    level: Annotated[int, Keywords(minimum=0, maximum=100)]
    """Left out: the check's lowest."""
    gpus: Annotated[
        list[Union[Annotated[int, Keywords(minimum=0, maximum=4095)], str]],
        Keywords(max_items=64, unique_items=True, default=()),
    ]
    """Only these; empty for all. A number is the index as the check's program counts; a text is any
    name of the GPU: serial number, UUID, PCI address."""
    busy: Annotated[bool, Keywords(default=False)]
    """Also while others use the devices: both get slower, and it may fail for that alone."""


class RunDiagnosticRequest(_OptionalRunDiagnosticRequest):
    reason: _Reason


class _OptionalCancelDiagnosticRequest(TypedDict, total=False):
    id: _RequestedRunId
    """Left out: the one that runs."""


class CancelDiagnosticRequest(_OptionalCancelDiagnosticRequest):
    reason: _Reason
