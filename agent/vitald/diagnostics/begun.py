"""
The run that has begun, as it is kept in the ledger before its program starts: what was cut by a
crash is recorded at the next start, and the processes that it has left are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from vitald.model.diagnostic import Outcome, Remedy, Report, Run, RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """A run that has begun and not ended. `marker` is in the environment of its processes."""

    id: str
    request: RunRequest
    began: float  # seconds since the epoch
    marker: str

    @property
    def memory(self) -> Mapping[str, object]:
        """What must be kept across restarts, for JSON."""
        return asdict(self)

    def make_interrupted_run(self, now: float, *, rebooted: bool) -> Run:
        """The run as it is recorded by the next daemon. `rebooted`: since it began."""
        cause = "the node or vitald went down" if rebooted else "vitald was killed or crashed"
        report = Report(
            outcome=Outcome.INCONCLUSIVE,
            reason=f"interrupted: {cause} while it ran",
            remedy=Remedy.RETRY,
        )
        return Run(id=self.id, request=self.request, began=self.began, ended=now, report=report)


def read_begun(stored: Mapping[str, object]) -> BegunRun:
    """Restores `memory`. Raises TypeError, ValueError, KeyError."""
    return BegunRun(
        id=str(stored["id"]),
        request=read_request(stored["request"]),
        began=float(str(stored["began"])),
        marker=str(stored["marker"]),
    )


def read_request(stored: object) -> RunRequest:
    """Restores a request from JSON. Raises TypeError, ValueError, KeyError."""
    if not isinstance(stored, dict):
        raise TypeError("not what was stored")
    return RunRequest(
        check=str(stored["check"]),
        level=int(stored["level"]),
        gpus=tuple(map(int, stored["gpus"])),
        by=str(stored["by"]),
        reason=str(stored["reason"]),
        busy=stored["busy"] is True,
    )
