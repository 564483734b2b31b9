"""
How the node and its schedulers responded to the last fault that made the node unfit.

Owns     the last response of each kind, real and simulated, and the state of each scheduler. All of
         it follows from events, and from the finding of a validation, which are in the ledger.
Refuses  I/O, clocks and judging. `FitnessMonitor` makes the events of the node's fitness, a
         scheduler's are reported over the socket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vitald.model import NODE, Component, Event, Fields, Finding
from vitald.model.codes import CLOCK_STEPPED, DRAINED, FIT, IN_SERVICE, UNFIT, VALIDATION_PENDING
from vitald.model.response import Response, ServiceState, shift_response

# The codes of the events that change a response
RESPONSE_CODES = (UNFIT, FIT, DRAINED, IN_SERVICE, CLOCK_STEPPED)
MAX_SCHEDULERS = 4
_OF_VALIDATION = "validation/"
_BY_DIAGNOSTIC = "diagnostic passed"  # end of the cause with which a passed one closes a finding


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """What a scheduler reported last, and since when it holds."""

    state: ServiceState
    since: float


class Responses:
    """The last responses, at most one for real faults and one for drills."""

    def __init__(self) -> None:
        self._latest: dict[bool, Response] = {}  # by whether it is simulated
        self._schedulers: dict[str, SchedulerReport] = {}

    @property
    def latest(self) -> tuple[Response, ...]:
        """The last response to a real fault, and to a drill, as far as there were any."""
        return tuple(self._latest[kind] for kind in (False, True) if kind in self._latest)

    @property
    def schedulers(self) -> Mapping[str, SchedulerReport]:
        """The last report of each scheduler that ever drained the node, by its name."""
        return self._schedulers

    def get_latest(self, *, simulated: bool) -> Response | None:
        return self._latest.get(simulated)

    def is_reported(self, scheduler: str, state: ServiceState) -> bool:
        """Whether a report of this would change nothing. A scheduler that never drained the node
        has it in service.
        """
        report = self._schedulers.get(scheduler)
        known = ServiceState.IN_SERVICE if report is None else report.state
        return state is known

    def restore(self, events: Iterable[Event], validation: Finding | None) -> None:
        """Restore from events of the ledger, oldest first, and the validation that ended last."""
        for event in events:
            self.take_event(event)
        if validation is not None:
            self.take_validation(validation)

    def take_event(self, event: Event) -> None:
        """Apply an event of `RESPONSE_CODES`; any other changes nothing."""
        if not event.is_judged:
            return
        if event.code == UNFIT:
            self._begin_response(event)
        elif event.code == FIT:
            self._note_fit(event)
        elif event.code in (DRAINED, IN_SERVICE):
            self._note_scheduler(event)
        elif event.code == CLOCK_STEPPED:
            self._shift_times(event.fields.get("seconds"))

    def take_validation(self, finding: Finding) -> None:
        """Apply the end of a validation; one that a person ended, or that became impossible, proves
        nothing.
        """
        response, at = self._latest.get(False), finding.cleared_at
        if response is None or at is None or finding.code != VALIDATION_PENDING:
            return
        until = float("inf") if response.fit is None else response.fit
        passed = (finding.cleared_by or "").endswith(_BY_DIAGNOSTIC)
        if passed and response.unfit <= at <= until:
            self._latest[False] = replace(response, validated=at)

    def _begin_response(self, event: Event) -> None:
        fields, unfit = event.fields, event.time
        first = unfit - _read_seconds(fields, "seconds")
        is_drained = any(map(_is_drained, self._schedulers.values()))
        self._latest[event.is_simulated] = Response(
            finding=_read_integer(fields, "finding"),
            incident=_read_integer(fields, "incident"),
            component=Component.parse_name(str(fields.get("component") or "")),
            code=str(fields.get("code") or ""),
            simulated=event.is_simulated,
            first=first,
            detected=first + _read_seconds(fields, "detected"),
            unfit=unfit,
            drained=unfit if is_drained else None,
        )

    def _note_fit(self, event: Event) -> None:
        response = self._latest.get(event.is_simulated)
        if response is None or response.fit is not None:
            return
        fit = replace(response, fit=event.time)
        if fit.drained is not None and not any(map(_is_drained, self._schedulers.values())):
            fit = replace(fit, in_service=event.time)  # a person had resumed the node before
        self._latest[event.is_simulated] = fit

    def _note_scheduler(self, event: Event) -> None:
        name = str(event.fields.get("scheduler") or "")
        if name not in self._schedulers and len(self._schedulers) >= MAX_SCHEDULERS:
            return
        is_drained = event.code == DRAINED
        state = ServiceState.DRAINED if is_drained else ServiceState.IN_SERVICE
        self._schedulers[name] = SchedulerReport(state, event.time)
        for kind, response in self._latest.items():
            if is_drained:
                if response.fit is None and response.drained is None:
                    self._latest[kind] = replace(response, drained=event.time)
            elif _awaits_service(response) and not any(map(_is_drained, self._schedulers.values())):
                self._latest[kind] = replace(response, in_service=event.time)

    def _shift_times(self, seconds: object) -> None:
        """The clock was stepped: convert past times to the new clock, as those of findings."""
        if not isinstance(seconds, (int, float)):
            return
        for kind, response in self._latest.items():
            self._latest[kind] = shift_response(response, seconds)
        for name, report in self._schedulers.items():
            self._schedulers[name] = replace(report, since=report.since + seconds)


def is_validation(finding: Finding) -> bool:
    """Whether a finding only says that the node was not validated: it begins no response."""
    return finding.component == NODE and finding.code.startswith(_OF_VALIDATION)


def _is_drained(report: SchedulerReport) -> bool:
    return report.state is ServiceState.DRAINED


def _awaits_service(response: Response) -> bool:
    return response.fit is not None and response.drained is not None and response.in_service is None


def _read_seconds(fields: Fields, name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _read_integer(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) else 0
