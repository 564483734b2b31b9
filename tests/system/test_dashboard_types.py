"""The dashboards against Grafana's own types, @grafana/schema, by the TypeScript compiler."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import require
from tests.dashboards import NAMES, Json, list_panels, load_dashboard
from tests.go_programs import CACHE
from tests.waiting import WAIT_S


@dataclass(frozen=True, slots=True)
class Package:
    """Of the npm registry. `sha512`: of its archive, as `npm view NAME@VERSION dist.integrity`."""

    name: str
    version: str
    sha512: str

    def fetch(self) -> Path:
        """The folder with its files, which are fetched once. Skips the test where they cannot be."""
        folder = CACHE / f"npm-{self.name.replace('/', '-')}-{self.version}"
        if folder.is_dir():
            return folder
        url = f"https://registry.npmjs.org/{self.name}/-/{Path(self.name).name}-{self.version}.tgz"
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as response:
                content = response.read()
        except OSError as error:
            require(False, f"{url}: {error}")
        assert base64.b64encode(hashlib.sha512(content).digest()).decode() == self.sha512
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(scratch, filter="data")
            with suppress(OSError):  # another test was first
                (Path(scratch) / "package").rename(folder)
        return folder


SCHEMA = Package(
    "@grafana/schema",
    "13.2.3",
    "rk8FEO7yuFfRTK/JD39747SZFQ+iCTQbpm6Mh2OjnqGx/g/uQQFx56t64eCLXWEyoR68ru4cigcGKrXk+ozrLg==",
)
COMPILER = Package(
    "typescript",
    "5.9.3",
    "jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw==",
)
PANELS = "@grafana/schema/dist/esm/raw/composable/{folder}/panelcfg/x/{name}PanelCfg_types.gen"
TYPES = {
    "stat": "Stat",
    "table": "Table",
    "timeseries": "TimeSeries",
    "state-timeline": "StateTimeline",
}
# JSON has the values of enums, which TypeScript does not take for the enums themselves, and leaves
# out what Grafana adds by default.
LITERAL = """
type Literal<T> = T extends string ? `${T}`
  : T extends (infer U)[] ? Literal<U>[]
  : T extends object ? { [K in keyof T]: Literal<T[K]> }
  : T;
type Given<T> = T extends (infer U)[] ? Given<U>[]
  : T extends object ? { [K in keyof T]?: Given<T[K]> }
  : Literal<T>;
"""


def write_program(dashboard: Json) -> str:
    """That the dashboard, and the options and cells of each panel, have the types that they should
    have.
    """
    lines = ['import type { Dashboard } from "@grafana/schema";']
    panels = list_panels(dashboard)
    for kind in sorted({panel["type"] for panel in panels}):
        name = TYPES[kind]
        path = PANELS.format(folder=re.sub(r"\W", "", kind), name=name)
        lines.append(f'import type * as {name} from "{path}";')
    lines += [LITERAL, f"export const dashboard: Literal<Dashboard> = {json.dumps(dashboard)};"]
    for panel in panels:
        name, number = TYPES[panel["type"]], panel["id"]
        options = json.dumps(panel.get("options", {}))
        lines.append(f"export const options{number}: Given<{name}.Options> = {options};")
        if (custom := panel["fieldConfig"]["defaults"].get("custom")) is not None:
            lines.append(
                f"export const custom{number}: Given<{name}.FieldConfig> = {json.dumps(custom)};"
            )
    return "\n".join(lines) + "\n"


@pytest.fixture
def list_errors(tmp_path: Path) -> Callable[[Json], str]:
    """What the compiler prints about a dashboard."""
    require(shutil.which("node"), "Node.js (apt-get install nodejs)")
    compiler, schema = COMPILER.fetch() / "bin/tsc", SCHEMA.fetch()
    (tmp_path / "node_modules/@grafana").mkdir(parents=True)
    (tmp_path / "node_modules/@grafana/schema").symlink_to(schema)
    options = ("--strict", "--skipLibCheck", "--noEmit", "--module", "esnext")
    command = ("node", compiler, *options, "--moduleResolution", "bundler", "dashboard.ts")

    def check(dashboard: Json) -> str:
        (tmp_path / "dashboard.ts").write_text(write_program(dashboard), encoding="utf-8")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert bool(done.returncode) == bool(done.stdout), done.stderr
        return done.stdout

    return check


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_grafanas_types(name: str, list_errors: Callable[[Json], str]) -> None:
    assert list_errors(load_dashboard(name)) == ""


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ((), "refersh", "30s"),
        (("gridPos",), "width", 8),
        (("options", "tooltip"), "mode", "multiple"),
        (("fieldConfig", "defaults", "custom"), "showPoint", "never"),
    ],
)
def test_what_grafana_does_not_know_is_found(
    place: tuple[str, ...], name: str, value: object, list_errors: Callable[[Json], str]
) -> None:
    """`place`: in a panel; empty for the dashboard itself."""
    dashboard = load_dashboard("node")
    changed = dashboard
    if place:
        changed = next(each for each in list_panels(dashboard) if each["type"] == "timeseries")
    for key in place:
        changed = changed[key]
    changed[name] = value
    wrong = str(value) if name == "mode" else name
    assert f'"{wrong}"' in list_errors(dashboard)
