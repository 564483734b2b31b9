"""Events, the stream of `/v1/watch`, and drills."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypedDict, Union, final

from vitald.model import finding
from vitald.server.endpoint import MAX_PAGE
from vitald.server.schema.answers import ApiVerdict
from vitald.server.schema.components import ApiDevice
from vitald.server.schema.findings import ApiEvent, ApiFinding, ApiIncident
from vitald.server.schema.value_types import Action, Code, ComponentName, Keywords, Moment, _Count


class Events(TypedDict):
    """A page of events, oldest first."""

    events: Annotated[list[ApiEvent], Keywords(max_items=MAX_PAGE)]
    """The events."""
    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    next: Annotated[int | None, Keywords(minimum=0)]
    """Give it as `since` for the next page; null where there is none."""


ChangeKind: TypeAlias = Literal["opened", "escalated", "in_remedy", "cleared", "other"]
"""How a finding changed: `escalated` requires a stronger action, `other` is any other change."""


@final
class ApiTransition(TypedDict):
    """A change of a finding. What may change later, such as its title, is as it is now."""

    id: Annotated[int, Keywords(minimum=1)]
    """Its place in the ledger."""
    time: Moment
    """When."""
    change: ChangeKind
    finding: Annotated[int, Keywords(minimum=1)]
    """Number of the finding."""
    component: ComponentName
    device: ApiDevice | None
    """The device that it is about; null for one of the node, and where another device was put into
    the slot since."""
    code: Code
    reason: Annotated[str, Keywords(pattern=r"^[A-Z][A-Za-z0-9]{0,127}$", examples=("Xid79",))]
    """The stable word for its code."""
    title: str
    """What the code means, in one line."""
    state: Annotated[str, finding.FindingState]
    """Its state from then on."""
    action: Action
    """The required action from then on."""
    cause: str
    """Why."""
    simulated: bool
    """It is a drill's, or was read from a simulated library."""


class Transitions(TypedDict):
    """A page of changes of findings, oldest first."""

    transitions: Annotated[list[ApiTransition], Keywords(max_items=MAX_PAGE)]
    """The changes."""
    damaged: _Count
    """So many more are left out: the ledger no longer has them as they were written."""
    next: Annotated[int | None, Keywords(minimum=0)]
    """Give it as `since` for the next page; null where there is none."""
    newestId: _Count
    """The highest id in the ledger, 0 where there is none: to begin at the present. Where it is
    lower than an id that was read before, the ledger was begun anew."""


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


class WatchVerdict(ApiVerdict):
    """The verdict: as the first line, and whenever it has changed."""

    type: Literal["verdict"]


class WatchEvent(TypedDict):
    """Something happened."""

    type: Literal["event"]
    event: ApiEvent


class WatchFinding(TypedDict):
    """A finding was opened, changed or cleared."""

    type: Literal["finding"]
    cause: str
    """Why."""
    event: str | None
    """Identity of the event that caused it."""
    finding: ApiFinding


class WatchIncident(TypedDict):
    """An incident began, got another root cause, or is over. Not sent for each of its lines."""

    type: Literal["incident"]
    incident: ApiIncident


class WatchHeartbeat(TypedDict):
    """Nothing happened for 15 s."""

    type: Literal["heartbeat"]
    time: Moment


class WatchLagged(TypedDict):
    """The last line to a client that read too slowly."""

    type: Literal["lagged"]
    hint: str
    """What to do."""


class WatchStopping(TypedDict):
    """The last line of a daemon that is stopped in an orderly way, for example to be upgraded."""

    type: Literal["stopping"]


class _OptionalAnnounceRequest(TypedDict, total=False):
    holdSeconds: Annotated[float, Keywords(minimum=1, maximum=86400, default=600)]
    """When the drill ends by itself."""


class AnnounceRequest(_OptionalAnnounceRequest):
    line: Annotated[str, Keywords(min_length=1, max_length=900, pattern="^[ -~]+$")]
    """The kernel line, printable ASCII, as some rule recognises it."""


WatchLine: TypeAlias = Union[
    WatchVerdict,
    WatchEvent,
    WatchFinding,
    WatchIncident,
    WatchHeartbeat,
    WatchLagged,
    WatchStopping,
]
"""One line of the stream."""
