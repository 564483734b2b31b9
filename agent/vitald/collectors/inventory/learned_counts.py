"""
Device counts that were learned from healthy boots, or confirmed by a person.

A count that was the same at several healthy boots in a row is confirmed: fewer devices are a fault
from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCount:
    """What is remembered of one kind; stored by field names. `rival`: another count that healthy
    boots had since, and `rivals`: how many in a row.
    """

    count: int
    boots: int = 0  # healthy boots in a row that had it
    boot: str = ""  # the last healthy boot that was counted
    rival: int = -1
    rivals: int = 0
    by: str = ""  # who confirmed it
    reason: str = ""
    at: float = 0.0  # when it was confirmed (Unix time)

    def is_confirmed(self, boots_to_confirm: int) -> bool:
        return bool(self.by) or 0 < boots_to_confirm <= self.boots


def learn_count(
    before: LearnedCount | None, count: int, boot: str, boots_to_confirm: int
) -> LearnedCount:
    """What is remembered after one more healthy boot, which had this count.

    A higher count is learned as the first one was. A lower one is too, as long as nothing was
    confirmed; after that it is a fault, until a person confirms it.
    """
    if before is None:
        return LearnedCount(count=count, boots=1, boot=boot)
    if count == before.count:
        return replace(before, boots=before.boots + 1, boot=boot, rival=-1, rivals=0)
    confirmed = before.is_confirmed(boots_to_confirm)
    if count < before.count and confirmed:
        return replace(before, boot=boot, rival=-1, rivals=0)
    rivals = before.rivals + 1 if count == before.rival else 1
    if rivals >= boots_to_confirm or (count > before.count and not confirmed):
        return LearnedCount(count=count, boots=rivals, boot=boot)
    return replace(
        before, boots=before.boots if confirmed else 0, boot=boot, rival=count, rivals=rivals
    )


def parse_learned(stored: object) -> LearnedCount | None:
    """Without fields of another type: another version may have written it. None if there is no
    count.
    """
    if not isinstance(stored, dict) or not isinstance(stored.get("count"), int):
        return None
    template = LearnedCount(count=0)
    return LearnedCount(
        **{
            name: stored[name]
            for name in LearnedCount.__slots__
            if isinstance(stored.get(name), type(getattr(template, name)))
        }
    )
