"""
What all_reduce_perf of nccl-tests prints: its table or JSON, and NCCL's lines around either.

Owns     the figures, the complaints, and which GPU a complaint names.
Refuses  judging them: the check does.

Source: nccl-tests src/common.cu and util.cu up to 2.17 (table, footer, JSON), src/common.h
(failures); NCCL's debug lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from vitald.collectors.small_files import presentable
from vitald.diagnostics.bandwidth import Figures
from vitald.diagnostics.run import cuda, tool

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
_NETWORK = re.compile(r"NCCL INFO Using network (?P<name>\S.{0,60})")
FAILURE = re.compile(
    r"Test (?:NCCL|CUDA) failure|Test failure|Test timeout|Invalid number of GPUs", re.IGNORECASE
)
WARN = re.compile(r"\bNCCL WARN\b")
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

_COMPLAINTS = (WARN, FAILURE, cuda.SETTINGS, re.compile(r"^#\s*error:"))


@dataclass(frozen=True, slots=True)
class NcclOutput(Figures):
    """What all_reduce_perf printed. Bandwidths in GB/s."""

    wrong: float = 0.0  # wrong values of all sizes
    checked: bool = False  # the values were compared with the expected ones
    out_of_bounds: bool | None = None  # by the footer; None if the output ends before it
    slow: bool = False  # below the program's own limit (NCCL_TESTS_MIN_BW)
    network: str = ""  # the network that NCCL chose, where its debug lines say so
    complaints: tuple[str, ...] = ()
    # CUDA's device number by PCI bus, for the devices that the program lists.
    devices: Mapping[str, int] = field(default_factory=dict)


Row = Sequence[tuple[str, str]]  # name and text of each cell; names stand twice, once per half


def read_output(text: str) -> NcclOutput:
    """Reads the table, or the JSON of `-J`, and NCCL's lines around either."""
    document = tool.find_document(text)
    results = document.get("results") if document is not None else None
    if document is not None and isinstance(results, list):
        lines = _read_text(text)
        read = _read_json(document, results)
        return replace(read, complaints=lines.complaints, network=lines.network)
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
        self._devices: dict[str, int] = {}
        self._network = ""

    def read_line(self, line: str) -> None:
        if self._read_comment(line) or self._read_row(line):
            return
        if (network := _NETWORK.search(line)) is not None:
            self._network = presentable(network["name"].strip())
        if any(pattern.search(line) for pattern in _COMPLAINTS):
            self._complaints.append(presentable(line.strip()))

    def make_output(self) -> NcclOutput:
        return replace(
            _add_rows(self._rows, self._footer, self._broken),
            complaints=tuple(self._complaints[:_MAX_COMPLAINTS]),
            devices=self._devices,
            network=self._network,
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
            self._devices[match["bus"].lower()] = int(match["device"])
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
            self._broken = self._broken or presentable(line.strip())
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
            broken = broken or presentable(" ".join(value for _, value in row))
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
    if device is None or not requested:
        return device  # CUDA's order is NVML's if all are visible: CUDA_DEVICE_ORDER
    return requested[device] if device < len(requested) else None


def find_first_blamed(
    complaints: Iterable[str], printed: NcclOutput, requested: Sequence[int]
) -> int | None:
    """The GPU that the first of the complaints blames that blames any."""
    blamed = (find_blamed_gpu(complaint, printed, requested) for complaint in complaints)
    return next((gpu for gpu in blamed if gpu is not None), None)


def find_complaints(printed: NcclOutput, pattern: re.Pattern[str]) -> list[str]:
    return [complaint for complaint in printed.complaints if pattern.search(complaint)]


def _find_by_bus(bus: str, devices: Mapping[str, int]) -> int | None:
    """NCCL writes 0000:1b:00.0 as `1b000`."""
    number = bus.split(":")[-2] if ":" in bus else f"{int(bus, 16) >> 12:02x}"[-2:]
    return next(
        (
            device
            for name, device in devices.items()
            if (name.split(":")[-2] if ":" in name else name)[-2:] == number
        ),
        None,
    )
