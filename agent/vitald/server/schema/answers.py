"""Answers of every route: errors, the verdict, the state of a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from vitald.server.schema.value_types import Action, Keywords, Moment, Status


class _OptionalError(TypedDict, total=False):
    hint: str
    """What to try."""


class Error(_OptionalError):
    """What is wrong, and mostly what to do instead."""

    error: str
    """One line for a person."""


class Document(TypedDict):
    openapi: str
    info: Mapping[str, object]
    paths: Mapping[str, object]


class ApiVerdict(TypedDict):
    """The verdict: computed from all open findings and the state of the sources."""

    status: Status
    rebootRequired: bool
    """An open finding requires a reboot, or a reset where the site does not reset devices
    itself."""
    rebootConfirmed: bool
    """A confirmed finding requires it: one that a source other than the text of the kernel log
    reports, too. Automatic repair uses this flag."""
    replacementRequired: bool
    """An open finding requires replacement of the node. Does not imply `rebootRequired`."""
    replacementConfirmed: bool
    """A confirmed finding requires it."""
    action: Action
    """The strongest action that an open finding requires."""
    simulated: bool
    """At least one open finding belongs to a drill, or a source is simulated: it reads a simulated
    library instead of the driver's."""
    reasons: list[str]
    """Why: one sentence for each incident, the strongest first; then the sources that cannot be
    read."""


class ApiSource(TypedDict):
    """Something that vitald reads, and when it was last read successfully."""

    name: Annotated[str, Keywords(examples=("kernel_log", "nvml"))]
    """Its name."""
    state: Literal["starting", "ok", "stale", "failed", "released", "not present"]
    """`stale`: not read within its deadline. `failed`: cannot be read, in part or at all, and is
    retried. `released`: it released its devices on request. `not present`: this node has nothing
    for it to read. Every state but `ok` and `not present` makes a node `unknown` that would be
    healthy otherwise."""
    lastRead: Moment | None
    """When it was last read."""
    deadline: Moment | None
    """By when it must be read again."""
    detail: str
    """What is wrong with it, why there is nothing to read, or that it is simulated; empty
    otherwise."""


class Flags(TypedDict):
    """The flags of the node."""

    rebootRequired: bool
    """It requires a reboot, or a reset where the site does not reset devices itself."""
    rebootConfirmed: bool
    """A confirmed finding requires it: one that a source other than the text of the kernel log
    reports, too. Automatic repair uses this flag."""
    replacementRequired: bool
    """It requires replacement of the node."""
    replacementConfirmed: bool
    """A confirmed finding requires it."""
