"""
What the status page shows, ready for the template: every value is text for a person, a number of
the drawing, or a word of a closed set that the style sheet knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tone(Enum):
    """How urgent something is: the colour and the shape of its icon. A word beside it always says
    the same.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"
    UNKNOWN = "unknown"


class Span(Enum):
    """How far back the timeline goes; the shortest first."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in UTC for people and for programs, and how long ago it was (`3 min ago`)."""

    text: str
    iso: str
    age: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value; `moment` follows the text where it has one."""

    label: str
    text: str
    moment: Moment | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command line to copy, and what it does."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Line:
    """An event: the raw line of a log, and how far it is trusted."""

    moment: Moment | None
    code: str
    component: str
    raw: str
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One layer of what a finding requires: which action, and why."""

    layer: str
    action: str
    reason: str
    decides: bool


@dataclass(frozen=True, slots=True)
class Card:
    """An incident, by its strongest finding. `others`: what else requires an action in it."""

    number: int
    tone: Tone
    title: str
    code: str
    component: str
    device: str
    since: Moment | None
    is_drill: bool
    is_begun: bool
    when: str
    instruction: str
    hint: str
    facts: tuple[Fact, ...]
    raw: str
    raw_note: str
    lines: tuple[Line, ...]
    requirements: tuple[Requirement, ...]
    others: tuple[str, ...]
    consequences: tuple[str, ...]
    jobs: tuple[str, ...]
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with the icon of its state."""

    name: str
    tone: Tone
    state: str
    moment: Moment | None
    detail: str


@dataclass(frozen=True, slots=True)
class Part:
    """A component. `note`: the names of its device, or why its state is unknown."""

    name: str
    tone: Tone
    status: str
    note: str


@dataclass(frozen=True, slots=True)
class PartGroup:
    """The components of one kind, those that are not healthy first."""

    kind: str
    summary: str
    parts: tuple[Part, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A finding on the timeline. `begin` and `width`: thousandths of the shown time."""

    title: str
    component: str
    tone: Tone
    is_drill: bool
    is_open: bool
    begin: int
    width: int
    duration: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """`ticks`: the times at equal distances, from the left to the right edge. `more`: findings
    that have no bar. `is_cut`: others, which were not read, may have ended earlier in this span.
    """

    span: Span
    title: str
    ticks: tuple[str, ...]
    bars: tuple[Bar, ...]
    more: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Change:
    """How a finding changed."""

    moment: Moment | None
    change: str
    number: int
    title: str
    component: str
    cause: str
    is_drill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page. `error`: why nothing is known, with which there is nothing else but
    `remedies`. A list is None if it could not be read.
    """

    host: str
    tone: Tone
    status: str
    lead: str
    moment: Moment
    error: str = ""
    remedies: tuple[Command, ...] = ()
    flags: tuple[str, ...] = ()
    drill: str = ""
    cards: tuple[Card, ...] = ()
    other_incidents: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    timeline: Timeline | None = None
    changes: tuple[Change, ...] | None = ()
    groups: tuple[PartGroup, ...] = ()
    sources: tuple[Row, ...] = ()
    diagnostics: tuple[Row, ...] | None = ()
    jobs: tuple[Row, ...] | None = ()
    publishers: tuple[Row, ...] = ()
    daemon: tuple[Fact, ...] = ()
