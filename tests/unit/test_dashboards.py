"""The Grafana dashboards: as generated, described, and without overlaps."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboards.common import ALL_JOBS, NODE_JOB, count_gained
from tests.dashboards.files import DASHBOARDS, FOLDER, format_dashboard
from tests.dashboards.panels import COLUMNS, Panel, Query, Row, build_dashboard
from tests.dashboards.schema import list_panels
from tests.unit.test_alert_rules import read_rules, run
from vitald.metrics.labels import find_former_label

NAMES = sorted(DASHBOARDS)


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return loaded


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_as_generated(name: str) -> None:
    assert (FOLDER / name).read_text() == format_dashboard(DASHBOARDS[name]()), (
        "run python -m tests.dashboards"
    )


def test_there_are_no_other_dashboards() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.json")) == NAMES
    uids = [load(name)["uid"] for name in NAMES]
    assert len(set(uids)) == len(uids)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_unique_and_panels_do_not_overlap(name: str) -> None:
    panels = list_panels(load(name))
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        collapsed_row = panel["type"] != "row" and any(
            panel in row.get("panels", []) for row in panels
        )
        if collapsed_row:
            continue  # its place counts only while the row is open
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_it_shows(name: str) -> None:
    for panel in list_panels(load(name)):
        if panel["type"] == "row":
            continue
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert "unit" in panel["fieldConfig"]["defaults"] or panel["type"] in (
            "table",
            "state-timeline",
        )


def list_queries() -> Iterator[tuple[str, str]]:
    """Each expression, and the legend beside it."""
    for name in NAMES:
        for panel in list_panels(load(name)):
            for target in panel.get("targets", ()):
                yield target["expr"], target.get("legendFormat", "")


def list_former_labels(expression: str, legend: str = "") -> set[str]:
    """What it reads, and a metric that it asks calls otherwise by now."""
    read = set(re.findall(r"\{\{(\w+)\}\}", legend))
    read |= set(re.findall(r"(\w+) *(?:=~|!~|!=|=)[ \"]", expression))
    for grouped in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression):
        read |= set(re.findall(r"\w+", grouped))
    metrics = set(re.findall(r"\bvitald_\w+", expression))
    return {name for name in read for metric in metrics if find_former_label(metric, name)}


def test_no_query_and_no_rule_reads_a_label_that_will_go() -> None:
    rules = [(rule["expr"], "") for rule in read_rules()]
    queries = [*list_queries()]
    assert len(rules) > 20 < len(queries)
    for expression, legend in (*rules, *queries):
        assert not list_former_labels(expression, legend), expression


@pytest.mark.parametrize(
    ("expression", "legend"),
    [
        ("count by (version, profile) (vitald_build_info)", ""),
        ('vitald_pci_aer_errors_total{part="gpu"}', ""),
        ("vitald_diagnostic_measure_ratio", "{{name}}"),
    ],
)
def test_a_label_that_will_go_is_found(expression: str, legend: str) -> None:
    assert list_former_labels(expression, legend)


@pytest.mark.parametrize("name", NAMES)
def test_all_jobs_are_those_of_vitald(name: str) -> None:
    """Prometheus scrapes others, too; with `vitald-full`, each node is a target twice."""
    variables = load(name)["templating"]["list"]
    (job,) = (each for each in variables if each["name"] == "job")
    names = ("vitald", "monitoring/vitald", "vitald-full", "node", "my-vitald", "vitaldx")
    assert [re.fullmatch(job["allValue"], each) is not None for each in names] == [
        *(True, True, True, False, False, False)
    ]
    assert job["allValue"] == ALL_JOBS
    for expression, _ in list_queries():
        for selector in re.findall(r"\bup\{([^}]*)\}", expression):
            assert f'job=~"{NODE_JOB}"' in selector, expression


@pytest.mark.prometheus
def test_what_a_counter_gained(promtool: str, tmp_path: Path) -> None:
    """Whether its series begins, goes on, begins again after a restart, or was away meanwhile."""
    values = {
        "first": "_x70 1x200",
        "old": "5x70 7x200",
        "restarted": "5x70 stale _x5 1x200",
        "away": "0x5 _x80 4x200",
        "gap": "7x75 _x30 7x200",
    }
    gained = {
        "100m": {"first": 1, "old": 2, "restarted": 1, "away": 4},
        "140m": {"first": 0, "old": 0, "restarted": 0, "away": 4, "gap": 0},
        "180m": dict.fromkeys(values, 0),
    }
    case = {
        "interval": "1m",
        "input_series": [
            {"series": f'events_total{{name="{name}"}}', "values": text}
            for name, text in values.items()
        ],
        "promql_expr_test": [
            {
                "expr": f"sum by (name) {count_gained('events_total', '1h')}",
                "eval_time": at,
                "exp_samples": [
                    {"labels": f'{{name="{name}"}}', "value": count}
                    for name, count in counts.items()
                ],
            }
            for at, counts in gained.items()
        ],
    }
    path = tmp_path / "gained_test.yml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    run(promtool, "test", "rules", path)


def test_panels_of_a_line_have_one_height() -> None:
    panels = tuple(
        Panel(title="x", width=4, height=height, queries=(Query(expr="up"),)) for height in (4, 5)
    )
    with pytest.raises(ValueError, match="one height"):
        build_dashboard(
            uid="x", title="x", description="x", variables=[], rows=[Row(title="x", panels=panels)]
        )


def test_provisioning_names_the_folder() -> None:
    """The keys are those of Grafana's documentation of provisioning."""
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/vitald.yaml").read_text())
    assert provider["apiVersion"] == 1
    (only,) = provider["providers"]
    assert only["type"] == "file"
    assert set(only) <= {
        *("name", "orgId", "folder", "folderUid", "type", "disableDeletion"),
        *("updateIntervalSeconds", "allowUiUpdates", "options"),
    }
    source = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())
    (prometheus,) = source["datasources"]
    assert prometheus["type"] == "prometheus"
    assert prometheus["access"] == "proxy"
