"""`vitald gpus`: the GPUs at a glance, one line each, and why one is not healthy. An unknown value
is a dash, never a zero.

The column `gpu` is N of /dev/nvidiaN, as in the label `gpu` of the metrics.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitald.cli import client, render
from vitald.cli.table import Column, format_table

if TYPE_CHECKING:
    from vitald.server import schema

Format = Callable[["schema.Gpu"], str]
Reasons = Mapping[str, Sequence[str]]


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
    gpus, source = answer["gpus"], answer["source"]
    if gpus:
        for line in _format_gpus(
            gpus, _list_findings(arguments, gpus), _list_unseen(arguments, gpus)
        ):
            render.print_line(line)
    disabled = "[nvml] enabled = false"
    if not gpus and source is not None:
        render.print_line("no GPU on PCI")
    elif not gpus:
        render.print_line(f"NVML is not asked on this node: {disabled}")
    elif source is None:
        render.print_line(f"these are not the present values: NVML is not asked: {disabled}")
    elif source["state"] != "ok":
        state = f"source nvml is {source['state']}: {render.escape_text(source['detail'])}"
        render.print_line(f"these are not the present values: {state}")
    return 0


def _list_findings(
    arguments: argparse.Namespace, gpus: Sequence[schema.Gpu]
) -> dict[str, list[schema.ApiFinding]]:
    """The open findings of each GPU that has some, by its name."""
    by_component: dict[str, list[schema.ApiFinding]] = {}
    if any(gpu["findings"] for gpu in gpus):
        for finding in client.call_api(arguments, "/v1/findings", limit=1000)["findings"]:
            by_component.setdefault(finding["component"], []).append(finding)
    return by_component


def _list_unseen(arguments: argparse.Namespace, gpus: Sequence[schema.Gpu]) -> Reasons:
    """Why the state of a GPU is unknown, by its name."""
    if all(gpu["status"] != "unknown" for gpu in gpus):
        return {}
    components = client.call_api(arguments, "/v1/components")["components"]
    return {component["name"]: component["unseen"] for component in components}


def _format_gpus(
    gpus: Sequence[schema.Gpu], findings: Mapping[str, list[schema.ApiFinding]], unseen: Reasons
) -> Iterator[str]:
    """The table, then a line for each reason why a GPU is not healthy."""
    not_real = [_is_read_from_simulation(gpu) for gpu in gpus]
    if all(not_real):
        yield render.colour_text("SIMULATED: none of these GPUs is real", "bold", "magenta")
    rows = []
    for gpu, is_simulated in zip(gpus, not_real):
        own = findings.get(gpu["component"], [])
        cells = [show(gpu) for _, show in _COLUMNS]
        cells.append(render.show_status(str(gpu["status"])))
        cells.append(" ".join(render.escape_text(finding["code"]) for finding in own))
        is_drill = any(finding["simulated"] for finding in own)
        is_marked = (is_simulated or is_drill) and not all(not_real)
        cells.append(render.colour_text("SIMULATED", "bold", "magenta") if is_marked else "")
        rows.append(cells)
    yield from format_table([*(column for column, _ in _COLUMNS), *_LAST_COLUMNS], rows)
    reasons = [
        reason
        for gpu in gpus
        for reason in _format_reasons(
            gpu, findings.get(gpu["component"], []), unseen.get(gpu["component"], ())
        )
    ]
    if reasons:
        yield from ("", *reasons)


def _format_reasons(
    gpu: schema.Gpu, findings: Sequence[schema.ApiFinding], unseen: Sequence[str]
) -> Iterator[str]:
    name = f"gpu {_read_identity(gpu, 'minor')} {render.escape_text(gpu['pci'])}"
    for finding in findings:
        yield f"  {name}: {render.describe_finding(finding)}"
    if gpu["status"] == "unknown":
        for reason in unseen:
            yield f"  {name}: not known: {render.escape_text(reason)}"


def _is_read_from_simulation(gpu: schema.Gpu) -> bool:
    """Whether its readings are not those of a GPU; a drill alone leaves them real."""
    return gpu["simulated"] and gpu["looked"] is not None


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
    if failed:
        return f"{rows:.0f} FAILED"
    return f"{rows:.0f} pending" if pending else f"{rows:.0f}"


def _format_links(gpu: schema.Gpu) -> str:
    active, links = _read_number(gpu, "nvlinks_active"), _read_number(gpu, "nvlinks_expected")
    if links is None:
        links = _read_number(gpu, "nvlinks")
    return "-" if active is None or links is None else f"{active:.0f}/{links:.0f}"


def _format_pcie(gpu: schema.Gpu) -> str:
    generation, width = _read_number(gpu, "pcie_generation"), _read_number(gpu, "pcie_width")
    return "-" if generation is None or width is None else f"{generation:.0f}x{width:.0f}"


_COLUMNS: tuple[tuple[Column, Format], ...] = (
    (Column("gpu", right=True), lambda gpu: _read_identity(gpu, "minor")),
    (Column("pci"), lambda gpu: render.escape_text(gpu["pci"])),
    (Column("model", 9), lambda gpu: _read_identity(gpu, "name").removeprefix("NVIDIA ")),
    (Column("serial", 8), lambda gpu: _read_identity(gpu, "serial")),
    (Column("temp"), _format_reading("temperature_celsius", "C")),
    (Column("power", 2), _format_reading("power_watts", "W")),
    (Column("util", 4), _format_reading("utilization_ratio", "%", 100)),
    (Column("memory"), _format_memory),
    (Column("ecc unc"), _format_reading("ecc_uncorrected")),
    (Column("remap", 3), _format_remap),
    (Column("nvlink", 1), _format_links),
    (Column("pcie", 5), _format_pcie),
)
_LAST_COLUMNS = (Column("status"), Column("", 7), Column(""))  # beside it, codes and a mark
