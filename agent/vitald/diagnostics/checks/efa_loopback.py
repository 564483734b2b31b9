"""
EFA loopback: each EFA adapter sends to itself, with a server and a client of fi_pingpong on this
node.

This follows AWS's own test (efa_test.sh of the EFA installer): provider `efa`, endpoint `rdm`, and
no shared memory, which libfabric would otherwise use between two processes of one node, so that the
adapter would not be tested. The adapter is named by libfabric's domain: the name of the RDMA device
and `-rdm`. The two processes connect over TCP on this node. A short shell script starts the client
once the server listens, and ends the server; so both run as one program with one deadline, and
leave nothing behind.

A pingpong has one message in flight, so its bandwidth is far below the line rate: the expected
value comes from other nodes of the same type, not from the data sheet. The first messages include
the set-up, so the latency is the median of the small sizes.

Source: libfabric fi_pingpong(1), util/pingpong.c and fi_efa(7); awslabs/awsome-distributed-ai (pull
request 1088: the name of the domain, no shared memory).
"""

from __future__ import annotations

import asyncio
import re
import socket
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vitald import small_files
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.bandwidth import BandwidthCheck
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import tool
from vitald.diagnostics.settings import EfaLoopbackSettings
from vitald.model.diagnostic import Fault, Measure, Report, RunRequest, Test
from vitald.model.words import Outcome, Remedy
from vitald.text import clean_line
from vitald.topology.pci_inventory import PciInventory

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
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_DEVICE = re.compile(r"\w[\w.\-]{0,63}", re.ASCII)
# Arguments: the port in hexadecimal, the port, the program and its options. Standard output is the
# client's, standard error the server's. The server has 20 s to listen (0A is TCP_LISTEN; a test
# connection would take the client's place), and 5 s to end after its client.
_SCRIPT = """
hex=$1 port=$2
shift 2
"$@" -B "$port" >/dev/null &
server=$!
tries=0
until grep -qs "^ *[0-9]*: [0-9A-F]*:$hex [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6; do
    kill -0 "$server" 2>/dev/null || {
        wait "$server"; code=$?; [ "$code" -ne 0 ] || code=75; exit "$code"
    }
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || { kill "$server"; echo "the server does not listen" >&2; exit 75; }
    sleep 0.1
done
"$@" -P "$port" 127.0.0.1 2>&1
code=$?
[ "$code" -eq 0 ] || kill "$server" 2>/dev/null
tries=0
while kill -0 "$server" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -ne 50 ] || kill "$server" 2>/dev/null
    [ "$tries" -lt 60 ] || break
    sleep 0.1
done
exit "$code"
"""

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
class Adapter:
    """An RDMA device of the driver efa. `address`: its PCI function, "" if unknown."""

    name: str
    address: str = ""


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
                return PingpongTable(tuple(rows), clean_line(line.strip()))
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


@dataclass(frozen=True, slots=True)
class AdapterResult:
    """The result of one adapter."""

    adapter: Adapter
    outcome: Outcome
    text: str = ""
    remedy: Remedy = Remedy.NONE
    code: str = ""  # of its fault; "" if there is none
    measures: tuple[Measure, ...] = ()
    run_ended: bool = False  # no other adapter is tested


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


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class EfaLoopbackCheck(BandwidthCheck):
    """Tests one adapter after the other, since they share the node's memory and processors."""

    name = NAME
    title = "EFA loopback"

    def __init__(self, config: Config) -> None:
        super().__init__(every_s=config[EfaLoopbackSettings].every_s, expected_s=15.0)
        self._settings = config[EfaLoopbackSettings]
        self._sysfs = config[Paths].sysfs
        self._classes = config[Paths].sysfs / "class" / "infiniband"

    def find_obstacle(self) -> str:
        if not tool.find_program(PROGRAM, FOLDERS):
            return tool.explain_absence(PROGRAM, FOLDERS)
        try:
            adapters = self._list_adapters()
        except OSError as error:
            return f"{self._classes}: {small_files.describe_error(error)}"
        if not adapters:
            return f"there is no EFA adapter here: {self._classes} has none of the driver efa"
        return ""

    def expected_s(self, level: int) -> float:
        del level
        try:
            return self._expected_s * max(1, len(self._list_adapters()))
        except OSError:
            return self._expected_s

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        del request  # its GPUs are not tested
        try:
            adapters = await asyncio.to_thread(self._list_adapters)
        except OSError as error:
            return tool.report_error(f"{self._classes}: {small_files.describe_error(error)}")
        inventory = await asyncio.to_thread(tool.scan_pci, self._sysfs)
        if inventory.error:
            return tool.report_error(inventory.error)
        results = _report_untestable(inventory, adapters)
        for adapter in adapters:
            results.append(await self._test_adapter(adapter, execute))
            if results[-1].run_ended:
                break
        return _make_report(_compare_results(results))

    def _list_adapters(self) -> list[Adapter]:
        """The adapters, recognised by their driver, since names can be changed."""
        found = []
        for name in small_files.list_names(self._classes):
            function = (self._classes / name / "device").resolve()
            if _DEVICE.fullmatch(name) and (function / "driver").resolve().name == "efa":
                found.append(
                    Adapter(name, function.name if _ADDRESS.fullmatch(function.name) else "")
                )
        return found

    async def _test_adapter(self, adapter: Adapter, execute: Execute) -> AdapterResult:
        program = tool.find_program(PROGRAM, FOLDERS) or PROGRAM
        port = _find_free_port()
        options = ("-e", "rdm", "-p", "efa", "-d", f"{adapter.name}-rdm", "-I", str(_ROUNDS))
        command = Command(
            argv=("/bin/sh", "-c", _SCRIPT, NAME, f"{port:04X}", str(port), program, *options),
            deadline_s=self._settings.deadline_s,
            environment={"FI_EFA_ENABLE_SHM_TRANSFER": "0"},
        )
        return self._judge_output(adapter, await execute(command))

    def _judge_output(self, adapter: Adapter, output: Output) -> AdapterResult:
        if output.ended is not ProgramEnd.EXITED or output.exit_code != 0:
            return self._judge_failure(adapter, output)
        table = read_table(output.stdout)
        if reason := _find_incomplete_reason(table, output):
            text = f"EFA {adapter.name}: {reason}"
            return AdapterResult(adapter, Outcome.INCONCLUSIVE, text, Remedy.RETRY)
        return self._judge_table(adapter, table)

    def _judge_table(self, adapter: Adapter, table: PingpongTable) -> AdapterResult:
        bandwidths = [row.bytes_per_second for row in table.rows]
        small = [row.seconds for row in table.rows if row.size <= _SMALL]
        best, latency = max(bandwidths), statistics.median(small)
        least = self._settings.min_gbps * tool.GIGA / 8 or None
        most = self._settings.max_latency_us * tool.MICRO or None
        # The five figures of HyperPod's message: MaxBw, AvgBw, MaxTypicalLat, MinTypicalLat,
        # AvgLat.
        measures = (
            Measure(
                name="bandwidth_bytes_per_second", value=best, device=adapter.name, minimum=least
            ),
            Measure(
                name="bandwidth_average_bytes_per_second",
                value=statistics.fmean(bandwidths),
                device=adapter.name,
            ),
            Measure(name="latency_seconds", value=latency, device=adapter.name, maximum=most),
            Measure(name="latency_max_typical_seconds", value=max(small), device=adapter.name),
            Measure(name="latency_min_typical_seconds", value=min(small), device=adapter.name),
            Measure(
                name="latency_average_seconds", value=statistics.fmean(small), device=adapter.name
            ),
        )
        slow = []
        if least is not None and best < least:
            slow.append(
                f"{best * 8 / tool.GIGA:.3g} Gbit/s, below the {self._settings.min_gbps:g} Gbit/s"
                " that are expected"
            )
        if most is not None and latency > most:
            slow.append(
                f"{latency / tool.MICRO:.3g} us, above the {self._settings.max_latency_us:g} us"
                " that are expected"
            )
        if any(row.lost for row in table.rows):
            text = f"EFA {adapter.name}: messages were lost on the way to itself"
            return AdapterResult(adapter, Outcome.FAIL, text, Remedy.INVESTIGATE, FAILED, measures)
        if slow:
            return AdapterResult(
                adapter,
                Outcome.FAIL,
                f"EFA {adapter.name}: {'; '.join(slow)}",
                Remedy.INVESTIGATE,
                SLOW,
                measures,
            )
        return AdapterResult(adapter, Outcome.PASS, measures=measures)

    def _judge_failure(self, adapter: Adapter, output: Output) -> AdapterResult:
        """The result of programs that did not exit with 0."""
        who = f"EFA {adapter.name}"
        if (report := tool.report_not_run(f"{who}: {PROGRAM}", output)) is not None:
            over = output.ended in (ProgramEnd.CANCELLED, ProgramEnd.NOT_STARTED)
            return AdapterResult(
                adapter, report.outcome, report.reason, report.remedy, run_ended=over
            )
        complaints = "\n".join(
            line for line in tool.split_lines(output.stdout) if not _TABLE.match(line)
        )
        # That the peer is gone is a message of the side that is not at fault.
        causes = "\n".join(line for line in complaints.splitlines() if "ctrl/" not in line)
        last = tool.find_last_line(causes, output.stderr, complaints) or "it printed nothing"
        if output.ended is ProgramEnd.DEADLINE:
            text = f"{who}: did not end within {self._settings.deadline_s:g} s: {last}"
            return AdapterResult(adapter, Outcome.FAIL, text, Remedy.INVESTIGATE, FAILED)
        text = f"{who}: {PROGRAM} ended with {output.exit_code}: {last}"
        if _SETTINGS.search(f"{complaints}\n{output.stderr}") or output.exit_code in (126, 127):
            return AdapterResult(adapter, Outcome.CONFIG, text, Remedy.FIX_CONFIG)
        if _NOT_CONNECTED.search(f"{complaints}\n{output.stderr}"):
            return AdapterResult(adapter, Outcome.ERROR, text, Remedy.RETRY)
        return AdapterResult(adapter, Outcome.FAIL, text, Remedy.INVESTIGATE, FAILED)


def _report_untestable(inventory: PciInventory, adapters: Iterable[Adapter]) -> list[AdapterResult]:
    """The results of the adapters on PCI that the driver does not show."""
    shown = {adapter.address for adapter in adapters}
    return [
        AdapterResult(
            Adapter(device.address, device.address),
            Outcome.INCONCLUSIVE,
            f"EFA {device.address} not tested: the driver does not show it",
            Remedy.RETRY,
        )
        for device in inventory.devices.values()
        if device.is_efa and device.is_for("efa") and device.address not in shown
    ]


_WORST = (Outcome.FAIL, Outcome.ERROR, Outcome.CONFIG, Outcome.INCONCLUSIVE, Outcome.PASS)
_STATUS = {Outcome.PASS: "Pass", Outcome.FAIL: "Fail"}


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


def _make_report(results: list[AdapterResult]) -> Report:
    if not results:
        return Report(outcome=Outcome.NOT_APPLICABLE, reason="there is no EFA adapter here")
    outcome = min((result.outcome for result in results), key=_WORST.index)
    return Report(
        outcome=outcome,
        reason=clean_line("; ".join(result.text for result in results if result.text)),
        remedy=max((result.remedy for result in results), key=lambda remedy: remedy.rank),
        tests=tuple(
            Test(
                name=f"loopback {result.adapter.name}",
                category=NAME,
                status=_STATUS.get(result.outcome, ""),
            )
            for result in results
        ),
        faults=tuple(_make_fault(result) for result in results if result.code),
        measures=tuple(measure for result in results for measure in result.measures),
    )


def _make_fault(result: AdapterResult) -> Fault:
    """The fault must be confirmed: a leftover process can spoil a single loopback."""
    adapter = result.adapter
    device = f"nic/{adapter.address}" if adapter.address else adapter.name
    return Fault(
        code=result.code,
        test="loopback",
        text=result.text,
        device=device,
        remedy=result.remedy,
        confirm=True,
    )


def build_check(config: Config) -> Check:
    return EfaLoopbackCheck(config)
