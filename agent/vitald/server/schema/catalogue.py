"""Rules of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from vitald.server.schema.values import Action, Code, When, _FaultClassed


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
