"""What publishers report of their sinks: `/v1/publishers`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, TypedDict

from vitald.server.schema.values import Keywords, Moment

_Name: TypeAlias = Annotated[str, Keywords(pattern="^[a-z][a-z0-9_-]{0,31}$")]
_Bounded: TypeAlias = Annotated[int, Keywords(minimum=0, maximum=10**15)]


class SinkReport(TypedDict):
    """How one sink of the publisher fares."""

    name: Annotated[_Name, Keywords(examples=("kubernetes",))]
    """Its name; each once."""
    up: bool
    """The last attempt wrote all of it. In an answer false, too, while the publisher is silent."""
    lastSuccess: Moment | None
    """When it last was up to date; null if it never was."""
    error: Annotated[str, Keywords(max_length=300)]
    """Why the last attempt did not write all, in one line; empty if it did."""
    refused: Annotated[list[_Name], Keywords(max_items=16)]
    """What the receiver refuses of the state, by the word of `[kubernetes]` that turns it on;
    `former-names` is what an earlier configuration wrote and this one removes. The rest is
    written. Empty if all is written, or nothing."""
    waiting: _Bounded
    """How much is not written yet."""
    waitingSince: Moment | None
    """Since when; null while nothing waits."""
    writes: _Bounded
    """Writes since the publisher started."""
    failures: _Bounded
    """Attempts that failed since then."""


class ReportSinksRequest(TypedDict):
    sinks: Annotated[list[SinkReport], Keywords(max_items=16)]
    """All of them. An empty list: the publisher ends, and nothing more is expected of it."""


class SinksReported(TypedDict):
    """The report was taken."""

    ok: Literal[True]


class ApiPublishers(TypedDict):
    """What `vitald publish` reported last."""

    reported: Moment
    """When."""
    silent: bool
    """That was more than 60 s ago: it does not run, or cannot reach the daemon."""
    sinks: Annotated[list[SinkReport], Keywords(max_items=16)]
    """Its sinks."""
