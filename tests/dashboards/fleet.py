"""The fleet's dashboard. Every query works on what `/metrics?collect[]=verdict` shows."""

from __future__ import annotations

from tests.dashboards import common, panels
from tests.dashboards.panels import Column, Panel, Query, Row, Table

_SELECTION = common.FLEET_SELECTION
_REAL_FINDINGS = f'vitald_findings{{{_SELECTION},simulated="false"}}'
_NODE = common.make_node_column()
_BY_STATUS = Query(
    expr="sum by (status) " + common.exclude_drills(f"vitald_status{{{_SELECTION}}}"),
    legend="{{status}}",
)


def build() -> Table:
    return panels.build_dashboard(
        uid=common.FLEET_UID,
        title="vitald / Fleet",
        description="The health of all nodes: what is wrong, where, since when, and what to do.",
        variables=common.make_variables(),
        rows=(
            Row(title="Nodes", panels=_make_node_panels()),
            Row(title="Findings", panels=_make_finding_panels()),
            Row(title="What cannot be seen", panels=_make_blind_panels()),
            Row(title="Versions", panels=_make_version_panels()),
            Row(title="Drills", panels=(_make_drills(),)),
        ),
    )


def _count_flag(name: str) -> Query:
    flag = common.exclude_drills(f"(vitald_{name}{{{_SELECTION}}} == 1)")
    return Query(expr=common.count_or_zero(flag))


def _make_node_panels() -> tuple[Panel, ...]:
    wrong = ((None, panels.BLUE), (1, panels.RED))
    return (
        panels.make_stat(
            "Nodes by status",
            _BY_STATUS,
            "Nodes with a drill are not counted.",
            width=8,
            overrides=panels.make_status_overrides(),
        ),
        panels.make_stat(
            "Reboot required",
            _count_flag("reboot_required"),
            "Nodes with an open finding that requires a reboot.",
            thresholds=((None, panels.BLUE), (1, panels.ORANGE)),
        ),
        panels.make_stat(
            "Replacement required",
            _count_flag("replacement_required"),
            "Nodes with an open finding that requires their replacement.",
            thresholds=wrong,
        ),
        panels.make_stat(
            "Not answering",
            Query(expr=common.count_or_zero(common.UNREACHABLE_NODES)),
            "Nodes whose vitald Prometheus cannot scrape: nothing is known about them.",
            thresholds=wrong,
        ),
        panels.make_stat(
            "Drills",
            Query(expr=common.count_or_zero(f"vitald_simulated{{{_SELECTION}}} == 1")),
            "Nodes on which something is simulated. No other panel of this row counts them.",
            thresholds=((None, panels.BLUE), (1, panels.GREY)),
        ),
        panels.make_series(
            "Nodes by status",
            _BY_STATUS,
            "The same over time.",
            width=panels.COLUMNS,
            height=7,
            stacked=True,
            overrides=panels.make_status_overrides(),
        ),
    )


def _make_finding_panels() -> tuple[Panel, ...]:
    code = (Column(name="kind", title="Kind"), Column(name="code", title="Code"))
    number = Column(name="Value", title="Nodes")
    return (
        common.make_findings_table(_SELECTION, with_node=True),
        panels.make_table(
            "Same code on several nodes",
            Query(
                expr=f"count by (kind, code) (sum by ({common.NODE_LABELS}, kind, code)"
                f' (vitald_findings{{{_SELECTION},simulated="false",component!="other"}}))',
                is_table=True,
            ),
            "A code that many nodes have at once suggests a common cause: a driver, an image, a"
            " switch, a rack.",
            columns=(*code, number),
            sort_by="Nodes",
            width=8,
        ),
        panels.make_table(
            "Racks with unhealthy nodes",
            Query(
                expr="sum by (cluster, chassis_serial) ("
                + common.exclude_drills(f'(vitald_status{{{_SELECTION},status="unhealthy"}} == 1)')
                + f" * on ({common.NODE_LABELS}) group_left (chassis_serial)"
                f' vitald_node_info{{{_SELECTION},chassis_serial!=""}})',
                is_table=True,
            ),
            "Unhealthy nodes by the serial number of their chassis, where the GPUs have one.",
            columns=(
                Column(name="cluster", title="Cluster"),
                Column(name="chassis_serial", title="Chassis"),
                number,
            ),
            sort_by="Nodes",
            width=8,
        ),
        panels.make_series(
            "Findings by action",
            Query(expr=f"sum by (action) ({_REAL_FINDINGS})", legend="{{action}}"),
            "What the open findings require.",
            stacked=True,
        ),
    )


def _list_nodes(
    title: str, expr: str, description: str, value: str, columns: tuple[Column, ...] = (_NODE,)
) -> Panel:
    """A table of nodes. `value`: the heading of the number beside them."""
    query = Query(expr=expr, is_table=True)
    columns = (*columns, Column(name="Value", title=value))
    return panels.make_table(title, query, description, columns=columns, width=6)


def _make_blind_panels() -> tuple[Panel, ...]:
    unknown = common.exclude_drills(f'(vitald_status{{{_SELECTION},status="unknown"}} == 1)')
    lost = common.count_gained(f"vitald_kernel_records_lost_total{{{_SELECTION}}}", "$__range")
    return (
        _list_nodes(
            "Nodes of unknown status",
            f"sum by (instance) {unknown}",
            "The daemon answers, and cannot tell how the node is.",
            "Unknown",
        ),
        _list_nodes(
            "Sources that are not read",
            f"sum by (instance, source) (vitald_source_up{{{_SELECTION}}} == 0) + 1",
            "What they would show is unknown until they are read again.",
            "Down",
            (_NODE, Column(name="source", title="Source")),
        ),
        _list_nodes(
            "Nodes that do not answer",
            f"sum by (instance) ({common.UNREACHABLE_NODES}) + 1",
            "Prometheus cannot scrape them.",
            "Down",
        ),
        _list_nodes(
            "Kernel log records lost",
            f"sum by (instance) {lost} > 0",
            "Records that were overwritten before they could be read, within the time shown.",
            "Records",
        ),
    )


def _count_versions(title: str, metric: str, labels: dict[str, str], description: str) -> Panel:
    return panels.make_table(
        title,
        Query(
            expr=f"count by ({', '.join(labels)}) ({metric}{{{_SELECTION}}})",
            is_table=True,
        ),
        description,
        columns=(
            *(Column(name=label, title=heading) for label, heading in labels.items()),
            Column(name="Value", title="Nodes"),
        ),
        sort_by="Nodes",
        width=8,
        height=7,
    )


def _make_version_panels() -> tuple[Panel, ...]:
    return (
        _count_versions(
            "vitald",
            "vitald_build_info",
            {"version": "Version", "catalog_profile": "Profile"},
            "Versions of vitald and profiles of its catalogue.",
        ),
        _count_versions(
            "Drivers and kernels",
            "vitald_node_info",
            {"gpu_driver": "GPU driver", "neuron_driver": "Neuron driver", "kernel": "Kernel"},
            "Nodes by their drivers and kernel.",
        ),
        panels.make_table(
            "Configurations",
            Query(expr=f'count_values("hash", vitald_config_hash{{{_SELECTION}}})', is_table=True),
            "Nodes by the hash of their configuration: more than one line is drift, or several"
            " kinds of nodes.",
            columns=(
                Column(name="hash", title="Hash"),
                Column(name="Value", title="Nodes"),
            ),
            sort_by="Nodes",
            width=8,
            height=7,
        ),
    )


def _make_drills() -> Panel:
    return panels.make_table(
        "Nodes with a drill",
        Query(expr=f"sum by (instance) (vitald_simulated{{{_SELECTION}}} == 1)", is_table=True),
        "Something on these nodes is simulated: an injected fault, or a simulated GPU library.",
        columns=(_NODE, Column(name="Value", title="Simulated")),
        height=6,
    )
