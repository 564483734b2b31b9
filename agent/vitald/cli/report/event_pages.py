"""The events of `vitald report`: fetched in pages, the newest first, and kept compressed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from vitald.cli.report.history import HistorySource
from vitald.server.endpoint import MAX_PAGE

if TYPE_CHECKING:
    from vitald.server import schema


class EventPages:
    """Events in the order in which they happened, kept compressed; the newest are fetched first, so
    that these are there if not all fit.
    """

    def __init__(
        self,
        history: HistorySource,
        since: float,
        write: Callable[[Mapping[str, object]], bytes],
        *,
        most: int,
        until: float,
    ) -> None:
        """`most`: bytes, compressed. `until`: on the monotonic clock, no more are fetched
        after it.
        """
        self.cut = ""
        # Length, compressed data, time of the first event; the newest page first.
        self._kept: list[tuple[int, bytes, object]] = []
        try:
            for page in _read_backwards(history, since):
                data = b"".join(map(write, page))
                self._kept.append((len(data), zlib.compress(data, 1), page[0]["time"]))
                if sum(len(data) for _, data, _ in self._kept) > most:
                    self._note_cut("there are too many")
                    break
                if time.monotonic() > until:
                    self._note_cut("it took too long")
                    break
        except Exception as error:
            if not self._kept:
                raise
            # What was fetched is worth keeping, whatever went wrong.
            self._note_cut(str(error))

    @property
    def size(self) -> int:
        return sum(length for length, _, _ in self._kept)

    def __iter__(self) -> Iterator[bytes]:
        return (zlib.decompress(data) for _, data, _ in reversed(self._kept))

    def drop_older_half(self) -> bool:
        """Drops the older half of the pages. False if fewer than two are left."""
        if len(self._kept) < 2:
            return False
        del self._kept[len(self._kept) // 2 :]
        self._note_cut("there are too many")
        return True

    def _note_cut(self, why: str) -> None:
        self.cut = f"those before {self._kept[-1][2]} are left out: {why}" if self._kept else why


def _read_backwards(history: HistorySource, since: float) -> Iterator[list[schema.ApiEvent]]:
    """Pages from the newest to the oldest, each in ascending order. The API only pages forward, so
    each page is requested by the event number before it.
    """
    first, last = (
        history.list_events(since, limit=1),
        history.list_events(since, newest=True, limit=1),
    )
    if not first or not last:
        return
    upper, bottom = _read_id(last[0]), _read_id(first[0])
    while upper >= bottom:
        lower = max(bottom, upper - MAX_PAGE + 1) - 1
        page = [
            event for event in history.list_events(since, after=lower) if _read_id(event) <= upper
        ]
        if page:
            yield page
        upper = lower


def _read_id(event: schema.ApiEvent) -> int:
    return int(str(event["id"]))
