"""
What the checks of RDMA adapters share. Each of their tests runs a program that writes from an
adapter to itself, or to another one of this node.

Owns     the adapters in sysfs, the limits of bandwidth and latency, the results and the report.
Refuses  which adapters are tested and how, reading what a program printed, and deciding whose fault
         a failure is: each check knows.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from vitald.collectors import small_files
from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics.bandwidth import BandwidthCheck
from vitald.diagnostics.check import Execute, Output, ProgramEnd
from vitald.diagnostics.limits import Limits, make_measure
from vitald.diagnostics.run import tool
from vitald.diagnostics_sections import AdapterSettings
from vitald.model.diagnostic import Fault, Measure, Outcome, Remedy, Report, RunRequest, Test

_BANDWIDTH, _LATENCY = "bandwidth_bytes_per_second", "latency_seconds"
_DEVICE = re.compile(r"\w[\w.\-]{0,63}", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_WORST = (Outcome.FAIL, Outcome.ERROR, Outcome.CONFIG, Outcome.INCONCLUSIVE, Outcome.PASS)
_STATUS = {Outcome.PASS: "Pass", Outcome.FAIL: "Fail"}


@dataclass(frozen=True, slots=True)
class Adapter:
    """An RDMA device. `address`: its PCI function, "" if unknown."""

    name: str
    address: str = ""

    @property
    def component(self) -> str:
        """Its name as a component; of the device where its PCI function is unknown."""
        return f"nic/{self.address}" if self.address else self.name


AnyAdapter = TypeVar("AnyAdapter", bound=Adapter)


def list_devices(classes: Path) -> Iterator[tuple[Adapter, Path]]:
    """The RDMA devices whose names a program can be given, and their folders in sysfs. Raises
    OSError if they cannot be read.
    """
    for name in small_files.list_names(classes):
        function = (classes / name / "device").resolve()
        if _DEVICE.fullmatch(name):
            address = function.name if _ADDRESS.fullmatch(function.name) else ""
            yield Adapter(name, address), function


def is_efa(function: Path) -> bool:
    """By its driver, since names can be changed."""
    return (function / "driver").resolve().name == "efa"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTest:
    """One test of a check, and how its results are reported.

    `label` begins the texts, `device` is that of the measures, `component` that of a fault.
    `name` is in the report, `fault_name` in a fault.
    """

    label: str
    device: str
    component: str
    name: str
    fault_name: str

    def report_pass(self, measures: tuple[Measure, ...]) -> AdapterResult:
        return AdapterResult(self, Outcome.PASS, measures=measures)

    def report_fault(
        self, code: str, text: str, measures: tuple[Measure, ...] = ()
    ) -> AdapterResult:
        remedy = Remedy.INVESTIGATE
        return AdapterResult(self, Outcome.FAIL, f"{self.label}: {text}", remedy, code, measures)

    def report_inconclusive(self, text: str) -> AdapterResult:
        return AdapterResult(self, Outcome.INCONCLUSIVE, f"{self.label}: {text}", Remedy.RETRY)

    def report_misconfigured(self, text: str) -> AdapterResult:
        return AdapterResult(self, Outcome.CONFIG, f"{self.label}: {text}", Remedy.FIX_CONFIG)

    def report_error(self, text: str) -> AdapterResult:
        return AdapterResult(self, Outcome.ERROR, f"{self.label}: {text}", Remedy.RETRY)

    def report_not_run(self, program: str, output: Output) -> AdapterResult | None:
        """The result of a program that was not run to its end; None if it was."""
        report = tool.report_not_run(f"{self.label}: {program}", output)
        if report is None:
            return None
        over = output.ended in (ProgramEnd.CANCELLED, ProgramEnd.NOT_STARTED)
        return AdapterResult(self, report.outcome, report.reason, report.remedy, run_ended=over)


@dataclass(frozen=True, slots=True)
class AdapterResult:
    """The result of one test."""

    test: AdapterTest
    outcome: Outcome
    text: str = ""
    remedy: Remedy = Remedy.NONE
    code: str = ""  # of its fault; "" if there is none
    measures: tuple[Measure, ...] = ()
    run_ended: bool = False  # nothing else is tested


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured, with its limits. `slow`: what is beyond them, "" if nothing is."""

    bandwidth: Measure
    latency: Measure
    slow: str


class AdapterCheck(BandwidthCheck, ABC, Generic[AnyAdapter]):
    """The part of a check that is the same for all that test adapters, one test at a time: they
    share the node's memory and processors.

    `expected_s`: how long one test takes.
    """

    absence: str  # the reason of a report without tests

    def __init__(
        self, check: str, config: Config, settings: AdapterSettings, expected_s: float
    ) -> None:
        super().__init__(Limits(check, config), every_s=settings.every_s, expected_s=expected_s)
        self._check = check
        self._settings = settings
        self._classes = config.paths.sysfs / "class" / "infiniband"

    @abstractmethod
    def list_adapters(self) -> list[AnyAdapter]:
        """Those that are tested. Raises OSError if they cannot be read."""

    @abstractmethod
    async def test_adapters(
        self, adapters: Sequence[AnyAdapter], execute: Execute
    ) -> list[AdapterResult]:
        """The results of all tests, or of those until the run ended."""

    def count_tests(self, adapters: Sequence[AnyAdapter]) -> int:
        return len(adapters)

    def expected_s(self, level: int) -> float:
        del level
        try:
            return self._expected_s * max(1, self.count_tests(self.list_adapters()))
        except OSError:
            return self._expected_s

    def find_adapter_obstacle(self, absence: str) -> str:
        """`absence` if no adapter can be tested; "" if one can."""
        try:
            return "" if self.list_adapters() else absence
        except OSError as error:
            return self._explain_unreadable(error)

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        del ask  # its GPUs are not tested
        try:
            adapters = await asyncio.to_thread(self.list_adapters)
        except OSError as error:
            return tool.report_error(self._explain_unreadable(error))
        results = await self.test_adapters(adapters, execute)
        if not results:
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=self.absence)
        return _make_report(self._check, results)

    def compare_figures(
        self, device: str, bandwidth: float, latency: float, digits: int
    ) -> Comparison:
        """`bandwidth` in bytes per second, `latency` in seconds; `digits`: of a bandwidth in a
        text.
        """
        configured = self._settings.least_gbps * tool.GIGA / 8
        least = self.limits.find_least(_BANDWIDTH, configured, device)
        configured = self._settings.most_latency_us * tool.MICRO
        most = self.limits.find_most(_LATENCY, configured, device)
        slow = []
        if least is not None and bandwidth < least.value:
            expected = f"{least.value * 8 / tool.GIGA:.{digits}g} Gbit/s {least.origin}"
            slow.append(f"{bandwidth * 8 / tool.GIGA:.{digits}g} Gbit/s, below the {expected}")
        if most is not None and latency > most.value:
            expected = f"{most.value / tool.MICRO:.3g} us {most.origin}"
            slow.append(f"{round(latency / tool.MICRO, 6):.3g} us, above the {expected}")
        return Comparison(
            make_measure(_BANDWIDTH, bandwidth, device, least=least),
            make_measure(_LATENCY, latency, device, most=most),
            "; ".join(slow),
        )

    def _explain_unreadable(self, error: OSError) -> str:
        return f"{self._classes}: {small_files.describe_error(error)}"


def _make_report(check: str, results: Sequence[AdapterResult]) -> Report:
    return Report(
        outcome=min((result.outcome for result in results), key=_WORST.index),
        reason=presentable("; ".join(result.text for result in results if result.text)),
        remedy=max((result.remedy for result in results), key=lambda remedy: remedy.rank),
        tests=tuple(
            Test(name=result.test.name, category=check, status=_STATUS.get(result.outcome, ""))
            for result in results
        ),
        faults=tuple(_make_fault(result) for result in results if result.code),
        measures=tuple(measure for result in results for measure in result.measures),
    )


def _make_fault(result: AdapterResult) -> Fault:
    """The fault must be confirmed: a leftover process can spoil a single test."""
    return Fault(
        code=result.code,
        test=result.test.fault_name,
        text=result.text,
        device=result.test.component,
        remedy=result.remedy,
        confirm=True,
    )
