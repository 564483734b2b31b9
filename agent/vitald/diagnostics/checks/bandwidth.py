"""
Copies between host memory and each GPU, in both directions, with NVIDIA's nvbandwidth: it finds a
link that trained narrow or slow, and what a riser, a retimer or the host's memory loses.

It runs the copy engine's tests `host_to_device_memcpy_ce` and `device_to_host_memcpy_ce`, one GPU
after the other, and compares the copied data with a pattern. Each GPU's figure is judged by itself.

Source: nvbandwidth up to 0.8 (nvbandwidth.cpp, json_output.cpp, kernels.cu, error_handling.h); its
JSON output exists since 0.5.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics.bandwidth import BandwidthCheck
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.limits import Limit, Limits, make_measure
from vitald.diagnostics.run import cuda, tool
from vitald.model.diagnostic import Fault, Measure, Outcome, Remedy, Report, RunRequest, Test

NAME = "bandwidth"
FAILED, WRONG, SLOW = f"{NAME}/failed", f"{NAME}/wrong", f"{NAME}/slow"
PROGRAM = "nvbandwidth"
FOLDERS = ("/opt/nvbandwidth", "/usr/local/nvbandwidth")
# By test: the measure, and the copy in words
_TESTS = {
    "host_to_device_memcpy_ce": ("host_to_device_bytes_per_second", "from the host"),
    "device_to_host_memcpy_ce": ("device_to_host_bytes_per_second", "to the host"),
}
_MAX_GPUS = 64
_PASSED, _WAIVED = "passed", "waived"
_WRONG = re.compile(r"Invalid value when checking the pattern")
_ARGUMENTS = re.compile(r"Invalid Arguments", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TestResult:
    """What one test printed. `figures`: GB/s of each GPU, by CUDA's number; None for `N/A`."""

    __test__ = False  # no test case of pytest's

    name: str
    status: str
    figures: tuple[float | None, ...] = ()
    error: str = ""
    broken: str = ""  # a figure that is none


@dataclass(frozen=True, slots=True)
class BandwidthOutput:
    """What nvbandwidth printed."""

    tests: tuple[TestResult, ...] = ()
    error: str = ""
    driver_version: str = ""
    found: bool = False  # a document was found


def read_output(text: str) -> BandwidthOutput:
    """Reads the document of `nvbandwidth -j`."""
    document = tool.find_document(text)
    body = document.get(PROGRAM) if document is not None else None
    if not isinstance(body, dict):
        return BandwidthOutput()
    cases = body.get("testcases")
    return BandwidthOutput(
        tests=tuple(_read_test(case) for case in cases if isinstance(case, dict))
        if isinstance(cases, list)
        else (),
        error=_read_line(body.get("error")),
        driver_version=_read_line(body.get("Driver Version")),
        found=True,
    )


def _read_test(case: Mapping[str, object]) -> TestResult:
    matrix = case.get("bandwidth_matrix")
    row = matrix[0] if isinstance(matrix, list) and matrix else []
    figures: list[float | None] = []
    broken = ""
    for value in row[:_MAX_GPUS] if isinstance(row, list) else ():
        figure = None if value == "N/A" else tool.parse_number(value)
        if figure is None and value != "N/A":
            broken = broken or presentable(str(value))
        figures.append(figure)
    return TestResult(
        name=_read_line(case.get("name")),
        status=_read_line(case.get("status")),
        figures=tuple(figures),
        error=_read_line(case.get("error")),
        broken=broken,
    )


def _read_line(value: object) -> str:
    """A text on one line, for people; empty if it is none."""
    return presentable(" ".join(value.split())) if isinstance(value, str) else ""


class HostBandwidthCheck(BandwidthCheck):
    """One run of nvbandwidth over the GPUs."""

    name = NAME
    title = "Copies between host and GPU"

    def __init__(self, config: Config) -> None:
        super().__init__(Limits(NAME, config), every_s=config.bandwidth.every_s, expected_s=30.0)
        self._settings = config.bandwidth
        self._sysfs = config.paths.sysfs

    def find_obstacle(self) -> str:
        if not tool.find_program(self._settings.program, FOLDERS):
            return tool.explain_absence(self._settings.program, FOLDERS)
        count, error = tool.count_gpus(self._sysfs)
        return error or ("" if count else tool.NO_GPU)

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        count, error = await asyncio.to_thread(tool.count_gpus, self._sysfs)
        if error:
            return tool.report_error(error)
        gpus = tuple(sorted(set(ask.gpus))) or tuple(range(count))
        if not gpus:
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=tool.NO_GPU)
        output = await execute(self._build_command(ask.gpus and gpus))
        return self._judge_output(output, gpus)

    def _build_command(self, gpus: Sequence[int]) -> Command:
        program = tool.find_program(self._settings.program, FOLDERS) or self._settings.program
        return Command(
            argv=(program, "-j", "-t", *_TESTS),
            deadline_s=self._settings.deadline_s,
            environment=cuda.make_environment(gpus),
        )

    def _judge_output(self, output: Output, gpus: Sequence[int]) -> Report:
        if (report := tool.report_not_run(PROGRAM, output)) is not None:
            return report
        printed = read_output(f"{output.stdout}\n{output.stderr}")
        if _WRONG.search(output.stdout):
            return _report_fault(WRONG, "a copy arrived with wrong data", confirm=False)
        if output.ended is ProgramEnd.DEADLINE:
            text = f"it did not end within {self._settings.deadline_s:g} s"
            return _report_fault(FAILED, text, confirm=True)
        if errors := _list_errors(printed, output):
            return _judge_errors(errors, output)
        if reason := _find_unfinished_reason(printed, output, gpus):
            return Report(
                outcome=Outcome.INCONCLUSIVE,
                reason=presentable(f"{PROGRAM}: {reason}"),
                remedy=Remedy.RETRY,
            )
        return self._judge_figures(printed, gpus)

    def _judge_figures(self, printed: BandwidthOutput, gpus: Sequence[int]) -> Report:
        measures: list[Measure] = []
        faults: list[Fault] = []
        for test in printed.tests:
            measure_name, words = _TESTS[test.name]
            for gpu, figure in zip(gpus, test.figures):
                value = (figure or 0.0) * tool.GIGA
                least = self._find_least(measure_name, f"GPU {gpu}")
                measures.append(make_measure(measure_name, value, f"GPU {gpu}", least=least))
                if least is not None and value < least.value:
                    faults.append(_make_slow_fault(test.name, words, gpu, value, least))
        failed = {fault.test for fault in faults}
        return Report(
            outcome=Outcome.FAIL if faults else Outcome.PASS,
            reason=presentable("; ".join(fault.text for fault in faults)),
            remedy=Remedy.INVESTIGATE if faults else Remedy.NONE,
            tests=tuple(
                Test(name=name, category=NAME, status="Fail" if name in failed else "Pass")
                for name in _TESTS
            ),
            faults=tuple(faults),
            culprits=tuple(sorted({fault.gpu for fault in faults if fault.gpu is not None})),
            measures=tuple(measures),
            driver_version=printed.driver_version,
        )

    def _find_least(self, measure: str, device: str) -> Limit | None:
        return self.limits.find_least(measure, self._settings.least_gbytes * tool.GIGA, device)


def _make_slow_fault(test: str, words: str, gpu: int, value: float, least: Limit) -> Fault:
    expected = f"{least.value / tool.GIGA:.4g} GB/s {least.origin}"
    return Fault(
        code=SLOW,
        test=test,
        text=f"GPU {gpu}: {value / tool.GIGA:.4g} GB/s {words}, below the {expected}",
        gpu=gpu,
        confirm=True,
    )


def _list_errors(printed: BandwidthOutput, output: Output) -> list[str]:
    """What the program reports as failed; empty if nothing is."""
    errors = [printed.error] if printed.error else []
    errors += [
        test.error or f"{test.name}: {test.status}"
        for test in printed.tests
        if test.error or test.status.lower() not in (_PASSED, _WAIVED)
    ]
    if not errors and output.exit_code != 0:
        errors.append(tool.find_last_line(output.stderr, output.stdout) or "it printed nothing")
    return errors


def _judge_errors(errors: Sequence[str], output: Output) -> Report:
    ended = f"ended with {output.exit_code}: "
    hardware = next((error for error in errors if cuda.HARDWARE.search(error)), "")
    if hardware:
        return _report_fault(FAILED, f"{ended}{hardware}", confirm=True)
    cause = presentable(f"{PROGRAM} {ended}{errors[0]}")
    if _ARGUMENTS.search(f"{output.stdout}\n{errors[0]}"):
        return tool.report_misconfigured(f"{PROGRAM} has no JSON output: version 0.5 or later has")
    if cuda.SETTINGS.search(cause) or output.exit_code in (126, 127):
        return tool.report_misconfigured(cause)
    return tool.report_error(cause)


def _report_fault(code: str, text: str, *, confirm: bool) -> Report:
    """A fault of the node: the program does not say which GPU it is."""
    text = presentable(f"{PROGRAM}: {text}")
    return Report(
        outcome=Outcome.FAIL,
        reason=text,
        remedy=Remedy.INVESTIGATE,
        tests=(Test(name="copies", category=NAME, status="Fail"),),
        faults=(Fault(code=code, test="copies", text=text, confirm=confirm),),
    )


def _find_unfinished_reason(printed: BandwidthOutput, output: Output, gpus: Sequence[int]) -> str:
    """Why the document can be no pass; "" if it can."""
    if output.dropped:
        return "its output is incomplete"
    if not printed.found:
        last = tool.find_last_line(output.stdout, output.stderr) or "nothing at all"
        return f"it printed no document: {last}"
    return next(_list_gaps(printed.tests, gpus), "")


def _list_gaps(tests: Sequence[TestResult], gpus: Sequence[int]) -> Iterator[str]:
    by_name = {test.name: test for test in tests}
    if unknown := by_name.keys() - _TESTS.keys():
        yield f"it ran a test that was not requested: {min(unknown)}"
    for name in _TESTS:
        test = by_name.get(name)
        if test is None:
            yield f"{name} has no result"
        elif test.status.lower() == _WAIVED:
            yield f"{name} was waived"
        elif test.broken:
            yield f"{name} has a figure that is none: {test.broken}"
        elif len(test.figures) != len(gpus) or not all(test.figures):
            measured = sum(bool(figure) for figure in test.figures)
            yield f"{name} has figures of {measured} of {len(gpus)} GPUs"


def build_check(config: Config) -> Check:
    return HostBandwidthCheck(config)
