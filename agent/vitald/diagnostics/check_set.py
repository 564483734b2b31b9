"""The checks of this node, and which of them can run here."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from vitald.catalog import Catalog
from vitald.diagnostics.check import CatalogReader, Check
from vitald.diagnostics.problem_log import ProblemLog
from vitald.diagnostics.schedule import SCHEDULE
from vitald.diagnostics.settings import SiteCheckSettings
from vitald.diagnostics.site_check import SiteCheck, build_checks
from vitald.model.diagnostic import RunRequest
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_PROBLEM = "programs_not_looked_for"


class CheckSet:
    """All checks by name, whether or not their programs are installed."""

    def __init__(
        self, checks: Mapping[str, Check], worker_thread: WorkerThread, problems: ProblemLog
    ) -> None:
        self.by_name = checks  # the site's among them
        # Why a check cannot run here, "" if it can. A check that was not examined yet is not in it.
        self.unavailable: Mapping[str, str] = {}
        self._worker_thread = worker_thread
        self._problems = problems

    def configure(self, catalog: Catalog, site: Mapping[str, SiteCheckSettings]) -> None:
        """Takes the site's checks, and hands the catalogue to the checks that read codes from it.

        A check whose settings are the same remains, since it knows what it left running.
        """
        remaining = {
            name: check
            for name, check in self.by_name.items()
            if not isinstance(check, SiteCheck) or check.settings == site.get(name)
        }
        checks = {**build_checks(site), **remaining}
        self.by_name = {name: checks[name] for name in sorted(checks)}
        self.unavailable = self._without_removed(self.unavailable)
        for check in self.by_name.values():
            if isinstance(check, CatalogReader):
                check.use_catalog(catalog)

    def is_routine(self, request: RunRequest) -> bool:
        """Whether it runs so often that the same result again is not worth a line in the log."""
        return request.by == SCHEDULE and isinstance(self.by_name.get(request.check), SiteCheck)

    def requires_idle(self, request: RunRequest) -> bool:
        """True if the run must wait until the devices are idle."""
        return self.by_name[request.check].needs_idle(request.level) and not request.busy

    def expected_s(self, request: RunRequest) -> float:
        """How long the run takes by the check's own estimate."""
        return self.by_name[request.check].expected_s(request.level)

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
        try:
            unavailable = await self._worker_thread.call(
                lambda: {name: _find_obstacle(check) for name, check in self.by_name.items()}
            )
        except ThreadStuck as error:
            self._problems.report_problem(
                _PROBLEM, error, "what was there before is taken to be there"
            )
            return
        self._problems.clear_problem(_PROBLEM)
        for name, reason in unavailable.items():
            if reason != self.unavailable.get(name, "") and self._is_periodic(name):
                event = "diagnostic_cannot_run" if reason else "diagnostic_can_run"
                log.info(event, check=name, reason=reason)
        self.unavailable = self._without_removed(unavailable)

    def _without_removed(self, unavailable: Mapping[str, str]) -> dict[str, str]:
        return {name: reason for name, reason in unavailable.items() if name in self.by_name}

    def _is_periodic(self, name: str) -> bool:
        check = self.by_name[name]
        return any(check.every_s(level) for level in check.levels)


def _find_obstacle(check: Check) -> str:
    try:
        return check.find_obstacle()
    except Exception as error:  # a fault in one check must not affect the others
        return f"{type(error).__name__}: {error}"
