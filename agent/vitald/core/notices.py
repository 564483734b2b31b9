"""
The open notices. Their producers open, update and close them, once the event of the transition is
stored.

Owns     which notices are open, and their maximum number.
Refuses  findings, events and the ledger. Notices are not restored at a start: their producers
         observe again what still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vitald.model.notice import NOTICE_CODES, Notice, NoticeKey

MAX_NOTICES = 256


@dataclass(frozen=True, slots=True)
class NoticeChange:
    """A notice was opened, or closed."""

    notice: Notice
    is_open: bool


class Notices:
    """The open notices by their keys. `notify` is called with each that is opened or closed."""

    def __init__(
        self, notify: Callable[[NoticeChange], None], *, max_notices: int = MAX_NOTICES
    ) -> None:
        self.dropped = 0  # closed because there were too many, since the start
        self._notify = notify
        self._max_notices = max_notices
        self._open: dict[NoticeKey, Notice] = {}  # the one that was opened first comes first

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The open ones, the oldest first."""
        return tuple(sorted(self._open.values(), key=lambda notice: notice.since))

    def list_foremost(self, limit: int) -> list[Notice]:
        """The first `limit` in the order of `NOTICE_CODES`, the oldest first: the words of a job
        must not hide that the GPUs wait.
        """
        return sorted(self.notices, key=_rank_notice)[:limit]

    def find_notice(self, key: NoticeKey) -> Notice | None:
        return self._open.get(key)

    def open_notice(self, notice: Notice) -> None:
        """Open a notice, or replace the one with the same key. If there are too many, the one that
        was opened first is closed and counted.
        """
        is_new = notice.key not in self._open
        if is_new and len(self._open) >= self._max_notices:
            self.close_notice(next(iter(self._open)))
            self.dropped += 1
        self._open[notice.key] = notice
        if is_new:
            self._notify(NoticeChange(notice, is_open=True))

    def close_notice(self, key: NoticeKey) -> Notice | None:
        """Close a notice; returns it as it was, None if it is not open."""
        closed = self._open.pop(key, None)
        if closed is not None:
            self._notify(NoticeChange(closed, is_open=False))
        return closed

    def count_by_code(self) -> dict[str, int]:
        """How many are open, for each code that has any."""
        counts: dict[str, int] = {}
        for notice in self._open.values():
            counts[notice.code] = counts.get(notice.code, 0) + 1
        return counts

    def shift_times(self, seconds: object) -> None:
        """The clock was stepped by so much: convert past times to the new clock."""
        if not isinstance(seconds, (int, float)):
            return
        for key, notice in self._open.items():
            self._open[key] = replace(
                notice, since=notice.since + seconds, last=notice.last + seconds
            )


def _rank_notice(notice: Notice) -> int:
    return NOTICE_CODES.index(notice.code) if notice.code in NOTICE_CODES else len(NOTICE_CODES)
