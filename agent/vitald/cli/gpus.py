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

Show = Callable[["schema.Gpu"], str]


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument(
        "--json", action="store_true", help="the answer of GET /v1/gpus, with every reading"
    )


def run(arguments: argparse.Namespace) -> int:
    answer = client.ask(arguments, "/v1/gpus")
    if arguments.json:
        render.emit_json(answer)
        return 0
    gpus = answer["gpus"]
    mixed = len({gpu["simulated"] for gpu in gpus}) > 1
    if gpus and gpus[0]["simulated"] and not mixed:
        print(render.colour("SIMULATED: none of these GPUs is real", "bold", "magenta"))
    wrong = _wrong(arguments, gpus)
    shown = _fitting(gpus, max((len(codes) for codes in wrong), default=0))
    if gpus:
        print(
            render.colour(
                "  ".join([*(title.ljust(wide) for title, _, wide in shown), "status"]), "dim"
            )
        )
    for gpu, codes in zip(gpus, wrong):
        status = str(gpu["status"])
        words = [show(gpu).ljust(wide) for _, show, wide in shown]
        words.append(
            status if status == "healthy" else f"{render.status_word(status)} {codes}".rstrip()
        )
        if mixed and gpu["simulated"]:
            words.append(render.colour("SIMULATED", "bold", "magenta"))
        render.tell("  ".join(words))
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
            else f"source nvml is {source['state']}: {render.safe(source['detail'])}"
        )
        render.tell(f"these are not the present values: {said}")
    return 0


def _wrong(arguments: argparse.Namespace, gpus: Sequence[schema.Gpu]) -> list[str]:
    """The codes of what is wrong with each GPU."""
    found: list[schema.Finding] = []
    if any(gpu["findings"] for gpu in gpus):
        found = client.ask(arguments, "/v1/findings", limit=1000)["findings"]
    return [
        " ".join(render.safe(one["code"]) for one in found if one["component"] == gpu["component"])
        for gpu in gpus
    ]


def _fitting(gpus: Sequence[schema.Gpu], codes: int) -> list[tuple[str, Show, int]]:
    """The columns for which this terminal has room beside a status and so many characters of codes,
    and how wide each is.
    """
    shown = [
        (title, show, max([len(title), *(len(show(gpu)) for gpu in gpus)]))
        for title, show in _COLUMNS
    ]
    room = render.width() - len("UNHEALTHY ") - codes
    for title in _LESS:
        if sum(wide + 2 for _, _, wide in shown) <= room:
            break
        shown = [one for one in shown if one[0] != title]
    return shown


def _of(gpu: schema.Gpu, name: str) -> float | None:
    value = gpu["readings"].get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _who(gpu: schema.Gpu, name: str) -> str:
    value = gpu["identity"].get(name)
    return render.safe(value) if value not in (None, "") else "-"


def _number(name: str, unit: str = "", scale: float = 1.0) -> Show:
    def show(gpu: schema.Gpu) -> str:
        value = _of(gpu, name)
        return "-" if value is None else f"{value * scale:.0f}{unit}"

    return show


def _memory(gpu: schema.Gpu) -> str:
    used, total = _of(gpu, "memory_used_bytes"), _of(gpu, "memory_total_bytes")
    return "-" if used is None or total is None else f"{used / 2**30:.0f}/{total / 2**30:.0f}G"


def _remap(gpu: schema.Gpu) -> str:
    """Rows remapped, and whether one waits or failed."""
    rows, pending, failed = (
        _of(gpu, name)
        for name in ("remapped_rows_uncorrected", "row_remap_pending", "row_remap_failed")
    )
    if rows is None:
        pages = _of(gpu, "retired_pages")
        return "-" if pages is None else f"{pages:.0f} pages"
    return f"{rows:.0f}" + (" FAILED" if failed else " pending" if pending else "")


def _links(gpu: schema.Gpu) -> str:
    active, links = _of(gpu, "nvlinks_active"), _of(gpu, "nvlinks_expected")
    if links is None:
        links = _of(gpu, "nvlinks")
    return "-" if active is None or links is None else f"{active:.0f}/{links:.0f}"


def _pcie(gpu: schema.Gpu) -> str:
    generation, width = _of(gpu, "pcie_generation"), _of(gpu, "pcie_width")
    return "-" if generation is None or width is None else f"{generation:.0f}x{width:.0f}"


_COLUMNS: tuple[tuple[str, Show], ...] = (
    ("gpu", lambda gpu: render.safe(gpu["pci"])),
    ("minor", lambda gpu: _who(gpu, "minor")),
    ("model", lambda gpu: _who(gpu, "name").removeprefix("NVIDIA ")),
    ("serial", lambda gpu: _who(gpu, "serial")),
    ("temp", _number("temperature_celsius", "C")),
    ("power", _number("power_watts", "W")),
    ("util", _number("utilization_ratio", "%", 100)),
    ("memory", _memory),
    ("ecc unc", _number("ecc_uncorrected")),
    ("remap", _remap),
    ("nvlink", _links),
    ("pcie", _pcie),
)
_LESS = (
    "model",
    "serial",
    "pcie",
    "util",
    "remap",
    "power",
    "nvlink",
    "minor",
)  # columns that a narrow terminal leaves out, one by one
