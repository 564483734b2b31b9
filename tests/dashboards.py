"""The Grafana dashboards of packaging/grafana, and their queries as Grafana sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FOLDER = Path(__file__).resolve().parent.parent / "packaging/grafana"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@dataclass(frozen=True, slots=True)
class Query:
    """`panel`: its title. `legend`: the template for the name of each series, such as `{{gpu}}`."""

    dashboard: str
    panel: str
    expression: str
    legend: str


def load_dashboard(name: str) -> Json:
    loaded: Json = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return loaded


def list_panels(dashboard: Json) -> list[Json]:
    """All but the rows; those in closed rows included."""
    return [
        panel
        for outer in dashboard["panels"]
        for panel in (outer["panels"] if outer["type"] == "row" else [outer])
    ]


def list_queries() -> Iterator[Query]:
    """Of both dashboards."""
    for name in NAMES:
        for panel in list_panels(load_dashboard(name)):
            for target in panel["targets"]:
                legend = target.get("legendFormat", "")
                yield Query(name, panel["title"], target["expr"], legend)


def fill_in(expression: str, variables: Mapping[str, str]) -> str:
    """The expression with the values of its variables. Raises ValueError for a variable without
    one.
    """
    for name, value in variables.items():
        expression = expression.replace(f"${name}", value)
    if "$" in expression:
        raise ValueError(f"a variable has no value: {expression}")
    return expression
