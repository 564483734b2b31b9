"""
What the bandwidth checks share: their schedule, and the report on an all-reduce.

Owns     checks that run at one level and by one period, on idle devices; what an all-reduce program
         measured, why that can be no pass, and the reports on it.
Refuses  reading what a program printed, and deciding whose fault a failure is: each check knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitald.diagnostics.check import Output
from vitald.diagnostics.run import tool
from vitald.model.diagnostic import Fault, Measure, Report, Test
from vitald.model.words import Outcome, Remedy
from vitald.text import clean_line

_TEST = "all-reduce"


class BandwidthCheck:
    """The part of a check that is the same for all that measure bandwidth: no levels, idle devices.

    `every_s`: its period in seconds, 0 for on request only; `expected_s`: how long it takes.
    """

    levels: tuple[int, ...] = (0,)
    covers_gpus = False

    def __init__(self, *, every_s: float, expected_s: float) -> None:
        self._every_s = every_s
        self._expected_s = expected_s

    def every_s(self, level: int) -> float:
        del level
        return self._every_s

    def needs_idle(self, level: int) -> bool:
        del level
        return True

    def expected_s(self, level: int) -> float:
        del level
        return self._expected_s


@dataclass(frozen=True, slots=True)
class Figures:
    """What an all-reduce program measured, in its own unit: GB/s or GiB/s."""

    sizes: tuple[int, ...] = ()  # bytes
    bus_bandwidths: tuple[float, ...] = ()
    algorithm_bandwidths: tuple[float, ...] = ()
    average: float | None = None  # of the bus bandwidths; None where the run ended before it
    broken: str = ""  # a line of the table that is not whole


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """How the runs of one program are reported.

    `unit`: its GB/s in bytes per second; `expected`: expected, in its GB/s, 0 where nothing is.
    """

    check: str
    program: str
    unit: float
    expected: float

    def find_incomplete_reason(self, figures: Figures, output: Output) -> str:
        """Why the table cannot be that of a pass; empty where it can."""
        if output.dropped:
            return "its output is incomplete"
        if figures.broken:
            return f"a line of the table is not whole: {figures.broken}"
        if not figures.sizes:
            last = tool.find_last_line(output.stdout, output.stderr) or "nothing at all"
            return f"it printed no table: {last}"
        return ""

    def find_cause(self, complaints: Sequence[str], output: Output) -> str:
        """Why the program failed: its first complaint, else the last line that it printed."""
        return (
            next(iter(complaints), "")
            or tool.find_last_line(output.stderr, output.stdout)
            or "it printed nothing"
        )

    def find_slow_reason(self, figures: Figures) -> str:
        """That the best bandwidth is below what is expected; empty where it is not."""
        best = max(figures.bus_bandwidths)
        if not self.expected or best >= self.expected:
            return ""
        return (
            f"{best:.4g} GB/s of bus bandwidth, below the {self.expected:g} GB/s that are expected"
        )

    def report_pass(self, figures: Figures) -> Report:
        return Report(
            outcome=Outcome.PASS,
            tests=(self._make_test("Pass"),),
            measures=self._make_measures(figures),
        )

    def report_failure(
        self,
        code: str,
        failure: str,
        figures: Figures,
        gpus: Iterable[int | None] = (None,),
        *,
        confirm: bool,
    ) -> Report:
        """A fault of each of these GPUs; None is for none of them. `confirm`: as in Fault."""
        text = clean_line(f"{self.program}: {failure}")
        faults = tuple(
            Fault(
                code=code,
                test=_TEST,
                text=text,
                gpu=gpu,
                confirm=confirm,
            )
            for gpu in gpus
        )
        return Report(
            outcome=Outcome.FAIL,
            reason=text,
            remedy=Remedy.INVESTIGATE,
            tests=(self._make_test("Fail"),),
            faults=faults,
            culprits=tuple(sorted({fault.gpu for fault in faults if fault.gpu is not None})),
            measures=self._make_measures(figures) if figures.average is not None else (),
        )

    def report_inconclusive(self, why: str) -> Report:
        reason = clean_line(f"{self.program}: {why}")
        return Report(outcome=Outcome.INCONCLUSIVE, reason=reason, remedy=Remedy.RETRY)

    def _make_measures(self, figures: Figures) -> tuple[Measure, ...]:
        if not figures.bus_bandwidths:
            return ()
        measured = {
            "busbw": max(figures.bus_bandwidths),
            "busbw_average": figures.average or 0.0,
            "algbw": max(figures.algorithm_bandwidths),
        }
        least = self.expected * self.unit or None
        return tuple(
            Measure(
                name=f"{name}_bytes_per_second",
                value=value * self.unit,
                minimum=least if name == "busbw" else None,
            )
            for name, value in measured.items()
        )

    def _make_test(self, status: str) -> Test:
        return Test(name=_TEST, category=self.check, status=status)
