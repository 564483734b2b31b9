"""
Incidents: a root cause and its consequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitald.model.component import Component
from vitald.model.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One code of one component in an incident, however often it was printed."""

    component: Component
    code: str
    name: str  # its name in correlation rules: the code, or an alias
    count: int
    first: float
    last: float
    boot_id: str
    usec: int | None  # of the last one, in microseconds on the kernel's clock
    addresses: frozenset[str]  # addresses: its own, the port upstream, devices behind it
    pids: frozenset[int]
    processes: frozenset[str]
    raw: str  # the first line


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A root cause and its consequences. It stays open while one of its findings is open.

    `members` are sorted, the root first. `rule` names the correlation rule that joined them, if
    one did.
    """

    id: int
    members: tuple[Member, ...]
    since: float
    last: float
    boot_id: str = ""  # of its last event, as is `usec`, the time on the kernel's clock
    usec: int | None = None
    rule: str = ""
    simulated: bool = False
    closed_at: float | None = None

    @property
    def root(self) -> Member:
        return self.members[0]

    @property
    def event_count(self) -> int:
        return sum(member.count for member in self.members)

    def find_member(self, component: Component, code: str) -> Member | None:
        return next(
            (
                member
                for member in self.members
                if member.code == code and member.component == component
            ),
            None,
        )


def make_single_incident(finding: Finding) -> Incident:
    """The incident of a finding that belongs to no other."""
    member = Member(
        component=finding.component,
        code=finding.code,
        name=finding.code,
        count=finding.count,
        first=finding.since,
        last=finding.last,
        boot_id=finding.boot_id,
        usec=None,
        addresses=frozenset({finding.component.id} - {""}),
        pids=frozenset(),
        processes=frozenset(),
        raw=finding.raw,
    )
    return Incident(
        id=finding.incident,
        members=(member,),
        since=finding.since,
        last=finding.last,
        simulated=finding.is_simulated,
    )
