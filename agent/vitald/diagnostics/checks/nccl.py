"""
An all-reduce over the GPUs of this node, with all_reduce_perf of nccl-tests: every GPU computes,
NVLink or PCIe between them carries, and the results are compared with what they must be.

Results that are wrong are the gravest sign that there is, for a job would not have noticed. Where
the run fails, NCCL's own lines say on which GPU, and CUDA's words whose fault it is. What counts as
the bandwidth is the best of all sizes, as for HyperPod's and Azure's checks, which hold the largest
messages against what is expected; the average over all sizes is reported with it.

What peers expect of 8 GPUs, in GB/s: A100 228, H100 460, H200 431 (azurehpc-health-checks, one
message of 16 GB). These are of one type of machine each, so none is our default.

Source: nccl-tests src/common.cu and util.cu up to 2.17 (table, footer, JSON), src/common.h
(failures); NCCL's debug lines; CUDA's error texts (driver_types.h); SageMaker HyperPod's
documentation of deep health checks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vitald.collectors.small_files import presentable
from vitald.config import Config
from vitald.diagnostics.bandwidth import AllReduce, BandwidthCheck, Figures
from vitald.diagnostics.check import Check, Command, Execute, Output, ProgramEnd
from vitald.diagnostics.run import tool
from vitald.model.diagnostic import Outcome, Remedy, Report, RunRequest

NAME = "nccl"
FAILED, WRONG, SLOW = f"{NAME}/failed", f"{NAME}/wrong", f"{NAME}/slow"
FOLDERS = ("/opt/nccl-tests/build", "/usr/local/nccl-tests/build")
_MIN_SIZE, _MAX_SIZE = "8", "8G"
_MAX_COMPLAINTS = 40  # complaints that are kept

_OUT_OF_BOUNDS = re.compile(
    r"^#\s*Out of bounds values\s*:\s*(\S{1,20})\s*(OK|FAILED)?", re.IGNORECASE
)
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(\S{1,40})\s*(OK|FAILED)?", re.IGNORECASE)
_RANK = re.compile(
    r"^#\s+Rank\s+[0-9]{1,4}\s.*\bdevice\s+(?P<device>[0-9]{1,3})\s+\[(?:0x)?(?P<bus>[0-9a-f]{2,4}(?::[0-9a-f]{2}){0,2})\]",
    re.IGNORECASE,
)
_FAILURE = re.compile(
    r"Test (?:NCCL|CUDA) failure|Test failure|Test timeout|Invalid number of GPUs", re.IGNORECASE
)
_WARN = re.compile(r"\bNCCL WARN\b")
# host:pid:thread [GPU]
_SAID_BY = re.compile(r"(?:^|\s)\S{1,200}:[0-9]{1,10}:[0-9]{1,10} \[(?P<device>[0-9]{1,3})\]")
_NAMED = re.compile(
    r"\b(?:GPU|(?:cuda|nvml)?Dev(?:ice)?)\s*[:#]?\s*(?P<device>[0-9]{1,3})\b", re.IGNORECASE
)
_AT_BUS = re.compile(
    r"\bbus ?id:?"
    r" ?(?:0x)?(?P<bus>[0-9a-f]{4,16}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)\b",
    re.IGNORECASE,
)

# What a complaint points to. The hardware: these come from the device itself, and a settings
# mistake does not print them.
_HARDWARE = re.compile(
    r"\bXid\b|uncorrectable ECC|hardware stack error|nvlink error|uncorrectable NVLink|unspecified"
    r" launch failure|illegal instruction"
    r"|misaligned address|illegal memory access|GPU is lost|device is lost|fallen off the"
    r" bus|contained error|launch timed out"
    r"|unknown error",
    re.IGNORECASE,
)
# Settings, or somebody else on the GPUs: memory in use, no driver that fits, no fabric manager, too
# small a /dev/shm, MIG, containers.
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
# Of NCCL itself or of the host: neither speaks of a GPU.
_OURS = re.compile(r"unhandled system error|internal error", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NcclOutput(Figures):
    """What all_reduce_perf printed. Bandwidths in GB/s."""

    wrong: float = 0.0  # values, of all sizes
    checked: bool = False  # whether they were compared
    out_of_bounds: bool | None = None  # the footer's word; None where it has not come to that
    slow: bool = False  # by the program's own measure (NCCL_TESTS_MIN_BW)
    complaints: tuple[str, ...] = ()
    # CUDA's device number by PCI bus, as far as the program prints it.
    devices: Mapping[str, int] = field(default_factory=dict)


def read_output(text: str) -> NcclOutput:
    """The table on standard output, or the JSON of `-J`, with NCCL's lines around either."""
    found = tool.find_document(text)
    results = found.get("results") if found is not None else None
    if found is not None and isinstance(results, list):
        return replace(_read_json(found, results), complaints=_read_text(text).complaints)
    return _read_text(text)


def _read_text(text: str) -> NcclOutput:
    heading: list[str] = []
    rows: list[Sequence[tuple[str, str]]] = []
    complaints: list[str] = []
    devices: dict[str, int] = {}
    made, broken = NcclOutput(), ""
    for line in tool.split_lines(text):
        words = line.lstrip("# ").split()
        if (match := _OUT_OF_BOUNDS.match(line)) is not None:
            count = tool.parse_figure(match[1])
            verdict = (match[2] or "").upper() == "FAILED" or bool(count)
            made = replace(made, out_of_bounds=verdict if count is not None else None)
        elif (match := _AVERAGE.match(line)) is not None:
            made = replace(
                made, average=tool.parse_figure(match[1]), slow=(match[2] or "").upper() == "FAILED"
            )
        elif (match := _RANK.match(line)) is not None:
            devices[match["bus"].lower()] = int(match["device"])
        elif line.startswith("#") and {"size", "busbw", "algbw"} <= set(words):
            heading = words
        elif (
            heading and line.strip() and words and words[0].isdecimal() and not line.startswith("#")
        ):
            # A word short, and every figure after it is another's: nothing of the line can be used.
            # A time stamp is two words.
            if len(words) == len(heading) + (heading[-1] == "timestamp"):
                rows.append(list(zip(heading, words)))
            else:
                broken = broken or presentable(line.strip())
        elif (
            _WARN.search(line)
            or _FAILURE.search(line)
            or _SETTINGS.search(line)
            or re.match(r"#\s*error:", line)
        ):
            complaints.append(presentable(line.strip()))
    return replace(
        _add_rows(rows, made, broken),
        complaints=tuple(complaints[:_MAX_COMPLAINTS]),
        devices=devices,
    )


def _read_json(found: Mapping[str, object], results: Iterable[object]) -> NcclOutput:
    rows: list[Sequence[tuple[str, str]]] = []
    broken = ""
    for result in results:
        if not isinstance(result, dict):
            broken = "a result that is no object"
            continue
        cells = [("size", str(result.get("size", "")))]
        for place in ("out_of_place", "in_place"):
            half = result.get(place)
            if isinstance(half, dict):
                wrong = half.get("nwrong")
                cells += [
                    ("algbw", str(half.get("alg_bw", ""))),
                    ("busbw", str(half.get("bus_bw", ""))),
                ]
                cells.append(("#wrong", "N/A" if wrong is None else str(wrong)))
        if len(cells) == 1:
            broken = "a result without figures"
        rows.append(cells)
    bounds, average = found.get("out_of_bounds"), found.get("average_bus_bandwidth")
    made = NcclOutput()
    if isinstance(bounds, dict) and (count := tool.parse_number(bounds.get("count"))) is not None:
        made = replace(made, out_of_bounds=bool(count) or bounds.get("okay") in (False, "false"))
    if isinstance(average, dict):
        made = replace(
            made,
            average=tool.parse_number(average.get("bandwidth")),
            slow=average.get("okay") in (False, "false"),
        )
    return _add_rows(rows, made, broken)


def _add_rows(
    rows: Sequence[Sequence[tuple[str, str]]], made: NcclOutput, broken: str
) -> NcclOutput:
    """Each name comes twice in a row: out of place, and in place."""
    sizes, buses, algorithms, wrong, checked = [], [], [], 0.0, False
    for row in rows:
        size = tool.parse_figure(dict(row).get("size", ""))
        halves = [
            [tool.parse_figure(value) for name, value in row if name == wanted]
            for wanted in ("busbw", "algbw")
        ]
        counts = [value for name, value in row if name == "#wrong"]
        counted = [tool.parse_figure(count) for count in counts if count != "N/A"]
        figures = [one for half in halves for one in half]
        if size is None or not all(halves) or None in figures or None in counted:
            broken = broken or presentable(" ".join(value for _, value in row))
            continue
        sizes.append(int(size))
        buses += [one for one in halves[0] if one is not None]
        algorithms += [one for one in halves[1] if one is not None]
        wrong += sum(count for count in counted if count is not None)
        checked = checked or bool(counted)
    # Older versions have a column `error` instead, and the footer alone says whether it matters.
    checked = checked or (
        made.out_of_bounds is not None and any(name == "error" for row in rows for name, _ in row)
    )
    return replace(
        made,
        sizes=tuple(sizes),
        buses=tuple(buses),
        algorithms=tuple(algorithms),
        wrong=wrong,
        checked=checked,
        broken=broken or made.broken,
    )


def find_blamed_gpu(complaint: str, printed: NcclOutput, asked: Sequence[int]) -> int | None:
    """The GPU that a line names, as NVML numbers it; where it names none, the one whose thread says
    it.
    """
    if (match := _AT_BUS.search(complaint)) is not None:
        device = _find_by_bus(match["bus"].lower(), printed.devices)
    else:
        words = _SAID_BY.sub(" ", complaint, count=1)
        named = _NAMED.search(words) or _SAID_BY.search(complaint)
        device = int(named["device"]) if named is not None else None
    if device is None or not asked:
        return device  # CUDA's order is NVML's where all are visible: CUDA_DEVICE_ORDER
    return asked[device] if device < len(asked) else None


def _find_by_bus(bus: str, devices: Mapping[str, int]) -> int | None:
    """`1b000` is NCCL's way to write 0000:1b:00.0."""
    number = bus.split(":")[-2] if ":" in bus else f"{int(bus, 16) >> 12:02x}"[-2:]
    return next(
        (
            device
            for name, device in devices.items()
            if (name.split(":")[-2] if ":" in name else name)[-2:] == number
        ),
        None,
    )


class NcclCheck(BandwidthCheck):
    """One run of all_reduce_perf over the GPUs."""

    name = NAME
    title = "NCCL all-reduce on this node"

    def __init__(self, config: Config) -> None:
        super().__init__(every_s=config.nccl.every_s, expected_s=60.0)
        self._settings = config.nccl
        self._sysfs = config.paths.sysfs
        self._reports = AllReduce(
            check=NAME,
            program="all_reduce_perf",
            unit=tool.GIGA,
            least=self._settings.least_gbytes,
        )

    def find_obstacle(self) -> str:
        if not tool.find_program(self._settings.program, FOLDERS):
            return tool.explain_absence(self._settings.program, FOLDERS)
        count, error = tool.count_gpus(self._sysfs)
        return error or _too_few(count)

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        count, error = await asyncio.to_thread(tool.count_gpus, self._sysfs)
        if error:
            return Report(outcome=Outcome.ERROR, reason=error, remedy=Remedy.RETRY)
        gpus = tuple(sorted(set(ask.gpus)))
        count = len(gpus) or count
        if why := _too_few(count):
            return Report(outcome=Outcome.NOT_APPLICABLE, reason=why)
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
        if printed.wrong or printed.out_of_bounds:
            said = f"{printed.wrong:.0f} wrong values" if printed.wrong else "values out of bounds"
            return self._report_fault(WRONG, f"the results are wrong: {said}", printed)
        if output.ended is ProgramEnd.DEADLINE:
            return self._report_hang(printed, gpus)
        failed = any(_FAILURE.search(line) for line in printed.complaints)
        incomplete = self._reports.find_incomplete_reason(
            printed, output
        ) or _find_unfinished_reason(printed)
        if printed.slow and not failed and not incomplete:
            return self._report_fault(
                SLOW,
                f"{max(printed.buses):.4g} GB/s of bus bandwidth, below what NCCL_TESTS_MIN_BW"
                " says",
                printed,
            )
        if output.exit_code != 0 or failed:
            return self._judge_failure(output, printed, gpus)
        if incomplete:
            return self._reports.report_inconclusive(incomplete)
        if slow := self._reports.find_slow_reason(printed):
            return self._report_fault(SLOW, slow, printed)
        return self._reports.report_pass(printed)

    def _report_hang(self, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        """A collective waits for its slowest member for ever."""
        last = (
            f": {printed.complaints[0]}"
            if printed.complaints
            else f", after {len(printed.sizes)} sizes"
        )
        gpu = next(
            (
                gpu
                for line in printed.complaints
                if (gpu := find_blamed_gpu(line, printed, gpus)) is not None
            ),
            None,
        )
        return self._report_fault(
            FAILED, f"it did not end within {self._settings.deadline_s:g} s{last}", printed, [gpu]
        )

    def _judge_failure(self, output: Output, printed: NcclOutput, gpus: Sequence[int]) -> Report:
        hard = [line for line in printed.complaints if _HARDWARE.search(line)]
        if hard:
            # All that complain so: which of them began it is not said.
            named = dict.fromkeys(find_blamed_gpu(line, printed, gpus) for line in hard)
            return self._report_fault(
                FAILED, hard[0], printed, [gpu for gpu in named if gpu is not None] or [None]
            )
        last = (
            next(iter(printed.complaints), "")
            or tool.find_last_line(output.stderr, output.stdout)
            or "it printed nothing"
        )
        ended = f"all_reduce_perf ended with {output.exit_code}: "
        soft = next((line for line in printed.complaints if _SETTINGS.search(line)), "")
        if soft or output.exit_code in (126, 127):
            return Report(
                outcome=Outcome.CONFIG,
                reason=presentable(ended + (soft or last)),
                remedy=Remedy.FIX_CONFIG,
            )
        ours = any(_OURS.search(line) for line in printed.complaints)
        if ours or not any(_FAILURE.search(line) for line in printed.complaints):
            return Report(
                outcome=Outcome.ERROR, reason=presentable(ended + last), remedy=Remedy.RETRY
            )
        gpu = next(
            (
                gpu
                for line in printed.complaints
                if _WARN.search(line) and (gpu := find_blamed_gpu(line, printed, gpus)) is not None
            ),
            None,
        )
        return self._report_fault(FAILED, last, printed, [gpu])

    def _report_fault(
        self, code: str, said: str, printed: NcclOutput, gpus: Iterable[int | None] = (None,)
    ) -> Report:
        return self._reports.report_failure(code, said, printed, gpus, confirm=code != WRONG)


def _too_few(gpus: int) -> str:
    """One GPU has nobody to reduce with: its bus bandwidth is 0 by definition."""
    if gpus < 1:
        return tool.NO_GPU
    return "an all-reduce needs two GPUs" if gpus < 2 else ""


def _find_unfinished_reason(printed: NcclOutput) -> str:
    """Why a whole table is not all of it; empty where it is."""
    if printed.average is None or printed.out_of_bounds is None:
        return "the table ends before its footer"
    if not printed.checked:
        return "the results were not compared with what they must be"
    if not max(printed.buses):
        return "no bandwidth was measured"
    return ""


def build_check(config: Config) -> Check:
    return NcclCheck(config)
