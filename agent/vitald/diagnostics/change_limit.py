"""
How many changes of a watch's answers are recorded.

An answer that hovers at a limit of the watch would fill the ledger, and drain and resume the node
at each turn. Beyond the limit the findings stay open until the answers have been equal for a while.
A fault that is new is never withheld.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vitald.model.diagnostic import Fault, Run

_HOUR_S = 3600.0
_PER_HOUR = 20.0  # changes that are recorded at once
_EQUAL_FOR_S = 600.0  # beyond that: how long answers must be equal until they are recorded

# The code, the device, the severity, and the order of magnitude of the figure.
FaultKey = tuple[str, "int | None", str, "int | None", int]


def identify_faults(run: Run) -> frozenset[FaultKey]:
    """The faults of an answer, without their figures, which change with each answer."""
    return frozenset(
        (fault.code, fault.gpu, fault.device, fault.severity, _count_digits(fault))
        for fault in run.report.faults
    )


def _count_digits(fault: Fault) -> int:
    """The order of magnitude: the figure itself is another one in each answer."""
    return len(f"{fault.times_limit:.0f}") if fault.times_limit is not None else 0


@dataclass(slots=True)
class ChangeLimit:
    """The changes of one watch. Times are those of its runs; a clock that is set back neither adds
    changes nor ends a wait.
    """

    _left: float = _PER_HOUR
    _time: float = 0.0  # of the last answer
    _answer: object = None
    _equal_since: float = 0.0
    _is_exceeded: bool = False
    _recorded: dict[FaultKey, float] = field(default_factory=dict)  # when each fault last was

    def note_answer(self, run: Run, answer: object) -> None:
        """Call it for each answer. `answer`: equal for answers that say the same."""
        elapsed_s = run.ended - self._time
        if elapsed_s > 0.0:
            self._left = min(_PER_HOUR, self._left + elapsed_s * _PER_HOUR / _HOUR_S)
        if answer != self._answer or elapsed_s < 0.0:
            self._answer, self._equal_since = answer, run.ended
        if run.ended - self._equal_since >= _EQUAL_FOR_S:
            self._is_exceeded = False
        self._time = run.ended

    def allow_change(self, run: Run, last: Run) -> bool:
        """Whether an answer that differs from the `last` recorded one may be recorded now. A
        recovery leaves one change for the fault that may return.
        """
        faults, hour_ago = identify_faults(run), run.ended - _HOUR_S
        self._recorded = {key: time for key, time in self._recorded.items() if time > hour_ago}
        if faults - self._recorded.keys():
            return True
        if faults - identify_faults(last):
            return self._left >= 1.0
        self._is_exceeded = self._is_exceeded or self._left < 2.0
        return not self._is_exceeded

    def note_record(self, run: Run) -> None:
        """Call it for each answer that is recorded."""
        self._left = max(0.0, self._left - 1.0)
        self._recorded.update(dict.fromkeys(identify_faults(run), run.ended))
