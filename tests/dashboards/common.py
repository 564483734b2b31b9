"""What both dashboards share: selections, variables and the columns of findings."""

from __future__ import annotations

from tests.dashboards.panels import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    Column,
    Panel,
    Query,
    Table,
    make_constant,
    make_query_variable,
    make_source_variable,
    make_table,
)

FLEET_UID, NODE_UID = "vitald-fleet", "vitald-node"
NODE_LABELS = "cluster, job, instance"  # of one node; `cluster` is optional
# Every node has this job; some also the job `vitald-full` (packaging/prometheus).
NODE_JOB = "(.*/)?vitald"
ALL_JOBS = f"{NODE_JOB}(-full)?"  # of vitald: Prometheus has jobs of others, too
FLEET_SELECTION = 'job=~"$job",cluster=~"$cluster"'
# One series for each node that Prometheus cannot scrape
UNREACHABLE_NODES = f'max by (cluster, instance) (up{{{FLEET_SELECTION},job=~"{NODE_JOB}"}}) == 0'
STATES = {
    0: ("healthy", BLUE),
    1: ("degraded", ORANGE),
    2: ("unhealthy", RED),
    3: ("unknown", GREY),
}
# Where a finding's row leads: docs/findings.md has an anchor for each code.
_RUNBOOK = "${runbook}#${__data.fields.Kind}-${__data.fields.Code}"
_NODE_URL = (
    f"/d/{NODE_UID}?var-datasource=${{datasource}}&var-job=$__all&var-cluster=$__all"
    "&var-instance=${__data.fields.Node}&${__url_time_range}"
)
DEFAULT_RUNBOOK = "https://docs.example.com/vitald/findings.md"


def make_variables() -> list[Table]:
    """Data source, job and cluster, and where the runbook is."""
    return [
        make_source_variable(),
        make_query_variable("job", "Job", "label_values(vitald_status, job)", all_value=ALL_JOBS),
        make_query_variable(
            "cluster",
            "Cluster",
            'label_values(vitald_status{job=~"$job"}, cluster)',
            all_value=".*",
            description="Optional: the label cluster. All includes nodes without it.",
        ),
        make_constant(
            "runbook", DEFAULT_RUNBOOK, "Address of docs/findings.md, as this site serves it."
        ),
    ]


def exclude_drills(expression: str) -> str:
    """Without the nodes on which something is simulated."""
    drills = f"(vitald_simulated{{{FLEET_SELECTION}}} == 1)"
    return f"({expression} unless on ({NODE_LABELS}) {drills})"


def count_or_zero(expression: str) -> str:
    """Their number; 0 if there are none."""
    return f"count({expression}) or vector(0)"


def count_gained(series: str, window: str) -> str:
    """What a counter gained within the window. `increase` leaves out what a series begins with: the
    first event of a code, and records that were lost while no daemon ran. One that began again
    counts from 0.
    """
    before = f"last_over_time({series}[1h] offset {window})"
    return f"({series} - ({before} <= {series}) or {series})"


def make_node_column() -> Column:
    """The node's name, which leads to its dashboard."""
    link: Table = {"title": "Open the node", "url": _NODE_URL, "targetBlank": False}
    return Column(name="instance", title="Node", properties={"links": [link]})


def make_findings_table(selection: str, *, with_node: bool) -> Panel:
    """Open findings with their age, the strongest action first."""
    labels = "component, kind, code, action, when, simulated"
    labels = f"instance, {labels}" if with_node else labels
    chosen = f'{selection},component!="other"'
    columns: list[Column] = [make_node_column()] if with_node else []
    link: Table = {"title": "What to do", "url": _RUNBOOK, "targetBlank": True}
    columns += [
        Column(name="component", title="Component"),
        Column(name="kind", title="Kind"),
        Column(name="code", title="Code", properties={"links": [link]}),
        Column(name="action", title="Action"),
        Column(name="when", title="When"),
        Column(name="Value #B", title="Age", properties={"unit": "dtdurations", "decimals": 0}),
        Column(name="Value #A", title="Findings"),
        Column(name="simulated", title="Drill"),
    ]
    return make_table(
        "Open findings",
        (
            Query(expr=f"sum by ({labels}) (vitald_findings{{{chosen}}})", is_table=True),
            Query(
                expr=f"max by ({labels})"
                f" (time() - vitald_finding_opened_timestamp_seconds{{{chosen}}})",
                is_table=True,
            ),
        ),
        "What is wrong, since when, and what it requires. The code leads to what to do. Accepted"
        " findings are left out. Scraped with collect[]=verdict, a node shows its 20 strongest"
        " findings, without their age.",
        columns=columns,
        sort_by="Age",
        height=10,
        no_value="no open findings",
    )


def make_status_value(selection: str, labels: str) -> str:
    """The status as a number, as STATES has it."""
    parts = (
        f'{number} * vitald_status{{{selection},status="{name}"}}'
        for number, (name, _) in STATES.items()
    )
    return f"sum by ({labels}) (" + " or ".join(parts) + ")"
