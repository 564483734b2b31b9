"""
Runs that are owed: requested, and without a verdict so far.

A request is kept over pre-emption and restarts, until a run has answered it or a person cancels it.
The schedule and the open findings repeat their requests by themselves: of these it is kept since
when a run is owed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from vitald.backoff import Backoff
from vitald.diagnostics.begun import read_request
from vitald.diagnostics.schedule import MAX_RETRIES, RETRY_S, SCHEDULE, was_prevented
from vitald.model.diagnostic import Outcome, OwedRun, Run, RunRequest

_DAY_S = 86400.0
BY_FINDING = "finding #"
MAX_DELAY_S = 4.0 * RETRY_S  # between two attempts
_BACKOFF = Backoff(RETRY_S, MAX_DELAY_S)


class OwedRuns:
    """At most one for the same check, level and GPUs. `holds_node`: whether the node is held for
    those that are overdue.
    """

    def __init__(self) -> None:
        self.holds_node = False
        self._by_id: dict[str, OwedRun] = {}

    def list_runs(self) -> list[OwedRun]:
        """The one that is owed for the longest time first."""
        return sorted(self._by_id.values(), key=lambda owed: owed.since)

    def find(self, request: RunRequest) -> OwedRun | None:
        """What is owed for the same request, by any requester."""
        wanted = replace(request, by="", reason="")
        return next(
            (
                owed
                for owed in self._by_id.values()
                if replace(owed.request, by="", reason="") == wanted
            ),
            None,
        )

    def put(self, owed: OwedRun) -> None:
        self._by_id[owed.id] = owed

    def remove(self, run_id: str) -> None:
        self._by_id.pop(run_id, None)

    def take_result(self, run: Run, *, cut: bool) -> None:
        """A run has ended. `cut`: it was stopped."""
        if run.report.outcome.is_verdict:
            self._by_id = {
                owed.id: owed for owed in self._by_id.values() if not _answers(run, owed.request)
            }
            return
        owed = self._by_id.pop(run.id, None)
        # What a program reports at its own end is an answer, too, once it was repeated.
        if owed is None or not was_prevented(run) or not (cut or owed.attempts < MAX_RETRIES):
            return
        attempts = owed.attempts + 1
        self.put(
            replace(
                owed,
                id=f"{owed.id.removesuffix(f'.{attempts}')}.{attempts + 1}",
                attempts=attempts,
                not_before=run.ended + _BACKOFF.delay_s(attempts - 1),
                why=run.report.reason,
            )
        )

    @property
    def memory(self) -> Sequence[Mapping[str, object]]:
        """What must be kept across restarts, for JSON."""
        return [asdict(owed) for owed in self.list_runs()]

    def recall_memory(self, memory: Sequence[Mapping[str, object]]) -> None:
        """Restores `memory`. Raises TypeError, ValueError, AttributeError, KeyError."""
        recalled = {owed.id: owed for owed in map(_read_owed, memory)}
        self._by_id = {**recalled, **self._by_id}  # a client may have requested one already


def is_overdue(since: float, now: float) -> bool:
    return now - since >= _DAY_S


def is_automatic(request: RunRequest) -> bool:
    """True if the schedule or a finding requested the run, not a person or a job."""
    return request.by == SCHEDULE or request.by.startswith(BY_FINDING)


def _answers(run: Run, request: RunRequest) -> bool:
    """Whether the verdict of a run is one for this request: a pass is one for lower levels, too."""
    return (
        run.request.check == request.check
        and (run.request.level == request.level or run.report.outcome is Outcome.PASS)
        and run.request.level >= request.level
        and (
            not run.request.gpus
            or (bool(request.gpus) and set(request.gpus) <= set(run.request.gpus))
        )
    )


def _read_owed(stored: Mapping[str, object]) -> OwedRun:
    return OwedRun(
        id=str(stored["id"]),
        request=read_request(stored["request"]),
        since=float(str(stored["since"])),
        attempts=int(str(stored["attempts"])),
        not_before=float(str(stored["not_before"])),
        why=str(stored["why"]),
    )
