"""
Pictures of the dashboards for the documentation, without a Grafana:

    python -m tests.dashboard_picture        writes docs/fleet-dashboard.svg, docs/node-dashboard.svg

Six real daemons on simulated GPUs run for ten minutes, in which faults occur. A real Prometheus
scrapes them and evaluates the shipped rules; its answers to the queries of the first rows of each
dashboard are drawn, each panel in its place, with its title, unit and colours.
"""

from __future__ import annotations

import html
import math
import random
import re
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from tests.dashboards import fill_in, load_dashboard
from tests.harness import ROOT, Node
from tests.monitoring import Json, Prometheus, make_config
from tests.system.lines import xid
from tests.system.nvml import as_if_real
from vitald.simulator.simulated_node import SimulatedNode

ROWS = {"fleet": ("Nodes", "Findings"), "node": ("Health", "GPUs")}
MINUTES, STEP_S = 10.0, 10
COLUMN, LINE, GAP = 50, 27, 4  # pixels
# Of lines without a colour of their own: Okabe and Ito, https://jfly.uni-koeln.de/color/
PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"),
)
Points = list[tuple[float, float]]


# --- what happens


@dataclass(slots=True)
class Machine:
    """A node and its simulated GPUs, which work until they are lost."""

    node: Node
    gpus: SimulatedNode
    lost: set[int] = field(default_factory=set)
    hot: int | None = None

    def work(self) -> None:
        """Values of the next seconds."""
        for gpu in set(range(8)) - self.lost:
            load = random.uniform(0.85, 1)
            hot = gpu == self.hot
            warmth = 92 if hot else round(40 + 25 * load)
            self.gpus.set_values(
                gpu,
                {
                    "temp_c": warmth,
                    "margin_c": 87 - warmth if not hot else -1,
                    "throttle": "0x68" if hot else "0x0",
                    "power_mw": round(650_000 * load),
                    "utilization": f"{round(100 * load)} {round(60 * load)}",
                    "clock.1": 1200 if hot else 1980,
                    "memory": f"{80 << 30} {70 << 30}",
                },
            )

    def lose(self, gpu: int) -> None:
        self.lost.add(gpu)
        self.gpus.lose(gpu)
        self.node.write(xid(gpu, pci=self.gpus.addresses[gpu].removesuffix(".0")))

    def remap(self, gpu: int) -> None:
        self.gpus.set_values(gpu, {"remap": "0 1 1 0"})


def list_incidents(machines: Mapping[str, Machine]) -> dict[float, Callable[[], object]]:
    """What happens after so many minutes."""
    return {
        1.5: lambda: setattr(machines["gpu-2"], "hot", 3),
        3.5: lambda: machines["gpu-3"].remap(2),
        4.5: lambda: setattr(machines["gpu-2"], "hot", None),
        6: lambda: machines["gpu-2"].lose(5),
        7.5: lambda: machines["gpu-4"].lose(1),
        8.5: lambda: machines["gpu-6"].node.kill(),
    }


def run_incidents(machines: Mapping[str, Machine]) -> None:
    begin = time.monotonic()
    incidents = sorted(list_incidents(machines).items())
    while (minutes := (time.monotonic() - begin) / 60) < MINUTES:
        while incidents and incidents[0][0] <= minutes:
            incidents.pop(0)[1]()
        for machine in machines.values():
            machine.work()
        time.sleep(STEP_S)


# --- what is drawn


def format_number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def format_scaled(value: float, base: int, names: Sequence[str]) -> str:
    for name in names[:-1]:
        if abs(value) < base:
            return f"{format_number(value)} {name}"
        value /= base
    return f"{format_number(value)} {names[-1]}"


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest} s" if minutes else f"{rest} s"


FORMATS: dict[str, Callable[[float], str]] = {
    "celsius": lambda value: f"{format_number(value)} °C",
    "watt": lambda value: f"{format_number(value)} W",
    "hertz": lambda value: format_scaled(value, 1000, ("Hz", "kHz", "MHz", "GHz")),
    "bytes": lambda value: format_scaled(value, 1024, ("B", "KiB", "MiB", "GiB")),
    "percentunit": lambda value: f"{100 * value:.0f} %",
    "dtdurations": format_duration,
    "s": lambda value: f"{format_number(value)} s",
}


def text(x: float, y: float, words: object, size: int = 12, style: str = "") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" {style}>{html.escape(str(words))}</text>'
    )


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


@dataclass(frozen=True, slots=True)
class Area:
    """Of a panel, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Painter:
    """Draws panels with what Prometheus has of `begin` to `end`, Unix times. `instance`: the node
    that is chosen.
    """

    prometheus: Prometheus
    instance: str
    begin: int
    end: int

    def paint(self, dashboard: Json, rows: Sequence[str]) -> str:
        parts: list[str] = []
        bottom, shown = 0.0, False
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            area = Area(
                place["x"] * COLUMN + GAP,
                place["y"] * LINE + GAP,
                place["w"] * COLUMN - 2 * GAP,
                place["h"] * LINE - 2 * GAP,
            )
            if panel["type"] == "row":
                shown = panel["title"] in rows
            if not shown:
                continue
            bottom = max(bottom, area.y + area.height + 2 * GAP)
            parts += self._paint_panel(panel, area)
        size = f'width="{24 * COLUMN}" height="{bottom:.0f}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="#24292f" role="img"'
                ' font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
                f"<title>{html.escape(dashboard['title'])}</title>",
                box(0, 0, 24 * COLUMN, bottom, 'fill="#f4f5f5"'),
                *parts,
                "</svg>\n",
            ]
        )

    def _paint_panel(self, panel: Json, area: Area) -> Iterator[str]:
        bold = 'font-weight="bold"'
        if panel["type"] == "row":
            yield text(area.x, area.y + 16, panel["title"], 15, bold)
            return
        yield box(area.x, area.y, area.width, area.height, 'fill="#fff" stroke="#d8d9da" rx="3"')
        yield text(area.x + 8, area.y + 18, panel["title"], 13, bold)
        inner = Area(area.x + 10, area.y + 28, area.width - 20, area.height - 36)
        paint = {
            "stat": self._paint_numbers,
            "table": self._paint_table,
            "timeseries": self._paint_lines,
            "state-timeline": self._paint_states,
        }[panel["type"]]
        yield from paint(panel, inner)

    # --- what Prometheus answers

    def _fill_in(self, expression: str) -> str:
        values = {"cluster": ".*", "instance": self.instance, "__rate_interval": "20s"}
        return fill_in(expression, values)

    def _query(self, target: Json) -> list[Json]:
        return self.prometheus.query(self._fill_in(target["expr"]))

    def _query_range(self, panel: Json) -> dict[str, Points]:
        """Values over time by the name of each line."""
        lines: dict[str, Points] = {}
        for target in panel["targets"]:
            words = {"start": self.begin, "end": self.end, "step": STEP_S}
            words["query"] = self._fill_in(target["expr"])
            answer = self.prometheus.get(f"/api/v1/query_range?{urllib.parse.urlencode(words)}")
            for series in answer["data"]["result"]:
                name = fill_legend(target["legendFormat"], series["metric"])
                lines[name] = [(at, float(value)) for at, value in series["values"]]
        return dict(sorted(lines.items()))

    # --- kinds of panels

    def _paint_numbers(self, panel: Json, area: Area) -> Iterator[str]:
        values = {
            fill_legend(target["legendFormat"], series["metric"]): float(series["value"][1])
            for target in panel["targets"]
            for series in self._query(target)
        }
        width = area.width / max(len(values), 1)
        for number, (name, value) in enumerate(sorted(values.items())):
            colour = find_colour(panel, name) or find_threshold(panel, value)
            place = area.x + width * number
            yield text(place, area.y + 34, format_in_unit(panel, value), 30, f'fill="{colour}"')
            yield text(place, area.y + 54, "" if name == "__auto" else name)

    def _paint_table(self, panel: Json, area: Area) -> Iterator[str]:
        columns = panel["transformations"][-1]["options"]
        rows: dict[tuple[tuple[str, str], ...], dict[str, Union[str, float]]] = {}
        for target in panel["targets"]:
            value = "Value" if len(panel["targets"]) == 1 else f"Value #{target['refId']}"
            for series in self._query(target):
                labels = tuple(sorted(series["metric"].items()))
                rows.setdefault(labels, dict(labels))[value] = float(series["value"][1])
        titles: dict[str, str] = columns["renameByName"]
        cells = [
            {title: row[name] for name, title in titles.items() if name in row}
            for row in rows.values()
        ]
        for sort in panel.get("options", {}).get("sortBy", []):
            cells.sort(key=lambda row: row.get(sort["displayName"], 0), reverse=sort["desc"])
        shown_titles = dict.fromkeys(titles.values())
        used = [title for title in shown_titles if any(title in row for row in cells)]
        if not cells:
            yield text(area.x, area.y + 20, panel["fieldConfig"]["defaults"]["noValue"])
        shown = [[format_cell(panel, title, row.get(title, "")) for title in used] for row in cells]
        lines = [used, *shown][: int(area.height / 22)]
        widths = [2 + max(map(len, column)) for column in zip(*lines)]
        for row_number, line in enumerate(lines):
            style = 'font-weight="bold"' if row_number == 0 else ""
            for number, words in enumerate(line):
                x = area.x + area.width * sum(widths[:number]) / sum(widths)
                yield text(x, area.y + 14 + 22 * row_number, words, 12, style)

    def _paint_lines(self, panel: Json, area: Area) -> Iterator[str]:
        lines = self._query_range(panel)
        defaults = panel["fieldConfig"]["defaults"]
        stacked = "stacking" in defaults["custom"]
        drawn = stack_lines(lines) if stacked else lines
        values = [value for points in drawn.values() for _, value in points] or [0.0]
        low, step, high = choose_scale(min(values), max(values), defaults)
        plot = Area(area.x + 62, area.y, area.width - 62, area.height - 40)

        def place(at: float, value: float) -> str:
            x = plot.x + plot.width * (at - self.begin) / (self.end - self.begin)
            return f"{x:.0f},{plot.y + plot.height * (1 - (value - low) / (high - low)):.0f}"

        for part in range(round((high - low) / step) + 1):
            value = low + step * part
            y = plot.y + plot.height * (1 - (value - low) / (high - low))
            yield box(plot.x, y, plot.width, 0.5, 'fill="#d8d9da"')
            yield text(plot.x - 6, y + 4, format_in_unit(panel, value), 10, 'text-anchor="end"')
        for part in range(3):
            words = time.strftime(
                "%H:%M", time.gmtime(self.begin + (self.end - self.begin) * part / 2)
            )
            anchor = f'text-anchor="{("start", "middle", "end")[part]}"'
            yield text(plot.x + plot.width * part / 2, plot.y + plot.height + 14, words, 10, anchor)
        legend = area.x
        for number, name in reversed([*enumerate(drawn)]):
            colour = find_colour(panel, name) or PALETTE[number % len(PALETTE)]
            path = " ".join(place(*point) for point in drawn[name])
            if stacked:
                ends = place(drawn[name][-1][0], 0), place(drawn[name][0][0], 0)
                yield f'<polygon points="{path} {ends[0]} {ends[1]}" fill="{colour}"/>'
            else:
                yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for number, name in enumerate(drawn):
            colour = find_colour(panel, name) or PALETTE[number % len(PALETTE)]
            yield box(legend, area.y + area.height - 6, 12, 4, f'fill="{colour}"')
            yield text(legend + 15, area.y + area.height, name, 10)
            legend += 20 + 5.6 * len(name)

    def _paint_states(self, panel: Json, area: Area) -> Iterator[str]:
        (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
        lines = self._query_range(panel)
        height = min(area.height / max(len(lines), 1), 40)
        left = area.x + 150
        scale = (area.width - 150) / (self.end - self.begin)
        for number, (name, points) in enumerate(lines.items()):
            y = area.y + height * number
            yield text(area.x, y + height / 2 + 3, name)
            for begin, end, value in merge_states(points):
                shown = mapping["options"][f"{value:.0f}"]
                x, width = left + (begin - self.begin) * scale, (end - begin) * scale
                yield box(x, y + 2, width, height - 4, f'fill="{shown["color"]}"')
                if width > 7 * len(shown["text"]):
                    yield text(x + 5, y + height / 2 + 4, shown["text"], 12, 'fill="#fff"')


def fill_legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()


def find_colour(panel: Json, name: str) -> str:
    """That the panel gives to this line or number."""
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == name:
            return str(override["properties"][0]["value"]["fixedColor"])
    return ""


def find_threshold(panel: Json, value: float) -> str:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    passed = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return str(passed[-1])


def format_in_unit(panel: Json, value: float) -> str:
    return FORMATS.get(panel["fieldConfig"]["defaults"]["unit"], format_number)(value)


def format_cell(panel: Json, title: str, value: Union[str, float]) -> str:
    if isinstance(value, str):
        return value
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == title:
            return FORMATS[str(override["properties"][0]["value"])](value)
    return format_number(value)


def choose_scale(low: float, high: float, defaults: Json) -> tuple[float, float, float]:
    """Begin, step and end of an axis with round numbers."""
    low = min(defaults.get("min", low), low)
    high = max(defaults.get("max", high), high)
    high = high if high > low else low + 1
    power = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * 4 >= high - low)
    return step * math.floor(low / step), step, step * math.ceil(high / step)


def stack_lines(lines: Mapping[str, Points]) -> dict[str, Points]:
    """Each upon those before it."""
    below: dict[float, float] = {}
    stacked: dict[str, Points] = {}
    for name, points in lines.items():
        for at, value in points:
            below[at] = below.get(at, 0.0) + value
        stacked[name] = [(at, below[at]) for at, _ in points]
    return stacked


def merge_states(points: Points) -> Iterator[tuple[float, float, float]]:
    """Begin and end of each state, and its value."""
    begin, last, state = points[0][0], points[0][0], points[0][1]
    for at, value in points[1:]:
        if value != state or at > last + STEP_S:
            yield begin, min(at, last + STEP_S), state
            begin, state = at, value
        last = at
    yield begin, last, state


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, ExitStack() as stack:
        folder = Path(name)
        machines: dict[str, Machine] = {}
        for number in range(1, 7):
            gpus = SimulatedNode(folder / f"gpus-{number}", "h100")
            gpus = gpus if number == 5 else as_if_real(gpus)  # the fifth is a drill
            node = stack.enter_context(Node(folder / f"node-{number}", gpus=gpus))
            machines[f"gpu-{number}"] = Machine(node, gpus)
        for machine in machines.values():
            machine.work()
            machine.node.wait(lambda status: status["status"] == "healthy")
        addresses = {name: f"127.0.0.1:{each.node.port}" for name, each in machines.items()}
        config = make_config(addresses, ROOT / "packaging/prometheus/rules.yml")
        prometheus = stack.enter_context(Prometheus(folder / "prometheus", config))
        prometheus.wait_until_scraped(len(machines))
        begin = int(time.time())
        run_incidents(machines)
        painter = Painter(prometheus, "gpu-2", begin, int(time.time()))
        for dashboard, rows in ROWS.items():
            picture = painter.paint(load_dashboard(dashboard), rows)
            (ROOT / f"docs/{dashboard}-dashboard.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
