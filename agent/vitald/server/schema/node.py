"""The node's status: `/healthz` and `/v1/status`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from vitald.server.schema.answers import ApiSource, ApiVerdict
from vitald.server.schema.components import ApiComponent
from vitald.server.schema.configuration import ApiConfiguration
from vitald.server.schema.diagnostics import DiagnosticOutline
from vitald.server.schema.findings import ApiFinding, ApiIncident, Suspect
from vitald.server.schema.publishers import ApiPublishers
from vitald.server.schema.values import Keywords, Moment, _Count, _Positive


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
