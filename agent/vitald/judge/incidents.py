"""
Incidents: events with one physical root cause.

The catalogue (`correlation.toml`) defines which codes belong together, how far a cause reaches, and
for how long. An event joins the youngest incident for which a correlation rule holds, else it
begins a new one. Windows are measured on the kernel's clock if both events have its time, since
that clock cannot be stepped. No incident continues over a boot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from vitald.catalog import Catalog
from vitald.catalog.correlation import CorrelationRule, Reach, Role
from vitald.model.changed import copy_with
from vitald.model.component import NODE, Component
from vitald.model.event import Event
from vitald.model.finding import Incident, Member
from vitald.model.words import ComponentKind

MAX_INCIDENTS = 4096
_MAX_MEMBERS = 64  # codes of components in one incident; others are counted with the last
_MAX_PROCESSES = 16  # processes kept for one member
_MAX_CANDIDATES = 8  # incidents that are tried: of one device, and of the whole node
_FABRICS = (
    {ComponentKind.GPU, ComponentKind.NVSWITCH},
    {ComponentKind.NEURON},
)
# Name of a member that no rule applies to: hearsay explains nothing, and nothing explains it
_OUTSIDE = ""


class IncidentStore:
    """The open incidents, and closed ones that a late consequence may still join."""

    def __init__(
        self, catalog: Catalog, incidents: Iterable[Incident] = (), next_id: int = 1
    ) -> None:
        self._all = {
            incident.id: incident
            for incident in sorted(incidents, key=lambda incident: incident.last)
        }  # the youngest last
        # Incidents by location, the youngest last
        self._at: dict[str, dict[int, None]] = {}
        for incident in self._all.values():
            self._index_locations(incident)
        self.next_id = next_id
        self._touched: dict[int, Incident] = {}
        self._sweep_at = 64
        self.set_catalog(catalog)

    def set_catalog(self, catalog: Catalog) -> None:
        self._rules = catalog.correlation
        self._longest = max(
            (max(rule.within_s, rule.early_s) for rule in self._rules.rules), default=0.0
        )

    @property
    def all(self) -> tuple[Incident, ...]:
        return tuple(self._all.values())

    def take_touched(self) -> tuple[Incident, ...]:
        """The incidents that changed since the last call, in their current form."""
        touched, self._touched = tuple(self._touched.values()), {}
        return touched

    def get_incident(self, id_: int) -> Incident | None:
        return self._all.get(id_)

    def make_member(self, event: Event) -> Member:
        """The event as a member of an incident."""
        usec, pid, process = (event.fields.get(name) for name in ("usec", "pid", "process"))
        return Member(
            component=event.component,
            code=event.code,
            name=_OUTSIDE if event.is_hearsay else self._rules.find_name(event.code, event.fields),
            count=1,
            first=event.time,
            last=event.time,
            boot_id=event.boot_id,
            usec=usec if isinstance(usec, int) else None,
            addresses=_list_locations(event.component, event),
            pids=frozenset((pid,)) if isinstance(pid, int) else _NO_PIDS,
            processes=frozenset((process,)) if isinstance(process, str) else _NO_PROCESSES,
            raw=event.raw,
        )

    def is_cause(self, member: Member) -> bool:
        """Whether the event begins an incident even if it requires nothing."""
        return self._rules.is_cause(member.name)

    def find_incident(self, fresh: Member, *, simulated: bool) -> Incident | None:
        """The incident that the event belongs to: the youngest about its own device, else the
        youngest that a rule reaches it from, an open one before a closed one.
        """
        if not self._rules.find_roles(fresh.name):
            return None
        reached: Incident | None = None
        for incident in self._list_candidates(fresh):
            rule = self._find_rule(incident, fresh) if incident.simulated == simulated else None
            if rule is not None:
                first = self._rules.find_index(rule.name) < self._rules.find_index(incident.rule)
                joined = replace(incident, rule=rule.name) if first else incident
                if not rule.reach.crosses_devices:
                    return joined
                if reached is None or (reached.closed_at is not None and joined.closed_at is None):
                    reached = joined
        return reached

    def begin_incident(self, fresh: Member, *, simulated: bool) -> Incident:
        """A new incident. It is stored when a member is added."""
        self.next_id += 1
        return Incident(
            id=self.next_id - 1, members=(), since=fresh.first, last=fresh.last, simulated=simulated
        )

    def add_member(self, incident: Incident, fresh: Member, *, counts: bool = True) -> Incident:
        """Add the event, and sort the root to the front."""
        members = list(incident.members)
        index = next(
            (
                n
                for n, member in enumerate(members)
                if member.code == fresh.code and member.component == fresh.component
            ),
            None,
        )
        if index is None and len(members) >= _MAX_MEMBERS:
            index = len(members) - 1
        if index is None:
            members.append(fresh)
            members.sort(
                key=lambda member: (
                    self._rules.rank_name(member.name, incident.rule),
                    member.first,
                )
            )
        else:
            members[index] = _update_member(members[index], fresh, counts=counts)
        grown = copy_with(
            incident,
            members=tuple(members),
            last=max(incident.last, fresh.last),
            boot_id=fresh.boot_id,
            usec=fresh.usec,
        )
        self._all.pop(incident.id, None)
        self._all[incident.id] = self._touched[incident.id] = grown
        self._index_locations(grown, fresh.addresses)
        while len(self._all) > MAX_INCIDENTS:
            self._drop_incident(
                next(
                    (known for known in self._all.values() if known.closed_at is not None),
                    next(iter(self._all.values())),
                )
            )
        return grown

    def close_incident(self, id_: int, time: float) -> None:
        """Close the incident: its last finding was closed. A late consequence may still join it."""
        incident = self._all.get(id_)
        if incident is not None and incident.closed_at is None:
            self._all[id_] = self._touched[id_] = replace(
                incident, closed_at=time
            )  # in its place: it has not become younger

    def reopen_incident(self, id_: int) -> None:
        """Open an incident again that has an open finding now."""
        incident = self._all.get(id_)
        if incident is not None and incident.closed_at is not None:
            self._all[id_] = self._touched[id_] = replace(incident, closed_at=None)

    def forget_old(self, now: float) -> None:
        """Drop closed incidents out of reach; only now and then, to keep the cost low."""
        if len(self._all) > self._sweep_at:
            for incident in tuple(self._all.values()):
                if incident.closed_at is not None and now - incident.last > self._longest:
                    self._drop_incident(incident)
            self._sweep_at = 2 * len(self._all) + 64

    def shift_times(self, seconds: float) -> None:
        """Shift all times after a step of the clock."""
        for incident in self._all.values():
            members = tuple(
                replace(member, first=member.first + seconds, last=member.last + seconds)
                for member in incident.members
            )
            closed_at = incident.closed_at + seconds if incident.closed_at is not None else None
            self._all[incident.id] = self._touched[incident.id] = replace(
                incident,
                members=members,
                since=incident.since + seconds,
                last=incident.last + seconds,
                closed_at=closed_at,
            )

    def find_causes(
        self, incident: Incident, member: Member
    ) -> list[tuple[Member, CorrelationRule]]:
        """The causes that suppress this member if they require enough, each with its rule."""
        rules = [
            role.rule
            for role in self._rules.find_roles(member.name)
            if role.role is Role.SUPPRESSED
        ]
        return [
            (other, rule)
            for other in incident.members[
                : incident.members.index(member)
            ]  # they are sorted: a cause precedes its consequences
            for rule in rules
            if Role.CAUSE in self._rules.find_role_sets(other.name).get(rule.name, ())
            and _is_reached(rule.reach, other, member)
            and _is_in_window(rule, other, member)
        ]

    def _list_candidates(self, fresh: Member) -> Iterator[Incident]:
        """Incidents at its locations, the youngest first, then the youngest of all."""
        own = {
            number
            for location in fresh.addresses
            for number in islice(reversed(self._at.get(location, {})), _MAX_CANDIDATES)
        }
        for incident in sorted(
            (self._all[number] for number in own), key=lambda incident: incident.last, reverse=True
        )[:_MAX_CANDIDATES]:
            if _measure_gap_s(incident, fresh) <= self._longest:
                yield incident
        for incident in islice(reversed(self._all.values()), _MAX_CANDIDATES):
            if _measure_gap_s(incident, fresh) > self._longest:
                return  # incidents are ordered by their last event
            if incident.id not in own:
                yield incident

    def _find_rule(self, incident: Incident, fresh: Member) -> CorrelationRule | None:
        """The rule by which the event joins the incident; one about the device before one that
        crosses devices.
        """
        wide: CorrelationRule | None = None
        tried: CorrelationRule | None = None
        for role in self._rules.find_roles(fresh.name):
            rule = role.rule
            if rule is tried or (wide is not None and rule.reach.crosses_devices):
                continue
            tried = rule
            if any(
                self._is_pair(rule, member, fresh) for member in incident.members
            ) and self._has_cause(rule, incident, fresh):
                if not rule.reach.crosses_devices:
                    return rule
                wide = rule
        return wide

    def _is_pair(self, rule: CorrelationRule, member: Member, fresh: Member) -> bool:
        roles = self._rules.find_role_sets(member.name).get(rule.name)
        if (
            roles is None
            or member.boot_id != fresh.boot_id
            or not _is_reached(rule.reach, member, fresh)
        ):
            return False
        is_cause, finds_cause = (
            Role.CAUSE in role_set
            for role_set in (self._rules.find_role_sets(fresh.name)[rule.name], roles)
        )
        if rule.apart and is_cause and finds_cause:
            return False
        if is_cause and not finds_cause:
            return -rule.within_s <= _measure_gap_s(member, fresh) <= rule.early_s
        return -rule.early_s <= _measure_gap_s(member, fresh) <= rule.within_s

    def _has_cause(self, rule: CorrelationRule, incident: Incident, fresh: Member) -> bool:
        """Whether the rule's cause is present, and is not joined by a cause on another device: two
        GPUs that are lost at once are two incidents.
        """
        roles = [
            self._rules.find_role_sets(member.name).get(rule.name, frozenset())
            for member in (*incident.members, fresh)
        ]
        if not any(Role.CAUSE in own for own in roles):
            return False
        if rule.reach is Reach.DEVICE or not incident.root.addresses.isdisjoint(fresh.addresses):
            return True
        return not all(
            Role.CAUSE in own and Role.SUPPRESSED not in own for own in (roles[0], roles[-1])
        )

    def _index_locations(self, incident: Incident, places: Iterable[str] | None = None) -> None:
        for location in (
            places
            if places is not None
            else {location for member in incident.members for location in member.addresses}
        ):
            numbers = self._at.setdefault(location, {})
            numbers.pop(incident.id, None)
            numbers[incident.id] = None

    def _drop_incident(self, incident: Incident) -> None:
        self._all.pop(incident.id, None)
        for location in {location for member in incident.members for location in member.addresses}:
            numbers = self._at.get(location, {})
            numbers.pop(incident.id, None)
            if not numbers:
                self._at.pop(location, None)


_NO_PIDS: frozenset[int] = frozenset()
_NO_PROCESSES: frozenset[str] = frozenset()


def _is_reached(reach: Reach, first: Member, other: Member) -> bool:
    if reach is Reach.FABRIC:
        components = {first.component, other.component} - {NODE}
        kinds = {component.kind for component in components}
        return any(kinds <= fabric for fabric in _FABRICS)
    if reach is Reach.NODE:
        return NODE in (first.component, other.component)
    if reach is Reach.PROCESS:
        if first.pids and other.pids:
            return not first.pids.isdisjoint(other.pids)
        return not first.processes.isdisjoint(other.processes)
    return not first.addresses.isdisjoint(other.addresses)


def _is_in_window(rule: CorrelationRule, cause: Member, suppressed: Member) -> bool:
    """Whether some of the suppressed consequence came after the cause, or shortly before it."""
    return (
        suppressed.last - cause.first >= -rule.early_s
        and suppressed.first - cause.last <= rule.within_s
    )


def _measure_gap_s(before: Member | Incident, fresh: Member) -> float:
    """Seconds from the earlier member to the new one; negative if the new one is older."""
    if fresh.usec is not None and before.usec is not None and before.boot_id == fresh.boot_id:
        return (fresh.usec - before.usec) / 1e6
    return fresh.last - before.last


def _list_locations(component: Component, event: Event) -> frozenset[str]:
    """The addresses that an event concerns: its component, the port that reported it or is
    upstream, the device to blame.
    """
    locations = {
        component.id,
        event.fields.get("pci"),
        event.fields.get("port"),
        event.fields.get("blamed"),
    }
    return frozenset(location for location in locations if isinstance(location, str) and location)


def _update_member(member: Member, fresh: Member, *, counts: bool) -> Member:
    known = len(member.pids) >= _MAX_PROCESSES
    return copy_with(
        member,
        name=member.name or fresh.name,
        count=member.count + counts,
        last=max(member.last, fresh.last),
        boot_id=fresh.boot_id,
        usec=fresh.usec,
        addresses=(
            member.addresses
            if fresh.addresses <= member.addresses or len(member.addresses) >= _MAX_PROCESSES
            else member.addresses | fresh.addresses
        ),
        pids=member.pids if known or fresh.pids <= member.pids else member.pids | fresh.pids,
        processes=(
            member.processes
            if known or fresh.processes <= member.processes
            else member.processes | fresh.processes
        ),
    )
