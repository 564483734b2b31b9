"""Writes the dashboards."""

from __future__ import annotations

from tests.dashboards.files import DASHBOARDS, FOLDER, format_dashboard

for name, build in DASHBOARDS.items():
    (FOLDER / name).write_text(format_dashboard(build()))
