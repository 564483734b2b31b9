"""
The checks of this node, and which of them can run here; with the checks of the site's own: a
program of the configuration, which says by its exit code whether the node is fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import structlog

from vitald.catalog import Catalog
from vitald.diagnostics.check import CatalogReader, Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.problem_log import ProblemLog
from vitald.diagnostics.run import tool
from vitald.diagnostics.run.held_processes import Process, is_running
from vitald.diagnostics.schedule import SCHEDULE
from vitald.diagnostics.settings import ExitCodes, ExitMeaning, SiteCheckSettings
from vitald.model.diagnostic import MONITOR, TRIAGE, Fault, Report, RunRequest
from vitald.model.event import SITE_CHECK
from vitald.model.words import Outcome, Remedy
from vitald.text import clean_line
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_PROBLEM = "programs_not_looked_for"
_EVIDENCE_LINES = 3  # of each of its two streams
_EVIDENCE_WIDTH = 200  # characters of a line
# Kept of its output: a check that fails for a month must not displace the rest of the ledger
_MAX_BYTES = 16 * 1024


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


class SiteCheck:
    """One check of the site: `check/NAME`. What its program prints last is the evidence; the
    meaning of that is the site's.
    """

    levels: tuple[int, ...] = (0,)
    covers_gpus = False

    def __init__(self, name: str, settings: SiteCheckSettings) -> None:
        self.name = name
        self.title = f"site check {name}"
        self.settings = settings
        self._left: tuple[Process, ...] = ()  # of the last run, since they could not be ended

    def find_obstacle(self) -> str:
        """None: that a program of the site cannot be run must be noticed, so it is tried."""
        return ""

    def every_s(self, level: int) -> float:
        del level
        return self.settings.every_s

    def needs_idle(self, level: int) -> bool:
        del level
        return self.settings.idle

    def expected_s(self, level: int) -> float:
        del level
        return 1.0

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        del request  # its GPUs are not tested
        codes = self.settings.exit_codes
        # A program that hangs in the kernel must not be joined by one more at every period.
        self._left = tuple(filter(is_running, self._left))
        if self._left:
            names = ", ".join(map(str, self._left))
            return self._report(codes.deadline, f"not run: {names} of the last run hangs")
        command = Command(
            argv=self.settings.run, deadline_s=self.settings.deadline_s, max_bytes=_MAX_BYTES
        )
        output = await execute(command)
        self._left = output.left
        if (report := tool.report_not_run(self.title, output)) is not None:
            return report
        return self._report(
            _find_meaning(codes, output),
            "; ".join((self._describe_end(output), *_list_last_lines(output))),
        )

    def _describe_end(self, output: Output) -> str:
        if output.ended is ProgramEnd.DEADLINE:
            return f"no end within {self.settings.deadline_s:g} s"
        if output.exit_code is None:
            return clean_line(output.why)
        return f"exit code {output.exit_code}"

    def _report(self, meaning: ExitMeaning, reason: str) -> Report:
        if meaning is ExitMeaning.PASS:
            return Report(outcome=Outcome.PASS)
        if meaning is ExitMeaning.UNKNOWN:
            return tool.report_error(reason)
        fails = meaning is ExitMeaning.FAIL
        fault = Fault(
            code=f"{SITE_CHECK}/{self.name}",
            test=self.name,
            text=reason,
            severity=TRIAGE if fails else MONITOR,
            remedy=Remedy.INVESTIGATE if fails else Remedy.MONITOR,
        )
        return Report(outcome=Outcome.FAIL, reason=reason, remedy=fault.remedy, faults=(fault,))


def _find_meaning(codes: ExitCodes, output: Output) -> ExitMeaning:
    if output.ended is ProgramEnd.DEADLINE:
        return codes.deadline
    if output.exit_code is None:
        return ExitMeaning.UNKNOWN
    return codes.listed.get(output.exit_code, codes.other)


def _list_last_lines(output: Output) -> Iterator[str]:
    for text in (output.stdout, output.stderr):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        yield from (clean_line(line[:_EVIDENCE_WIDTH]) for line in lines[-_EVIDENCE_LINES:])


def build_checks(settings: Mapping[str, SiteCheckSettings]) -> dict[str, Check]:
    """The site's checks by name."""
    return {name: SiteCheck(name, settings[name]) for name in sorted(settings)}
