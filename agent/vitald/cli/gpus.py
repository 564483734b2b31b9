"""`vitald gpus`: the GPUs at a glance, one line each. What nobody knows is a dash, never a zero.

`minor` is N of /dev/nvidiaN, as in the label `gpu` of the metrics.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vitald.cli import client, render

if TYPE_CHECKING:
    from vitald.server import schema

Format = Callable[["schema.Gpu"], str]


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="the answer of GET /v1/gpus, with every reading"
    )


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(arguments, "/v1/gpus")
    if arguments.json:
        render.emit_json(answer)
        return 0
    gpus = answer["gpus"]
    mixed = len({gpu["simulated"] for gpu in gpus}) > 1
    if gpus and gpus[0]["simulated"] and not mixed:
        print(render.colour_text("SIMULATED: none of these GPUs is real", "bold", "magenta"))
    wrong = _list_codes(arguments, gpus)
    shown = _fit_columns(gpus, max((len(codes) for codes in wrong), default=0))
    if gpus:
        print(
            render.colour_text(
                "  ".join([*(title.ljust(wide) for title, _, wide in shown), "status"]), "dim"
            )
        )
    for gpu, codes in zip(gpus, wrong):
        status = str(gpu["status"])
        words = [show(gpu).ljust(wide) for _, show, wide in shown]
        words.append(
            status if status == "healthy" else f"{render.colour_status(status)} {codes}".rstrip()
        )
        if mixed and gpu["simulated"]:
            words.append(render.colour_text("SIMULATED", "bold", "magenta"))
        render.print_line("  ".join(words))
    source = answer["source"]
    if not gpus:
        print(
            "no GPU on PCI"
            if source is not None
            else "NVML is not asked on this node: [nvml] enabled = false"
        )
    elif source is None or source["state"] != "ok":
        said = (
            "NVML is not asked: [nvml] enabled = false"
            if source is None
            else f"source nvml is {source['state']}: {render.escape_text(source['detail'])}"
        )
        render.print_line(f"these are not the present values: {said}")
    return 0


def _list_codes(arguments: argparse.Namespace, gpus: Sequence[schema.Gpu]) -> list[str]:
    """The codes of what is wrong with each GPU."""
    found: list[schema.Finding] = []
    if any(gpu["findings"] for gpu in gpus):
        found = client.call_api(arguments, "/v1/findings", limit=1000)["findings"]
    return [
        " ".join(
            render.escape_text(one["code"]) for one in found if one["component"] == gpu["component"]
        )
        for gpu in gpus
    ]


def _fit_columns(gpus: Sequence[schema.Gpu], codes: int) -> list[tuple[str, Format, int]]:
    """The columns for which this terminal has room beside a status and so many characters of codes,
    and how wide each is.
    """
    shown = [
        (title, show, max([len(title), *(len(show(gpu)) for gpu in gpus)]))
        for title, show in _COLUMNS
    ]
    room = render.get_width() - len("UNHEALTHY ") - codes
    for title in _OMITTED_FIRST:
        if sum(wide + 2 for _, _, wide in shown) <= room:
            break
        shown = [one for one in shown if one[0] != title]
    return shown


def _read_number(gpu: schema.Gpu, name: str) -> float | None:
    value = gpu["readings"].get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _read_identity(gpu: schema.Gpu, name: str) -> str:
    value = gpu["identity"].get(name)
    return render.escape_text(value) if value not in (None, "") else "-"


def _format_reading(name: str, unit: str = "", scale: float = 1.0) -> Format:
    def show(gpu: schema.Gpu) -> str:
        value = _read_number(gpu, name)
        return "-" if value is None else f"{value * scale:.0f}{unit}"

    return show


def _format_memory(gpu: schema.Gpu) -> str:
    used, total = _read_number(gpu, "memory_used_bytes"), _read_number(gpu, "memory_total_bytes")
    return "-" if used is None or total is None else f"{used / 2**30:.0f}/{total / 2**30:.0f}G"


def _format_remap(gpu: schema.Gpu) -> str:
    """Rows remapped, and whether one waits or failed."""
    rows, pending, failed = (
        _read_number(gpu, name)
        for name in ("remapped_rows_uncorrected", "row_remap_pending", "row_remap_failed")
    )
    if rows is None:
        pages = _read_number(gpu, "retired_pages")
        return "-" if pages is None else f"{pages:.0f} pages"
    return f"{rows:.0f}" + (" FAILED" if failed else " pending" if pending else "")


def _format_links(gpu: schema.Gpu) -> str:
    active, links = _read_number(gpu, "nvlinks_active"), _read_number(gpu, "nvlinks_expected")
    if links is None:
        links = _read_number(gpu, "nvlinks")
    return "-" if active is None or links is None else f"{active:.0f}/{links:.0f}"


def _format_pcie(gpu: schema.Gpu) -> str:
    generation, width = _read_number(gpu, "pcie_generation"), _read_number(gpu, "pcie_width")
    return "-" if generation is None or width is None else f"{generation:.0f}x{width:.0f}"


_COLUMNS: tuple[tuple[str, Format], ...] = (
    ("gpu", lambda gpu: render.escape_text(gpu["pci"])),
    ("minor", lambda gpu: _read_identity(gpu, "minor")),
    ("model", lambda gpu: _read_identity(gpu, "name").removeprefix("NVIDIA ")),
    ("serial", lambda gpu: _read_identity(gpu, "serial")),
    ("temp", _format_reading("temperature_celsius", "C")),
    ("power", _format_reading("power_watts", "W")),
    ("util", _format_reading("utilization_ratio", "%", 100)),
    ("memory", _format_memory),
    ("ecc unc", _format_reading("ecc_uncorrected")),
    ("remap", _format_remap),
    ("nvlink", _format_links),
    ("pcie", _format_pcie),
)
_OMITTED_FIRST = (
    "model",
    "serial",
    "pcie",
    "util",
    "remap",
    "power",
    "nvlink",
    "minor",
)  # columns that a narrow terminal leaves out, one by one
