"""Which file has which dashboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.dashboards import fleet, node
from tests.dashboards.panels import Table

FOLDER = Path(__file__).parents[2] / "packaging" / "grafana"
DASHBOARDS: Mapping[str, Callable[[], Table]] = {"fleet.json": fleet.build, "node.json": node.build}


def format_dashboard(dashboard: Table) -> str:
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"
