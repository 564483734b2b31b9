"""
The events of `vitald report`: read in pages, the newest first, and kept compressed within a limit,
so that the newest are there if not all fit.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.server import schema


class EventPages:
    """The data of the pages, in the order in which the events happened. `cut`: what is left out."""

    def __init__(
        self,
        pages: Iterable[Sequence[schema.ApiEvent]],
        write: Callable[[Mapping[str, object]], bytes],
        *,
        most: int,
        until: float,
    ) -> None:
        """`pages`: the newest first. `most`: bytes, compressed. `until`: on the monotonic clock, no
        more are read after it.
        """
        self.cut = ""
        # Length, compressed data, time of the first event; the newest page first.
        self._kept: list[tuple[int, bytes, object]] = []
        try:
            for page in pages:
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
            # What was read is worth keeping, whatever went wrong.
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
        self.cut = f"those before {self._kept[-1][2]} are left out: {why}"
