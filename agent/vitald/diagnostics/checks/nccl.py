"""
An all-reduce over the GPUs of this node, with all_reduce_perf of nccl-tests: it loads every GPU and
the NVLink or PCIe links between them, and verifies the results.

Wrong results are the most serious fault, since a job would not have noticed them. If the run fails,
NCCL's own lines name the GPU, and CUDA's error text distinguishes hardware from settings. The
bandwidth that counts is the best of all sizes, as in HyperPod's and Azure's checks, which compare
the largest messages with the expected value; the average over all sizes is reported with it.

Others expect of 8 GPUs, in GB/s: A100 228, H100 460, H200 431 (azurehpc-health-checks, one message
of 16 GB). Each is of one machine type, so none is a default here.

Source: CUDA's error texts (driver_types.h); SageMaker HyperPod's documentation of deep health
checks. `nccl_output` has those of the program's output.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics.bandwidth import AllReduce, BandwidthCheck
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.limits import Limits
from vitald.diagnostics.nccl_output import (
    FAILURE,
    WARN,
    NcclOutput,
    find_blamed_gpu,
    find_complaints,
    find_first_blamed,
    read_output,
)
from vitald.diagnostics.run import cuda, tool
from vitald.diagnostics_sections import Nccl as NcclSettings
from vitald.model.diagnostic import Outcome, Report, RunRequest

NAME = "nccl"
FAILED, WRONG, SLOW = "failed", "wrong", "slow"  # codes, after the name of the check
FOLDERS = ("/opt/nccl-tests/build", "/usr/local/nccl-tests/build")
_MIN_SIZE, _MAX_SIZE = "8", "8G"

# Errors of NCCL itself or of the host, which say nothing about a GPU.
_SOFTWARE = re.compile(r"unhandled system error|internal error", re.IGNORECASE)


class NcclCheck(BandwidthCheck):
    """One run of all_reduce_perf over the GPUs. `nccl_network` is another form of it."""

    name = NAME
    title = "NCCL all-reduce on this node"
    environment: Mapping[str, str] = MappingProxyType({"NCCL_DEBUG": "WARN"})

    def __init__(self, config: Config) -> None:
        self._settings = self.get_settings(config)
        super().__init__(Limits(self.name, config), every_s=self._settings.every_s, expected_s=60.0)
        self._sysfs = config.paths.sysfs
        self._reports = AllReduce(
            check=self.name,
            program="all_reduce_perf",
            unit=tool.GIGA,
            expected=self._settings.least_gbytes,
            limits=self.limits,
        )

    @staticmethod
    def get_settings(config: Config) -> NcclSettings:
        """The check's section of the configuration."""
        return config.nccl

    def find_other_obstacle(self, output: NcclOutput) -> Report | None:
        """Why a table without faults is no pass of this form of the check; None if it is."""
        del output
        return None

    def find_obstacle(self) -> str:
        if not tool.find_program(self._settings.program, FOLDERS):
            return tool.explain_absence(self._settings.program, FOLDERS)
        count, error = tool.count_gpus(self._sysfs)
        return error or _explain_too_few(count)

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        count, error = await asyncio.to_thread(tool.count_gpus, self._sysfs)
        if error:
            return tool.report_error(error)
        gpus = tuple(sorted(set(ask.gpus)))
        count = len(gpus) or count
        if reason := _explain_too_few(count):
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=reason)
        output = await execute(self._build_command(gpus, count))
        return self._judge_output(output, gpus)

    def _build_command(self, gpus: Sequence[int], count: int) -> Command:
        program = tool.find_program(self._settings.program, FOLDERS) or self._settings.program
        environment = {**self.environment, **cuda.make_environment(gpus)}
        argv = (program, "-b", _MIN_SIZE, "-e", _MAX_SIZE, "-f", "2", "-g", str(count), "-c", "1")
        return Command(argv=argv, deadline_s=self._settings.deadline_s, environment=environment)

    def _judge_output(self, output: Output, gpus: Sequence[int]) -> Report:
        if (report := tool.report_not_run("all_reduce_perf", output)) is not None:
            return report
        printed = replace(read_output(f"{output.stdout}\n{output.stderr}"), whole_node=not gpus)
        if printed.wrong or printed.out_of_bounds:
            wrong = f"{printed.wrong:.0f} wrong values" if printed.wrong else "values out of bounds"
            return self._report_fault(WRONG, f"the results are wrong: {wrong}", printed)
        if output.ended is ProgramEnd.DEADLINE:
            return self._report_hang(printed, gpus)
        failed = any(FAILURE.search(line) for line in printed.complaints)
        incomplete = self._reports.find_incomplete_reason(
            printed, output
        ) or _find_unfinished_reason(printed)
        if printed.slow and not failed and not incomplete:
            best = max(printed.bus_bandwidths)
            reason = f"{best:.4g} GB/s of bus bandwidth, below what NCCL_TESTS_MIN_BW says"
            return self._report_fault(SLOW, reason, printed)
        if output.exit_code != 0 or failed:
            return self._judge_failure(output, printed, gpus)
        if incomplete:
            return self._reports.report_inconclusive(incomplete)
        if (report := self.find_other_obstacle(printed)) is not None:
            return report
        if slow := self._reports.find_slow_reason(printed):
            return self._report_fault(SLOW, slow, printed)
        return self._reports.report_pass(printed)

    def _report_hang(self, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        """A collective waits for its slowest member without a time limit."""
        last = f", after {len(printed.sizes)} sizes"
        if printed.complaints:
            last = f": {printed.complaints[0]}"
        gpu = find_first_blamed(printed.complaints, printed, gpus)
        return self._report_fault(
            FAILED, f"it did not end within {self._settings.deadline_s:g} s{last}", printed, [gpu]
        )

    def _judge_failure(self, output: Output, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        hardware = find_complaints(printed, cuda.HARDWARE)
        if hardware:
            # All GPUs that complain in this way: which of them began is unknown.
            named = dict.fromkeys(find_blamed_gpu(line, printed, gpus) for line in hardware)
            return self._report_fault(
                FAILED, hardware[0], printed, [gpu for gpu in named if gpu is not None] or [None]
            )
        cause = self._reports.find_cause(printed.complaints, output)
        ended = f"all_reduce_perf ended with {output.exit_code}: "
        settings = find_complaints(printed, cuda.SETTINGS)
        if settings or output.exit_code in (126, 127):
            return tool.report_misconfigured(presentable(ended + next(iter(settings), cause)))
        if find_complaints(printed, _SOFTWARE) or not find_complaints(printed, FAILURE):
            return tool.report_error(presentable(ended + cause))
        gpu = find_first_blamed(find_complaints(printed, WARN), printed, gpus)
        return self._report_fault(FAILED, cause, printed, [gpu])

    def _report_fault(
        self, code: str, text: str, printed: NcclOutput, gpus: Iterable[int | None] = (None,)
    ) -> Report:
        return self._reports.report_failure(
            f"{self.name}/{code}", text, printed, gpus, confirm=code != WRONG
        )


def _explain_too_few(gpus: int) -> str:
    """Empty if there are two GPUs. The bus bandwidth of a single GPU is 0 by definition."""
    if gpus < 1:
        return tool.NO_GPU
    return "an all-reduce needs two GPUs" if gpus < 2 else ""


def _find_unfinished_reason(printed: NcclOutput) -> str:
    """Why a run with a table is incomplete; "" if it is complete."""
    if printed.average is None or printed.out_of_bounds is None:
        return "the table ends before its footer"
    if not printed.checked:
        return "the results were not compared with what they must be"
    if not max(printed.bus_bandwidths):
        return "no bandwidth was measured"
    return ""


def build_check(config: Config) -> Check:
    return NcclCheck(config)
