"""packaging/grafana: what can be checked without a Prometheus. tests/system/test_dashboards.py runs
the queries.
"""

from __future__ import annotations

import itertools
import re

import pytest
import yaml

from tests.dashboards import FOLDER, NAMES, Json, Query, list_panels, list_queries, load_dashboard
from tests.unit.builders import ROOT
from tests.unit.test_alert_rules import ALERTS, read_labels_by_metric, read_rules
from vitald.metrics import verdict_tier

COLUMNS = 24
RECORDED = {rule["record"] for rule in read_rules() if "record" in rule}


def list_cells(panel: Json) -> set[tuple[int, int]]:
    """What it covers of the grid."""
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    assert columns.stop <= COLUMNS, panel["title"]
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


@pytest.mark.parametrize("name", NAMES)
def test_no_two_panels_overlap(name: str) -> None:
    """Panels of a closed row have their places below it when it is opened."""
    outer = load_dashboard(name)["panels"]
    for panels in (outer, *(panel["panels"] for panel in outer if panel["type"] == "row")):
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            cells = list_cells(panel)
            assert taken.isdisjoint(cells), panel["title"]
            taken |= cells


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_titles_are_unique(name: str) -> None:
    dashboard = load_dashboard(name)
    panels = list_panels(dashboard)
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    assert len({panel["id"] for panel in (*panels, *rows)}) == len(panels) + len(rows)
    for row in rows:
        assert bool(row["panels"]) == row["collapsed"], row["title"]
    for panel in panels:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0, panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_says_what_it_shows_and_in_which_unit(name: str) -> None:
    for panel in list_panels(load_dashboard(name)):
        assert panel["description"].endswith("."), panel["title"]
        in_unit = panel["type"] in ("stat", "timeseries")
        assert ("unit" in panel["fieldConfig"]["defaults"]) == in_unit, panel["title"]
        as_table = [target.get("format") == "table" for target in panel["targets"]]
        assert set(as_table) == {panel["type"] == "table"}, panel["title"]


def test_an_empty_panel_claims_nothing() -> None:
    """It would be taken for a healthy node while Prometheus scrapes none."""
    for panel in itertools.chain.from_iterable(list_panels(load_dashboard(name)) for name in NAMES):
        empty = {"stat": "no data", "table": "nothing reported"}.get(panel["type"])
        assert panel["fieldConfig"]["defaults"].get("noValue") == empty, panel["title"]


@pytest.mark.parametrize(
    ("panel", "alert"),
    [
        ("Reboot required", "VitaldRebootRequired"),
        ("Replacement required", "VitaldReplacementRequired"),
        ("Racks with unfit nodes", "VitaldRackUnfit"),
    ],
)
def test_a_number_is_that_of_its_alert(panel: str, alert: str) -> None:
    """Who is called by an alert finds the node counted."""
    (query,) = (each for each in list_queries() if each.panel == panel)
    counted = query.expression.replace('cluster=~"$cluster",', "")
    fires_on = re.sub(r">= \d+ *$", "", ALERTS[alert]["expr"].strip())
    assert re.sub(r"\s", "", fires_on) in re.sub(r"\s", "", counted)


def test_a_status_has_one_colour() -> None:
    """In numbers, in lines and in the timeline of a node."""
    colours: dict[str, set[str]] = {}
    for panel in itertools.chain.from_iterable(list_panels(load_dashboard(name)) for name in NAMES):
        for override in panel["fieldConfig"]["overrides"]:
            for change in override["properties"]:
                if change["id"] == "color":
                    status = override["matcher"]["options"]
                    colours.setdefault(status, set()).add(change["value"]["fixedColor"])
        if panel["title"] == "Status":
            (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
            for shown in mapping["options"].values():
                colours.setdefault(shown["text"], set()).add(shown["color"])
    assert {*colours} == {"healthy", "degraded", "unhealthy", "unknown"}
    assert all(len(each) == 1 for each in colours.values())
    assert len(set().union(*colours.values())) == len(colours)


def list_read(query: Query) -> list[tuple[str, str]]:
    """The metrics that it reads, each with its selector."""
    names = r"\b(vitald_\w+|process_\w+|up\b|cluster:[\w:]+)(?:\{(.*?)\})?"
    return re.findall(names, query.expression)


@pytest.mark.parametrize(
    "query", list_queries(), ids=lambda query: f"{query.dashboard} {query.panel}"
)
def test_a_query_reads_metrics_and_labels_that_there_are(query: Query) -> None:
    """A misspelt label matches nothing."""
    known = read_labels_by_metric()
    shared = {"cluster", "instance", "job"}
    for name, selector in list_read(query):
        assert name in known or name in RECORDED or name.startswith(("process_", "up")), name
        read = set(re.findall(r"(\w+)(?:=|!)", selector)) - shared
        assert read <= known.get(name, set()), name


@pytest.mark.parametrize(
    "query", list_queries(), ids=lambda query: f"{query.dashboard} {query.panel}"
)
def test_a_query_reads_what_is_chosen(query: Query) -> None:
    """Of each metric only the chosen clusters, on the dashboard of a node that node; what is joined
    by them needs no choice.
    """
    joined = re.sub(
        r"(?:unless|and) on \(cluster, instance\) (?:\(.*?\) |\w+)", "", query.expression
    )
    for name, selector in list_read(Query(query.dashboard, "", joined, "")):
        chosen = 'cluster=~"$cluster"'
        if query.dashboard == "node":
            chosen += ',instance="$instance"'
        assert selector.startswith(chosen), name


def test_the_fleet_needs_no_more_than_the_verdict_tier_and_the_rules() -> None:
    read = {
        re.sub(r"_(total|info)$", "", name)
        for query in list_queries()
        for name, _ in list_read(query)
        if query.dashboard == "fleet"
    }
    age_of_a_finding = "vitald_finding_opened_timestamp_seconds"
    assert read - RECORDED - {*verdict_tier.FAMILIES} == {"up", age_of_a_finding}


def test_both_dashboards_have_the_same_variables() -> None:
    """And a node's has the node."""
    fleet, node = (load_dashboard(name)["templating"]["list"] for name in NAMES)
    assert [each for each in node if each["name"] != "instance"] == fleet
    assert [each["name"] for each in fleet] == ["datasource", "cluster", "docs"]
    text = "".join((FOLDER / f"{name}.json").read_text("utf-8") for name in NAMES)
    named = set(re.findall(r"\$\{?([a-z]+)", text))
    assert named <= {each["name"] for each in node}


def test_links_lead_to_the_other_dashboard_and_to_the_findings() -> None:
    uids = {name: load_dashboard(name)["uid"] for name in NAMES}
    assert len(set(uids.values())) == len(NAMES)
    for name, uid in uids.items():
        text = (FOLDER / f"{name}.json").read_text("utf-8")
        assert set(re.findall(r'"/d/([\w-]+)', text)) == {*uids.values()} - {uid}
        pages = re.findall(r"\$\{docs\}/([\w.]+)#", text)
        assert pages and all((ROOT / "docs" / page).is_file() for page in pages)


def test_provisioning_is_as_grafana_documents_it() -> None:
    """grafana.com/docs/grafana/latest/administration/provisioning"""
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/vitald.yaml").read_text("utf-8"))
    (files,) = provider["providers"]
    assert (provider["apiVersion"], files["type"], files["options"]["path"]) == (
        1,
        "file",
        "/var/lib/grafana/dashboards/vitald",
    )
    assert {*files} <= {
        *("name", "orgId", "folder", "folderUid", "type", "disableDeletion"),
        *("updateIntervalSeconds", "allowUiUpdates", "options"),
    }
    source = yaml.safe_load(
        (FOLDER / "provisioning/datasources/prometheus.yaml").read_text("utf-8")
    )
    (prometheus,) = source["datasources"]
    assert (source["apiVersion"], prometheus["type"], prometheus["access"]) == (
        1,
        "prometheus",
        "proxy",
    )
