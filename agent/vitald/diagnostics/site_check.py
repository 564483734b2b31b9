"""
Checks of the site's own: a program of the configuration, which says by its exit code whether the
node is fit. What it prints last is the evidence.

Owns     the code of such a check, `check/NAME`, and the meaning of its end.
Refuses  the meaning of what it prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vitald.collectors.small_files import presentable
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import tool
from vitald.diagnostics.run.descendants import Process, is_running
from vitald.diagnostics.settings import ExitCodes, ExitMeaning, SiteCheckSettings
from vitald.model.codes import SITE_CHECK
from vitald.model.diagnostic import MONITOR, TRIAGE, Fault, Outcome, Remedy, Report, RunRequest

_EVIDENCE_LINES = 3  # of each of its two streams
_EVIDENCE_WIDTH = 200  # characters of a line
# Kept of its output: a check that fails for a month must not displace the rest of the ledger
_MAX_BYTES = 16 * 1024


class SiteCheck:
    """One check of the site."""

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
            return presentable(output.why)
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
        yield from (presentable(line[:_EVIDENCE_WIDTH]) for line in lines[-_EVIDENCE_LINES:])


def build_checks(settings: Mapping[str, SiteCheckSettings]) -> dict[str, Check]:
    """The site's checks by name."""
    return {name: SiteCheck(name, settings[name]) for name in sorted(settings)}
