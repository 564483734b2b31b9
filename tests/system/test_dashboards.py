"""Every query of the dashboards, run by a real Prometheus that scrapes real daemons and evaluates
the shipped rules.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.dashboard_picture import Painter
from tests.dashboards import Query, fill_in, list_panels, list_queries, load_dashboard
from tests.dcgmi import Dcgmi
from tests.harness import Node, free_port
from tests.monitoring import Json, Prometheus, make_config
from tests.neuron_tree import TRN2
from tests.system.lines import wait_for_pid, xid
from tests.system.nvml import as_if_real
from tests.system.test_checks import FI_PINGPONG, NCCL
from tests.system.test_diagnostics import asked, ended
from tests.system.test_publishers import WELL
from tests.unit.builders import ROOT
from tests.waiting import until
from tests.whole_tree import ADAPTER, WholeTree
from vitald.simulator.simulated_node import SimulatedNode

# Its only series are those of a fault that these nodes cannot have; what is compared is there.
FILTERED = {"Kernel log records lost": " > 0"}


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


def start_gpus(folder: Path, stack: ExitStack) -> Node:
    """Eight H100, on which diagnostics ran, and a publisher."""
    dcgmi = stack.enter_context(Dcgmi(folder / "bin", gpus=8))
    nccl = write_program(folder / "all_reduce_perf", NCCL)
    extra = f"""
[diagnostics]
idle = "1s"
[dcgm]
program = "{dcgmi.path}"
level_2 = "12h"
[nccl]
program = "{nccl}"
"""
    gpus = as_if_real(SimulatedNode(folder / "gpus", "h100"))
    node = stack.enter_context(Node(folder / "node", gpus=gpus, extra=extra))
    node.wait(lambda status: status["status"] == "healthy")
    ended(node, asked(node, check="dcgm"))
    ended(node, asked(node, 0, check="nccl"))
    node.write(xid(1, code=13, pci=gpus.addresses[1].removesuffix(".0"), message="Exception"))
    wait_for_pid(node, 1)
    assert node.request("POST", "/v1/publishers", {"sinks": [WELL]})[0] == 200
    return node


def start_rack(folder: Path, stack: ExitStack) -> Node:
    """GPUs of a rack, one of which fell off the bus."""
    gpus = as_if_real(SimulatedNode(folder / "gpus", "gb200"))
    node = stack.enter_context(Node(folder / "node", gpus=gpus))
    node.write(xid(1, pci=gpus.addresses[1].rpartition(".")[0]))
    node.wait(lambda status: status["rebootRequired"])
    return node


def start_machine(folder: Path, stack: ExitStack) -> Node:
    """Trainium, network adapters, which were measured, PCI functions and a host, with corrected
    PCIe errors.
    """
    tree = WholeTree(folder)
    tree.proc.write("sys/kernel/threads-max", 8000)
    tree.proc.write("sys/kernel/pid_max", 4000)
    looks = ("neuron", "network", "pci", "host")
    extra = '[diagnostics]\nidle = "1s"\n[efa_loopback]\nmin_gbps = 10.0\n'
    node = Node(folder / "node", sysfs=tree.root, looks=looks, extra=extra)
    node.configure("[paths]\n", f'[paths]\nprocfs = "{tree.proc.root}"\n')
    program = write_program(folder / "bin/fi_pingpong", FI_PINGPONG)
    (folder / "how").write_text("{}")
    node.environment |= {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOW": str(folder / "how"),
    }
    stack.enter_context(node)
    ended(node, asked(node, 0, check="efa_loopback"))
    errors = f"{tree.function(ADAPTER)}/aer_dev_correctable"
    tree.neuron.write(errors, "BadTLP 0\nTOTAL_ERR_COR 0")
    node.wait_for_polls("pci")
    tree.neuron.write(errors, "BadTLP 2\nTOTAL_ERR_COR 2")
    return node


def start_drill(folder: Path, stack: ExitStack) -> Node:
    """Simulated GPUs, one of which is lost."""
    gpus = SimulatedNode(folder / "gpus", "h100")
    node = stack.enter_context(Node(folder / "node", gpus=gpus))
    gpus.lose(1)
    node.wait(lambda status: status["rebootRequired"])
    return node


def start_blind(folder: Path, stack: ExitStack) -> Node:
    """A source that hangs."""
    tree = WholeTree(folder)
    extra = '[neuron]\nevery = "200ms"\ndeadline = "1s"\n'
    node = stack.enter_context(
        Node(folder / "node", sysfs=tree.root, looks=["neuron"], extra=extra)
    )
    tree.neuron.hang(f"{tree.function(TRN2[2])}/class")
    node.wait(lambda status: status["status"] == "unknown")
    return node


START: dict[str, Callable[[Path, ExitStack], Node]] = {
    "gpus": start_gpus,
    "rack": start_rack,
    "machine": start_machine,
    "drill": start_drill,
    "blind": start_blind,
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("fleet")
    rules = folder / "rules.yml"
    shipped = (ROOT / "packaging/prometheus/rules.yml").read_text("utf-8")
    rules.write_text(shipped.replace("interval: 1m", "interval: 1s"), encoding="utf-8")
    with ExitStack() as stack:
        nodes = {name: start(folder / name, stack) for name, start in START.items()}
        addresses = {name: f"127.0.0.1:{node.port}" for name, node in nodes.items()}
        addresses |= {name: f"127.0.0.1:{free_port()}" for name in ("dead", "gone")}
        make = partial(make_config, rules=rules, scrape="scrape-large-fleet")
        running = Prometheus(folder / "prometheus", make(addresses))
        stack.enter_context(running)
        # Until rates and what the rules make of what they have recorded are there.
        scraped = "count(count_over_time(vitald_build_info[5m]) >= 4)"
        until(lambda: is_value(running, scraped, len(nodes)), "scrapes")
        for name in ("interruptions_per_1000_node_days:ratio28d", "mtbf_seconds:ratio28d"):
            until(lambda name=name: running.query(f"cluster:vitald_{name}"), name)
        until(lambda: running.query("vitald_pci_aer_errors_total > 0"), "PCIe errors")
        del addresses["gone"]  # it leaves the discovery
        running.reload(make(addresses))
        until(lambda: not running.query('up{instance="gone"}'), "a target to be gone")
        yield running


def is_value(prometheus: Prometheus, expression: str, value: float) -> bool:
    return [float(series["value"][1]) for series in prometheus.query(expression)] == [value]


def run_query(prometheus: Prometheus, query: Query, cluster: str = ".*") -> list[Json]:
    """What Grafana shows of it with all clusters, for any of the nodes."""
    expression = query.expression.removesuffix(FILTERED.get(query.panel, ""))
    shown = {"cluster": cluster, "__rate_interval": "10s"}
    nodes = START if query.dashboard == "node" else ("",)
    return [
        series
        for node in nodes
        for series in prometheus.query(fill_in(expression, {**shown, "instance": node}))
    ]


@pytest.mark.parametrize(
    "query", list_queries(), ids=lambda query: f"{query.dashboard} {query.panel}"
)
def test_a_query_has_data_and_its_legend_names_labels_of_it(
    prometheus: Prometheus, query: Query
) -> None:
    found = run_query(prometheus, query)
    assert found, query.expression
    labels = set.union(*(set(series["metric"]) for series in found))
    assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels
    assert not run_query(prometheus, query, "elsewhere"), "nothing is known of other clusters"


@pytest.mark.parametrize("name", ["fleet", "node"])
def test_the_columns_of_a_table_are_the_labels_of_its_queries(
    prometheus: Prometheus, name: str
) -> None:
    for panel in list_panels(load_dashboard(name)):
        if panel["type"] != "table":
            continue
        labels = {
            label
            for query in list_queries()
            if (query.dashboard, query.panel) == (name, panel["title"])
            for series in run_query(prometheus, query)
            for label in series["metric"]
        }
        columns = panel["transformations"][-1]["options"]
        shown, hidden = {*columns["renameByName"]}, {*columns["excludeByName"]}
        values = {"Value"}
        if len(panel["targets"]) > 1:
            values = {f"Value #{target['refId']}" for target in panel["targets"]}
        if panel["title"] == "Open findings":
            values.add("Value")  # what it is called where only one of the queries has data
        assert shown | hidden == labels | values | {"Time"}, panel["title"]
        assert {*columns["indexByName"]} == shown
        titles = {*columns["renameByName"].values()}
        named = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
        named += [each["displayName"] for each in panel.get("options", {}).get("sortBy", [])]
        assert set(named) <= titles, panel["title"]


def test_the_pictures_of_the_documentation_can_be_drawn(prometheus: Prometheus) -> None:
    """Those of all open rows, with each panel's title."""
    painter = Painter(prometheus, "gpus", int(time.time()) - 60, int(time.time()))
    for name in ("fleet", "node"):
        dashboard = load_dashboard(name)
        rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
        picture = ElementTree.fromstring(painter.paint(dashboard, rows))
        texts = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
        assert {panel["title"] for panel in dashboard["panels"]} <= texts


def read_number(prometheus: Prometheus, panel: str) -> float:
    """What a panel of the fleet shows, all series together."""
    (query,) = (each for each in list_queries() if (each.dashboard, each.panel) == ("fleet", panel))
    return sum(float(series["value"][1]) for series in run_query(prometheus, query))


def test_a_drill_is_counted_apart(prometheus: Prometheus) -> None:
    """`rack` has a real fault, `drill` the same one on simulated devices. `dead` has no daemon,
    `gone` is no target any more.
    """
    expected = {
        "Nodes by status": 4,
        "Reboot required": 1,
        "Replacement required": 0,
        "Not answering": 2,
        "Drills": 1,
    }
    assert {panel: read_number(prometheus, panel) for panel in expected} == expected
