"""
The node's published state. The server and the metrics read nothing else.

Owns     the published findings, the sources' health, the counters, and the subscriptions.
Refuses  judging: findings are published here after they were committed or, while the ledger
         fails, kept in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar, Union

from vitald.catalog import Clears
from vitald.core.device_directory import DeviceDirectory
from vitald.core.incident_steps import IncidentSteps
from vitald.core.jobs import JOB_CODES, Jobs
from vitald.core.publisher_reports import Publishers
from vitald.judge.engine import Judge
from vitald.judge.repairs import waits_for_idle
from vitald.judge.verdict import compute_verdict
from vitald.ledger.queries import StoredEvent
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.finding import Finding, Incident, Transition, Verdict
from vitald.model.source import Readings, SourceHealth, SourceState
from vitald.model.words import ComponentKind, WorkPhase

_MAX_RECENT = 1000  # events
_MAX_QUEUED = 1000  # changes, of one subscriber
OTHER = "other"
_MAX_SERIES = 2000
_MAX_XIDS = 1000
_XID = "xid"
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHealth:
    """`unsaved` events are held in memory only; `dropped` were too many to hold."""

    ok: bool = True
    error: str = ""
    unsaved: int = 0
    dropped: int = 0
    size_bytes: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    last_commit_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationFile:
    """The configuration file as it is on disk, compared with what is in force. `errors`: why it is
    refused; `reload`, `restart`: the changed keys that take effect then. `settings_hash` and
    `loaded_at` (seconds since the epoch) are those of the last reading that took effect.
    """

    path: Path | None  # None: there is none
    settings_hash: int = 0
    loaded_at: float = 0.0
    errors: Sequence[str] = ()
    reload: Sequence[str] = ()
    restart: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """One component as one source observes it. `readings` are its last ones, None if it was never
    read.

    `unknown_reason`: why the component's state is unknown; empty if it is known.
    """

    source: str
    readings: Readings | None
    unknown_reason: str

    def list_attempted(self) -> set[str]:
        """The readings that the source tries to read of it."""
        read = self.readings
        return {*read.values, *read.missing} if read is not None else set()

    def count_observable(self) -> int:
        """How many of them it observes now."""
        if self.readings is None or self.unknown_reason:
            return 0
        return len(self.readings.values.keys() - self.readings.missing.keys())


class StreamEnd(Enum):
    """Why a subscription ends."""

    STOPPING = "stopping"  # the daemon is being stopped


Change = Union[Event, Transition, Incident, StreamEnd]


class Subscription:
    """The queue of one subscriber; None means that the verdict may have changed. If the subscriber
    cannot keep up, `lagged` is set: what it missed is in the ledger.
    """

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Change | None] = asyncio.Queue(_MAX_QUEUED)
        self.lagged = False

    def offer_change(self, change: Change | None) -> None:
        try:
            self.queue.put_nowait(change)
        except asyncio.QueueFull:
            self.lagged = True


class NodeState:
    """One node's present state."""

    def __init__(self, boot_id: str, started_at: float, *, device_reset: bool) -> None:
        self.boot_id = boot_id
        self.started_at = started_at
        self.device_reset = device_reset
        self.findings: tuple[Finding, ...] = ()
        self.incidents: dict[int, Incident] = {}
        self.sources: dict[str, SourceHealth] = {}
        # By source: its current readings, one for each component
        self.readings: dict[str, tuple[Readings, ...]] = {}
        # By source: its current readings, and those from before it failed
        self._answers_for: dict[str, dict[Component, Readings]] = {}
        self.ledger = LedgerHealth()
        self.configuration = ConfigurationFile(path=None)
        self.events = EventTally()
        # For when the ledger cannot be read
        self.recent: deque[StoredEvent] = deque(maxlen=_MAX_RECENT)
        self._serial = 0
        self._has_changed = False
        self.devices = DeviceDirectory()
        self.jobs = Jobs()
        self.publishers = Publishers()
        self.incident_steps = IncidentSteps()
        self.transitions = 0
        self.changed_at = started_at  # when a finding changed last, in seconds since the epoch
        self.first_scan = asyncio.Event()  # each source has been read, or cannot be
        # Set then, too, or when that takes long: requests are answered with what is known so far
        self.answerable = asyncio.Event()
        self._subscriptions: set[Subscription] = set()
        self._judge: Judge | None = None  # used only for what is derived at each request

    def verdict(self, work: WorkPhase = WorkPhase.RUNNING) -> Verdict:
        """As of this moment: a source may have gone stale since anything changed."""
        sources = list(self.sources.values())
        judged = compute_verdict(
            self.findings,
            sources,
            time.monotonic(),
            self.incidents,
            device_reset=self.device_reset,
            work=work,
            describe=self.devices.describe_component,
        )
        return replace(judged, simulated=judged.simulated or self.simulated)

    @property
    def simulated(self) -> bool:
        """True if a source is simulated: neither healthy nor faulty components are real then."""
        return any(source.simulated for source in self.sources.values())

    def publish_changes(
        self,
        judge: Judge,
        events: Iterable[Event] = (),
        transitions: Sequence[Transition] = (),
        incidents: Iterable[Incident] = (),
        read_at: float | None = None,
    ) -> None:
        """`read_at`: when what led to this was read, in seconds since the epoch; None for now."""
        self.findings = judge.open_findings
        self._judge = judge
        self.devices.set_slots(judge.slots)
        for event in events:
            if event.code in JOB_CODES:
                self.jobs.take_event(event, judge.incidents)
            if event.follows is None:
                self._serial += 1
                self.recent.append(StoredEvent(self._serial, event))
                self.events.count_event(event)
            self._notify_subscribers(event)
        if not events or any(transition.cause for transition in transitions):
            # Nothing else changes the fitness: a burst of lines need not compare all findings.
            now = time.time()
            self.incident_steps.compare_findings(
                self.findings, transitions, now if read_at is None else read_at, now
            )
        self.transitions += sum(1 for transition in transitions if transition.cause)
        self._note_change(transitions)
        for transition in transitions:
            if transition.cause:
                self._notify_subscribers(transition)
        published = self.incidents
        self.incidents = {incident.id: incident for incident in judge.incidents}
        for incident in {incident.id: incident for incident in incidents}.values():
            former = published.get(incident.id)
            if (
                former is None
                or former.root.code != incident.root.code
                or (former.closed_at is None) != (incident.closed_at is None)
            ):
                # Once when it begins, again when its root or its state changes: not for every line
                self._notify_subscribers(incident)

    def _note_change(self, transitions: Sequence[Transition]) -> None:
        """After a start, the newest open finding is the last change that is known."""
        times = [transition.time for transition in transitions if transition.cause]
        if not times and not self._has_changed:
            times = [finding.since for finding in self.findings]
        self._has_changed = self._has_changed or bool(times)
        self.changed_at = max(times, default=self.changed_at)

    def waits_for_idle(self) -> bool:
        """Whether a repair of the node waits for the running job; one of a drill, too."""
        return waits_for_idle(self.findings, device_reset=self.device_reset)

    def score_suspects(self, now: float) -> dict[str, tuple[float, list[tuple[str, int, float]]]]:
        """The lemon scores of the devices that have any."""
        return self._judge.score_devices(now) if self._judge is not None else {}

    def find_clears(self, finding: Finding) -> Clears:
        """What closes a finding, besides an operator."""
        return self._judge.find_clears(finding) if self._judge is not None else Clears()

    def get_identity(self, component: Component) -> str:
        """The key of a device's record."""
        return self._judge.identify(component) if self._judge is not None else component.name

    def update_source(
        self,
        name: str,
        state: SourceState,
        detail: str = "",
        *,
        caught_up: bool = True,
        simulated: bool = False,
    ) -> None:
        """Update the state of a source. It counts as read once it has caught up, not while it reads
        the past.
        """
        source = self.sources.get(name)
        if source is None or (
            state is SourceState.OK and not caught_up and source.state is not SourceState.OK
        ):
            return
        was_read = state in (SourceState.OK, SourceState.ABSENT)
        self.sources[name] = replace(
            source,
            state=state,
            detail=detail,
            simulated=simulated,
            last_seen=time.time() if was_read else source.last_seen,
            polled_at=time.monotonic() if was_read else source.polled_at,
        )
        # A component without readings is absent if the source was read, and unknown if it failed.
        before = {} if was_read else self._answers_for.get(name, {})
        self._answers_for[name] = {
            **before,
            **{read.component: read for read in self.readings.get(name, ())},
        }
        if all(health.state is not SourceState.STARTING for health in self.sources.values()):
            self.first_scan.set()
            self.answerable.set()
        if (source.state, source.detail) != (state, detail):
            self._notify_subscribers(None)

    def report_backlog(self) -> None:
        """Let requests be answered now: evaluating what happened before the start takes long."""
        self.answerable.set()

    def replace_readings(self, source: str, readings: Sequence[Readings]) -> None:
        """Replace the readings of a source by its current ones."""
        together: dict[Component, Readings] = {}
        for read in readings:
            together[read.component] = (
                _merge_readings(together[read.component], read)
                if read.component in together
                else read
            )
        self.readings[source] = tuple(together.values())

    def list_observations(
        self, must: Mapping[str, Iterable[Component]]
    ) -> dict[Component, list[Observation]]:
        """The observations of each component that a source reads, or read until it failed. `must`:
        components that a source has to read, whether it did or not.
        """
        now = time.monotonic()
        found: dict[Component, list[Observation]] = {}
        for name, health in self.sources.items():
            known = self._answers_for.get(name, {})
            handed_in = {read.component for read in self.readings.get(name, ())}
            required = () if health.state is SourceState.ABSENT else must.get(name, ())
            for component in dict.fromkeys([*known, *required]):
                readings = known.get(component)
                reason = _explain_silence(health)
                if (
                    readings is not None
                    and component in handed_in
                    and now - readings.polled_at <= health.deadline
                ):
                    reason = readings.unknown_reason
                found.setdefault(component, []).append(Observation(name, readings, reason))
        return found

    def list_readings(self, source: str) -> list[Readings]:
        """The readings of a source that are within its deadline."""
        health = self.sources.get(source)
        if health is None:
            return []
        now = time.monotonic()
        return [
            read
            for read in self.readings.get(source, ())
            if now - read.polled_at <= health.deadline
        ]

    def set_policy(self, *, device_reset: bool) -> None:
        self.device_reset = device_reset
        self._notify_subscribers(None)

    def set_ledger_size(self, size_bytes: int) -> None:
        self.ledger = replace(self.ledger, size_bytes=size_bytes)

    def add_subscription(self) -> Subscription:
        subscription = Subscription()
        self._subscriptions.add(subscription)
        return subscription

    def announce_stop(self) -> None:
        """The daemon is being stopped: a publisher need not take it for a crash."""
        self._notify_subscribers(StreamEnd.STOPPING)

    def remove_subscription(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    @property
    def watchers(self) -> int:
        return len(self._subscriptions)

    def _notify_subscribers(self, change: Change | None) -> None:
        for subscription in self._subscriptions:
            subscription.offer_change(change)


def _merge_readings(first: Readings, other: Readings) -> Readings:
    """Two readings of one component by one source: as old as the older."""
    return replace(
        first,
        time=min(first.time, other.time),
        polled_at=min(first.polled_at, other.polled_at),
        values={**first.values, **other.values},
        fresh=first.fresh | other.fresh,
        missing={**first.missing, **other.missing},
        simulated=first.simulated or other.simulated,
        unknown_reason=first.unknown_reason or other.unknown_reason,
        labels={**first.labels, **other.labels},
    )


def _explain_silence(source: SourceHealth) -> str:
    """Why there are no current readings of a component that a source should read."""
    if source.state in (SourceState.OK, SourceState.ABSENT):
        return "not polled within the deadline"
    return f"{source.state.value}: {source.detail}" if source.detail else source.state.value


class EventLabels(NamedTuple):
    """What events are counted by."""

    kind: str
    code: str
    trust: str
    is_simulated: bool


class EventCode(NamedTuple):
    """What the time of the last event is kept by."""

    kind: str
    code: str
    is_simulated: bool


class GpuXid(NamedTuple):
    """What the Xids of GPUs are counted by."""

    component: Component
    code: str
    is_simulated: bool


@dataclass(slots=True)
class Count:
    """A counter. `since`: when it began, in seconds since the epoch."""

    since: float
    number: int = 0


class EventTally:
    """Counts each event once for the metrics, and keeps the time of the last one of each code.

    Codes come from log text, so every table here has a bound: beyond it they count as `other`. Keys
    are plain tuples, as each event looks up three of them.
    """

    def __init__(self) -> None:
        self.counts: dict[EventLabels, Count] = {}
        self.xids: dict[GpuXid, Count] = {}
        # Times of events in seconds since the epoch. Lines that are not evaluated do not count.
        self.last_times: dict[EventCode, float] = {}

    def count_event(self, event: Event) -> None:
        now = time.time()
        code = event.code.partition("/")[2]
        labels = EventLabels(event.kind, code, event.trust.value, event.is_simulated)
        if labels not in self.counts and len(self.counts) >= _MAX_SERIES:
            labels = EventLabels(event.kind, OTHER, event.trust.value, event.is_simulated)
        _increment(self.counts, labels, now)
        if not event.is_trusted:
            return
        last = EventCode(labels.kind, labels.code, labels.is_simulated)
        self.last_times[last] = max(event.time, self.last_times.get(last, event.time))
        if event.kind == _XID and event.component.kind is ComponentKind.GPU:
            self._count_xid(GpuXid(event.component, code, event.is_simulated), now)

    def _count_xid(self, xid: GpuXid, now: float) -> None:
        if xid not in self.xids and len(self.xids) >= _MAX_XIDS:
            xid = GpuXid(xid.component, OTHER, xid.is_simulated)
            if xid not in self.xids and len(self.xids) >= 2 * _MAX_XIDS:
                return  # no node has so many GPUs; `counts` has the event
        _increment(self.xids, xid, now)


def _increment(counts: dict[Key, Count], key: Key, now: float) -> None:
    if key not in counts:
        counts[key] = Count(now)
    counts[key].number += 1
