"""
Matrix multiplications on each GPU by a program of our own over cuBLAS: how fast each is, alone and
with all at once, and whether all get the same result. A GPU that computes wrong without an error
is found by that only: its own results differ, or those of equal GPUs do.

Results are compared between GPUs of one model, architecture and number of multiprocessors. Of two
that differ neither is named. Wrong results need no second run; the other faults do.

Source: cuBLAS documentation, "Results Reproducibility" (the promise, and CUBLAS_WORKSPACE_CONFIG).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics.bandwidth import BandwidthCheck
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.gemm import libraries
from vitald.diagnostics.gemm.comparison import Mismatch, Suspicion, compare_results
from vitald.diagnostics.gemm.document import (
    Document,
    GpuResult,
    find_last_tested,
    read_document,
)
from vitald.diagnostics.limits import Limit, Limits, make_measure
from vitald.diagnostics.run import cuda, tool
from vitald.model.diagnostic import Fault, Measure, Outcome, Remedy, Report, RunRequest, Test

NAME = "gemm"
FAILED, SLOW = f"{NAME}/failed", f"{NAME}/slow"
_PROGRAM = "the multiplication"
_TEST = "multiplications"
_TERA = 1e12
_ALONE_S = 5.0
_SECONDS_OF_GPU = 8.0  # alone, with what comes before
_PHASES = {"alone": "alone", "together": "with all GPUs at once"}
_START = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); from vitald.diagnostics.gemm.program"
    " import main; main()"
)
_SETTINGS = re.compile(
    r"CUBLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|ARCH_MISMATCH|NOT_SUPPORTED)"
    r"|cannot open shared object|undefined symbol|has no c|need a newer one"
)
_IN_MIG_MODE = "a GPU is in MIG mode: CUDA shows one of its instances only"


@dataclass(frozen=True, slots=True)
class Product:
    """What is multiplied: `rows` by `shared` with `shared` by `columns`; `products` of a batch."""

    rows: int = 4096
    columns: int = 4096
    shared: int = 16384
    products: int = 1001


class GemmCheck(BandwidthCheck):
    """One run of the program over the GPUs."""

    name = NAME
    title = "Matrix multiplications, compared between GPUs"

    def __init__(
        self, config: Config, product: Product = Product(), alone_s: float = _ALONE_S
    ) -> None:
        """`product`, `alone_s`: smaller ones for tests."""
        settings = config.gemm
        super().__init__(
            Limits(NAME, config), every_s=settings.every_s, expected_s=settings.together_s
        )
        self._settings = settings
        self._sysfs = config.paths.sysfs
        self._product = product
        self._alone_s = alone_s

    def find_obstacle(self) -> str:
        if not libraries.find_libraries(self._settings.library):
            return libraries.explain_absence(self._settings.library)
        count, error = tool.count_gpus(self._sysfs)
        return error or ("" if count else tool.NO_GPU)

    def expected_s(self, level: int) -> float:
        count, _ = tool.count_gpus(self._sysfs)
        return super().expected_s(level) + count * _SECONDS_OF_GPU

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        count, error = await asyncio.to_thread(tool.count_gpus, self._sysfs)
        if error:
            return tool.report_error(error)
        found = await asyncio.to_thread(libraries.find_libraries, self._settings.library)
        if reason := self._explain_inapplicable(count, found):
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=presentable(reason))
        gpus = tuple(sorted(set(ask.gpus))) or tuple(range(count))
        output = await execute(self._build_command(found, ask.gpus and gpus))
        return self._judge_output(output, gpus)

    def _explain_inapplicable(self, count: int, found: Sequence[str]) -> str:
        if not count:
            return tool.NO_GPU
        return "" if found else libraries.explain_absence(self._settings.library)

    def _build_command(self, found: Sequence[str], gpus: Sequence[int]) -> Command:
        product = self._product
        task = {
            "libraries": found,
            "rows": product.rows,
            "columns": product.columns,
            "shared": product.shared,
            "products": product.products,
            "alone_s": self._alone_s,
            "together_s": self._settings.together_s,
        }
        path = "\n".join(sys.path)
        return Command(
            argv=(sys.executable, "-I", "-S", "-c", _START, path, json.dumps(task)),
            deadline_s=self._settings.together_s + self._settings.deadline_s,
            environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **cuda.make_environment(gpus)},
        )

    def _judge_output(self, output: Output, gpus: Sequence[int]) -> Report:
        if (report := tool.report_not_run(_PROGRAM, output)) is not None:
            return report
        if output.ended is ProgramEnd.DEADLINE:
            return _report_hang(output)
        document = read_document(output.stdout)
        if document is None or output.dropped:
            last = tool.find_last_line(output.stderr, output.stdout) or "it printed nothing"
            return tool.report_error(f"{_PROGRAM} printed no result: {last}")
        if document.error:
            return _report_cause(document.error)
        if any(gpu.is_instance for gpu in document.gpus):
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=_IN_MIG_MODE)
        return self._judge_document(document, gpus)

    def _judge_document(self, document: Document, gpus: Sequence[int]) -> Report:
        names = _Names(document.gpus, gpus)
        faults = [
            *(_make_mismatch_fault(found, names) for found in compare_results(document.gpus)),
            *_list_failures(document.gpus, names),
        ]
        causes = [gpu for gpu in document.gpus if gpu.error and not cuda.HARDWARE.search(gpu.error)]
        if causes and not faults:
            return _report_cause(f"{names.describe(causes[0])}: {causes[0].error}")
        if len(document.gpus) != len(gpus) and not faults:
            return Report(
                outcome=Outcome.INCONCLUSIVE,
                reason=f"CUDA shows {len(document.gpus)} of {len(gpus)} GPUs",
                remedy=Remedy.RETRY,
            )
        measures = []
        for gpu in document.gpus:
            for phase, rate in sorted(gpu.rates.items()):
                measure, slow = self._compare_rate(gpu, phase, rate, names)
                measures.append(measure)
                faults += slow
        return _make_report(faults, measures)

    def _compare_rate(
        self, gpu: GpuResult, phase: str, rate: float, names: _Names
    ) -> tuple[Measure, list[Fault]]:
        """A measure, and the fault that it is below its limit."""
        name, device = f"{phase}_flop_per_second", names.get_device(gpu)
        least = self._find_least(name, device)
        measure = make_measure(name, rate, device, least=least)
        if least is None or rate >= least.value:
            return measure, []
        expected = f"{least.value / _TERA:.4g} TFLOP/s {least.origin}"
        text = f"{rate / _TERA:.4g} TFLOP/s {_PHASES.get(phase, phase)}, below the {expected}"
        return measure, [names.make_fault(SLOW, gpu, text, confirm=True)]

    def _find_least(self, measure: str, device: str) -> Limit | None:
        return self.limits.find_least(measure, self._settings.least_tflops * _TERA, device)


class _Names:
    """What each GPU is called. `gpus`: their numbers on this node. If CUDA does not show as many,
    which number is whose is unknown: the address is given alone.
    """

    def __init__(self, tested: Sequence[GpuResult], gpus: Sequence[int]) -> None:
        self._numbers = (
            {gpu.address: number for gpu, number in zip(tested, gpus)}
            if len(tested) == len(gpus)
            else {}
        )

    def describe(self, gpu: GpuResult) -> str:
        number = self._numbers.get(gpu.address)
        return gpu.address if number is None else f"GPU {number} ({gpu.address})"

    def get_device(self, gpu: GpuResult) -> str:
        """The device of its measures."""
        number = self._numbers.get(gpu.address)
        return gpu.address if number is None else f"GPU {number}"

    def make_fault(self, code: str, gpu: GpuResult, text: str, *, confirm: bool) -> Fault:
        return Fault(
            code=code,
            test=_TEST,
            text=f"{self.describe(gpu)}: {text}",
            gpu=self._numbers.get(gpu.address),
            device=f"gpu/{gpu.address}",
            confirm=confirm,
        )


def _make_mismatch_fault(found: Mismatch, names: _Names) -> Fault:
    code = f"{NAME}/{found.suspicion.value}"
    extent = "" if found.different_bytes is None else f", in up to {found.different_bytes} bytes"
    if found.suspicion is Suspicion.DISPUTED:
        suspects = ", ".join(names.describe(gpu) for gpu in found.gpus)
        text = f"equal GPUs have different results of the same multiplication{extent}: {suspects}"
        return Fault(code=code, test=_TEST, text=text)
    text = "its result of the same multiplication differs from that of most equal GPUs"
    if found.suspicion is Suspicion.UNSTABLE:
        text = (
            f"{found.batches} of its {found.of_batches} results of the same multiplication differ"
            " from the others"
        )
    return names.make_fault(code, found.gpus[0], f"{text}{extent}", confirm=False)


def _list_failures(gpus: Sequence[GpuResult], names: _Names) -> Iterator[Fault]:
    for gpu in gpus:
        if cuda.HARDWARE.search(gpu.error):
            yield names.make_fault(FAILED, gpu, gpu.error, confirm=True)


def _make_report(faults: Sequence[Fault], measures: Sequence[Measure]) -> Report:
    return Report(
        outcome=Outcome.FAIL if faults else Outcome.PASS,
        reason=presentable("; ".join(fault.text for fault in faults)),
        remedy=Remedy.INVESTIGATE if faults else Remedy.NONE,
        tests=(Test(name=_TEST, category=NAME, status="Fail" if faults else "Pass"),),
        faults=tuple(faults),
        culprits=tuple(sorted({fault.gpu for fault in faults if fault.gpu is not None})),
        measures=tuple(measures),
    )


def _report_hang(output: Output) -> Report:
    """The driver waits for a GPU without a time limit."""
    tested = find_last_tested(output.stdout)
    late = f"did not end: {output.why}"
    if not tested:
        return tool.report_error(f"{_PROGRAM} {late}")
    on_all = tested == "all"
    where = "on all GPUs at once" if on_all else f"on {tested}"
    fault = Fault(
        code=FAILED,
        test=_TEST,
        text=presentable(f"{_PROGRAM} {where} {late}"),
        device="" if on_all else f"gpu/{tested}",
        confirm=True,
    )
    return _make_report([fault], [])


def _report_cause(cause: str) -> Report:
    """Nothing is known of the hardware: settings, or something else."""
    text = presentable(f"{_PROGRAM}: {cause}")
    if cuda.SETTINGS.search(cause) or _SETTINGS.search(cause):
        return tool.report_misconfigured(text)
    return tool.report_error(text)


def build_check(config: Config) -> Check:
    return GemmCheck(config)
