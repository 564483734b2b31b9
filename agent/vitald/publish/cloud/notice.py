"""
A notice of a cloud provider, and what it means for this node.

Owns     how soon an interruption is imminent, and which notices come first.
Refuses  the formats of the providers, and what the daemon does with a notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from vitald.model.cloud_notice import (
    MAX_DESCRIPTION,
    MAX_ID,
    MAX_KIND,
    MAX_NOTICES,
    Effect,
)
from vitald.text import replace_unprintable
from vitald.timestamps import format_rfc3339, parse_rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice. `kind`: in the provider's word. `not_before`: in seconds since the epoch; None if
    the provider does not say.
    """

    effect: Effect
    kind: str
    id: str = ""
    not_before: float | None = None
    description: str = ""

    def to_json(self) -> dict[str, object]:
        """As `POST /v1/notices` takes it."""
        time = self.not_before
        return {
            "effect": self.effect.value,
            "kind": _clean_text(self.kind, MAX_KIND) or "unnamed",
            "id": _clean_text(self.id, MAX_ID),
            "notBefore": None if time is None else format_rfc3339(time),
            "description": _clean_text(self.description, MAX_DESCRIPTION),
        }


def find_effect(not_before: float | None, now: float, imminent_s: float) -> Effect:
    """Of an interruption. One without a time may come at once."""
    if not_before is None or not_before - now <= imminent_s:
        return Effect.IMMINENT
    return Effect.SCHEDULED


def select_first(notices: Sequence[Notice]) -> list[Notice]:
    """As many as the daemon takes, the most urgent first."""
    order = list(Effect)
    ranked = sorted(
        notices, key=lambda notice: (order.index(notice.effect), notice.not_before or 0.0)
    )
    return ranked[:MAX_NOTICES]


def parse_moment(text: object) -> float | None:
    """RFC 3339 (`2017-09-18T08:22:00Z`) or a date of HTTP (`21 Jan 2019 09:00:43 GMT`), in seconds
    since the epoch. None for an empty or missing one. Raises ValueError for any other.
    """
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise ValueError(f"a time is {text!r:.80}")
    try:
        parse = parse_rfc3339 if text[:4].isdigit() else parsedate_to_datetime
        moment = parse(text).timestamp()
        format_rfc3339(moment)  # in a year that a date can have
        return moment
    except (ValueError, TypeError, OverflowError, OSError):
        raise ValueError(f"a time is {text!r:.80}") from None


def _clean_text(text: str, most: int) -> str:
    return replace_unprintable(text, " ")[:most].strip()
