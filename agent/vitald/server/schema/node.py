"""
The node's status: `/healthz` and `/v1/status`; its parts on the configuration (with
`POST /v1/reload`) and on publishers (with `/v1/publishers`); and its summary, which publishers
write (`/v1/summary`).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypedDict

from vitald.server.schema.answers import ApiSource, ApiVerdict
from vitald.server.schema.components import ApiComponent
from vitald.server.schema.diagnostics import DiagnosticOutline
from vitald.server.schema.findings import ApiFinding, ApiIncident, Suspect
from vitald.server.schema.value_types import (
    Action,
    Code,
    ComponentKind,
    ComponentName,
    Keywords,
    Moment,
    Status,
    When,
    _Count,
    _Positive,
)

_Key: TypeAlias = Annotated[str, Keywords(examples=("[metrics] listen",))]
_Name: TypeAlias = Annotated[str, Keywords(pattern="^[a-z][a-z0-9_-]{0,31}$")]
_Bounded: TypeAlias = Annotated[int, Keywords(minimum=0, maximum=10**15)]
_REASON = Keywords(pattern=r"^[A-Z][A-Za-z0-9]{0,127}$", examples=("Xid79",))


class Health(TypedDict):
    """The daemon itself works."""

    ok: Literal[True]
    version: str
    """Version of vitald."""


class ApiLedger(TypedDict):
    """Whether what happens is stored."""

    ok: bool
    """It can be written."""
    error: str
    """Why not; empty while it can."""
    unsavedEvents: _Count
    """Events held in memory until it can be written."""
    droppedEvents: _Count
    """Events that were too many to hold."""
    sizeBytes: _Count
    """On disk; measured once a minute."""


class KernelLog(TypedDict):
    """Records of the kernel log, since the daemon started."""

    recordsRead: _Count
    """Read."""
    recordsLost: _Count
    """Overwritten before they were read, by sequence number."""
    untrusted: _Count
    """Faults reported by processes and not judged (`[kernel_log] userspace = "ignore"`)."""


class ApiRecovery(TypedDict):
    """Whether root is requested to reboot the node or to have it replaced. `vitald recovery status`
    shows what came of the request."""

    mode: Annotated[str, Keywords(enum=("none", "automatic"))]
    """`[recovery] mode` of the configuration."""
    brake: str
    """What limits how many nodes of the cluster are taken out of service at once; begins with
    `none` if nothing does."""
    request: RecoveryRequest | None
    """The current request; null if there is none."""


class RecoveryDecision(TypedDict):
    """Read from root's decision log."""

    step: Literal["refused", "drain", "wait", "act"]
    """`wait`: work still runs here, or a random delay."""
    checks: list[str]
    """The checks that failed."""
    why: str
    time: Moment
    """When it was last decided so."""


class RecoveryRequest(TypedDict):
    """Repeated every few minutes while it holds."""

    id: str
    """Of this request; the same while the same is required."""
    action: Literal["reboot", "replace"]
    """`replace` outranks `reboot`."""
    since: Moment
    """When it was first requested."""
    findings: list[_Positive]
    """The findings that require it."""
    decision: RecoveryDecision | None
    """Root's last decision on it; null before the first, or if the daemon may not read it."""


class _OptionalNodeStatus(TypedDict, total=False):
    diagnostics: DiagnosticOutline
    recovery: ApiRecovery | None
    """What root is requested to do about it."""
    publishers: ApiPublishers | None
    """How `vitald publish` fares; null if it never reported."""
    configuration: ApiConfiguration
    """What differs between the configuration file and what is in force."""


class NodeStatus(ApiVerdict, _OptionalNodeStatus):
    """The verdict, and all that it is computed from."""

    components: list[ApiComponent]
    """What is watched, and whatever else has an open finding."""
    sources: list[ApiSource]
    """What is read."""
    findings: Annotated[list[ApiFinding], Keywords(max_items=100)]
    """The strongest open ones, 100 at most."""
    openFindings: _Count
    """How many are open altogether."""
    incidents: Annotated[list[ApiIncident], Keywords(max_items=100)]
    """The open incidents in the order of `reasons`, 100 at most."""
    suspects: Annotated[list[Suspect], Keywords(max_items=100)]
    """Devices with a record of faults, the highest score first, 100 at most. Advice to people."""
    ledger: ApiLedger
    kernelLog: KernelLog
    profile: Annotated[str, Keywords(examples=("nvidia", "hyperpod"))]
    """Profile of the catalogue."""
    host: str
    """Host name."""
    bootId: str
    """This boot."""
    version: str
    """Version of vitald."""
    pid: _Positive
    """Of the daemon."""
    startedAt: Moment
    """When the daemon started."""
    time: Moment
    """When this was answered."""


class ApiConfiguration(TypedDict):
    """The configuration file as it is on disk, compared with what is in force every 20 s."""

    file: str | None
    """Null: there is none, and the defaults are in force."""
    errors: Annotated[list[str], Keywords(max_items=100)]
    """Why it is refused, each with file, line and key, 100 at most. What was in force before stays
    so, and the daemon would not start with this file."""
    needsReload: list[_Key]
    """Changed keys that take effect at a reload."""
    needsRestart: list[_Key]
    """Changed keys that take effect at a restart of the daemon."""


class ReloadRequest(TypedDict):
    """An empty object."""


class Reloaded(TypedDict):
    """What came of a reload."""

    file: str | None
    """The file that was read; null if there is none, and the defaults are in force."""
    errors: list[str]
    """Why it was refused, each with file, line and key; then nothing has changed. Empty if it is in
    force."""
    applied: list[_Key]
    """Keys that have changed, and are in force now."""
    needsRestart: list[_Key]
    """Keys that have changed since the daemon started, and take effect when it is restarted."""
    publisherNeedsRestart: list[_Key]
    """Keys that have changed since the last reload, and take effect when `vitald publish` is
    restarted."""


class SinkReport(TypedDict):
    """How one sink of the publisher fares."""

    name: Annotated[_Name, Keywords(examples=("kubernetes",))]
    """Its name; each once."""
    up: bool
    """The last attempt wrote all of it. In an answer false, too, while the publisher is silent."""
    lastSuccess: Moment | None
    """When it last was up to date; null if it never was."""
    error: Annotated[str, Keywords(max_length=300)]
    """Why the last attempt did not write all, in one line; empty if it did."""
    refused: Annotated[list[_Name], Keywords(max_items=16)]
    """What the receiver refuses of the state, by the word of `[kubernetes]` that turns it on;
    `former-names` is what an earlier configuration wrote and this one removes. The rest is
    written. Empty if all is written, or nothing."""
    waiting: _Bounded
    """How much is not written yet."""
    waitingSince: Moment | None
    """Since when; null while nothing waits."""
    writes: _Bounded
    """Writes since the publisher started."""
    failures: _Bounded
    """Attempts that failed since then."""


class ReportSinksRequest(TypedDict):
    sinks: Annotated[list[SinkReport], Keywords(max_items=16)]
    """All of them. An empty list: the publisher ends, and nothing more is expected of it."""


class SinksReported(TypedDict):
    """The report was taken."""

    ok: Literal[True]


class ApiPublishers(TypedDict):
    """What `vitald publish` reported last."""

    reported: Moment
    """When."""
    silent: bool
    """That was more than 60 s ago: it does not run, or cannot reach the daemon."""
    sinks: Annotated[list[SinkReport], Keywords(max_items=16)]
    """Its sinks."""


class SummarizedFinding(TypedDict):
    """An open finding in short."""

    id: _Positive
    """Its number."""
    component: ComponentName
    code: Code
    reason: Annotated[str, _REASON]
    """The stable word for its code."""
    action: Action
    when: When
    since: Moment
    """First seen."""
    confirmed: bool
    """Another source than the text of the kernel log reports it, too."""
    accepted: bool
    """A person accepted it for a time."""
    simulated: bool
    """It is a drill's, or was read from a simulated library."""
    due: bool
    """The node is to be rebooted or replaced for it now, as for `rebootDue`."""
    device: str
    """UUID or serial number of the device; its slot where neither is known."""


class NodeSummary(TypedDict):
    """The node's state in the words that other systems match, and which repairs are due now."""

    status: Status
    action: Action
    reason: Annotated[str, _REASON]
    """Why the status is what it is: `Healthy`, `Degraded`, `SourceNotRead`, `SimulatedReadings`, or
    the word for the code of the worst incident's cause."""
    reasons: Annotated[list[str], Keywords(max_items=100)]
    """Why, in sentences, the strongest first, 100 at most."""
    rebootRequired: bool
    """A finding requires a reboot, confirmed or not, and perhaps after the running job only."""
    replacementRequired: bool
    """The same for a replacement."""
    rebootDue: Annotated[str, _REASON] | None
    """The word for the finding for which the node is to be rebooted now; null where none is. The
    finding is confirmed, and requires it now, or after the running job while the node is idle."""
    replacementDue: Annotated[str, _REASON] | None
    """The same for a replacement."""
    changedAt: Moment
    """When a finding changed last."""
    findings: Annotated[list[SummarizedFinding], Keywords(max_items=100)]
    """The open findings, 100 at most: those first for which a repair is due, then the strongest."""
    openFindings: _Count
    """How many are open altogether."""
    ignoredDrills: _Count
    """Open findings of drills, which this answer leaves out; 0 with `drills=true`."""
    complete: bool
    """Everything that is watched was read lately, and every device answered. Otherwise there may be
    faults that are not known."""
    accelerators: list[ComponentKind]
    """Kinds of accelerators on PCI: `gpu`, `neuron`."""
    bootId: str
    """This boot."""
    time: Moment
    """Time of this answer."""
