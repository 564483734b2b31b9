"""Parameters that several operations share."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from vitald.server import schema
from vitald.server.operations.operation import Parameter

_SINCE: object = Union[
    Annotated[str, schema.Keywords(title="id", pattern=r"^[0-9]{1,15}$")],
    Annotated[
        str, schema.Keywords(title="duration", pattern=r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)$")
    ],
    Annotated[
        str,
        schema.Keywords(
            title="time",
            pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?"
            r"([Zz]|[+-][0-9]{2}:[0-9]{2})$",
        ),
    ],
]
FINDING_ID = Parameter(
    "id",
    "path",
    "The finding's number.",
    Annotated[int, schema.Keywords(minimum=0, maximum=999999999999999)],
    example=7,
)
WORK = Parameter(
    "for",
    "query",
    (
        "What the answer is for: a job that is about to begin, one that has ended, or the one "
        "that runs. What may wait for the running job (`after_job`) is due before and after "
        "it."
    ),
    Annotated[Literal["prolog", "epilog", "running"], schema.Keywords(default="running")],
    example="prolog",
)
DRILLS = Parameter(
    "drills",
    "query",
    "Simulated findings count as real and confirmed ones.",
    Annotated[bool, schema.Keywords(default=False)],
)
LIMIT = Parameter(
    "limit",
    "query",
    "At most so many.",
    Annotated[int, schema.Keywords(minimum=1, maximum=1000, default=100)],
)
COMPONENT = Parameter(
    "component",
    "query",
    "Of this component only, by any name of its device: index, serial number, UUID, slot, PCI "
    "address, interface.",
    str,
    example="gpu/0000:65:00.0",
)
KIND = Parameter("kind", "query", "Of this kind only.", str, example="xid")
CODE = Parameter(
    "code",
    "query",
    "Of this code only, written kind/code.",
    Annotated[str, schema.Keywords(pattern="/")],
    example="xid/79",
)
SINCE = Parameter(
    "since",
    "query",
    (
        "After the one with this id (the value of `next`), from an RFC 3339 time on, or within "
        "this time before now (`90s`, `30m`, `24h`, `7d`)."
    ),
    _SINCE,
    examples={"id": "41", "duration": "30m", "time": "2026-11-20T13:00:00Z"},
)
NEWEST = Parameter(
    "newest",
    "query",
    "The last `limit` instead of the first; they still come oldest first.",
    Annotated[bool, schema.Keywords(default=False)],
)
STATE = Parameter(
    "state",
    "query",
    (
        "The open ones (those in remedy too), the strongest first; or the cleared ones, the "
        "last cleared first."
    ),
    Annotated[Literal["open", "cleared"], schema.Keywords(default="open")],
)
