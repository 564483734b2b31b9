"""
RDMA writes between the network adapters of this node, with perftest's ib_write_bw and ib_write_lat:
each adapter writes to itself, which loads the adapter and its PCIe link, and on InfiniBand to the
next one of its subnet and back, which loads the ports and the switch between them.

Server and client run on this node and connect over TCP. Adapters of other link layers write to
themselves only: there need not be a route between two of them. EFA has a check of its own. A port
that is not active is not tested: that it is down is a finding of the network's collector.

The bandwidth is the average of messages of 1 MiB, the latency the typical one of 8 bytes.

Source: perftest 4.5 to 26.x (perftest_parameters.h: tables; perftest_resources.h: failures);
Debian's perftest 4.5+0.17 (options, and what it prints without a device).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby, pairwise
from pathlib import Path

from vitald.collectors import small_files
from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics import adapters
from vitald.diagnostics.adapters import AdapterCheck, AdapterResult, AdapterTest
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import pair, tool

NAME = "ib_write"
FAILED, SLOW = f"{NAME}/failed", f"{NAME}/slow"
BANDWIDTH_PROGRAM, LATENCY_PROGRAM = "ib_write_bw", "ib_write_lat"
_BANDWIDTH_OPTIONS = ("-F", "--report_gbits", "-s", "1048576", "-n", "5000")
_LATENCY_OPTIONS = ("-F", "-s", "8", "-n", "10000")
_SECONDS_OF_ROUTE = 4.0
# Columns after `#bytes`: iterations, peak, average and rate; or iterations, least, most, typical,
# average, deviation and two percentiles.
_BANDWIDTH_COLUMNS, _AVERAGE = 5, 3
_LATENCY_COLUMNS, _TYPICAL = 9, 4
_HARDWARE = re.compile(r"Completion with error|Failed status", re.IGNORECASE)
_SETTINGS = re.compile(
    r"Permission denied|Operation not permitted|Cannot allocate memory|Couldn't allocate MR"
    r"|Function not implemented|error while loading shared libraries|unrecognized option"
    r"|Invalid Command or flag|Did not detect devices|Unable to find the Infiniband/RoCE device"
    r"|memlock",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Adapter(adapters.Adapter):
    """The first active port of an RDMA device. `subnet`: its prefix on InfiniBand, else ""."""

    port: int = 1
    subnet: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """The client writes to the server."""

    server: Adapter
    client: Adapter

    @property
    def is_loopback(self) -> bool:
        return self.server == self.client

    @property
    def name(self) -> str:
        """`mlx5_0`, or `mlx5_0 to mlx5_1`."""
        return self.client.name if self.is_loopback else f"{self.client.name} to {self.server.name}"

    def make_test(self) -> AdapterTest:
        """Between two adapters that are well by themselves a fault is on the way: of the node."""
        return AdapterTest(
            label=self.name,
            device=self.name,
            component=self.client.component if self.is_loopback else self.name,
            name=f"write {self.name}",
            fault_name=f"write {self.name}",
        )


def list_adapters(classes: Path, exclude: Sequence[str] = ()) -> list[Adapter]:
    """The RDMA devices with an active port. Raises OSError if they cannot be read."""
    found = []
    for device, function in adapters.list_devices(classes):
        names = (device.name, function.name)
        if adapters.is_efa(function) or any(
            fnmatchcase(name, pattern) for name in names for pattern in exclude
        ):
            continue
        ports = classes / device.name / "ports"
        port = next(_list_active_ports(ports), None)
        if port is not None:
            found.append(
                Adapter(device.name, device.address, port, _read_subnet(ports / str(port)))
            )
    return found


def _list_active_ports(ports: Path) -> Iterator[int]:
    numbers = (int(name) for name in small_files.list_names(ports) if name.isdecimal())
    for number in sorted(numbers):
        state = small_files.read_attribute(ports / str(number) / "state")
        if state.partition(":")[0].strip() == "4":  # 4: ACTIVE
            yield number


def _read_subnet(port: Path) -> str:
    try:
        if small_files.read_attribute(port / "link_layer") != "InfiniBand":
            return ""
        return small_files.read_attribute(port / "gids/0")[:19]  # fe80:0000:0000:0000
    except OSError:
        return ""


def plan_routes(ports: Sequence[Adapter]) -> list[Route]:
    """Each adapter to itself, then on InfiniBand to the next one of its subnet, both ways."""
    routes = [Route(port, port) for port in ports]
    fabric = sorted((port for port in ports if port.subnet), key=_get_subnet)
    for _, members in groupby(fabric, key=_get_subnet):
        ring = [*members]
        neighbours = [*pairwise(ring), *([(ring[-1], ring[0])] if len(ring) > 2 else [])]
        routes += [Route(*ends) for pair_ in neighbours for ends in (pair_, pair_[::-1])]
    return routes


def _get_subnet(adapter: Adapter) -> str:
    return adapter.subnet


def read_figure(text: str, heading: str, columns: int, column: int) -> float | None:
    """A column of the one row of perftest's table; None if it has none that is whole."""
    rows: list[list[str]] = []
    below = False
    for line in tool.split_lines(text):
        words = line.split()
        if words and words[0] == "#bytes":
            below = heading in line
        elif below and words and words[0].isdecimal():
            rows.append(words)
    if len(rows) != 1 or len(rows[0]) != columns:
        return None
    return tool.parse_figure(rows[0][column])


class IbWriteCheck(AdapterCheck[Adapter]):
    """Tests one route after the other."""

    name = NAME
    title = "RDMA writes between this node's adapters"
    absence = "no RDMA device here has an active port"

    def __init__(self, config: Config) -> None:
        super().__init__(NAME, config, config.ib_write, _SECONDS_OF_ROUTE)
        self._exclude = config.get_section("network").exclude

    def find_obstacle(self) -> str:
        for program in (BANDWIDTH_PROGRAM, LATENCY_PROGRAM):
            if not tool.find_program(program):
                return tool.explain_absence(program)
        return self.find_adapter_obstacle(f"{self._classes} has no RDMA device with an active port")

    def list_adapters(self) -> list[Adapter]:
        return list_adapters(self._classes, self._exclude)

    def count_tests(self, adapters: Sequence[Adapter]) -> int:
        return len(plan_routes(adapters))

    async def test_adapters(
        self, adapters: Sequence[Adapter], execute: Execute
    ) -> list[AdapterResult]:
        results: list[AdapterResult] = []
        well: set[Adapter] = set()  # those whose loopback was measured
        for route in plan_routes(adapters):
            if not route.is_loopback and not {route.server, route.client} <= well:
                continue  # the loopback has shown what is wrong
            results.append(await self._test_route(route, execute))
            if results[-1].run_ended:
                break
            if route.is_loopback and results[-1].measures:
                well.add(route.client)
        return results

    async def _test_route(self, route: Route, execute: Execute) -> AdapterResult:
        test = route.make_test()
        outputs: list[Output] = []
        for program, options in (
            (BANDWIDTH_PROGRAM, _BANDWIDTH_OPTIONS),
            (LATENCY_PROGRAM, _LATENCY_OPTIONS),
        ):
            output = await execute(self._build_command(program, options, route))
            if output.ended is not ProgramEnd.EXITED or output.exit_code != 0:
                return self._judge_failure(test, program, output)
            outputs.append(output)
        return self._judge_figures(test, *outputs)

    def _build_command(self, program: str, options: Sequence[str], route: Route) -> Command:
        path, port = tool.find_program(program) or program, pair.find_free_port()
        server, client = (
            (path, "-d", end.name, "-i", str(end.port), "-p", str(port), *options)
            for end in (route.server, route.client)
        )
        return Command(
            argv=pair.make_argv(NAME, port, server, (*client, "127.0.0.1")),
            deadline_s=self._settings.deadline_s,
        )

    def _judge_figures(self, test: AdapterTest, wide: Output, quick: Output) -> AdapterResult:
        gigabits = read_figure(wide.stdout, "BW average[Gb/sec]", _BANDWIDTH_COLUMNS, _AVERAGE)
        microseconds = read_figure(quick.stdout, "t_typical[usec]", _LATENCY_COLUMNS, _TYPICAL)
        if not gigabits or not microseconds or wide.dropped or quick.dropped:
            program = LATENCY_PROGRAM if gigabits else BANDWIDTH_PROGRAM
            return test.report_inconclusive(f"{program} printed no table that is whole")
        bandwidth, latency = gigabits * tool.GIGA / 8, microseconds * tool.MICRO
        compared = self.compare_figures(test.device, bandwidth, latency, digits=4)
        measures = (compared.bandwidth, compared.latency)
        if compared.slow:
            return test.report_fault(SLOW, compared.slow, measures)
        return test.report_pass(measures)

    def _judge_failure(self, test: AdapterTest, program: str, output: Output) -> AdapterResult:
        """The result of programs that did not exit with 0."""
        if (result := test.report_not_run(program, output)) is not None:
            return result
        printed = f"{output.stdout}\n{output.stderr}"
        lines = (line.strip() for line in tool.split_lines(printed))
        known = [line for line in lines if _HARDWARE.search(line) or _SETTINGS.search(line)]
        last = tool.find_last_line(output.stderr, output.stdout) or "it printed nothing"
        if output.ended is ProgramEnd.DEADLINE:
            late = f"{program} did not end within {self._settings.deadline_s:g} s: {last}"
            return test.report_fault(FAILED, late)
        cause = " ".join(dict.fromkeys(known)) or last
        text = f"{program} ended with {output.exit_code}: {presentable(cause)}"
        if _HARDWARE.search(cause):
            return test.report_fault(FAILED, text)
        if _SETTINGS.search(cause) or output.exit_code in (126, 127):
            return test.report_misconfigured(text)
        return test.report_error(text)


def build_check(config: Config) -> Check:
    return IbWriteCheck(config)
