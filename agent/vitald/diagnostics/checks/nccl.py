"""
An all-reduce over the GPUs of this node, with all_reduce_perf of nccl-tests: it loads every GPU and
the NVLink or PCIe links between them, and verifies the results.

Wrong results are the most serious fault, since a job would not have noticed them. If the run fails,
NCCL's own lines name the GPU, and CUDA's error text distinguishes hardware from settings. The
bandwidth that counts is the best of all sizes, as in HyperPod's and Azure's checks, which compare
the largest messages with the expected value; the average over all sizes is reported with it.

Others expect of 8 GPUs, in GB/s: A100 228, H100 460, H200 431 (azurehpc-health-checks, one message
of 16 GB). Each is of one machine type, so none is a default here.

Source: nccl-tests src/common.cu and util.cu up to 2.17 (table, footer, JSON), src/common.h
(failures); NCCL's debug lines; CUDA's error texts (driver_types.h); SageMaker HyperPod's
documentation of deep health checks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.bandwidth import AllReduce, BandwidthCheck, Figures
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import tool
from vitald.diagnostics.settings import NcclSettings
from vitald.model.diagnostic import Report, RunRequest
from vitald.model.words import Outcome
from vitald.text import clean_line

NAME = "nccl"
FAILED, WRONG, SLOW = f"{NAME}/failed", f"{NAME}/wrong", f"{NAME}/slow"
FOLDERS = ("/opt/nccl-tests/build", "/usr/local/nccl-tests/build")
_MIN_SIZE, _MAX_SIZE = "8", "8G"
_MAX_COMPLAINTS = 40  # kept of one run

_OUT_OF_BOUNDS = re.compile(
    r"^#\s*Out of bounds values\s*:\s*(\S{1,20})\s*(OK|FAILED)?", re.IGNORECASE
)
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(\S{1,40})\s*(OK|FAILED)?", re.IGNORECASE)
_RANK = re.compile(
    r"^#\s+Rank\s+[0-9]{1,4}\s.*\bdevice\s+(?P<device>[0-9]{1,3})\s+"
    r"\[(?:0x)?(?P<bus>[0-9a-f]{2,4}(?::[0-9a-f]{2}){0,2})\]",
    re.IGNORECASE,
)
_FAILURE = re.compile(
    r"Test (?:NCCL|CUDA) failure|Test failure|Test timeout|Invalid number of GPUs", re.IGNORECASE
)
_WARN = re.compile(r"\bNCCL WARN\b")
# host:pid:thread [GPU], the prefix of NCCL's lines
_PREFIX = re.compile(r"(?:^|\s)\S{1,200}:[0-9]{1,10}:[0-9]{1,10} \[(?P<device>[0-9]{1,3})\]")
_NAMED = re.compile(
    r"\b(?:GPU|(?:cuda|nvml)?Dev(?:ice)?)\s*[:#]?\s*(?P<device>[0-9]{1,3})\b", re.IGNORECASE
)
_AT_BUS = re.compile(
    r"\bbus ?id:?"
    r" ?(?:0x)?(?P<bus>[0-9a-f]{4,16}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)\b",
    re.IGNORECASE,
)

# Errors of the hardware: they come from the device itself, and wrong settings do not cause them.
_HARDWARE = re.compile(
    r"\bXid\b|uncorrectable ECC|hardware stack error|nvlink error|uncorrectable NVLink|unspecified"
    r" launch failure|illegal instruction"
    r"|misaligned address|illegal memory access|GPU is lost|device is lost|fallen off the"
    r" bus|contained error|launch timed out"
    r"|unknown error",
    re.IGNORECASE,
)
# Errors of settings, or of other users of the GPUs: memory in use, an unsuitable driver, no fabric
# manager, a small /dev/shm, MIG, containers.
_SETTINGS = re.compile(
    r"out of memory|invalid device ordinal|Invalid number of GPUs|driver version is insufficient|no"
    r" CUDA-capable device"
    r"|system not yet initialized|initialization error|devices? (?:is|are)(?: busy)? or"
    r" unavailable|operation not (?:supported|permitted)"
    r"|peer access is not supported|invalid usage|invalid argument|no kernel image|unsupported"
    r" toolchain|error while loading shared libraries"
    r"|No space left on device|Permission denied|invalid option|nvmlDeviceGetHandleByPciBusId\(\)"
    r" failed",
    re.IGNORECASE,
)
# Errors of NCCL itself or of the host, which say nothing about a GPU.
_SOFTWARE = re.compile(r"unhandled system error|internal error", re.IGNORECASE)
_COMPLAINTS = (_WARN, _FAILURE, _SETTINGS, re.compile(r"^#\s*error:"))


@dataclass(frozen=True, slots=True)
class NcclOutput(Figures):
    """What all_reduce_perf printed. Bandwidths in GB/s."""

    wrong: float = 0.0  # wrong values of all sizes
    checked: bool = False  # the values were compared with the expected ones
    out_of_bounds: bool | None = None  # by the footer; None if the output ends before it
    slow: bool = False  # below the program's own limit (NCCL_TESTS_MIN_BW)
    complaints: tuple[str, ...] = ()
    # The PCI address or bus, as printed, of each device that the program lists, by CUDA's number.
    devices: Mapping[int, str] = field(default_factory=dict)


Row = Sequence[tuple[str, str]]  # name and text of each cell; names stand twice, once per half


def read_output(text: str) -> NcclOutput:
    """Reads the table, or the JSON of `-J`, and NCCL's lines around either."""
    document = tool.find_document(text)
    results = document.get("results") if document is not None else None
    if document is not None and isinstance(results, list):
        around = _read_text(text)
        printed = _read_json(document, results)
        return replace(printed, complaints=around.complaints, devices=around.devices)
    return _read_text(text)


def _read_text(text: str) -> NcclOutput:
    reader = _TextReader()
    for line in tool.split_lines(text):
        reader.read_line(line)
    return reader.make_output()


class _TextReader:
    """Collects the rows of the table, its footer, the GPUs and the complaints."""

    def __init__(self) -> None:
        self._heading: list[str] = []
        self._rows: list[Row] = []
        self._broken = ""  # the first row that is not whole
        self._footer = NcclOutput()
        self._complaints: list[str] = []
        self._devices: dict[int, str] = {}

    def read_line(self, line: str) -> None:
        if self._read_comment(line) or self._read_row(line):
            return
        if any(pattern.search(line) for pattern in _COMPLAINTS):
            self._complaints.append(clean_line(line.strip()))

    def make_output(self) -> NcclOutput:
        return replace(
            _add_rows(self._rows, self._footer, self._broken),
            complaints=tuple(self._complaints[:_MAX_COMPLAINTS]),
            devices=self._devices,
        )

    def _read_comment(self, line: str) -> bool:
        """Read the heading, the footer or the line of a GPU. False if the line is none of them."""
        if not line.startswith("#"):
            return False
        words = line.lstrip("# ").split()
        if (match := _OUT_OF_BOUNDS.match(line)) is not None:
            count = tool.parse_figure(match[1])
            exceeded = (match[2] or "").upper() == "FAILED" or bool(count)
            self._footer = replace(
                self._footer, out_of_bounds=exceeded if count is not None else None
            )
        elif (match := _AVERAGE.match(line)) is not None:
            self._footer = replace(
                self._footer,
                average=tool.parse_figure(match[1]),
                slow=(match[2] or "").upper() == "FAILED",
            )
        elif (match := _RANK.match(line)) is not None:
            self._devices[int(match["device"])] = match["bus"].lower()
        elif {"size", "busbw", "algbw"} <= set(words):
            self._heading = words
        else:
            return False
        return True

    def _read_row(self, line: str) -> bool:
        """Read a row of the table. False if the line is none."""
        words = line.lstrip("# ").split()
        if not self._heading or not words or not words[0].isdecimal():
            return False
        # If a word is missing, every figure after it is in the wrong column: nothing of the line
        # can be used. A time stamp is two words.
        if len(words) == len(self._heading) + (self._heading[-1] == "timestamp"):
            self._rows.append(list(zip(self._heading, words)))
        else:
            self._broken = self._broken or clean_line(line.strip())
        return True


def _read_json(document: Mapping[str, object], results: Iterable[object]) -> NcclOutput:
    rows: list[Row] = []
    broken = ""
    for result in results:
        if not isinstance(result, dict):
            broken = "a result that is no object"
            continue
        cells = [("size", str(result.get("size", "")))]
        for half in (result.get("out_of_place"), result.get("in_place")):
            if isinstance(half, dict):
                wrong = half.get("nwrong")
                cells += [
                    ("algbw", str(half.get("alg_bw", ""))),
                    ("busbw", str(half.get("bus_bw", ""))),
                    ("#wrong", "N/A" if wrong is None else str(wrong)),
                ]
        if len(cells) == 1:
            broken = "a result without figures"
        rows.append(cells)
    return _add_rows(rows, _read_json_footer(document), broken)


def _read_json_footer(document: Mapping[str, object]) -> NcclOutput:
    bounds, average = document.get("out_of_bounds"), document.get("average_bus_bandwidth")
    footer = NcclOutput()
    if isinstance(bounds, dict) and (count := tool.parse_number(bounds.get("count"))) is not None:
        exceeded = bool(count) or bounds.get("okay") in (False, "false")
        footer = replace(footer, out_of_bounds=exceeded)
    if isinstance(average, dict):
        footer = replace(
            footer,
            average=tool.parse_number(average.get("bandwidth")),
            slow=average.get("okay") in (False, "false"),
        )
    return footer


@dataclass(frozen=True, slots=True)
class _RowFigures:
    """The figures of one size, out of place and in place."""

    size: int  # bytes
    buses: list[float]
    algorithms: list[float]
    wrong: list[float]  # numbers of wrong values; empty where the values were not compared


def _add_rows(rows: Sequence[Row], footer: NcclOutput, broken: str) -> NcclOutput:
    """`broken`: a row that is not whole and was left out, if any."""
    whole: list[_RowFigures] = []
    for row in rows:
        figures = _read_figures(row)
        if figures is None:
            broken = broken or clean_line(" ".join(value for _, value in row))
        else:
            whole.append(figures)
    return replace(
        footer,
        sizes=tuple(figures.size for figures in whole),
        bus_bandwidths=tuple(chain.from_iterable(figures.buses for figures in whole)),
        algorithm_bandwidths=tuple(chain.from_iterable(figures.algorithms for figures in whole)),
        wrong=sum(chain.from_iterable(figures.wrong for figures in whole), 0.0),
        checked=any(figures.wrong for figures in whole) or _has_judged_errors(rows, footer),
        broken=broken or footer.broken,
    )


def _has_judged_errors(rows: Sequence[Row], footer: NcclOutput) -> bool:
    """Older versions have a column `error`, and only the footer says whether the errors matter."""
    return footer.out_of_bounds is not None and any(
        name == "error" for row in rows for name, _ in row
    )


def _read_figures(row: Row) -> _RowFigures | None:
    """None if the row is not whole."""
    size = tool.parse_figure(dict(row).get("size", ""))
    buses = _parse_figures(_get_cells(row, "busbw"))
    algorithms = _parse_figures(_get_cells(row, "algbw"))
    wrong = _parse_figures(count for count in _get_cells(row, "#wrong") if count != "N/A")
    if size is None or not buses or not algorithms or wrong is None:
        return None
    return _RowFigures(int(size), buses, algorithms, wrong)


def _get_cells(row: Row, name: str) -> Iterator[str]:
    return (value for column, value in row if column == name)


def _parse_figures(values: Iterable[str]) -> list[float] | None:
    """None if one of the values is no figure."""
    figures = [tool.parse_figure(value) for value in values]
    whole = [figure for figure in figures if figure is not None]
    return whole if len(whole) == len(figures) else None


def find_blamed_gpu(complaint: str, printed: NcclOutput, requested: Sequence[int]) -> int | None:
    """The NVML index of the GPU that a line names; else of the GPU whose thread printed it."""
    if (match := _AT_BUS.search(complaint)) is not None:
        device = _find_by_bus(match["bus"].lower(), printed.devices)
    else:
        words = _PREFIX.sub(" ", complaint, count=1)
        named = _NAMED.search(words) or _PREFIX.search(complaint)
        device = int(named["device"]) if named is not None else None
    return None if device is None else _find_index(device, requested)


def _find_index(device: int, requested: Sequence[int]) -> int | None:
    """The NVML index of a device by CUDA's number."""
    if not requested:
        return device  # CUDA's order is NVML's if all are visible: CUDA_DEVICE_ORDER
    return requested[device] if device < len(requested) else None


def _find_first_blamed(
    complaints: Iterable[str], printed: NcclOutput, requested: Sequence[int]
) -> int | None:
    """The GPU that the first of the complaints blames that blames any."""
    blamed = (find_blamed_gpu(complaint, printed, requested) for complaint in complaints)
    return next((gpu for gpu in blamed if gpu is not None), None)


def _find_complaints(printed: NcclOutput, pattern: re.Pattern[str]) -> list[str]:
    return [complaint for complaint in printed.complaints if pattern.search(complaint)]


def _find_by_bus(bus: str, devices: Mapping[int, str]) -> int | None:
    """NCCL writes 0000:1b:00.0 as `1b000`."""
    number = bus.split(":")[-2] if ":" in bus else f"{int(bus, 16) >> 12:02x}"[-2:]
    return next(
        (
            device
            for device, name in devices.items()
            if (name.split(":")[-2] if ":" in name else name)[-2:] == number
        ),
        None,
    )


class NcclCheck(BandwidthCheck):
    """One run of all_reduce_perf over the GPUs."""

    name = NAME
    title = "NCCL all-reduce on this node"
    covers_gpus = True

    def __init__(self, config: Config) -> None:
        super().__init__(every_s=config[NcclSettings].every_s, expected_s=60.0)
        self._settings = config[NcclSettings]
        self._sysfs = config[Paths].sysfs
        self._reports = AllReduce(
            check=NAME,
            program="all_reduce_perf",
            unit=tool.GIGA,
            expected=self._settings.min_gbytes,
        )

    def find_obstacle(self) -> str:
        if not tool.find_program(self._settings.program, FOLDERS):
            return tool.explain_absence(self._settings.program, FOLDERS)
        count, error = tool.count_gpus(self._sysfs)
        return error or _explain_too_few(count)

    async def run_check(self, request: RunRequest, execute: Execute) -> Report:
        count, error = await asyncio.to_thread(tool.count_gpus, self._sysfs)
        if error:
            return tool.report_error(error)
        gpus = tuple(sorted(set(request.gpus)))
        count = len(gpus) or count
        if reason := _explain_too_few(count):
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=reason)
        output = await execute(self._build_command(gpus, count))
        return self._judge_output(output, gpus)

    def _build_command(self, gpus: Sequence[int], count: int) -> Command:
        program = tool.find_program(self._settings.program, FOLDERS) or self._settings.program
        environment = {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        argv = (program, "-b", _MIN_SIZE, "-e", _MAX_SIZE, "-f", "2", "-g", str(count), "-c", "1")
        return Command(argv=argv, deadline_s=self._settings.deadline_s, environment=environment)

    def _judge_output(self, output: Output, gpus: Sequence[int]) -> Report:
        if (report := tool.report_not_run("all_reduce_perf", output)) is not None:
            return report
        printed = read_output(f"{output.stdout}\n{output.stderr}")
        return _add_tested_gpus(self._judge_printed(output, printed, gpus), printed, gpus)

    def _judge_printed(self, output: Output, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        if printed.wrong or printed.out_of_bounds:
            wrong = f"{printed.wrong:.0f} wrong values" if printed.wrong else "values out of bounds"
            return self._report_fault(WRONG, f"the results are wrong: {wrong}", printed)
        if output.ended is ProgramEnd.DEADLINE:
            return self._report_hang(printed, gpus)
        failed = any(_FAILURE.search(line) for line in printed.complaints)
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
        if slow := self._reports.find_slow_reason(printed):
            return self._report_fault(SLOW, slow, printed)
        return self._reports.report_pass(printed)

    def _report_hang(self, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        """A collective waits for its slowest member without a time limit."""
        last = f", after {len(printed.sizes)} sizes"
        if printed.complaints:
            last = f": {printed.complaints[0]}"
        gpu = _find_first_blamed(printed.complaints, printed, gpus)
        return self._report_fault(
            FAILED, f"it did not end within {self._settings.deadline_s:g} s{last}", printed, [gpu]
        )

    def _judge_failure(self, output: Output, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        hardware = _find_complaints(printed, _HARDWARE)
        if hardware:
            # All GPUs that complain in this way: which of them began is unknown.
            named = dict.fromkeys(find_blamed_gpu(line, printed, gpus) for line in hardware)
            return self._report_fault(
                FAILED, hardware[0], printed, [gpu for gpu in named if gpu is not None] or [None]
            )
        cause = self._reports.find_cause(printed.complaints, output)
        ended = f"all_reduce_perf ended with {output.exit_code}: "
        settings = _find_complaints(printed, _SETTINGS)
        if settings or output.exit_code in (126, 127):
            return tool.report_misconfigured(clean_line(ended + next(iter(settings), cause)))
        if _find_complaints(printed, _SOFTWARE) or not _find_complaints(printed, _FAILURE):
            return tool.report_error(clean_line(ended + cause))
        gpu = _find_first_blamed(_find_complaints(printed, _WARN), printed, gpus)
        return self._report_fault(FAILED, cause, printed, [gpu])

    def _report_fault(
        self, code: str, text: str, printed: NcclOutput, gpus: Iterable[int | None] = (None,)
    ) -> Report:
        return self._reports.report_failure(code, text, printed, gpus, confirm=code != WRONG)


def _explain_too_few(gpus: int) -> str:
    """Empty if there are two GPUs. The bus bandwidth of a single GPU is 0 by definition."""
    if gpus < 1:
        return tool.NO_GPU
    return "an all-reduce needs two GPUs" if gpus < 2 else ""


def _add_tested_gpus(report: Report, printed: NcclOutput, requested: Sequence[int]) -> Report:
    """The report with the GPUs that took part, where it is one on the all-reduce."""
    indexes = {
        index: bus
        for device, bus in printed.devices.items()
        if (index := _find_index(device, requested)) is not None
    }
    # Older versions print the bus only.
    addresses = {index: f"{bus}.0" for index, bus in indexes.items() if ":" in bus}
    tests = tuple(
        replace(test, gpus={str(index): test.status for index in sorted(indexes)})
        for test in report.tests
    )
    return replace(report, tests=tests, addresses=addresses)


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
