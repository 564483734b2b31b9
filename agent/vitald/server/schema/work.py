"""Notices about the work on the node, in `/v1/status` and `/v1/watch`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from vitald.server.schema.values import Code, ComponentName, Fields, Keywords, Moment, _Positive


class WorkNotice(TypedDict):
    """An open notice. It is no finding: it changes neither status nor flags."""

    code: Code
    title: str
    """What the code means, in one line."""
    component: ComponentName
    subject: Annotated[str, Keywords(examples=("", "slurm:1234 rank 3"))]
    """What of the component it is about, where that is not all of it."""
    since: Moment
    """When it began."""
    last: Moment
    """When it was observed last."""
    count: _Positive
    """How often it was observed."""
    text: str
    """What is observed, for people. What a job says of itself is shown as it says it."""
    advice: str
    """What to look at."""
    story: str
    """Of GPUs that wait and jobs that stall: what else happened on the node around the beginning.
    Empty for others."""
    fields: Fields


class WatchNotice(TypedDict):
    """A notice was opened or closed."""

    type: Literal["notice"]
    open: bool
    """Opened; false: closed."""
    notice: WorkNotice
