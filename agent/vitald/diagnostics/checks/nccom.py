"""
An all-reduce over all Neuron cores of this node, with nccom-test: it loads every core and every
link between the devices, and verifies the results.

nccom-test needs the number of workers (ranks): one for each logical core. sysfs shows physical
cores; on Trn2 and Trn3 two of them make a logical core by default, so the check sets that itself.
Its bandwidths are in GiB/s, as AWS documents, though the heading says GB/s. The verdict rests on
the table and the text below it, not on the exit status alone.

AWS publishes no expected bandwidths: they come from other nodes of the same type.

Source: AWS Neuron documentation, NCCOM-TEST user guide (SDK 2.29); HyperPod's deep health checks
run it too (NCCOM local test).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vitald import small_files
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.bandwidth import AllReduce, BandwidthCheck, Figures
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import tool
from vitald.diagnostics.settings import NccomSettings
from vitald.model.diagnostic import Report, RunRequest
from vitald.model.words import ComponentKind, Outcome
from vitald.text import clean_line
from vitald.topology.pci_inventory import PciInventory

NAME = "nccom"
FAILED, WRONG, SLOW = f"{NAME}/failed", f"{NAME}/wrong", f"{NAME}/slow"
PROGRAM = "nccom-test"
FOLDERS = ("/opt/aws/neuron/bin",)
_MIN_SIZE, _MAX_SIZE = "1MB", "1GB"
_MAX_SIZE_BYTES = 1 << 30
_MAX_COMPLAINTS = 20  # kept of one run
_PAIRED_CORES = ("Trn2", "Trn3")  # two physical cores make a logical one
_DEVICE = re.compile(r"neuron[0-9]{1,3}", re.ASCII)
_CORE = re.compile(r"neuron_core[0-9]{1,3}", re.ASCII)
_SIZE, _BUS, _ALGORITHM = "size(B)", "busbw(GB/s)", "algbw(GB/s)"
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S{1,40}?)\s*(?:GB/s)?\s*$", re.IGNORECASE)
_ERRORS = re.compile(r"\b([1-9][0-9]{0,8}) errors? found", re.IGNORECASE)
_FAILURE = re.compile(r"Failure running neuron-bench|test failed", re.IGNORECASE)
_WRONG = re.compile(
    r"(?:data|result|output|golden|correctness|integrity)\w*[\s\w]{0,40}"
    r"(?:mismatch|incorrect|corrupt|differ|fail)"
    r"|mismatch(?:ed)? (?:with|against|between)",
    re.IGNORECASE,
)
# Causes outside the devices: no driver, cores in use, too many workers, no space, a broken
# installation.
_SETTINGS = re.compile(
    r"Driver is not running|NERR_RESOURCE_NC|NRT_RESOURCE|in use by|(?:cores?|devices?) (?:is|are)"
    r" busy|insufficient (?:number of )?(?:neuron)?\s?cores"
    r"|Permission denied|No space left|Cannot allocate memory|ModuleNotFoundError|No such file or"
    r" directory|unrecognized arguments"
    r"|invalid choice|usage: nccom-test|error while loading shared libraries",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NccomTable(Figures):
    """What nccom-test printed, bandwidths in GiB/s."""

    errors: tuple[str, ...] = ()  # lines that report a failure
    wrong: tuple[str, ...] = ()  # lines that may report wrong results


def read_output(text: str) -> NccomTable:
    """Reads the table, or the JSON of --report-to-json-file, which has no average of its own."""
    document = tool.find_document(text)
    results = document.get("results") if document is not None else None
    return _read_json(results) if isinstance(results, list) else _read_text(text)


def _read_text(text: str) -> NccomTable:
    heading: list[str] = []
    rows: list[Mapping[str, str]] = []
    errors: list[str] = []
    wrong: list[str] = []
    average, broken = None, ""
    for line in tool.split_lines(text):
        words = line.split()
        if _ERRORS.search(line) or _FAILURE.search(line):
            errors.append(clean_line(line.strip()))
        elif _WRONG.search(line):
            wrong.append(clean_line(line.strip()))
        elif _SIZE in words and _BUS in words:
            heading = words
        elif (match := _AVERAGE.search(line)) is not None:
            average = tool.parse_figure(match[1])
            broken = broken or (clean_line(line.strip()) if average is None else "")
        elif heading and words and words[0].isdecimal():
            if len(words) == len(heading):
                rows.append(dict(zip(heading, words)))
            else:
                broken = broken or clean_line(line.strip())
    return replace(
        _build_table(rows, average, broken),
        errors=tuple(errors[:_MAX_COMPLAINTS]),
        wrong=tuple(wrong[:_MAX_COMPLAINTS]),
    )


def _read_json(results: Sequence[object]) -> NccomTable:
    rows = [
        {str(key): str(value) for key, value in row.items()}
        for row in results
        if isinstance(row, dict)
    ]
    table = _build_table(
        rows, None, "" if len(rows) == len(results) else "a result that is no object"
    )
    average = (
        sum(table.bus_bandwidths) / len(table.bus_bandwidths)
        if table.bus_bandwidths and not table.broken
        else None
    )
    return replace(table, average=average)


def _build_table(
    rows: Sequence[Mapping[str, str]], average: float | None, broken: str
) -> NccomTable:
    sizes, buses, algorithms = [], [], []
    for row in rows:
        size, bus, algorithm = (
            tool.parse_figure(row.get(name, "")) for name in (_SIZE, _BUS, _ALGORITHM)
        )
        if size is None or bus is None or algorithm is None:
            broken = broken or clean_line(" ".join(row.values()))
            continue
        sizes.append(int(size))
        buses.append(bus)
        algorithms.append(algorithm)
    return NccomTable(tuple(sizes), tuple(buses), tuple(algorithms), average, broken=broken)


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of this node, and how many devices have any. `per_worker`: physical cores in each
    worker, a logical core.
    """

    devices: int
    physical: int
    per_worker: int
    family: str

    @property
    def workers(self) -> int:
        return self.physical // self.per_worker


def count_cores(sysfs: Path) -> Cores:
    """Counts the cores that the driver shows. Raises OSError if they cannot be read."""
    root = sysfs / "class" / "neuron_device"
    cores = {
        name: sum(map(bool, map(_CORE.fullmatch, small_files.list_names(root / name))))
        for name in small_files.list_names(root)
        if _DEVICE.fullmatch(name)
    }
    devices = [name for name, count in cores.items() if count]
    family = ""
    if devices:
        with suppress(OSError):
            family = small_files.read_attribute(
                root / devices[0] / "info/architecture/instance_type"
            )
    per_worker = 2 if family in _PAIRED_CORES else 1
    return Cores(len(devices), sum(cores.values()), per_worker, family)


class NccomCheck(BandwidthCheck):
    """One run of nccom-test over all cores."""

    name = NAME
    title = "Neuron all-reduce on this node"

    def __init__(self, config: Config) -> None:
        # nccom-test first compiles a program for each size.
        super().__init__(every_s=config[NccomSettings].every_s, expected_s=120.0)
        self._settings = config[NccomSettings]
        self._sysfs = config[Paths].sysfs
        self._reports = AllReduce(
            check=NAME,
            program=PROGRAM,
            unit=tool.GIBI,
            expected=self._settings.min_gbytes,
        )

    def find_obstacle(self) -> str:
        if not tool.find_program(PROGRAM, FOLDERS):
            return tool.explain_absence(PROGRAM, FOLDERS)
        try:
            cores = count_cores(self._sysfs)
        except OSError as error:
            return f"{error.filename}: {small_files.describe_error(error)}"
        if not cores.devices:
            return "the Neuron driver shows no device"
        if cores.family == "Inf1":
            return f"{PROGRAM} does not run on Inferentia (Inf1)"
        if cores.workers < 2:
            return f"{PROGRAM} needs two cores, the driver shows {cores.physical}"
        return ""

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        del request
        try:
            cores = await asyncio.to_thread(count_cores, self._sysfs)
        except OSError as error:
            return tool.report_error(f"{error.filename}: {small_files.describe_error(error)}")
        if cores.workers < 2:
            return Report(
                outcome=Outcome.NOT_APPLICABLE,
                reason=f"the driver shows {cores.devices} devices with {cores.physical} cores",
            )
        output = await execute(self._build_command(cores))
        inventory = await asyncio.to_thread(tool.scan_pci, self._sysfs)
        return self._judge_output(output, cores, _find_untested(inventory, cores))

    def _build_command(self, cores: Cores) -> Command:
        program = tool.find_program(PROGRAM, FOLDERS) or PROGRAM
        # `allr` comes before `--check`, which takes an argument in newer versions.
        size = ("-b", _MIN_SIZE, "-e", _MAX_SIZE, "-f", "4", "-d", "fp32")
        argv = (program, "allr", "-r", str(cores.workers), *size, "--check", "--non-interactive")
        environment = (
            {"NEURON_LOGICAL_NC_CONFIG": str(cores.per_worker)} if cores.per_worker > 1 else {}
        )
        return Command(argv=argv, deadline_s=self._settings.deadline_s, environment=environment)

    def _judge_output(self, output: Output, cores: Cores, untested: str) -> Report:
        if (report := tool.report_not_run(PROGRAM, output)) is not None:
            return report
        printed = f"{output.stdout}\n{output.stderr}"
        table = read_output(printed)
        cause = self._reports.find_cause(table.errors, output)
        failed = bool(table.errors) or output.exit_code != 0
        if failed and table.wrong:
            return self._report_fault(WRONG, f"wrong results: {table.wrong[0]}", table)
        if output.ended is ProgramEnd.DEADLINE:
            return self._report_fault(
                FAILED, f"it did not end within {self._settings.deadline_s:g} s: {cause}", table
            )
        if failed or not table.sizes:
            settings = _find_settings_complaint(printed)
            if settings or output.exit_code in (126, 127):
                return tool.report_misconfigured(clean_line(f"{PROGRAM}: {settings or cause}"))
        if _has_crashed(printed, table):
            return tool.report_error(clean_line(f"{PROGRAM} crashed: {cause}"))
        if failed:
            return self._report_fault(
                FAILED,
                f"it failed over {cores.workers} cores (exit {output.exit_code}): {cause}",
                table,
            )
        return self._judge_table(table, output, untested)

    def _judge_table(self, table: NccomTable, output: Output, untested: str) -> Report:
        """The report on a run that the program itself calls a success. `untested`: why not all
        devices of the node were tested; "" if they were.
        """
        incomplete = self._reports.find_incomplete_reason(table, output)
        if reason := incomplete or _find_unfinished_reason(table):
            return self._reports.report_inconclusive(reason)
        if slow := self._reports.find_slow_reason(table):
            return self._report_fault(SLOW, slow, table)
        if untested:
            return self._reports.report_inconclusive(untested)
        return self._reports.report_pass(table)

    def _report_fault(self, code: str, text: str, table: NccomTable) -> Report:
        return self._reports.report_failure(code, text, table, confirm=code != WRONG)


def _find_untested(inventory: PciInventory, cores: Cores) -> str:
    """Why not all Neuron devices of the node were tested; "" if they were."""
    if inventory.error:
        return inventory.error
    on_pci = len(inventory.list_accelerators(ComponentKind.NEURON))
    left_out = on_pci - cores.devices
    if left_out <= 0:
        return ""
    return f"{left_out} of {on_pci} Neuron devices not tested: the driver does not show them"


def _has_crashed(printed: str, table: NccomTable) -> bool:
    return "Traceback (most recent call last)" in printed and not table.errors


def _find_settings_complaint(printed: str) -> str:
    """The first line that names a cause outside the devices; "" if there is none."""
    lines = (line.strip() for line in tool.split_lines(printed) if _SETTINGS.search(line))
    return next(lines, "")


def _find_unfinished_reason(table: NccomTable) -> str:
    """Why a run with a table is incomplete; "" if it is complete."""
    if table.wrong:
        return f"it speaks of wrong results, and of no error: {table.wrong[0]}"
    if table.average is None:
        return "the table ends before its average"
    # 1 MB times 4 four times is 256 MB, then 1 GB.
    if max(table.sizes) < _MAX_SIZE_BYTES // 4 or not max(table.bus_bandwidths):
        return "the table ends before its largest size"
    return ""


def build_check(config: Config) -> Check:
    return NccomCheck(config)
