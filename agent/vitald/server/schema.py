"""
The contract of the API: what is asked and what is answered, as types. `openapi.json` is made from
them (`python -m tests.openapi`), and the daemon and the command line are checked against them.

A name that begins with an underscore is written out where it is used, any other is a schema of its
own. The text below a key is its description. Only a type checker and that tool load this module:
building the types takes longer than `vitald check` may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, TypedDict, Union

from vitald import model
from vitald.catalog import rules
from vitald.model import diagnostic


@dataclass(frozen=True, slots=True)
class Keywords:
    """What JSON Schema says of a value beyond its type; the names are its own, in snake case."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    min_properties: int | None = None
    unique_items: bool | None = None
    title: str | None = None
    pattern: str | None = None
    format: str | None = None
    enum: tuple[str, ...] | None = None
    default: str | float | bool | tuple[()] | None = None
    examples: tuple[str, ...] | None = None


_Count: TypeAlias = Annotated[int, Keywords(minimum=0)]
_Positive: TypeAlias = Annotated[int, Keywords(minimum=1)]
_Value: TypeAlias = Union[str, float, bool, list[int], None]
Reading: TypeAlias = Union[float, str, list[Union[float, str, None]]]
_Level: TypeAlias = Annotated[str, Keywords(pattern="^[0-9]+$")]
_CheckName: TypeAlias = Annotated[
    str, Keywords(examples=("dcgm", "dcgm_health", "efa_loopback", "nccom", "nccl"))
]
_RunId: TypeAlias = Annotated[
    str,
    Keywords(pattern="^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$", examples=("20261120T134808-3-dcgm-2",)),
]
_RunIdAsked: TypeAlias = Annotated[str, Keywords(pattern="^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$")]
_PciId: TypeAlias = Annotated[str, Keywords(pattern="^[0-9a-f]{4}$")]
_Reason: TypeAlias = Annotated[str, Keywords(pattern=r"\S", min_length=1, max_length=500)]
"""One to 500 characters, not only blanks."""

_FaultClassed = TypedDict("_FaultClassed", {"class": "FaultClass"})  # a word of Python's

Moment: TypeAlias = Annotated[
    str,
    Keywords(
        format="date-time",
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
    ),
]
"""RFC 3339, UTC, milliseconds."""

Status: TypeAlias = Annotated[str, model.Status]
"""`unhealthy`: something asks for a reset or more, now. `unknown`: something that must be watched
is not being read, or was let go of. `degraded`: anything else is open."""

Action: TypeAlias = Annotated[str, model.Action]
"""What must be done, in order of strength. `inspect`: a person or a deeper diagnostic must look."""

When: TypeAlias = Annotated[str, model.When]
"""Whether it is due at once, once the running work has ended, or at the next maintenance: that
changes no fitness and no flag."""

FaultClass: TypeAlias = Annotated[str, rules.FaultClass]
"""Whose fault it is."""

ComponentKind: TypeAlias = Annotated[str, model.ComponentKind]
"""What kind of thing."""

ComponentName: TypeAlias = Annotated[
    str,
    Keywords(
        pattern="^(node|gpu|nvswitch|neuron|nic|pci|cpu|dimm|disk)(/.+)?$",
        examples=("node", "gpu/0000:65:00.0"),
    ),
]
"""The kind, and behind a slash what tells it from others: a PCI address, a device name."""

Code: TypeAlias = Annotated[
    str, Keywords(pattern="^[^/]+/.+$", examples=("xid/79", "sxid/20034", "fs/shutdown"))
]
"""Kind and code of a fault, as in `vitald explain`."""

Fields: TypeAlias = Mapping[str, _Value]
"""What the line itself says, by name; which names depends on the kind."""

DeviceKind: TypeAlias = Annotated[str, Keywords(enum=("gpus", "neuron", "efa", "nics", "nvme"))]
"""A kind of device that is counted."""

Outcome: TypeAlias = Annotated[str, diagnostic.Outcome]
"""Of a whole run. Only `pass` says that the hardware is well, and only `fail` that it is not.
`config`: settings or the environment are wrong. `inconclusive`: nothing failed, and not all was
tested. `error`: it did not run, or not to its end. `not_applicable`: the node cannot be tested in
its present mode."""

Remedy: TypeAlias = Annotated[str, diagnostic.Remedy]
"""What a result asks for, from the weakest to the strongest."""


class PciAttributes(TypedDict, total=False):
    """What PCI says of a component."""

    pci: Annotated[str, Keywords(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
    """Address, as sysfs writes it."""
    vendor: _PciId
    """PCI vendor id."""
    device: _PciId
    """PCI device id."""
    driver: str | None
    """Driver bound to it."""


class AskedDiagnostic(TypedDict):
    asked: bool
    """Whether it will be run."""
    id: str | None
    """Its run."""
    why: str
    """What for; or why not."""


class _OptionalError(TypedDict, total=False):
    hint: str
    """What to try."""


class Error(_OptionalError):
    """What is wrong, and mostly what to do instead."""

    error: str
    """One line for a person."""


class Health(TypedDict):
    """The daemon itself works."""

    ok: Literal[True]
    version: str
    """Version of vitald."""


class _Document(TypedDict):
    openapi: str
    info: Mapping[str, object]
    paths: Mapping[str, object]


class Verdict(TypedDict):
    """The fold of all open findings, and of how fresh the sources are."""

    status: Status
    rebootRequired: bool
    """An open finding asks for a reboot, or for a reset where the site does not reset devices
    itself."""
    rebootConfirmed: bool
    """A confirmed finding asks for it: one that another source than the text of the kernel log
    tells of, too. What repairs a node by itself goes by this."""
    replacementRequired: bool
    """An open finding asks for another node. Does not imply `rebootRequired`."""
    replacementConfirmed: bool
    """A confirmed finding asks for it."""
    action: Action
    """The strongest action that an open finding asks for."""
    simulated: bool
    """At least one open finding is a drill's, or what is read is not real: a simulated library
    instead of the driver's."""
    reasons: list[str]
    """Why, the strongest first, one sentence an incident; then the sources that are not being
    read."""


class Component(TypedDict):
    """One thing that is watched, or that has an open finding."""

    name: ComponentName
    kind: ComponentKind
    id: str
    """What stands behind the slash of the name; empty for the node itself."""
    status: Status
    """Of this component alone; the node's is the verdict on the whole."""
    action: Action
    findings: _Count
    """Open findings of the component itself."""
    sources: list[str]
    """Which sources look at it; empty where only the kernel log would tell of it."""
    unseen: list[str]
    """Why nobody knows how it is, by source: no look within the deadline, or nothing that says
    anything of its health."""
    attributes: PciAttributes
    """What PCI says of it; empty where it is not on PCI."""


class WatchedComponent(Component):
    """One thing that is watched: who it is, how it is, and who looks at it."""

    identity: str | None
    """What it keeps when it moves to another slot: UUID or serial number. Null where nobody
    knows."""
    sights: list[Sight]
    """What each of its sources sees."""


class Sight(TypedDict):
    """A component as one source sees it."""

    name: Annotated[str, Keywords(examples=("nvml", "neuron"))]
    """The source."""
    looked: Moment | None
    """When it last looked at this component; null where it never did."""
    unseen: str
    """Why that does not say how it is now; empty where it does."""
    observable: _Count
    """How many of the readings it observes now."""
    asked: _Count
    """How many readings it asks for."""
    simulated: bool
    """What it reads is not real."""
    readings: Mapping[str, Reading]
    """The last look: values by name, in base units. A list has one value for each part, such as a
    core or a link."""
    notObservable: Mapping[str, str]
    """What was asked for and cannot be read of it, and why."""


class Coverage(TypedDict):
    """How much of what a source asks of its components of one kind it observes now. What is not
    seen now is not observed."""

    source: str
    """Its name."""
    kind: ComponentKind
    components: _Count
    """How many components of this kind it looks at. 0: it can look at none here, and the gaps say
    why."""
    observable: _Count
    """Readings that it observes, over all of them."""
    asked: _Count
    """Readings that it asks for, over all of them."""
    gaps: list[Gap]
    """What it cannot observe, each reason once for the same components; the widest first."""


class Gap(TypedDict):
    """Readings that cannot be observed."""

    reason: str
    """Why."""
    readings: Annotated[list[str], Keywords(min_items=1)]
    """Their names."""
    components: Annotated[list[ComponentName], Keywords(min_items=1)]
    """Of which components."""


class Source(TypedDict):
    """Something that vitald reads, and when it last truly looked. Silence is not health."""

    name: Annotated[str, Keywords(examples=("kernel_log", "nvml"))]
    """Its name."""
    state: Literal["starting", "ok", "stale", "failed", "released", "not present"]
    """`stale`: past its deadline. `failed`: cannot be read, in part or at all, and tried again.
    `released`: it stepped aside because somebody asked it to. `not present`: this node has nothing
    that it could look at. All but `ok` and `not present` make a node `unknown` that would be
    fit."""
    lastSeen: Moment | None
    """When it last looked."""
    deadline: Moment | None
    """By when it must have looked again."""
    detail: str
    """What is wrong with it, why there is nothing to look at, or that what it looks at is
    simulated; empty while nothing is to be said."""


class ExpectedCount(TypedDict):
    """How many devices of a kind there are, and should be."""

    kind: DeviceKind
    title: str
    """The same in words."""
    here: Annotated[int | None, Keywords(minimum=0)]
    """How many there are; null while looks do not agree, and where nobody can count them."""
    notObservable: str
    """Why `here` is null; empty where it is not, and before the first look."""
    expected: Annotated[int | None, Keywords(minimum=0)]
    """How many there should be; null where nobody knows."""
    confirmed: bool
    """To have fewer is a fault. Else the number is only being learned, and to have fewer is a
    notice."""
    because: str
    """Who says so; empty where nobody does."""


class ExpectedVersion(TypedDict):
    """What runs, and what may."""

    name: Annotated[str, Keywords(enum=("gpu_driver", "neuron_driver", "efa_driver", "kernel"))]
    """What it is."""
    here: str | None
    """The version that is loaded; null where none is, or it does not say."""
    expected: list[str]
    """Those that the configuration allows; empty for any."""


class Expected(TypedDict):
    """What this node should have, and what is here."""

    instanceType: str
    """What the firmware calls the machine; on EC2 the instance type. Empty where it does not
    say."""
    counts: list[ExpectedCount]
    """Of each kind of device."""
    versions: list[ExpectedVersion]
    """Of the drivers and the kernel."""
    healthyBoots: _Count
    """At so many healthy boots in a row a count must be the same to be confirmed; 0 where nothing
    is learned."""
    thisBootCounted: bool
    """This boot has been counted as a healthy one, or somebody confirmed what is here."""


class Confirmed(Expected):
    """What was confirmed, and what is expected now."""

    confirmed: Annotated[Mapping[DeviceKind, _Count], Keywords(min_properties=1)]
    """How many of each kind are expected from now on. Not what the configuration says, nor GPUs
    where NVML is asked."""


class Gpu(TypedDict):
    """A GPU. What is not known is not there: never a zero for what nobody has read."""

    component: ComponentName
    pci: Annotated[str, Keywords(examples=("0000:65:00.0",))]
    """PCI address."""
    status: Status
    """Of this GPU alone; `unknown` where it has no open finding and is not being read."""
    findings: list[_Positive]
    """Its open findings."""
    looked: Moment | None
    """When the driver was last asked about it; null where it never was."""
    fresh: bool
    """The readings are of now; otherwise they are the last ones."""
    simulated: bool
    """It is not real: read from a simulated library, or its findings are a drill's."""
    identity: GpuIdentity
    slot: str | None
    """Physical slot that PCI names for it."""
    readings: Mapping[str, Reading]
    """What was read, by name, in base units: celsius, watts, joules, hertz, seconds, bytes; a flag
    is 0 or 1; a list has one value an NVLink. Of a lost GPU only its faults."""
    notObservable: Mapping[str, str]
    """What was asked for and cannot be read of it, and why."""


class GpuIdentity(TypedDict, total=False):
    """Who it is, as far as the driver says. Still known of a lost GPU that was read before."""

    name: str
    """Model."""
    uuid: str
    """Of the board."""
    serial: str
    """Of the board."""
    part_number: str
    """Of the board."""
    vbios: str
    """Version of its VBIOS."""
    inforom: str
    """Version of its InfoROM."""
    module_id: int
    """Module on the baseboard."""
    minor: int
    """Number of its device file, `/dev/nvidia4`."""
    board_id: int
    """The same for the GPUs on one board."""
    driver_version: str
    """Of the driver."""


class Gpus(TypedDict):
    """The GPUs of the node, and how the source fares that reads them."""

    gpus: list[Gpu]
    """Ordered by PCI address."""
    source: Source | None
    """The source `nvml`; null where NVML is not asked on this node (`[nvml] enabled = false`)."""


class Released(TypedDict):
    """What was let go of, and who has it open all the same."""

    gpus: list[ComponentName]
    """Those that were let go of; empty for all."""
    seconds: Annotated[float, Keywords(minimum=1, maximum=86400)]
    """For how long."""
    until: Moment
    """When they are taken back."""
    holders: list[Holder]
    """Other processes that have the devices open."""
    notLookedAt: Annotated[int, Keywords(minimum=-1)]
    """How many processes vitald was not allowed to look at; -1 where none could be."""
    stuck: list[_Positive]
    """Processes of vitald's own that hang in the driver and cannot be ended: only a reboot frees
    the device."""
    free: bool
    """Nothing of vitald has them open, and no process that it may look at."""


class Holder(TypedDict):
    """A process that has a device open."""

    pid: _Positive
    """Its number."""
    process: str
    """Its name; `?` where it has just ended."""


class ReleaseEnded(TypedDict):
    """That it is over."""

    ended: _Count
    """How many releases that ended."""


class Ledger(TypedDict):
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


class Acceptance(TypedDict):
    """A person knows of a finding and lives with it, until a moment or until it gets worse."""

    by: str
    """Who accepted it."""
    reason: str
    """Why."""
    since: Moment
    """When it was accepted."""
    until: Moment
    """When that ends by itself."""


class Finding(_FaultClassed):
    """One problem of one component."""

    id: _Positive
    """Its number; `POST /v1/findings/{id}/clear` takes it."""
    incident: _Count
    """The incident that it belongs to; 0 where a rule on trial asks for it."""
    state: Annotated[str, model.FindingState]
    """`in_remedy`: somebody has begun what it asks for; it stands until the evidence says that it
    held."""
    component: ComponentName
    kind: Annotated[str, Keywords(examples=("xid",))]
    """Kind of the fault."""
    code: Code
    title: str
    """What it is, in a few words."""
    action: Action
    when: When
    unusable: bool
    """The device cannot be used: the node is unfit for work whatever the action."""
    todo: str
    """The action in words."""
    accepted: Acceptance | None
    """Who lives with it until when: meanwhile it changes no fitness and no flag. Null where nobody
    does."""
    because: str
    """Why it asks for something else than the catalogue's table; empty where it does not."""
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
    """It rests on more than the text of the kernel log: another source saw it, or agrees. What
    repairs a node by itself goes by this."""
    confirmedBy: Annotated[str | None, Keywords(examples=("nvml", "nvml (nvml/gpu_lost)"))]
    """The source that saw it itself, or the second one with what it saw. Null while it is
    unconfirmed."""
    witnesses: list[str]
    """Kinds of codes of which one would confirm it. Empty where it is confirmed, and where no other
    source can see it."""
    writtenByProcess: bool
    """A process wrote it to the kernel log (`[kernel_log] userspace`), and nothing else tells of
    it."""
    simulated: bool
    """It is a drill's, or was read from a simulated library."""
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


class Event(TypedDict):
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
    trust: Annotated[str, model.Trust]
    """`kernel`: the kernel's own. `accepted`: written by a process, and judged; its field `vouched`
    tells whether the configuration takes it for confirmed, `facility` is the syslog facility.
    `announced`: a drill. `untrusted`: from user space, not judged. `daemon`: vitald's own
    observation."""
    simulated: bool
    """It is a drill's, or was read from a simulated library."""
    raw: str
    """The line, printable ASCII."""
    followedBy: Annotated[list[str], Keywords(max_items=8)]
    """Lines that continue it (SXid)."""
    fields: Fields
    bootId: str
    """Boot in which it was seen."""
    identity: str
    """Where it came from. The same record read twice has the same identity."""


class Member(TypedDict):
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


class Job(TypedDict):
    """A job on this node, as its scheduler told of it."""

    job: str
    """Its id."""
    user: str
    """Whose it is; empty where nobody said."""
    uid: int | None
    """Whose it is."""
    state: Literal["running", "ended", "died", "lost"]
    """`died`: it ended with an exit code or by a signal. `lost`: nobody told its end, such as where
    its node went down; `ended` is then when it cannot have run any more."""
    began: Moment | None
    """Null where nobody said."""
    ended: Moment | None
    """Null while it runs."""
    exitCode: int | None
    """Null where nobody said."""
    signal: int | None
    """That ended it; 0 for none, null where nobody said."""
    reason: str
    """Why it ended, where somebody said."""


class Jobs(TypedDict):
    running: list[Job]
    """What runs."""
    recent: list[Job]
    """What ended."""


class JobTold(TypedDict):
    ok: bool
    """True."""
    job: Job | None
    """As it is known now; null where there was nothing to note."""
    left: list[_Positive]
    """Open findings that began while it ran; empty at its begin."""
    diagnostic: AskedDiagnostic | None
    """What came of asking for one; null where none was wanted."""


class Incident(TypedDict):
    """One physical story: a cause and its consequences, told once."""

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
    """The strongest that its open findings ask for."""
    when: When | None
    """When that is due; null where nothing is asked for."""
    todo: str
    """The action in words."""
    line: str
    """All of it in one sentence, as in `reasons`."""
    findings: list[_Positive]
    """Its open findings."""
    story: str
    """What joins its members, from the catalogue; empty where it has only one."""
    since: Moment
    """When it began."""
    last: Moment
    """When its last event was seen."""
    count: _Positive
    """How many events it has."""
    closedAt: Moment | None
    """When its last finding was closed."""
    simulated: bool
    """It is a drill's, or was read from a simulated library."""
    members: Annotated[list[Member], Keywords(min_items=1, max_items=64)]
    """The cause first."""
    jobs: Annotated[list[Job], Keywords(max_items=8)]
    """The work that ran at its time, or ended within 10 minutes of it: what failed first, then what
    is nearest in time."""


class Incidents(TypedDict):
    """A list of incidents."""

    incidents: Annotated[list[Incident], Keywords(max_items=1000)]
    """The incidents."""


class Suspect(TypedDict):
    """A device with a record of faults in the last weeks."""

    device: Annotated[
        str, Keywords(examples=("GPU-5f0c1d2e-3a4b-4c5d-8e6f-708192a3b4c5", "gpu/0000:65:00.0"))
    ]
    """What its record goes by: UUID or serial number where it is known, else the slot."""
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
    """One layer of what a finding asks for. The last that speaks decides, but escalation only
    raises."""

    layer: Annotated[str, Keywords(enum=("table", "company", "driver", "escalation"))]
    """`table`: the catalogue. `company`: other members of its incident. `driver`: the driver's own
    word. `escalation`: it came back."""
    action: Action
    when: When
    because: str
    """Why, or who says so."""
    decides: bool
    """This is what the finding asks for."""


class PastTransition(TypedDict):
    """A change of a finding."""

    time: Moment
    """When."""
    state: Annotated[str, model.FindingState]
    """Its state from then on."""
    action: Action
    """What it asked for from then on."""
    cause: str
    """Why."""
    event: str | None
    """Identity of the event that caused it."""


class Why(TypedDict):
    """The chain of one finding, from the lines to the flags."""

    finding: Finding
    events: Annotated[list[Event], Keywords(max_items=8)]
    """The events that it was seen in; of many, the first four and the last four."""
    incident: Incident | None
    """Its incident; null where a rule on trial asks for it."""
    rule: Rule
    """The catalogue's entry, as the daemon applies it."""
    asked: Annotated[list[Layer], Keywords(min_items=1, max_items=4)]
    """What it asks for, layer by layer."""
    flags: Flags
    """The flags that it raises."""
    transitions: list[PastTransition]
    """How it changed, oldest first."""


class Flags(TypedDict):
    """The flags of the node."""

    rebootRequired: bool
    """It asks for a reboot, or for a reset where the site does not reset devices itself."""
    rebootConfirmed: bool
    """A confirmed finding asks for it: one that another source than the text of the kernel log
    tells of, too. What repairs a node by itself goes by this."""
    replacementRequired: bool
    """It asks for another node."""
    replacementConfirmed: bool
    """A confirmed finding asks for it."""


class DiagnosticCheck(TypedDict):
    """A kind of diagnostic. Figures are by level; `0` for a check that has none."""

    name: _CheckName
    """Name of the check."""
    title: str
    """What it is."""
    levels: Annotated[list[_Count], Keywords(min_items=1)]
    """That it can be asked for at; `[0]` where it has none."""
    missing: str
    """Why it cannot run on this node, such as that its program is not installed; empty where it
    can."""
    every: Mapping[_Level, Annotated[float, Keywords(minimum=0)]]
    """Its period in seconds; 0: on request only."""
    expected: Mapping[_Level, Annotated[float, Keywords(minimum=0)]]
    """How long it usually takes, in seconds."""
    needsIdle: Mapping[_Level, bool]
    """Whether it waits until nobody uses the devices."""


class DiagnosticAsk(TypedDict):
    """What was asked for, of a run under way or ended."""

    id: _RunId
    """Its id, unique on this node; it tells when it was asked for."""
    check: _CheckName
    """Name of the check."""
    level: _Count
    """DCGM's level, 1 to 4; 0 for checks that have none."""
    gpus: list[_Count]
    """Only these GPUs, by index; empty for all."""
    by: Annotated[str, Keywords(examples=("root (uid 0), pid 4711",))]
    """Who asked: `schedule`, `finding #12`, a person with the process, a job."""
    reason: str
    """What for; may be empty."""


class DiagnosticGoing(DiagnosticAsk):
    """A run that was asked for and has not ended."""

    stage: Literal["waiting", "running", "ending"]
    """`ending`: it was told to end."""
    askedAt: Moment
    """When it was asked for."""
    began: Moment | None
    """When it began; null while it waits."""
    elapsed: Annotated[float, Keywords(minimum=0)]
    """For how long it has run; 0 while it waits."""
    expected: Annotated[float, Keywords(minimum=0)]
    """How long it usually takes; 0 where that is not known."""
    waitsFor: Annotated[str, Keywords(examples=("idle devices: job 4711",))]
    """What it waits for, in words; may be empty."""
    test: str
    """The test under way, where the program says it; may be empty."""


class DiagnosticDue(TypedDict):
    """When the schedule runs a check next."""

    check: _CheckName
    """Name of the check."""
    level: _Count
    """DCGM's level, 1 to 4; 0 for checks that have none."""
    at: Moment
    """When. In the past: it waits."""
    waitsFor: str
    """What it waits for, in words; may be empty."""


class DiagnosticRun(DiagnosticAsk):
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
    """What it found asks for a reboot. The node's own flag is in `/v1/status`."""
    replacementRequired: bool
    """What it found asks for another node. As above."""
    exitCode: int | None
    """Of its last program; below 0 the signal that ended it; null where none was started."""
    culprits: list[_Count]
    """GPUs to blame, by index."""
    preempted: str
    """The work that it made room for; such a run says nothing of the hardware. Else empty."""
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
    """One thing that a run complains of."""

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
    """It is believed only when a second run finds it too."""
    confirmed: bool
    """An earlier run had found it, so it is believed."""


class DiagnosticMeasure(TypedDict):
    """A figure, in base units, and what it was held against."""

    name: Annotated[str, Keywords(examples=("busbw_bytes_per_second", "latency_seconds"))]
    """What was measured."""
    device: str
    """Of which device; may be empty."""
    value: float | None
    """The figure; null where none was printed that is a number."""
    least: float | None
    """It should be at least this."""
    most: float | None
    """It should be at most this."""


class Diagnostics(TypedDict):
    """What can be run here, what runs, what comes next, and how it went the last time."""

    checks: list[DiagnosticCheck]
    """The kinds of diagnostics."""
    going: list[DiagnosticGoing]
    """The one that runs first, then those that wait."""
    last: list[DiagnosticRun]
    """The last run of each check and level."""
    due: list[DiagnosticDue]
    """What the schedule runs next."""
    blocked: str
    """Why nothing that needs idle devices may run now; empty where it may."""


class Recovery(TypedDict):
    """Whether root is asked to reboot the node or to have it replaced. `vitald recovery` says what
    it made of that."""

    mode: Annotated[str, Keywords(enum=("none", "automatic"))]
    """`[recovery] mode` of the configuration."""
    request: RecoveryRequest | None
    """What is asked for now."""


class RecoveryRequest(TypedDict):
    """Repeated every few minutes while it holds."""

    id: str
    """Of this request; the same while the same is asked for."""
    action: Literal["reboot", "replace"]
    """`replace` outranks `reboot`."""
    since: Moment
    """When it was first asked for."""
    findings: list[_Positive]
    """The findings that it is asked for."""


class DiagnosticOutline(TypedDict):
    """Diagnostics at a glance."""

    going: list[DiagnosticGoing]
    """The one that runs first, then those that wait."""
    last: list[DiagnosticRun]
    """The last run of each check and level."""


class DiagnosticRuns(TypedDict):
    """Runs that have ended."""

    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    runs: Annotated[list[DiagnosticRun], Keywords(max_items=1000)]
    """The newest first."""


class OneGoing(TypedDict):
    """The run, as it stands now."""

    going: DiagnosticGoing


class _OptionalNodeStatus(TypedDict, total=False):
    diagnostics: DiagnosticOutline
    recovery: Recovery | None
    """What root is asked to do about it."""


class NodeStatus(Verdict, _OptionalNodeStatus):
    """The verdict, and all that it rests on."""

    components: list[Component]
    """What is watched, and whatever else has an open finding."""
    sources: list[Source]
    """What is read."""
    findings: Annotated[list[Finding], Keywords(max_items=100)]
    """The strongest open ones, 100 at most."""
    openFindings: _Count
    """How many are open altogether."""
    incidents: Annotated[list[Incident], Keywords(max_items=100)]
    """The open incidents in the order of `reasons`, 100 at most."""
    trials: Annotated[list[Finding], Keywords(max_items=100)]
    """What rules on trial would have asked for, 100 at most. Without effect."""
    suspects: Annotated[list[Suspect], Keywords(max_items=100)]
    """Devices with a record of faults, the highest score first, 100 at most. Advice to people."""
    ledger: Ledger
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
    """When this was said."""


class Findings(TypedDict):
    """A list of findings."""

    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    findings: Annotated[list[Finding], Keywords(max_items=1000)]
    """The findings."""


class OneFinding(TypedDict):
    """The finding, as it stands now."""

    finding: Finding


class Events(TypedDict):
    """A page of events, oldest first."""

    events: Annotated[list[Event], Keywords(max_items=1000)]
    """The events."""
    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    next: Annotated[int | None, Keywords(minimum=0)]
    """Give it as `since` for the next page; null where there is none."""


class Components(TypedDict):
    """What is watched, and what of it cannot be observed here."""

    components: Annotated[list[WatchedComponent], Keywords(min_items=1)]
    """The node first, then by kind."""
    coverage: list[Coverage]
    """By source and kind of component."""
    sources: Annotated[list[Source], Keywords(min_items=1)]
    """How the sources fare."""
    off: list[str]
    """Sources that the configuration switched off: `enabled = false` in the section of that
    name."""


class Case(TypedDict):
    """What in the line changes the action."""

    when: Mapping[str, list[str | int | bool]]
    """Every field must hold one of its values; `NAME_not`: a value that is none of them."""
    action: Action | None
    """Replaces the rule's action."""
    atLeast: Action | None
    """Only raises it."""
    title: str | None
    """Title in this case."""
    advice: str | None
    """Advice in this case."""


class Rule(_FaultClassed):
    """What the catalogue says about a code."""

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
    todo: str
    """The action in words."""
    clears: list[str]
    """What closes a finding, besides a named person."""
    escalation: str
    """Name of its ladder of escalation."""
    shadow: Rule | None
    """The rule on trial beside it: what that asks for is shown, without effect."""
    cases: list[Case]
    """Context that changes the action."""
    known: bool
    """The catalogue has the code; otherwise this is its kind's default."""
    source: str
    """Where this is from."""
    origin: str
    """File of the catalogue that holds it; empty where none does."""


class Drill(TypedDict):
    """A drill under way."""

    id: Annotated[str, Keywords(pattern="^[0-9a-f]{12}$")]
    """The drill's own number."""
    line: str
    """The announced line."""
    state: Literal["announced", "seen", "expired"]
    """`announced`: waiting for the line. `seen`: it came. `expired`: it did not come in time."""
    finding: Annotated[int | None, Keywords(minimum=1)]
    """The open finding of this drill, if there is one."""
    simulatedUntil: Moment
    """When the drill ends by itself."""


class AnnouncedDrill(Drill):
    """A drill that has just been announced."""

    writeTo: str
    """Where to write the line, with a newline."""
    windowSeconds: Annotated[float, Keywords(exclusive_minimum=0)]
    """The line must come within so many seconds."""


class WatchVerdict(Verdict):
    """The verdict: as the first line, and whenever it has changed."""

    type: Literal["verdict"]


class WatchEvent(TypedDict):
    """Something happened."""

    type: Literal["event"]
    event: Event


class WatchFinding(TypedDict):
    """A finding was opened, changed or cleared."""

    type: Literal["finding"]
    cause: str
    """Why."""
    event: str | None
    """Identity of the event that caused it."""
    finding: Finding


class WatchIncident(TypedDict):
    """An incident began, has another cause than it seemed to have, or is over. Not told for each of
    its lines."""

    type: Literal["incident"]
    incident: Incident


class WatchHeartbeat(TypedDict):
    """Nothing happened for 15 s."""

    type: Literal["heartbeat"]
    time: Moment


class WatchLagged(TypedDict):
    """The last line to a client that read too slowly."""

    type: Literal["lagged"]
    hint: str
    """What to do."""


class ConfirmRequest(TypedDict):
    reason: _Reason


class _OptionalReleaseRequest(TypedDict, total=False):
    seconds: Annotated[float, Keywords(minimum=1, maximum=86400, default=600)]
    """When they are taken back without being asked."""
    gpus: Annotated[list[str], Keywords(default=())]
    """Only these, by PCI address as `/v1/gpus` writes it; empty for all. The driver itself is let
    go of only with all of them."""


class ReleaseRequest(_OptionalReleaseRequest):
    reason: _Reason


class EndReleaseRequest(TypedDict):
    pass


class _OptionalRunDiagnosticRequest(TypedDict, total=False):
    check: Annotated[str, Keywords(default="dcgm")]
    """Which check."""
    level: Annotated[int, Keywords(minimum=0, maximum=100)]
    """Left out: the check's lowest."""
    gpus: Annotated[
        list[Annotated[int, Keywords(minimum=0, maximum=4095)]],
        Keywords(max_items=64, unique_items=True, default=()),
    ]
    """Only these, by index; empty for all."""
    busy: Annotated[bool, Keywords(default=False)]
    """Also while others use the devices: both get slower, and it may fail for that alone."""


class RunDiagnosticRequest(_OptionalRunDiagnosticRequest):
    reason: _Reason


class _OptionalCancelDiagnosticRequest(TypedDict, total=False):
    id: _RunIdAsked
    """Left out: the one that runs."""


class CancelDiagnosticRequest(_OptionalCancelDiagnosticRequest):
    reason: _Reason


class _OptionalTellJobRequest(TypedDict, total=False):
    user: Annotated[str, Keywords(max_length=64, pattern="^[ -~]*$")]
    """Whose it is."""
    uid: Annotated[int | None, Keywords(minimum=0, maximum=4294967295)]
    """Whose it is."""
    exitCode: Annotated[int | None, Keywords(minimum=0, maximum=255)]
    """Of its end."""
    signal: Annotated[int | None, Keywords(minimum=0, maximum=127)]
    """That ended it; 0 for none."""
    reason: Annotated[str, Keywords(max_length=200, pattern="^[ -~]*$")]
    """In the scheduler's words."""
    diagnose: Annotated[bool, Keywords(default=False)]
    """At its end: ask for DCGM's level 2 diagnostic where it failed or left findings."""


class TellJobRequest(_OptionalTellJobRequest):
    event: Literal["begin", "end"]
    """What is told."""
    job: Annotated[
        str, Keywords(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+\[\]/-]{0,63}$")
    ]
    """Its id, as its scheduler writes it."""


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


class _OptionalAnnounceRequest(TypedDict, total=False):
    holdSeconds: Annotated[float, Keywords(minimum=1, maximum=86400, default=600)]
    """When the drill ends by itself."""


class AnnounceRequest(_OptionalAnnounceRequest):
    line: Annotated[str, Keywords(min_length=1, max_length=900, pattern="^[ -~]+$")]
    """The kernel line, printable ASCII, as some rule recognises it."""


WatchLine: TypeAlias = Union[
    WatchVerdict, WatchEvent, WatchFinding, WatchIncident, WatchHeartbeat, WatchLagged
]
"""One line of the stream."""
