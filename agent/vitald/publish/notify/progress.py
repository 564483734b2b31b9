"""What is remembered of a receiver over a restart: what it knows, and up to which transition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from vitald.model import Action, Status
from vitald.publish.notify.notification import NodeFlags, NotifiedFinding
from vitald.publish.state_store import Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A fault that the receiver knows of. Times in seconds since the epoch."""

    finding: NotifiedFinding
    is_own: bool  # it had a message of its own; else a digest stood for it
    ended_at: float = 0.0  # 0 while it is open
    ended_by: int = 0  # the transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`began`: when there was none before. `due`: numbers of findings that were open then, and are
    still to be sent. `receipts`: by the key of the fault. `flags`: those that the receiver knows;
    `has_flags_alert`: a message of their own reported bad ones; `flags_sent`: how many there were.
    `full_at`: when a whole burst is possible again. Times in seconds since the epoch.
    """

    cursor: Cursor
    began: float
    due: tuple[int, ...] = ()
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    flags: NodeFlags | None = None
    has_flags_alert: bool = False
    flags_sent: int = 0
    full_at: float = 0.0


def format_progress(progress: Progress) -> str:
    """As JSON, for publish.db."""
    return json.dumps(asdict(progress), default=_format_enum, separators=(",", ":"))


def _format_enum(value: object) -> object:
    if not isinstance(value, Enum):
        raise TypeError(f"unexpected {type(value).__name__}")
    return value.value


def parse_progress(text: str) -> Progress:
    """The inverse of format_progress. Raises ValueError."""
    try:
        document = json.loads(text)
        flags = document["flags"]
        return Progress(
            **{
                **document,
                "cursor": Cursor(**document["cursor"]),
                "due": tuple(document["due"]),
                "receipts": {
                    key: _parse_receipt(each) for key, each in document["receipts"].items()
                },
                "flags": None if flags is None else _parse_flags(flags),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no progress of a receiver: {error}") from None


def _parse_receipt(document: Mapping[str, Any]) -> Receipt:
    finding = document["finding"]
    read = NotifiedFinding(**{**finding, "action": Action(finding["action"])})
    return Receipt(**{**document, "finding": read})


def _parse_flags(document: Mapping[str, Any]) -> NodeFlags:
    return NodeFlags(**{**document, "status": Status(document["status"])})
