"""
DCGM's background health watches: `dcgmi health`.

The host engine watches the GPUs only after the watches were set, and its answers count about a
minute later; until then a run is inconclusive. The watches last until the engine ends, so they are
set once, and again if the engine reports that there are none.

A failing GPU can make the command stall for tens of seconds and then report that all is well, so a
stall is a fault. `health_scope` knows the complaints that DCGM reports on healthy nodes.

Source: DCGM 3.x and 4.x, dcgmi/Health.cpp.
"""

from __future__ import annotations

import asyncio
import platform
import re
import time
from collections.abc import Callable
from dataclasses import replace

from vitald.catalog import Catalog
from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.dcgm.health_answer import NAME, read_answer
from vitald.diagnostics.dcgm.health_faults import judge_answer, list_culprits, list_tests
from vitald.diagnostics.dcgm.health_scope import BoardTraits, inspect_board
from vitald.diagnostics.dcgm.meanings import Meanings
from vitald.diagnostics.run import tool
from vitald.model.diagnostic import Fault, Measure, Outcome, Remedy, Report, RunRequest

ENGINE_DOWN, STALLED = "dcgm/engine_down", f"{NAME}/stalled"
_NO_CONNECTION, _UNSPECIFIED = 235, 253
_NO_ENGINE = re.compile(
    r"unable to (?:establish a connection|connect to host engine)|host engine connection invalid",
    re.IGNORECASE,
)
_NO_WATCHES = re.compile(r"health watches not enabled", re.IGNORECASE)


def _report_unreadable(output: Output) -> Report:
    """The report on an answer without a complete document."""
    problem = f"dcgmi health ended with {output.exit_code}"
    if output.dropped or "{" in output.stdout:
        problem = "its answer is incomplete"
    last = tool.find_last_line(output.stdout, output.stderr) or "it printed nothing"
    outcome = Outcome.INCONCLUSIVE if output.exit_code == 0 else Outcome.ERROR
    return Report(outcome=outcome, reason=f"{problem}: {last}", remedy=Remedy.RETRY)


class DcgmHealthCheck:
    """Sets the watches, and reads what they report."""

    name = NAME
    title = "DCGM's background watches"
    levels: tuple[int, ...] = (0,)

    def __init__(
        self, config: Config, now: Callable[[], float] = time.monotonic, machine: str = ""
    ) -> None:
        self._settings = config.dcgm_health
        self._program = config.dcgm.program
        self._sysfs = config.paths.sysfs
        self._machine = machine or platform.machine()
        self._now = now
        self._set_at: float | None = None  # None: the engine may have no watches
        self._meanings: Meanings | None = None

    def use_catalog(self, catalog: Catalog) -> None:
        self._meanings = Meanings(catalog, NAME)

    def is_settling(self) -> bool:
        return self._set_at is not None and self._now() - self._set_at < self._settings.settle_s

    def find_obstacle(self) -> str:
        if not self._settings.enabled:
            return "[dcgm_health] enabled = false"
        if not tool.find_program(self._program):
            return tool.explain_absence(self._program)
        count, error = tool.count_gpus(self._sysfs)
        return "" if count else error or tool.NO_GPU

    def every_s(self, level: int) -> float:
        del level
        return self._settings.every_s

    def needs_idle(self, level: int) -> bool:
        del level
        return False

    def expected_s(self, level: int) -> float:
        del level
        return 2.0

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        if self._set_at is None:
            return await self._set_watches(execute, "DCGM's watches were set just now")
        output = await execute(self._build_command("-c", "-j"))
        if (report := self._report_no_answer(output)) is not None:
            return report
        if output.exit_code == _UNSPECIFIED or _NO_WATCHES.search(output.stdout):
            return await self._set_watches(
                execute, "the host engine had no watches, as after a restart: they were set again"
            )
        answer = read_answer(output.stdout) if not output.dropped else None
        if answer is None:
            return _report_unreadable(output)
        since = self._now() - self._set_at
        if self.is_settling():
            reason = (
                f"DCGM says {answer.overall or 'nothing'}, but its watches were set {since:.0f} s"
                f" ago: answers count after {self._settings.settle_s:.0f} s"
            )
            return Report(
                outcome=Outcome.INCONCLUSIVE,
                reason=reason,
                remedy=Remedy.RETRY,
                tests=list_tests(answer),
            )
        traits = BoardTraits()
        if answer.complaints:
            traits = await asyncio.to_thread(inspect_board, self._sysfs, self._machine)
        report = judge_answer(answer, traits, self._meanings)
        return self._restrict_report(report, ask, output)

    def _restrict_report(self, report: Report, ask: RunRequest, output: Output) -> Report:
        """Keep only the requested GPUs, and report no pass if the command itself failed."""
        measures = (
            Measure(name="answer_seconds", value=output.seconds, most=self._settings.deadline_s),
        )
        outcome, reason, faults = report.outcome, report.reason, report.faults
        if ask.gpus:
            faults = tuple(fault for fault in faults if fault.gpu is None or fault.gpu in ask.gpus)
            if outcome is Outcome.FAIL and not faults:
                outcome, reason = (
                    Outcome.PASS,
                    f"of others than GPU {', '.join(map(str, ask.gpus))}: {reason}",
                )
        if outcome is Outcome.PASS and output.exit_code != 0:
            outcome, reason = (
                Outcome.INCONCLUSIVE,
                f"DCGM says that all is well, but ended with {output.exit_code}",
            )
        return replace(
            report,
            outcome=outcome,
            reason=presentable(reason),
            remedy=report.remedy if faults or outcome is not Outcome.PASS else Remedy.NONE,
            faults=faults,
            culprits=list_culprits(faults),
            measures=measures,
        )

    async def _set_watches(self, execute: Execute, reason: str) -> Report:
        self._set_at = None
        output = await execute(self._build_command("-s", "a"))
        if (report := self._report_no_answer(output)) is not None:
            return report
        if output.exit_code != 0:
            last = tool.find_last_line(output.stdout, output.stderr)
            return Report(
                outcome=Outcome.ERROR,
                reason=f"DCGM's watches could not be set (exit {output.exit_code}): {last}",
                remedy=Remedy.FIX_CONFIG,
            )
        self._set_at = self._now()
        return Report(
            outcome=Outcome.INCONCLUSIVE,
            reason=f"{reason}; their answers count after {self._settings.settle_s:.0f} s",
            remedy=Remedy.RETRY,
        )

    def _report_no_answer(self, output: Output) -> Report | None:
        """The report if the command did not end by itself, or found no engine; else None."""
        if (report := tool.report_not_run("dcgmi health", output)) is not None:
            return report
        if output.ended is ProgramEnd.DEADLINE:
            left = (
                f"; {', '.join(map(presentable, output.left[:3]))} could not be ended"
                if output.left
                else ""
            )
            problem = f"dcgmi health did not answer within {self._settings.deadline_s:g} s{left}"
            fault = Fault(
                code=STALLED, test="health", text=f"{problem}: DCGM, the driver or a GPU may hang"
            )
            return Report(
                outcome=Outcome.ERROR, reason=problem, remedy=Remedy.INVESTIGATE, faults=(fault,)
            )
        if output.exit_code == _NO_CONNECTION or (
            output.exit_code != 0 and _NO_ENGINE.search(f"{output.stdout}\n{output.stderr}")
        ):
            self._set_at = None  # the watches end with the engine
            problem = "the host engine (nv-hostengine) does not answer: systemctl start nvidia-dcgm"
            fault = Fault(code=ENGINE_DOWN, test="health", text=problem, remedy=Remedy.FIX_CONFIG)
            return Report(
                outcome=Outcome.ERROR, reason=problem, remedy=Remedy.FIX_CONFIG, faults=(fault,)
            )
        return None

    def _build_command(self, *words: str) -> Command:
        program = tool.find_program(self._program) or self._program
        return Command(
            argv=(program, "health", "-g", "0", *words), deadline_s=self._settings.deadline_s
        )


def build_check(config: Config) -> Check:
    return DcgmHealthCheck(config)
