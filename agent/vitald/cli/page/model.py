"""
What the status page shows, ready for the template: every value is text for a person, a number of
the drawing, or a word of a closed set that the style sheet knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tone(Enum):
    """How urgent something is: the colour and the shape of its mark. Never the only sign of it."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in UTC for people and for programs, and how long ago it was (`3 min ago`)."""

    text: str
    iso: str
    age: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value; `moment` stands before the text where it has one."""

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
    """An event: the raw line of a log, and what is to be known of it (drill, not trusted)."""

    moment: Moment | None
    code: str
    component: str
    raw: str
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """One layer of a requirement: who requires which action, and why."""

    layer: str
    action: str
    because: str
    decides: bool


@dataclass(frozen=True, slots=True)
class Card:
    """An incident by the finding that heads it. `others`: what else requires an action in it."""

    number: int
    tone: Tone
    title: str
    code: str
    component: str
    identity: str
    since: Moment | None
    is_drill: bool
    is_begun: bool
    when: str
    todo: str
    hint: str
    facts: tuple[Fact, ...]
    raw: str
    raw_note: str
    lines: tuple[Line, ...]
    demands: tuple[Demand, ...]
    others: tuple[str, ...]
    consequences: tuple[str, ...]
    jobs: tuple[str, ...]
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with the mark of its state."""

    name: str
    tone: Tone
    state: str
    moment: Moment | None
    detail: str


@dataclass(frozen=True, slots=True)
class Part:
    """A component. `note`: its identity, or why its state is unknown."""

    name: str
    tone: Tone
    status: str
    note: str


@dataclass(frozen=True, slots=True)
class PartGroup:
    """The components of one kind: those that are not healthy first."""

    kind: str
    summary: str
    parts: tuple[Part, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A finding on the timeline. `begin` and `width`: thousandths of the shown time."""

    title: str
    code: str
    component: str
    tone: Tone
    is_drill: bool
    is_open: bool
    begin: int
    width: int
    span: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """`ticks`: the times at equal distances, from the left to the right edge."""

    title: str
    ticks: tuple[str, ...]
    bars: tuple[Bar, ...]
    more: int


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


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page. `error`: why nothing is known, with which all lists are empty."""

    host: str
    tone: Tone
    status: str
    lead: str
    flags: tuple[str, ...]
    moment: Moment
    drill: str
    error: str
    remedies: tuple[Command, ...]
    cards: tuple[Card, ...]
    other_incidents: tuple[str, ...]
    notices: tuple[str, ...]
    advice: tuple[str, ...]
    timeline: Timeline | None
    changes: tuple[Change, ...]
    groups: tuple[PartGroup, ...]
    sources: tuple[Row, ...]
    diagnostics: tuple[Row, ...]
    publishers: tuple[Row, ...]
    daemon: tuple[Fact, ...]
