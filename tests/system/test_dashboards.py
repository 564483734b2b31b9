"""Every query of the dashboards, asked of a real Prometheus that scrapes real daemons."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import require
from tests.dashboards.common import ALL_JOBS
from tests.dashboards.files import FOLDER
from tests.dashboards.schema import list_panels
from tests.harness import Node, free_port
from tests.neuron_tree import TRN2
from tests.prometheus import Prometheus, find_prometheus
from tests.system.lines import xid
from tests.system.nvml import as_if_real
from tests.whole_tree import ADAPTER, WholeTree
from vitald.simulator.node import SimulatedNode

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]

POLLED = ("neuron", "network", "pci", "host")
SHORT_DEADLINE = '[neuron]\nevery = "200ms"\ndeadline = "1s"\n'
# What these nodes cannot have, by dashboard and panel, and why.
WITHOUT_DATA = {
    ("fleet", "Kernel log records lost"): "a followed file loses no records",
    ("node", "Last runs"): "no diagnostic runs here",
    ("node", "Measured, relative to the limit"): "no diagnostic runs here",
    ("node", "Measured bandwidth"): "no diagnostic runs here",
    ("node", "Measured latency"): "no diagnostic runs here",
}
SINK = {
    "name": "kubernetes",
    "up": False,
    "lastSuccess": None,
    "error": "no answer",
    "waiting": 1,
    "waitingSince": None,
    "writes": 3,
    "failures": 2,
}
# The fleet's dashboard needs no more than what big fleets scrape, but for the age of findings.
JOBS = {"fleet": "vitald", "node": ALL_JOBS}
FULL_ONLY = "vitald_finding_opened_timestamp_seconds"
Panel = dict[str, Any]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It scrapes nodes with everything that the dashboards show: GPUs in a rack, Neuron devices
    and adapters, a fault, a drill, a daemon whose sources are down, and one that is dead.
    """
    require(find_prometheus(), "Prometheus (apt-get install prometheus)")
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        gpus = as_if_real(SimulatedNode(folder / "gpus", "gb200"))
        rack = stack.enter_context(Node(folder / "rack", gpus=gpus))
        tree = WholeTree(folder / "tree")
        host = Node(folder / "host", sysfs=tree.root, looks=POLLED)
        host.configure("[paths]\n", f'[paths]\nprocfs = "{tree.proc.root}"\n')
        stack.enter_context(host)
        drill_gpus = SimulatedNode(folder / "drill-gpus", "h100")
        drill = stack.enter_context(Node(folder / "drill", gpus=drill_gpus, looks=["host"]))
        hanging = WholeTree(folder / "hanging")
        blind = stack.enter_context(
            Node(folder / "blind", sysfs=hanging.root, looks=["neuron"], extra=SHORT_DEADLINE)
        )
        address = gpus.addresses[1]
        rack.write(xid(1, pci=address.rpartition(".")[0]))
        rack.wait(lambda status: status["rebootRequired"])
        drill.write(xid(2, pci=drill_gpus.addresses[1].rpartition(".")[0]))
        drill.wait(lambda status: status["rebootRequired"])
        assert host.request("POST", "/v1/publishers", {"sinks": [SINK]})[0] == 200
        hanging.neuron.hang(f"{hanging.function(TRN2[2])}/class")
        blind.wait(lambda status: status["status"] == "unknown", 20.0)
        nodes = {"rack": rack, "host": host, "drill": drill, "blind": blind}
        targets = {
            f"127.0.0.1:{node.port}": {"instance": name, "cluster": "c1"}
            for name, node in nodes.items()
        }
        targets[f"127.0.0.1:{free_port()}"] = {"instance": "dead"}
        with Prometheus(folder / "prometheus", targets) as running:
            for name in nodes:
                running.wait_for(f'count_over_time(vitald_status{{instance="{name}"}}[5m]) > 4', 30)
            running.wait_for('up{instance="dead"} == 0')
            errors = "BadTLP 2\nTOTAL_ERR_COR 2"
            tree.neuron.write(f"{tree.function(ADAPTER)}/aer_dev_correctable", errors)
            running.wait_for("increase(vitald_pci_aer_errors_total[1h]) > 0")
            yield running


def fill_in(expression: str, job: str, instance: str) -> str:
    """The variables as Grafana fills them in, with All for the cluster."""
    values = {
        "$__rate_interval": "4s",
        "$__range": "5m",
        "$job": job,
        "$cluster": ".*",
        "$instance": instance,
    }
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def list_targets() -> list[tuple[str, Panel, str]]:
    """Dashboard, panel and each of its queries."""
    return [
        (path.stem, panel, target["expr"])
        for path in sorted(FOLDER.glob("*.json"))
        for panel in list_panels(json.loads(path.read_text()))
        for target in panel.get("targets", ())
    ]


def ask(prometheus: Prometheus, dashboard: str, expression: str) -> list[dict[str, str]]:
    """The labels of what any of the nodes gives."""
    job = ALL_JOBS if FULL_ONLY in expression else JOBS[dashboard]
    return [
        series["metric"]
        for instance in ("rack", "host", "drill")
        for series in prometheus.query(fill_in(expression, job, instance))
    ]


def test_each_query_has_data(prometheus: Prometheus) -> None:
    empty = {
        (dashboard, panel["title"])
        for dashboard, panel, expression in list_targets()
        if not ask(prometheus, dashboard, expression)
    }
    assert empty == set(WITHOUT_DATA)


def test_legends_and_columns_are_labels_of_the_result(prometheus: Prometheus) -> None:
    for dashboard, panel, expression in list_targets():
        if (dashboard, panel["title"]) in WITHOUT_DATA:
            continue
        found = ask(prometheus, dashboard, expression)
        labels = set.union(*(set(each) for each in found))
        (target,) = (each for each in panel["targets"] if each["expr"] == expression)
        legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
        assert legend <= labels, (dashboard, panel["title"], labels)
        for change in panel.get("transformations", ()):
            if change["id"] != "organize":
                continue
            columns = set(change["options"]["renameByName"])
            named = {each for each in columns if not each.startswith("Value")}
            assert labels <= columns, (dashboard, panel["title"], labels)
            if len(panel["targets"]) == 1:
                assert named <= labels | {"cluster"}, (dashboard, panel["title"], labels)


def read_number(prometheus: Prometheus, title: str) -> float:
    """What the first panel with this title shows with All for the job, all series together."""
    expression = next(e for name, panel, e in list_targets() if panel["title"] == title)
    found = prometheus.query(fill_in(expression, ALL_JOBS, "rack"))
    return sum(float(series["value"][1]) for series in found)


def test_drills_are_counted_apart(prometheus: Prometheus) -> None:
    """One node has a real fault, one the same fault in a drill."""
    numbers = {
        title: read_number(prometheus, title)
        for title in (
            *("Nodes by status", "Reboot required", "Drills", "Not answering"),
            "Nodes that do not answer",
        )
    }
    assert numbers == {
        "Nodes by status": 3,
        "Reboot required": 1,
        "Drills": 1,
        "Not answering": 1,  # without the dead target of another job
        "Nodes that do not answer": 1,
    }


def test_the_first_xid_of_a_code_is_counted(prometheus: Prometheus) -> None:
    """Its series begins at 1, which is no increase."""
    assert read_number(prometheus, "Xids in an hour") == 1
