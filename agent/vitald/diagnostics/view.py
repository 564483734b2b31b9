"""What the API and the metrics show of diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from vitald.diagnostics.check import Check
from vitald.model.diagnostic import ActiveRun, Run, ScheduledRun


class DiagnosticsView(Protocol):
    """The state of diagnostics, for the API and the metrics."""

    @property
    def checks(self) -> Mapping[str, Check]: ...
    @property
    def unavailable(self) -> Mapping[str, str]: ...
    @property
    def active(self) -> Sequence[ActiveRun]: ...
    @property
    def scheduled(self) -> Sequence[ScheduledRun]: ...
    @property
    def last_runs(self) -> Mapping[tuple[str, int], Run]: ...
    @property
    def blocked(self) -> str: ...
