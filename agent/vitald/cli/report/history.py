"""
What has happened, for `vitald report`: from the daemon, or without an answer from its ledger
(agent/vitald/cli/report/ledger_history.py). Both give the same JSON.

Owns     querying the daemon until it is found not to answer, and no more after that; the events,
         fetched in pages, the newest first, and kept compressed.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from vitald.cli import CommandFailed, client
from vitald.cli.client import NoAnswer
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, Answer, Get

if TYPE_CHECKING:
    from vitald.server import schema


class HistorySource(Protocol):
    """Where findings, events and runs come from. All raise."""

    @property
    def origin(self) -> str: ...
    def read_status(self) -> Mapping[str, object]: ...
    def list_open(self) -> list[schema.ApiFinding]: ...
    def list_cleared(self) -> list[schema.ApiFinding]: ...
    def list_incidents(self) -> list[schema.ApiIncident]: ...
    def explain_finding(self, finding: object) -> schema.Why: ...
    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[schema.ApiEvent]: ...
    def list_runs(self) -> list[schema.DiagnosticRun]: ...
    def read_run(self, id_: str) -> schema.DiagnosticRunInFull: ...


class DaemonHistory:
    """Queries the daemon, until it has not answered once."""

    origin = "the daemon"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._silent = ""

    def get(self, endpoint: Get[Answer], **values: object) -> Answer:
        if self._silent:
            raise CommandFailed(f"not asked: {self._silent}")
        try:
            return client.get(self._arguments, endpoint, **values)
        except NoAnswer as error:
            self._silent = str(error)
            raise
        except RecursionError:
            target = endpoint.make_target(values)
            raise CommandFailed(f"{target}: an answer that nobody can read") from None

    def read_status(self) -> schema.NodeStatus:
        return self.get(endpoints.STATUS)

    def list_open(self) -> list[schema.ApiFinding]:
        return _read_list(self.get(endpoints.FINDINGS, limit=MAX_PAGE), "findings")

    def list_cleared(self) -> list[schema.ApiFinding]:
        return _read_list(self.get(endpoints.FINDINGS, state="cleared", limit=MAX_PAGE), "findings")

    def list_incidents(self) -> list[schema.ApiIncident]:
        return _read_list(self.get(endpoints.INCIDENTS, limit=MAX_PAGE), "incidents")

    def explain_finding(self, finding: object) -> schema.Why:
        return self.get(endpoints.WHY, id=finding)

    def list_events(
        self, since: float, *, after: int | None = None, newest: bool = False, limit: int = MAX_PAGE
    ) -> list[schema.ApiEvent]:
        begin = str(after) if after is not None else f"{max(0, time.time() - since):.0f}s"
        return _read_list(
            self.get(endpoints.EVENTS, since=begin, limit=limit, newest="true" if newest else None),
            "events",
        )

    def list_runs(self) -> list[schema.DiagnosticRun]:
        return _read_list(self.get(endpoints.DIAGNOSTIC_RUNS, limit=MAX_PAGE), "runs")

    def read_run(self, id_: str) -> schema.DiagnosticRunInFull:
        return self.get(endpoints.DIAGNOSTIC_RUN, id=id_)


def _read_list(answer: Mapping[str, Any], key: str) -> list[Any]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"no list of {key} in the answer")
    return found


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
