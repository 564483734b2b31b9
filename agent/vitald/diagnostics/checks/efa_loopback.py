"""
EFA loopback: each EFA adapter sends to itself, with a server and a client of fi_pingpong on this
node.

This follows AWS's own test (efa_test.sh of the EFA installer): provider `efa`, endpoint `rdm`, and
no shared memory, which libfabric would otherwise use between two processes of one node, so that the
adapter would not be tested. The adapter is named by libfabric's domain: the name of the RDMA device
and `-rdm`. The two processes connect over TCP on this node.

A pingpong has one message in flight, so its bandwidth is far below the line rate: the expected
value comes from other nodes of the same type, not from the data sheet. The first messages include
the set-up, so the latency is the median of the small sizes.

Source: libfabric fi_pingpong(1), util/pingpong.c and fi_efa(7); awslabs/awsome-distributed-ai (pull
request 1088: the name of the domain, no shared memory).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics import adapters
from vitald.diagnostics.adapters import Adapter, AdapterCheck, AdapterResult, AdapterTest
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import pair, tool
from vitald.model.diagnostic import Measure, Outcome, Remedy

NAME = "efa_loopback"
FAILED, SLOW = f"{NAME}/failed", f"{NAME}/slow"
PROGRAM = "fi_pingpong"
FOLDERS = ("/opt/amazon/efa/bin",)
# Messages of each size; the default of newer versions is 10, so few that the set-up dominates
_ROUNDS = 1000
_SMALL = 4096  # bytes; the time of a message up to this size is its latency
_LARGE = 1 << 20  # bytes; the largest size by default
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([kmg]?)", re.ASCII)
_TABLE = re.compile(r"\s*(?:bytes|[0-9.]+[kmg]?)\s+(?:#sent|iters|[0-9.]+[kmb]?)\s", re.ASCII)
# Causes outside the adapter: libfabric does not know the provider or domain, missing permissions,
# locked memory or shared libraries.
_SETTINGS = re.compile(
    r"No data available|ret=-61\b|Permission denied|Operation not permitted|Cannot allocate"
    r" memory|Function not implemented"
    r"|error while loading shared libraries|invalid option|memlock",
    re.IGNORECASE,
)
# The two processes did not connect, which says nothing about the adapter either.
_NOT_CONNECTED = re.compile(
    r"Connection refused|Address already in use|failed to connect", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SizeResult:
    """The result of one size, in bytes. `lost`: some messages were not acknowledged."""

    size: int
    bytes_per_second: float
    seconds: float
    lost: bool


@dataclass(frozen=True, slots=True)
class PingpongTable:
    """The table of fi_pingpong. `broken`: a line of it that is incomplete, "" if there is none."""

    rows: tuple[SizeResult, ...] = ()
    broken: str = ""


def read_table(text: str) -> PingpongTable:
    """Reads the client's table. Tools of fabtests such as fi_rdm_pingpong have the same columns."""
    heading: list[str] = []
    rows: list[SizeResult] = []
    for line in tool.split_lines(text):
        words = line.split()
        if {"bytes", "MB/sec", "usec/xfer"} <= set(words):
            heading = words
        elif heading and words and _SIZE.fullmatch(words[0]):
            row = _read_row(dict(zip(heading, words))) if len(words) == len(heading) else None
            if row is None:
                return PingpongTable(tuple(rows), presentable(line.strip()))
            rows.append(row)
    return PingpongTable(tuple(rows))


def _read_row(cells: dict[str, str]) -> SizeResult | None:
    size = _SIZE.fullmatch(cells["bytes"])
    megabytes, microseconds = (
        tool.parse_figure(cells["MB/sec"]),
        tool.parse_figure(cells["usec/xfer"]),
    )
    if size is None or megabytes is None or not microseconds:
        return None
    acknowledged = cells.get("#ack", "=")
    return SizeResult(
        int(float(size[1]) * _UNITS[size[2]]),
        megabytes / tool.MICRO,
        microseconds * tool.MICRO,
        lost=not acknowledged.startswith("="),
    )


def _find_incomplete_reason(table: PingpongTable, output: Output) -> str:
    """Why the table cannot be judged; "" if it can."""
    if table.broken:
        return f"a line of the table is not whole: {table.broken}"
    if output.dropped:
        return "its output is incomplete"
    if not table.rows:
        last = tool.find_last_line(output.stdout, output.stderr) or "nothing at all"
        return f"{PROGRAM} printed no table: {last}"
    sizes = [row.size for row in table.rows]
    if max(sizes) < _LARGE or min(sizes) > _SMALL:
        return "the table ends before its largest size"
    return ""


class EfaLoopbackCheck(AdapterCheck[Adapter]):
    """Tests one adapter after the other."""

    name = NAME
    title = "EFA loopback"
    absence = "there is no EFA adapter here"

    def __init__(self, config: Config) -> None:
        super().__init__(NAME, config, config.efa_loopback, expected_s=15.0)

    def find_obstacle(self) -> str:
        if not tool.find_program(PROGRAM, FOLDERS):
            return tool.explain_absence(PROGRAM, FOLDERS)
        return self.find_adapter_obstacle(
            f"there is no EFA adapter here: {self._classes} has none of the driver efa"
        )

    def list_adapters(self) -> list[Adapter]:
        devices = adapters.list_devices(self._classes)
        return [adapter for adapter, function in devices if adapters.is_efa(function)]

    async def test_adapters(
        self, adapters: Sequence[Adapter], execute: Execute
    ) -> list[AdapterResult]:
        results: list[AdapterResult] = []
        for adapter in adapters:
            results.append(await self._test_adapter(adapter, execute))
            if results[-1].run_ended:
                break
        return _compare_results(results)

    async def _test_adapter(self, adapter: Adapter, execute: Execute) -> AdapterResult:
        program = tool.find_program(PROGRAM, FOLDERS) or PROGRAM
        port = pair.find_free_port()
        options = ("-e", "rdm", "-p", "efa", "-d", f"{adapter.name}-rdm", "-I", str(_ROUNDS))
        server = (program, *options, "-B", str(port))
        client = (program, *options, "-P", str(port), "127.0.0.1")
        command = Command(
            argv=pair.make_argv(NAME, port, server, client),
            deadline_s=self._settings.deadline_s,
            environment={"FI_EFA_ENABLE_SHM_TRANSFER": "0"},
        )
        return self._judge_output(_make_test(adapter), await execute(command))

    def _judge_output(self, test: AdapterTest, output: Output) -> AdapterResult:
        if output.ended is not ProgramEnd.EXITED or output.exit_code != 0:
            return self._judge_failure(test, output)
        table = read_table(output.stdout)
        if reason := _find_incomplete_reason(table, output):
            return test.report_inconclusive(reason)
        return self._judge_table(test, table)

    def _judge_table(self, test: AdapterTest, table: PingpongTable) -> AdapterResult:
        bandwidths = [row.bytes_per_second for row in table.rows]
        small = [row.seconds for row in table.rows if row.size <= _SMALL]
        compared = self.compare_figures(
            test.device, max(bandwidths), statistics.median(small), digits=3
        )
        average, device = statistics.fmean(bandwidths), test.device
        # The five figures of HyperPod's message: MaxBw, AvgBw, MaxTypicalLat, MinTypicalLat,
        # AvgLat.
        measures = (
            compared.bandwidth,
            Measure(name="bandwidth_average_bytes_per_second", value=average, device=device),
            compared.latency,
            Measure(name="latency_max_typical_seconds", value=max(small), device=device),
            Measure(name="latency_min_typical_seconds", value=min(small), device=device),
            Measure(name="latency_average_seconds", value=statistics.fmean(small), device=device),
        )
        if any(row.lost for row in table.rows):
            return test.report_fault(FAILED, "messages were lost on the way to itself", measures)
        if compared.slow:
            return test.report_fault(SLOW, compared.slow, measures)
        return test.report_pass(measures)

    def _judge_failure(self, test: AdapterTest, output: Output) -> AdapterResult:
        """The result of programs that did not exit with 0."""
        if (result := test.report_not_run(PROGRAM, output)) is not None:
            return result
        complaints = "\n".join(
            line for line in tool.split_lines(output.stdout) if not _TABLE.match(line)
        )
        # That the peer is gone is a message of the side that is not at fault.
        causes = "\n".join(line for line in complaints.splitlines() if "ctrl/" not in line)
        last = tool.find_last_line(causes, output.stderr, complaints) or "it printed nothing"
        if output.ended is ProgramEnd.DEADLINE:
            late = f"did not end within {self._settings.deadline_s:g} s: {last}"
            return test.report_fault(FAILED, late)
        text = f"{PROGRAM} ended with {output.exit_code}: {last}"
        if _SETTINGS.search(f"{complaints}\n{output.stderr}") or output.exit_code in (126, 127):
            return test.report_misconfigured(text)
        if _NOT_CONNECTED.search(f"{complaints}\n{output.stderr}"):
            return test.report_error(text)
        return test.report_fault(FAILED, text)


def _make_test(adapter: Adapter) -> AdapterTest:
    return AdapterTest(
        label=f"EFA {adapter.name}",
        device=adapter.name,
        component=adapter.component,
        name=f"loopback {adapter.name}",
        fault_name="loopback",
    )


def _compare_results(results: list[AdapterResult]) -> list[AdapterResult]:
    """A settings error is a fault of the adapter if the same settings work for another one."""
    works = (Outcome.PASS, Outcome.FAIL)
    if not any(result.outcome in works and result.measures for result in results):
        return results
    return [
        _blame_adapter(result) if result.outcome is Outcome.CONFIG else result for result in results
    ]


def _blame_adapter(result: AdapterResult) -> AdapterResult:
    return replace(
        result,
        outcome=Outcome.FAIL,
        code=FAILED,
        remedy=Remedy.INVESTIGATE,
        text=f"{result.text} (others here are well)",
    )


def build_check(config: Config) -> Check:
    return EfaLoopbackCheck(config)
