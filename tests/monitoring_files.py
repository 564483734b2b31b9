"""
Rules and dashboards where Helm and kubectl read them: neither takes a file from outside its folder.

    .venv/bin/python -m tests.monitoring_files    writes them again
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.harness import ROOT

RULES = ROOT / "packaging/prometheus/rules.yml"
DASHBOARDS = tuple(ROOT / f"packaging/grafana/{name}.json" for name in ("fleet", "node"))
HOW = ".venv/bin/python -m tests.monitoring_files"
_CHART = ROOT / "packaging/helm/vitald/files"
_MANIFEST = ROOT / "packaging/kubernetes/prometheus-rule.yaml"
_HEAD = f"""\
# Alerts and recording rules for the Prometheus operator. From packaging/prometheus/rules.yml by:
#
#   {HOW}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: vitald
  labels: {{app.kubernetes.io/name: vitald}}
spec:
"""


def write_files() -> Iterator[tuple[Path, str]]:
    """Each path with its text. The chart's copies are on one line: helm stores them in a Secret."""
    rules = RULES.read_text("utf-8")
    yield _MANIFEST, _HEAD + textwrap.indent(rules, "  ")
    yield _CHART / "rules.json", _write_line(yaml.safe_load(rules))
    for path in DASHBOARDS:
        yield _CHART / path.name, _write_line(json.loads(path.read_text("utf-8")))


def _write_line(document: object) -> str:
    return f"{json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n"


if __name__ == "__main__":
    for path, text in write_files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
