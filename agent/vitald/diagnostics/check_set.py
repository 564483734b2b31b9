"""The checks of this node, and which of them can run here."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import structlog

from vitald.catalog import Catalog
from vitald.diagnostics.check import CatalogReader, Check, WatchCheck
from vitald.diagnostics.problem_log import ProblemLog
from vitald.model.diagnostic import RunRequest
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_PROBLEM = "programs_not_looked_for"
_REFRESH_S = 5.0  # the programs and the devices are searched no more often


class CheckSet:
    """All checks by name, whether or not their programs are installed."""

    def __init__(
        self, checks: Mapping[str, Check], worker_thread: WorkerThread, problems: ProblemLog
    ) -> None:
        self.by_name = checks
        # Why a check cannot run here, "" if it can. A check that was not examined yet is not in it.
        self.unavailable: Mapping[str, str] = {}
        self._worker_thread = worker_thread
        self._problems = problems
        self._refreshed_at = -math.inf

    def configure(self, catalog: Catalog) -> None:
        """Hands the catalogue to the checks that read codes from it."""
        for check in self.by_name.values():
            if isinstance(check, CatalogReader):
                check.use_catalog(catalog)

    def requires_idle(self, ask: RunRequest) -> bool:
        """True if the run must wait until the devices are idle."""
        return self.by_name[ask.check].needs_idle(ask.level) and not ask.busy

    def is_watch(self, name: str) -> bool:
        """True for a check that reads a watch: it runs beside other runs."""
        return isinstance(self.by_name.get(name), WatchCheck)

    def is_settling(self, name: str) -> bool:
        """True while the answers of a watch do not count yet."""
        check: object = self.by_name.get(name)
        return isinstance(check, WatchCheck) and check.is_settling()

    def expected_s(self, ask: RunRequest) -> float:
        """How long the run takes by the check's own estimate."""
        return self.by_name[ask.check].expected_s(ask.level)

    def list_periodic(self) -> list[tuple[str, int]]:
        """Check and level of everything that the schedule runs on this node."""
        return [
            (name, level)
            for name, check in self.by_name.items()
            for level in check.levels
            if check.every_s(level) > 0.0 and not self.unavailable.get(name, "not looked for yet")
        ]

    async def refresh(self) -> None:
        """Examines which programs are installed. If that hangs, the last result stays valid."""
        if time.monotonic() - self._refreshed_at < _REFRESH_S:
            return
        try:
            unavailable = await self._worker_thread.call(
                lambda: {name: _find_obstacle(check) for name, check in self.by_name.items()}
            )
        except ThreadStuck as error:
            self._problems.report_problem(
                _PROBLEM, error, "what was there before is taken to be there"
            )
            return
        self._refreshed_at = time.monotonic()
        self._problems.clear_problem(_PROBLEM)
        for name, reason in unavailable.items():
            if reason != self.unavailable.get(name, "") and self._is_periodic(name):
                event = "diagnostic_cannot_run" if reason else "diagnostic_can_run"
                log.info(event, check=name, reason=reason)
        self.unavailable = unavailable

    def _is_periodic(self, name: str) -> bool:
        check = self.by_name[name]
        return any(check.every_s(level) for level in check.levels)


def _find_obstacle(check: Check) -> str:
    try:
        return check.find_obstacle()
    except Exception as error:  # a fault in one check must not affect the others
        return f"{type(error).__name__}: {error}"
