"""`vitald gpus`: the GPUs at a glance, one line each, and why one is not healthy. An unknown value
is a dash, never a zero.

`gpu` is the number that nvidia-smi gives it; `minor` is N of /dev/nvidiaN, as in the label `gpu` of
the metrics.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitald.cli import client, finding_text, render
from vitald.server import endpoints

if TYPE_CHECKING:
    from vitald.server import schema

Format = Callable[["schema.Gpu"], str]


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="the answer of GET /v1/gpus, with every reading"
    )


def run(arguments: argparse.Namespace) -> int:
    answer = client.get(arguments, endpoints.GPUS)
    if arguments.json:
        render.emit_json(answer)
        return 0
    gpus, source = answer["gpus"], answer["source"]
    if gpus:
        findings: dict[str, list[schema.ApiFinding]] = {}
        more = False
        if any(gpu["findings"] for gpu in gpus):
            findings, more = client.read_findings_by_component(arguments)
        for line in _format_gpus(gpus, findings, _list_unseen(arguments, gpus)):
            render.print_line(line)
        if more:
            render.print_line(finding_text.MORE_FINDINGS)
    disabled = "[nvml] enabled = false"
    if not gpus and source is not None and source["state"] == "not present":
        print("no GPU on PCI; if this node should have some, say how many: [nvml] expected_gpus")
    elif not gpus and source is None:
        print(f"NVML is not asked on this node: {disabled}")
    elif source is None:
        render.print_line(f"these are not the present values: NVML is not asked: {disabled}")
    elif source["state"] != "ok":
        state = f"source nvml is {source['state']}: {render.escape_text(source['detail'])}"
        what = "these are not the present values" if gpus else "which GPUs there are is unknown"
        render.print_line(f"{what}: {state}")
    return 0


def _format_gpus(
    gpus: Sequence[schema.Gpu],
    findings: Mapping[str, Sequence[schema.ApiFinding]],
    unseen: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """A row each, then why some are not healthy. `findings` and `unseen`: by component."""
    drilled = [_has_drill(findings.get(gpu["component"], ())) for gpu in gpus]
    none_is_real = all(gpu["simulated"] for gpu in gpus) and not all(drilled)
    if none_is_real:
        yield render.colour_text("SIMULATED: none of these GPUs is real", "bold", "magenta")
    marked = [gpu["simulated"] and not none_is_real for gpu in gpus]
    columns = _fit_columns(gpus, render.get_width() - any(marked) * len("  SIMULATED"))
    titles = "  ".join(title.ljust(width) for title, _, width in columns)
    yield render.colour_text(titles.rstrip(), "dim")
    for gpu, is_marked in zip(gpus, marked):
        cells = [show(gpu).ljust(width) for _, show, width in columns[:-1]]
        status = str(gpu["status"])
        cells.append(status if status == "healthy" else render.colour_status(status))
        if is_marked:
            cells.append(finding_text.mark_simulated())
        yield "  ".join(cells)
    for gpu in gpus:
        name = f"  GPU {_read_identity(gpu, 'index')} {render.escape_text(gpu['pci'])}"
        for finding in findings.get(gpu["component"], ()):
            yield f"{name}: {finding_text.format_brief(finding)}"
        for reason in unseen.get(gpu["component"], ()):
            yield f"{name}: not known: {render.escape_text(reason)}"


def _has_drill(findings: Iterable[schema.ApiFinding]) -> bool:
    return any(finding["simulated"] for finding in findings)


def _list_unseen(arguments: argparse.Namespace, gpus: Iterable[schema.Gpu]) -> dict[str, list[str]]:
    """Why the state of a GPU is unknown, by component."""
    if all(gpu["status"] != "unknown" for gpu in gpus):
        return {}
    components = client.get(arguments, endpoints.COMPONENTS)["components"]
    return {component["name"]: component["unknownReasons"] for component in components}


def _fit_columns(gpus: Sequence[schema.Gpu], room: int) -> list[tuple[str, Format, int]]:
    """The columns that fit so many of a terminal, each with its width."""
    shown = [
        (title, show, max([len(title), *(len(show(gpu)) for gpu in gpus)]))
        for title, show in _COLUMNS
    ]
    for title in _OMITTED_FIRST:
        if sum(width + 2 for _, _, width in shown) - 2 <= room:
            break
        shown = [column for column in shown if column[0] != title]
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


_COLUMNS: tuple[tuple[str, Format], ...] = (
    ("gpu", lambda gpu: _read_identity(gpu, "index")),
    ("pci", lambda gpu: render.escape_text(gpu["pci"])),
    ("minor", lambda gpu: _read_identity(gpu, "minor")),
    ("model", lambda gpu: _read_identity(gpu, "name").removeprefix("NVIDIA ")),
    ("serial", lambda gpu: _read_identity(gpu, "serial")),
    ("slot", lambda gpu: render.escape_text(gpu["slot"] or "-")),
    ("temp", _format_reading("temperature_celsius", "C")),
    ("power", _format_reading("power_watts", "W")),
    ("util", _format_reading("utilization_ratio", "%", 100)),
    ("memory", _format_memory),
    ("ecc unc", _format_reading("ecc_uncorrected")),
    ("remap", _format_remap),
    ("nvlink", _format_links),
    ("pcie", _format_pcie),
    ("status", lambda gpu: str(gpu["status"])),
)
# Columns that a narrow terminal omits, one by one.
_OMITTED_FIRST = ("minor", "model", "slot", "pcie", "serial", "util", "remap", "power", "nvlink")
