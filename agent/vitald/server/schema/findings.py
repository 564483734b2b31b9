"""Findings, incidents, how a finding came about, and the rules of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict, final

from vitald.model import event, finding
from vitald.server.endpoint import MAX_PAGE
from vitald.server.schema.answers import Flags
from vitald.server.schema.components import ApiDevice
from vitald.server.schema.jobs import ApiJob
from vitald.server.schema.value_types import (
    Action,
    Code,
    ComponentName,
    Fields,
    Keywords,
    Moment,
    When,
    _Count,
    _FaultClassed,
    _Positive,
    _Reason,
)


class ApiAcceptance(TypedDict):
    """A person knows of a finding and lives with it, until a moment or until it gets worse."""

    by: str
    """Who accepted it."""
    reason: str
    """Why."""
    since: Moment
    """When it was accepted."""
    until: Moment
    """When that ends by itself."""


class ApiFinding(_FaultClassed):
    """One problem of one component."""

    id: _Positive
    """Its number; `POST /v1/findings/{id}/clear` takes it."""
    incident: _Count
    """The incident that it belongs to; 0 if it has none."""
    state: Annotated[str, finding.FindingState]
    """`in_remedy`: an operator began the required action; the finding stays open until evidence
    shows that it worked."""
    component: ComponentName
    device: ApiDevice | None
    """The device that it is about; null for one of the node, and where another device was put into
    the slot since."""
    kind: Annotated[str, Keywords(examples=("xid",))]
    """Kind of the fault."""
    code: Code
    title: str
    """What it is, in a few words."""
    action: Action
    when: When
    unusable: bool
    """The device cannot be used: the node is unfit for work whatever the action."""
    instruction: str
    """The action in words."""
    accepted: ApiAcceptance | None
    """Who accepted it, and until when: meanwhile it affects neither fitness nor flags. Null if it
    is not accepted."""
    actionReason: str
    """Why its requirement differs from the catalogue's table; empty if it does not."""
    meaning: str
    """What the code means."""
    advice: str
    """What else helps; may be empty."""
    since: Moment
    """First seen."""
    last: Moment
    """Last seen."""
    count: _Positive
    """How often it was seen."""
    raw: str
    """The line that decided the action."""
    fields: Fields
    clears: list[str]
    """What will close it."""
    confirmed: bool
    """What it requires rests on more than the text of the kernel log: another source saw it, or
    agrees. What repairs a node by itself goes by this."""
    confirmedBy: Annotated[str | None, Keywords(examples=("nvml", "nvml (nvml/gpu_lost)"))]
    """The source that saw it itself, or the second one with what it saw. Null where it rests on
    text only."""
    confirmedAction: Action | None
    """The strongest action that this confirms: `replace_node` where the fault itself was seen, else
    what the second source requires. A finding that requires more is not `confirmed`."""
    witnesses: list[str]
    """Kinds of codes of which one would confirm it. Empty where it is confirmed, and where no other
    source can see it."""
    writtenByProcess: bool
    """A process wrote it to the kernel log (`[kernel_log] userspace`), and nothing else tells of
    it."""
    simulated: bool
    """It belongs to a drill, or was read from a simulated library."""
    simulatedUntil: Moment | None
    """When it ends by itself; null where it is real."""
    bootId: str
    """Boot in which it was last seen."""
    clearedAt: Moment | None
    """When it was closed."""
    clearedBy: str | None
    """Who or what closed it, and why."""
    source: str
    """Where the catalogue has this from."""


@final
class ApiEvent(TypedDict):
    """One fact, once."""

    id: _Count
    """Its place in the ledger; `since` takes it. 0 in the stream, and where the ledger cannot be
    read."""
    time: Moment
    """When it was seen."""
    source: Annotated[str, Keywords(examples=("kernel_log", "nvml", "vitald"))]
    """What saw it."""
    kind: Annotated[str, Keywords(examples=("xid",))]
    """Its kind."""
    code: Code
    component: ComponentName
    trust: Annotated[str, event.Trust]
    """`kernel`: the kernel's own. `accepted`: written by a process, and judged; its field `vouched`
    tells whether the configuration takes it for confirmed, `facility` is the syslog facility.
    `announced`: a drill. `untrusted`: from user space, not judged. `daemon`: vitald's own
    observation."""
    simulated: bool
    """It belongs to a drill, or was read from a simulated library."""
    raw: str
    """The line, printable ASCII."""
    followedBy: Annotated[list[str], Keywords(max_items=8)]
    """Lines that continue it (SXid)."""
    fields: Fields
    bootId: str
    """Boot in which it was seen."""
    identity: str
    """Where it came from. The same record read twice has the same identity."""


class ApiMember(TypedDict):
    """One code of one component in an incident, however often it was printed."""

    component: ComponentName
    code: Code
    title: str
    """What it is, in a few words."""
    role: Literal["root", "consequence"]
    """The cause of the incident, or what came of it."""
    count: _Positive
    """How often it was printed."""
    first: Moment
    """First seen."""
    last: Moment
    """Last seen."""
    raw: str
    """The first line of it."""


class ApiIncident(TypedDict):
    """A root cause and its consequences, reported once."""

    id: _Positive
    """Its number; findings name it."""
    state: Literal["open", "over"]
    """`open`: at least one of its findings is. `over`: none is, or it never had one."""
    component: ComponentName
    """Of the cause."""
    code: Code
    """Of the cause."""
    title: str
    """What the cause is."""
    action: Action
    """The strongest that its open findings require."""
    when: When | None
    """When that is due; null if nothing is required."""
    instruction: str
    """The action in words."""
    line: str
    """All of it in one sentence, as in `reasons`."""
    findings: list[_Positive]
    """Its open findings."""
    correlation: str
    """Title of the correlation rule that joins its members; empty if it has only one."""
    since: Moment
    """When it began."""
    last: Moment
    """When its last event was seen."""
    count: _Positive
    """How many events it has."""
    closedAt: Moment | None
    """When its last finding was closed."""
    simulated: bool
    """It belongs to a drill, or was read from a simulated library."""
    members: Annotated[list[ApiMember], Keywords(min_items=1, max_items=64)]
    """The cause first."""
    jobs: Annotated[list[ApiJob], Keywords(max_items=8)]
    """The work that ran at its time, or ended within 10 minutes of it: what failed first, then what
    is nearest in time."""


class Incidents(TypedDict):
    """A list of incidents."""

    incidents: Annotated[list[ApiIncident], Keywords(max_items=MAX_PAGE)]
    """The incidents."""
    more: bool
    """Whether there are more than `limit`."""


class Suspect(TypedDict):
    """A device with a record of faults in the last weeks."""

    device: Annotated[
        str, Keywords(examples=("GPU-5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5", "gpu/0000:65:00.0"))
    ]
    """The key of its record: UUID or serial number if known, otherwise the slot."""
    component: str
    """The slot that it is in; the same as `device` where that is not known."""
    score: Annotated[float, Keywords(exclusive_minimum=0)]
    """The lemon score: points for each entry of its record, fading with age."""
    suspect: bool
    """The score is high enough to call it suspect."""
    parts: Annotated[list[SuspectPart], Keywords(min_items=1)]
    """What the score is made of, the heaviest first."""


class SuspectPart(TypedDict):
    """What one kind of entry contributes to a score."""

    kind: Annotated[
        str,
        Keywords(enum=("fault", "remedy", "not_held", "process", "job_died", "diagnostic_failed")),
    ]
    """`fault`: of the device itself, the cause of an incident. `not_held`: it came back after its
    remedy."""
    count: _Positive
    """How many entries."""
    points: Annotated[float, Keywords(minimum=0)]
    """Their points."""


class Layer(TypedDict):
    """One layer of a finding's requirement. The last one decides, but escalation only raises, or
    ends in an inspection when all remedies failed."""

    layer: Annotated[str, Keywords(enum=("base", "context", "implied", "driver", "escalation"))]
    """`base`: the catalogue. `context`: co-occurrence with other members of its incident.
    `implied`: a suppressed consequence requires it. `driver`: the driver's recommendation.
    `escalation`: it recurred."""
    action: Action
    when: When
    reason: str
    """Why, or the source."""
    decides: bool
    """This layer is what the finding requires."""


class ApiPastTransition(TypedDict):
    """A change of a finding."""

    time: Moment
    """When."""
    state: Annotated[str, finding.FindingState]
    """Its state from then on."""
    action: Action
    """The required action from then on."""
    cause: str
    """Why."""
    event: str | None
    """Identity of the event that caused it."""


class Why(TypedDict):
    """The chain of one finding, from the lines to the flags."""

    finding: ApiFinding
    events: Annotated[list[ApiEvent], Keywords(max_items=8)]
    """The events that it was seen in; of many, the first four and the last four."""
    incident: ApiIncident | None
    """Its incident; null if it has none."""
    rule: ApiRule
    """The catalogue's entry, as the daemon applies it."""
    layers: Annotated[list[Layer], Keywords(min_items=1, max_items=5)]
    """Its requirement, layer by layer."""
    flags: Flags
    """The flags that it raises."""
    transitions: list[ApiPastTransition]
    """How it changed, oldest first."""


class Findings(TypedDict):
    """A list of findings."""

    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    findings: Annotated[list[ApiFinding], Keywords(max_items=MAX_PAGE)]
    """The findings."""
    more: bool
    """Whether there are more than `limit`."""


class OneFinding(TypedDict):
    """The finding as it is now."""

    finding: ApiFinding


class _OptionalClearRequest(TypedDict, total=False):
    replaced: Annotated[bool, Keywords(default=False)]
    """Because its device was replaced: the record of the device in that slot begins afresh."""


class ClearRequest(_OptionalClearRequest):
    reason: _Reason


class AcceptRequest(TypedDict):
    reason: _Reason
    seconds: Annotated[float, Keywords(minimum=0, maximum=7776000)]
    """For how long, at most 90 days; 0 ends what was accepted before."""


class RemedyRequest(TypedDict):
    reason: _Reason


class ApiCase(TypedDict):
    """A condition on the fields of an event that changes the action."""

    where: Mapping[str, list[str | int | bool]]
    """Every field must hold one of its values; `NAME_not`: a value that is none of them."""
    action: Action | None
    """Replaces the rule's action."""
    atLeast: Action | None
    """Only raises it."""
    escalation: str | None
    """Name of the escalation policy of that action, if it is not the entry's."""
    title: str | None
    """Title in this case."""
    advice: str | None
    """Advice in this case."""


class ApiRule(_FaultClassed):
    """The catalogue's entry for a code."""

    code: Code
    title: str
    """What it is."""
    mnemonic: str
    """The driver's own name for it; may be empty."""
    meaning: str
    """What it means."""
    advice: str
    """What else helps; may be empty."""
    action: Action
    when: When
    instruction: str
    """The action in words."""
    clears: list[str]
    """What closes a finding, besides a named person."""
    escalation: str
    """Name of its escalation policy."""
    sharedCause: bool
    """If all devices of the kind have it at once, it is one finding of the node."""
    ofPeers: bool
    """If several devices have it at once, a worker elsewhere failed: one finding of the node."""
    cases: list[ApiCase]
    """Context that changes the action."""
    known: bool
    """The catalogue has the code; otherwise this is its kind's default."""
    source: str
    """Where this is from."""
    origin: str
    """File of the catalogue that holds it; empty where none does."""
