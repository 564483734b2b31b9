"""
Checks dashboards against Grafana's own types, @grafana/schema, by the TypeScript compiler. It needs
Node.js.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.dashboards.panels import Json, Table
from tests.npm import NpmPackage, fetch_package
from tests.pace import patient

SCHEMA = NpmPackage(
    "@grafana/schema",
    "13.2.3",
    "rk8FEO7yuFfRTK/JD39747SZFQ+iCTQbpm6Mh2OjnqGx/g/uQQFx56t64eCLXWEyoR68ru4cigcGKrXk+ozrLg==",
)
TYPESCRIPT = NpmPackage(
    "typescript",
    "5.9.3",
    "jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw==",
)
_CHECK_S = 300.0
_PANELS = "@grafana/schema/dist/esm/raw/composable/{folder}/panelcfg/x/{name}PanelCfg_types.gen"
_NAMES = {
    "stat": "Stat",
    "table": "Table",
    "timeseries": "TimeSeries",
    "state-timeline": "StateTimeline",
}
# JSON has the values of enums, which TypeScript does not take for the enums themselves.
_LITERAL = """
type Literal<T> = T extends string ? `${T}`
  : T extends (infer U)[] ? Literal<U>[]
  : T extends object ? { [K in keyof T]: Literal<T[K]> }
  : T;
"""


def list_type_errors(dashboard: Table, folder: Path) -> str:
    """What TypeScript says against it, the options of each panel included. `folder`: scratch.
    Raises CannotFetch.
    """
    compiler, types = fetch_package(TYPESCRIPT), fetch_package(SCHEMA)
    modules = folder / "node_modules/@grafana"
    modules.mkdir(parents=True, exist_ok=True)
    if not (modules / "schema").exists():
        (modules / "schema").symlink_to(types)
    source = folder / "dashboard.ts"
    source.write_text(_write_program(dashboard))
    checked = subprocess.run(
        [
            *("node", str(compiler / "bin/tsc")),
            *("--strict", "--skipLibCheck", "--noEmit"),
            *("--module", "esnext", "--moduleResolution", "bundler"),
            source.name,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=patient(_CHECK_S),
    )
    found = checked.stdout + checked.stderr
    if checked.returncode and not found:
        return f"tsc ended with {checked.returncode}"
    return found


def _write_program(dashboard: Table) -> str:
    lines = ['import type { Dashboard } from "@grafana/schema";']
    for type_, name in _NAMES.items():
        path = _PANELS.format(folder=re.sub(r"\W", "", type_), name=name)
        lines.append(f'import type {{ Options as {name}Options }} from "{path}";')
    lines += [_LITERAL, f"export const dashboard: Literal<Dashboard> = {json.dumps(dashboard)};"]
    for panel in list_panels(dashboard):
        if panel["type"] != "row":
            name = f"{_NAMES[str(panel['type'])]}Options"
            options = json.dumps(panel["options"])
            lines.append(f"export const options{panel['id']}: Literal<{name}> = {options};")
    return "\n".join(lines) + "\n"


def list_panels(dashboard: Table) -> list[Table]:
    """All panels, those in collapsed rows and the rows themselves included."""
    found: list[Table] = []
    for panel in _list_tables(dashboard["panels"]):
        found.append(panel)
        found += _list_tables(panel.get("panels", []))
    return found


def _list_tables(value: Json) -> list[Table]:
    assert isinstance(value, list)
    return [each for each in value if isinstance(each, dict)]
