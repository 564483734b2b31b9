"""Answers of every route: errors, the verdict, the state of a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from vitald.server.schema.values import Action, Keywords, Moment, Status


class _OptionalError(TypedDict, total=False):
    hint: str
    """What to try."""


class Error(_OptionalError):
    """What is wrong, and mostly what to do instead."""

    error: str
    """One line for a person."""


class _Document(TypedDict):
    openapi: str
    info: Mapping[str, object]
    paths: Mapping[str, object]


class ApiVerdict(TypedDict):
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


class ApiSource(TypedDict):
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
