"""
DCGM's diagnostic: `dcgmi diag -r LEVEL`.

Each run first reads the version of dcgmi, since some options exist only in some versions, and
probes the host engine: without one, `dcgmi diag` silently starts an engine of its own, with the
privileges of vitald. As root such a run is judged as any other, with a second fault that the engine
is down; as an ordinary user it is not started, because most tests need more privileges.

The tests run in the engine, not in `dcgmi`. SIGTERM therefore has a long grace period, in which the
engine ends what it started, and dcgmi itself times out shortly before the deadline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitald.catalog import Catalog
from vitald.catalog.settings import load_configured_catalog
from vitald.config.paths import Paths, is_root
from vitald.config.values import Config
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.dcgm import reading, short_answers
from vitald.diagnostics.dcgm.known_outputs import parse_version
from vitald.diagnostics.dcgm.meanings import ENGINE_DOWN, Meanings
from vitald.diagnostics.dcgm.run_context import explain_age
from vitald.diagnostics.run import tool
from vitald.diagnostics.settings import DcgmSettings
from vitald.model.diagnostic import Fault, Report, RunRequest
from vitald.model.words import Outcome, Remedy
from vitald.text import clean_line

NAME = "dcgm"
# The engine asks its program to end every few seconds, for this long, before it kills it
GRACE_S = 60.0
_ANSWER_S = 15.0  # deadline of reading the version, and of probing the engine
_EXPECTED_S = {1: 10.0, 2: 180.0, 3: 1200.0, 4: 5400.0}
_TIMEOUT_SINCE, _HEARTBEAT_SINCE = (3, 3, 9), (4, 4, 2)
_START = "systemctl start nvidia-dcgm"


class DcgmCheck:
    """Runs the diagnostic; the catalogue's entries give its errors their meaning."""

    name = NAME
    title = "DCGM's diagnostic"
    levels: tuple[int, ...] = (1, 2, 3, 4)
    covers_gpus = True

    def __init__(self, config: Config, catalog: Callable[[], Catalog]) -> None:
        self._settings = config[DcgmSettings]
        self._sysfs = config[Paths].sysfs
        self._catalog = catalog
        self._meanings: Meanings | None = None
        # The program's fingerprint when its version was read, and the version
        self._version: tuple[object, str] = (None, "")

    def use_catalog(self, catalog: Catalog) -> None:
        """Takes the entries of a catalogue that was loaded."""
        self._meanings = Meanings(catalog)

    def find_obstacle(self) -> str:
        if not self._settings.enabled:
            return "[dcgm] enabled = false"
        if not tool.find_program(self._settings.program):
            return _explain_not_executable(self._settings.program) or tool.explain_absence(
                self._settings.program
            )
        count, error = tool.count_gpus(self._sysfs)
        return "" if count else error or tool.NO_GPU

    def every_s(self, level: int) -> float:
        if level > self._settings.max_level:
            return 0.0
        return {1: self._settings.level_1_s, 2: self._settings.level_2_s}.get(level, 0.0)

    def needs_idle(self, level: int) -> bool:
        return level >= 2

    def expected_s(self, level: int) -> float:
        return _EXPECTED_S.get(level, 10.0)

    def deadline_s(self, level: int) -> float:
        settings = self._settings
        return {1: settings.deadline_1_s, 2: settings.deadline_2_s, 3: settings.deadline_3_s}.get(
            level, settings.deadline_4_s
        )

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        program = (
            await asyncio.to_thread(tool.find_program, self._settings.program)
            or self._settings.program
        )
        version, stopped = await self._read_version(program, execute)
        if stopped is not None:
            return stopped
        known = parse_version(version)
        if known and (too_old := explain_age(known)):
            return Report(
                outcome=Outcome.ERROR,
                reason=too_old,
                remedy=Remedy.FIX_CONFIG,
                dcgm_version=clean_line(version),
            )
        engine = await execute(
            Command(argv=(program, *short_answers.LIST_GPUS), deadline_s=_ANSWER_S)
        )
        if engine.ended in (ProgramEnd.NOT_STARTED, ProgramEnd.CANCELLED):
            return _report_not_run(engine)
        faults = _find_engine_faults(engine)
        if faults and not is_root():
            reason = (
                f"{faults[0].text}; an engine of our own could not test much: it would have the"
                " rights of this service"
            )
            return Report(
                outcome=Outcome.ERROR,
                reason=reason,
                remedy=Remedy.FIX_CONFIG,
                faults=faults,
                dcgm_version=clean_line(version),
            )
        output = await execute(self._build_command(program, request, version))
        report = await asyncio.to_thread(self._read_output, request, output)
        return replace(
            report,
            dcgm_version=report.dcgm_version or clean_line(version),
            faults=(*report.faults, *faults),
            addresses=short_answers.list_addresses(engine.stdout),
        )

    async def _read_version(self, program: str, execute: Execute) -> tuple[str, Report | None]:
        """The version of dcgmi, read once per installed program; or a report if it cannot run."""
        fingerprint = await asyncio.to_thread(_read_fingerprint, program)
        if fingerprint is not None and self._version[0] == fingerprint and self._version[1]:
            return self._version[1], None
        output = await execute(Command(argv=(program, "--version"), deadline_s=_ANSWER_S))
        if output.ended in (ProgramEnd.NOT_STARTED, ProgramEnd.CANCELLED):
            return "", _report_not_run(output)
        version = short_answers.find_version(output.stdout)
        self._version = (fingerprint, version)
        return version, None

    def _build_command(self, program: str, request: RunRequest, version: str) -> Command:
        deadline_s = self.deadline_s(request.level)
        argv = [program, "diag", "-r", str(request.level), "-j"]
        if request.gpus:
            argv += ["-i", ",".join(map(str, sorted(request.gpus)))]
        known = parse_version(version)
        if known >= _TIMEOUT_SINCE:
            argv += ["-t", str(max(1, int(deadline_s - min(60.0, 0.05 * deadline_s))))]
        if known >= _HEARTBEAT_SINCE:
            argv.append("--enable-heartbeat")
        return Command(argv=tuple(argv), deadline_s=deadline_s, grace_s=GRACE_S)

    def _read_output(self, request: RunRequest, output: Output) -> Report:
        """Runs in a thread, because the output may be large."""
        if output.ended is ProgramEnd.NOT_STARTED:
            return _report_not_run(output)
        if self._meanings is None:
            self._meanings = Meanings(self._catalog())
        report = reading.read_report(
            output.stdout,
            self._meanings,
            exit_code=output.exit_code,
            level=request.level,
            stderr=output.stderr,
            gpus=request.gpus,
        )
        if (
            output.ended in (ProgramEnd.DEADLINE, ProgramEnd.CANCELLED)
            and report.outcome is not Outcome.FAIL
        ):
            ended = _report_not_run(output)
            report = replace(
                report, outcome=Outcome.ERROR, reason=ended.reason, remedy=Remedy.RETRY, culprits=()
            )
        if output.dropped and report.outcome is Outcome.ERROR:
            report = replace(
                report,
                reason=(
                    f"{report.reason}; it printed too much, and {output.dropped} bytes of it were"
                    " dropped"
                ),
            )
        if output.left:
            left = ", ".join(map(str, output.left))
            report = replace(
                report, reason=f"{report.reason}; still running: {left}".removeprefix("; ")
            )
        return report


def _find_engine_faults(engine: Output) -> tuple[Fault, ...]:
    """A fault if the host engine did not answer, which `dcgmi diag` itself does not report."""
    if engine.ended is ProgramEnd.DEADLINE:
        problem = f"the host engine (nv-hostengine) has not answered within {_ANSWER_S:g} s"
    elif short_answers.is_engine_down(engine.exit_code, engine.stdout + engine.stderr):
        problem = "the host engine (nv-hostengine) is not running"
    else:
        return ()
    return (
        Fault(
            code=ENGINE_DOWN,
            test="engine",
            text=f"{problem}: {_START}",
            remedy=Remedy.FIX_CONFIG,
            implied=True,
        ),
    )


def _report_not_run(output: Output) -> Report:
    cause = clean_line(output.why) or output.ended.value
    if output.ended is ProgramEnd.NOT_STARTED:
        return Report(
            outcome=Outcome.ERROR,
            reason=f"dcgmi could not be started: {cause}",
            remedy=Remedy.FIX_CONFIG,
        )
    took_too_long = "took too long and " if output.ended is ProgramEnd.DEADLINE else ""
    return tool.report_error(f"it {took_too_long}was ended: {cause}")


def _explain_not_executable(program: str) -> str:
    """Says that the program exists, but may not be executed; "" if it does not exist."""
    folders = [""] if "/" in program else (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    file = next((path for folder in folders if (path := Path(folder, program)).is_file()), None)
    return f"{clean_line(str(file))} may not be executed" if file is not None else ""


def _read_fingerprint(program: str) -> tuple[str, int, int, int] | None:
    """Changes if another version is installed. None if the program cannot be read."""
    try:
        stat = Path(program).resolve().stat()
    except OSError:
        return None
    return program, stat.st_ino, stat.st_size, stat.st_mtime_ns


def build_check(config: Config) -> Check:
    return DcgmCheck(config, lambda: load_configured_catalog(config))
