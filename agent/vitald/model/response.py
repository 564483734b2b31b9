"""
The response to a fault that made the node unfit: what was done about it, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from vitald.model.component import Component


class Step(Enum):
    """One step of a response, in the order in which they come."""

    DETECTED = "detected"  # vitald had read the fault
    UNFIT = "unfit"  # the verdict was stored and could be read
    DRAINED = "drained"  # a scheduler gives the node no more work
    VALIDATED = "validated"  # a diagnostic passed after the repair
    BACK = "back"  # the node may have work again


class ServiceState(Enum):
    """Whether a scheduler gives the node work, as far as vitald decides it."""

    DRAINED = "drained"
    IN_SERVICE = "in_service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response. Times in seconds since the epoch; None for what has not happened, or was not
    reported.
    """

    finding: int
    incident: int
    component: Component
    code: str
    simulated: bool
    first: float  # the source's own time of the event that made the node unfit
    detected: float
    unfit: float
    drained: float | None = None
    validated: float | None = None
    fit: float | None = None  # no finding makes the node unfit any more
    in_service: float | None = None  # the scheduler that drained it gives it work again

    @property
    def back(self) -> float | None:
        """When the node could have work again: in service if it was drained, else when fit."""
        return self.fit if self.drained is None else self.in_service

    @property
    def is_over(self) -> bool:
        return self.back is not None


def compute_steps(response: Response) -> Mapping[Step, float]:
    """The seconds from `first` to each step that was reached. No step is shorter than the one
    before it, which clocks of different origin could make it.
    """
    reached = {
        Step.DETECTED: response.detected,
        Step.UNFIT: response.unfit,
        Step.DRAINED: response.drained,
        Step.VALIDATED: response.validated,
        Step.BACK: response.back,
    }
    steps: dict[Step, float] = {}
    least = 0.0
    for step, at in reached.items():
        if at is None:
            continue
        least = max(least, at - response.first)
        steps[step] = least
    return steps


def shift_response(response: Response, seconds: float) -> Response:
    """The response with its times on a clock that was stepped by `seconds`."""

    def shift(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return Response(
        finding=response.finding,
        incident=response.incident,
        component=response.component,
        code=response.code,
        simulated=response.simulated,
        first=response.first + seconds,
        detected=response.detected + seconds,
        unfit=response.unfit + seconds,
        drained=shift(response.drained),
        validated=shift(response.validated),
        fit=shift(response.fit),
        in_service=shift(response.in_service),
    )
