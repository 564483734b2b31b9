"""What happens on nodes, and which alerts of packaging/prometheus/rules.yml fire on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """What an alert says at a minute at which it fires. `labels`: all but the severity. Those of
    several nodes are separated by `;`, and so are the summaries, in which `{of}` stands for the
    cluster.
    """

    minute: int
    labels: str
    summary: str


@dataclass(frozen=True, slots=True)
class Case:
    """What happens on some nodes, minute by minute, and what fires.

    `series`: `NODE METRIC LABEL=VALUE ...` and its values as promtool writes them; a NODE of
    another cluster is `CLUSTER:NODE`. A failed scrape is `stale _x9`: Prometheus marks the series
    as stale, then it has no samples.
    `firing`: of an alert, by the minute: the nodes on which it fires, separated by spaces, `fleet`
    for an alert without a node, `LABEL=VALUE` for one about something else, `cluster=` for one
    without any label.
    `recorded`: of an expression, by the minute: its values by their labels.
    """

    name: str
    series: Mapping[str, str]
    firing: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    texts: Mapping[str, Text] = field(default_factory=dict)
    recorded: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)


GPU = "component=gpu/0000:65:00.0"


def make_finding(
    node: str,
    code: str,
    action: str,
    when: str = "now",
    *,
    accepted: bool = False,
    drill: bool = False,
) -> str:
    kind, _, number = code.partition("/")
    flags = f"accepted={str(accepted).lower()} simulated={str(drill).lower()}"
    return (
        f"{node} vitald_findings {GPU} pci_bus_id=0000:65:00.0 kind={kind} code={number}"
        f" action={action} when={when} {flags}"
    )


def make_fleet(size: int, unfit: int, status: str = "unhealthy") -> dict[str, str]:
    """Nodes of which some become unfit after 70 minutes, for half an hour."""
    series = {}
    for number in range(size):
        is_unfit = number < unfit
        healthy, ill = f"n{number} vitald_status status=healthy", f"n{number} vitald_status status="
        series[healthy] = "1x69 0x29 1x120" if is_unfit else "1x220"
        series[ill + status] = "0x69 1x29 0x120" if is_unfit else "0x220"
    return series


COUNTS = "accepted=false simulated=false"
RACK = "instance_type= kernel=6.8 gpu_driver=570.1 neuron_driver= chassis_serial="

# A node of the same name in another cluster, with a drill, which must not affect the first. With the
# label `cluster`, each node of a case has one.
TWIN = {
    "up": "1x500",
    "vitald_simulated": "1x500",
    "vitald_status status=healthy": "1x500",
    "vitald_status status=unhealthy": "0x500",
    "vitald_reboot_required": "1x500",
    "vitald_components component_kind=gpu status=healthy": "8x500",
    "vitald_ledger_ok": "1x500",
    "vitald_publish_last_report_timestamp_seconds": "0+60x500",
}

CASES = (
    Case(
        "a reboot is required; the node boots for ten minutes, and is well",
        {
            make_finding("a", "xid/79", "reboot_node"): "_x2 1x7 stale _x50",
            "a vitald_reboot_required": "0x2 1x7 stale _x9 0x40",
            "a vitald_simulated": "0x9 stale _x9 0x40",
            make_finding("b", "xid/31", "restart_workload"): "1x60",
            make_finding("b", "xid/63", "reset_device", "maintenance"): "1x60",
            make_finding("b", "xid/79", "reboot_node", accepted=True): "1x60",
            "b vitald_reboot_required": "0x60",
        },
        {"VitaldRebootRequired": {3: "", 5: "a", 20: "a", 40: ""}},
        {
            "VitaldRebootRequired": Text(
                5,
                f"instance=a {GPU} pci_bus_id=0000:65:00.0 kind=xid code=79 action=reboot_node when=now {COUNTS}",
                "a: reboot now: xid/79 on gpu/0000:65:00.0",
            )
        },
    ),
    Case(
        "reboots after the job, for a reset and not for one that the site does itself; accepted"
        " findings beside real ones",
        {
            make_finding("a", "xid/79", "reboot_node", "after_job"): "1x60",
            make_finding("a", "xid/110", "reboot_node", accepted=True): "1x60",
            make_finding("a", "xid/31", "restart_workload"): "1x60",
            make_finding("a", "xid/63", "reset_device", "maintenance"): "1x60",
            "a vitald_reboot_required": "1x60",
            make_finding("b", "xid/48", "reset_device"): "1x10 _x50",
            "b vitald_reboot_required": "1x10 0x50",
            make_finding("c", "xid/48", "reset_device"): "1x60",
            "c vitald_reboot_required": "0x60",
        },
        {"VitaldRebootRequired": {10: "a b", 40: "a"}},
        {},
        {
            'count by (cluster, code) (ALERTS{instance="a"})': {10: {"code=79": 1}},
        },
    ),
    Case(
        "drills require nothing, and hide nothing on other nodes or on their own",
        {
            make_finding("drill", "xid/79", "reboot_node", drill=True): "1x60",
            make_finding("drill", "xid/64", "replace_node", drill=True): "1x60",
            make_finding("drill", "expect/gpus", "inspect", drill=True): "1x60",
            "drill vitald_reboot_required": "1x60",
            "drill vitald_simulated": "1x60",
            "drill vitald_status status=unhealthy": "1x60",
            "drill vitald_status status=unknown": "1x60",
            "drill vitald_findings_escalated": "1x60",
            f"drill vitald_device_lemon_score {GPU} identity=GPU-1": "9x60",
            "drill vitald_transitions_total": "0+1x60",
            "drill vitald_source_up source=nvml": "0x60",
            make_finding("both", "xid/119", "reset_device"): "1x60",
            make_finding("both", "xid/79", "reboot_node", drill=True): "1x60",
            "both vitald_reboot_required": "1x60",
            "both vitald_simulated": "1x60",
        },
        {
            "VitaldRebootRequired": {30: "both"},
            "VitaldReplacementRequired": {30: ""},
            "VitaldDevicesMissing": {30: ""},
            "VitaldUnhealthy": {30: ""},
            "VitaldUnknown": {30: ""},
            "VitaldFaultReturned": {30: ""},
            "VitaldSuspectDevice": {30: ""},
            "VitaldFlapping": {30: ""},
            "VitaldSourceDown": {30: ""},
        },
    ),
    Case(
        "a replacement is required, until the finding is cleared",
        {
            make_finding("a", "nvml/row_remap_failed", "replace_node"): "_x3 1x7 stale _x40",
            make_finding("b", "xid/13", "restart_workload"): "1x60",
            make_finding("b", "nvml/memory_unrepairable", "replace_node", "maintenance"): "1x60",
            make_finding("b", "xid/64", "replace_node", accepted=True): "1x60",
            "b vitald_findings component=other kind=other code=other action=other when=other"
            " accepted=other simulated=false": "12x60",
        },
        {"VitaldReplacementRequired": {3: "", 5: "a", 20: "a", 35: ""}},
        {
            "VitaldReplacementRequired": Text(
                5,
                f"instance=a {GPU} pci_bus_id=0000:65:00.0 kind=nvml code=row_remap_failed action=replace_node when=now"
                f" {COUNTS}",
                "a: replace the node: nvml/row_remap_failed on gpu/0000:65:00.0",
            )
        },
    ),
    Case(
        "unhealthy over the reboot and until it is well; for a moment; degraded",
        {
            "a vitald_status status=unhealthy": "0x2 1x10 stale _x9 0x40",
            "b vitald_status status=unhealthy": "0x5 1x2 0x60",
            "c vitald_status status=degraded": "1x60",
        },
        {"VitaldUnhealthy": {5: "", 10: "a", 20: "a", 45: ""}},
        {"VitaldUnhealthy": Text(10, "instance=a status=unhealthy", "a is unhealthy")},
    ),
    Case(
        "fewer devices than there should be, until they are back; not so many that it matters",
        {
            make_finding("a", "expect/gpus", "inspect"): "_x2 1x20 _x60",
            make_finding("b", "nvml/gpu_count", "inspect"): "_x2 1x20 _x60",
            make_finding("c", "expect/gpus", "inspect", accepted=True): "1x60",
            make_finding("c", "expect/efa_not_all", "observe"): "1x60",
            make_finding("c", "expect/kernel", "inspect"): "1x60",
            make_finding("c", "neuron/driver_missing", "inspect"): "1x60",
            make_finding("c", "network/missing", "inspect"): "1x60",
            make_finding("c", "pci/missing", "reboot_node"): "1x60",
        },
        {"VitaldDevicesMissing": {5: "", 15: "a b", 30: "a b", 50: ""}},
        {
            "VitaldDevicesMissing": Text(
                15,
                f"instance=a {GPU} pci_bus_id=0000:65:00.0 kind=expect code=gpus action=inspect when=now {COUNTS};"
                f"instance=b {GPU} pci_bus_id=0000:65:00.0 kind=nvml code=gpu_count action=inspect when=now {COUNTS}",
                "a has fewer devices than it should: expect/gpus on gpu/0000:65:00.0;"
                "b has fewer devices than it should: nvml/gpu_count on gpu/0000:65:00.0",
            )
        },
    ),
    Case(
        "a fault returns after its remedy",
        {
            "a vitald_findings_escalated": "0x2 1x20 0x60",
            "b vitald_findings_escalated": "0x80",
        },
        {"VitaldFaultReturned": {3: "", 10: "a", 30: "a", 50: ""}},
        {
            "VitaldFaultReturned": Text(
                10, "instance=a", "a: a fault returned after its remedy and requires more now"
            )
        },
    ),
    Case(
        "a device with many faults, until it is replaced; one with few",
        {
            f"a vitald_device_lemon_score {GPU} identity=GPU-1": "4.5x2 6x30 _x60",
            f"b vitald_device_lemon_score {GPU} identity=GPU-2": "4.9x80",
        },
        {"VitaldSuspectDevice": {10: "", 30: "a", 44: "a", 70: ""}},
        {
            "VitaldSuspectDevice": Text(
                30,
                f"instance=a {GPU} identity=GPU-1",
                "a: gpu/0000:65:00.0 (GPU-1) had many faults in the last weeks: lemon score 6.0",
            )
        },
    ),
    Case(
        "findings that come and go, until they rest; a storm at one moment; a drill that is over",
        {
            "a vitald_transitions_total": "0x2 1+1x30 31x120",
            "b vitald_transitions_total": "0x10 500x150",
            "c vitald_transitions_total": "0x5 0+1x14 14x90",
            "c vitald_simulated": "0x5 1x20 0x130",
        },
        {"VitaldFlapping": {16: "", 20: "a", 40: "a", 120: ""}},
        {
            "VitaldFlapping": Text(
                20,
                "instance=a",
                "a: findings open and clear again and again: 18 changes in an hour",
            )
        },
    ),
    Case(
        "recovery is requested for hours, over a gap of the scrape, until the reboot; a job of"
        " three hours",
        {
            "a vitald_recovery_requested repair=reboot": "0x5 1x120 stale _x5 1x180 0x60",
            "a vitald_recovery_requested repair=replace": "0x400",
            "b vitald_recovery_requested repair=reboot": "0x5 1x180 0x200",
        },
        {"VitaldRecoveryStuck": {180: "", 260: "a", 350: ""}},
        {
            "VitaldRecoveryStuck": Text(
                260,
                "instance=a repair=reboot",
                "a: reboot has been requested for hours and was not carried out",
            )
        },
    ),
    Case(
        "a reboot that does not happen, until a person does it; other checks that do not pass",
        {
            "a vitald_recovery_refused check=effect": "_x2 1x20 _x40",
            "b vitald_recovery_refused check=kill_switch": "1x60",
        },
        {"VitaldRecoveryFailed": {5: "", 10: "a", 30: ""}},
        {
            "VitaldRecoveryFailed": Text(
                10, "instance=a check=effect", "a: recovery began a reboot that did not happen"
            )
        },
    ),
    Case(
        "three nodes that the brake holds, until one may go; two of another cluster",
        {
            "a vitald_recovery_refused check=brake": "1x40 _x30",
            "b vitald_recovery_refused check=brake": "1x70",
            "c vitald_recovery_refused check=brake": "1x70",
            "d vitald_recovery_refused check=budget": "1x70",
            "x:a vitald_recovery_refused check=brake": "1x70",
            "x:b vitald_recovery_refused check=brake": "1x70",
        },
        {"VitaldRecoveryHeldBack": {10: "", 20: "fleet", 60: ""}},
        {
            "VitaldRecoveryHeldBack": Text(
                20,
                "job=",
                "3 nodes{of} require a reboot or a replacement, and the brake holds recovery back",
            )
        },
    ),
    Case(
        "a prolog that lets a job through without knowing; while the daemon is down for an hour or"
        " a night; jobs of last week",
        {
            "a vitald_slurm_unknown_jobs_total choice=allow": "0x75 1x600",
            "down vitald_slurm_unknown_jobs_total choice=allow": "2x9 stale _x69 3x600",
            "night vitald_slurm_unknown_jobs_total choice=refuse": "2x9 stale _x480 3x200",
            "b vitald_slurm_unknown_jobs_total choice=allow": "7x675",
        },
        {"VitaldSlurmUnknownJobs": {74: "", 80: "a down", 145: "", 495: "night", 555: ""}},
        {
            "VitaldSlurmUnknownJobs": Text(
                80,
                "instance=a choice=allow;instance=down choice=allow",
                "a: the prolog decided on a job without knowing the state of the node: allow, 1 so"
                " far;down: the prolog decided on a job without knowing the state of the node:"
                " allow, 3 so far",
            )
        },
    ),
    Case(
        "unknown, until the source is read again; a source that is released for ten minutes",
        {
            "a vitald_status status=unknown": "0x2 1x20 0x40",
            "a vitald_source_up source=nvml": "1x2 0x20 1x40",
            "a vitald_source_up source=kernel_log": "1x60",
            "b vitald_status status=unknown": "0x2 1x10 0x50",
            "c vitald_status status=healthy": "1x60",
            "b vitald_source_up source=nvml": "1x2 0x10 1x50",
        },
        {
            "VitaldUnknown": {10: "", 20: "a", 25: "a", 35: ""},
            "VitaldSourceDown": {10: "", 20: "a", 25: "a", 35: ""},
        },
        {
            "VitaldUnknown": Text(20, "instance=a status=unknown", "The status of a is unknown"),
            "VitaldSourceDown": Text(
                20, "instance=a source=nvml", "a: the source nvml is not read"
            ),
        },
    ),
    Case(
        "a dead daemon, until it is started; one that reboots; one lost scrape; another job; a job"
        " of the Prometheus operator",
        {
            "a up": "1x5 0x30 1x20",
            "b up": "1x5 0x10 1x40",
            "c up": "1x5 0 1x50",
            "d up job=node": "0x60",
            "e up job=monitoring/vitald": "0x28 1x30",
        },
        {
            "VitaldDown": {15: "e", 25: "a e", 45: ""},
            "VitaldTargetGone": {25: ""},
        },
        {
            "VitaldDown": Text(
                25,
                "instance=a;instance=e job=monitoring/vitald",
                "vitald on a does not answer: the node is not observed;"
                "vitald on e does not answer: the node is not observed",
            )
        },
    ),
    Case(
        "a node that leaves the discovery, for the rest of the hour; a new one",
        {
            "a up": "1x10 stale _x120",
            "b up": "1x120",
            "c up": "_x30 1x120",
            "d up job=node": "1x10 stale",
        },
        {"VitaldTargetGone": {20: "", 40: "a", 75: ""}, "VitaldDown": {40: ""}},
        {"VitaldTargetGone": Text(40, "instance=a job=", "a is no longer a target of Prometheus")},
    ),
    Case(
        "a Prometheus that did not run for half an hour",
        {
            "a up": "1x10 _x30 1x60",
            "a vitald_kernel_records_lost_total": "7x10 _x30 7x120",
            "a vitald_transitions_total": "90x10 _x30 90x60",
        },
        {
            "VitaldTargetGone": {41: "", 60: ""},
            "VitaldDown": {42: ""},
            "VitaldFlapping": {60: ""},
            "VitaldKernelRecordsLost": {85: "", 130: ""},
        },
    ),
    Case(
        "records are lost once; while no daemon runs; by a daemon that was started again; never",
        {
            "a vitald_kernel_records_lost_total": "0x75 40x140",
            "boot vitald_kernel_records_lost_total": "7x60 stale _x9 4000x140",
            "restart vitald_kernel_records_lost_total": "40x75 0x140",
            "none vitald_kernel_records_lost_total": "0x220",
        },
        {"VitaldKernelRecordsLost": {80: "a boot", 120: "a boot", 170: ""}},
        {
            "VitaldKernelRecordsLost": Text(
                80,
                "instance=a;instance=boot",
                "a: records of the kernel log were overwritten before they were read;"
                "boot: records of the kernel log were overwritten before they were read",
            )
        },
    ),
    Case(
        "a ledger that cannot be written, until it can; for two minutes",
        {"a vitald_ledger_ok": "1x2 0x20 1x40", "b vitald_ledger_ok": "1x2 0x2 1x60"},
        {"VitaldLedgerFailed": {5: "", 15: "a", 26: "a", 40: ""}},
        {"VitaldLedgerFailed": Text(15, "instance=a", "a: the ledger cannot be written")},
    ),
    Case(
        "diagnostics that are two days late or owed for two days, until they run; one day late",
        {
            "a vitald_diagnostic_next_timestamp_seconds check=dcgm level=2": "-172000x40 9e5x60",
            "b vitald_diagnostic_owed_since_timestamp_seconds check=nccl level=0": (
                "-172000x40 stale"
            ),
            "c vitald_diagnostic_next_timestamp_seconds check=dcgm level=2": "-86400x60",
        },
        {"VitaldDiagnosticsStale": {20: "", 35: "a b", 43: "a b", 50: ""}},
        {
            "VitaldDiagnosticsStale": Text(
                35,
                "instance=a check=dcgm level=2;instance=b check=nccl level=0",
                "a: dcgm (level 2) should have run 2d 0h 21m 40s ago;"
                "b: nccl (level 0) should have run 2d 0h 21m 40s ago",
            )
        },
    ),
    Case(
        "a sink that fails, until it is written again; a publisher that dies and is started; one"
        " that dies before the daemon does; none at all; a node that is off",
        {
            "a vitald_publish_up sink=kubernetes": "1x2 0x30 1x60",
            "a vitald_publish_up sink=files": "1x100",
            "a vitald_publish_last_report_timestamp_seconds": "0+60x500",
            "a vitald_ledger_ok": "1x500",
            "b vitald_publish_up sink=kubernetes": "1x5 0x30 1x60",
            "b vitald_publish_last_report_timestamp_seconds": "0+60x5 300x30 2160+60x460",
            "b vitald_ledger_ok": "1x500",
            "c vitald_publish_last_report_timestamp_seconds": "0+60x5 stale _x500",
            "c vitald_ledger_ok": "1x500",
            "none vitald_ledger_ok": "1x500",
            "off vitald_publish_last_report_timestamp_seconds": "0+60x5 stale",
            "off vitald_ledger_ok": "1x5 stale",
        },
        {
            "VitaldPublishStuck": {10: "", 20: "a", 36: "a", 50: ""},
            "VitaldPublishSilent": {14: "", 30: "b c", 38: "b c", 60: "c", 375: ""},
        },
        {
            "VitaldPublishStuck": Text(
                20,
                "instance=a sink=kubernetes",
                "a: kubernetes does not receive the state of the node",
            ),
            "VitaldPublishSilent": Text(
                30,
                "instance=b;instance=c",
                "b: vitald publish does not report;c: vitald publish does not report",
            ),
        },
    ),
    Case(
        "a configuration that is refused, until it is corrected; for two minutes",
        {
            "a vitald_config_refused": "0x2 1x20 0x40",
            "b vitald_config_refused": "0x2 1x2 0x60",
        },
        {"VitaldConfigRefused": {5: "", 15: "a", 30: ""}},
        {
            "VitaldConfigRefused": Text(
                15,
                "instance=a",
                "a: the configuration file is invalid, and vitald would not start with it",
            )
        },
    ),
    Case(
        "3 of 12 nodes become unhealthy, until they are well",
        make_fleet(12, 3),
        {"VitaldManyNodesAtOnce": {60: "", 71: "", 80: "fleet", 105: "fleet", 130: ""}},
        {
            "VitaldManyNodesAtOnce": Text(
                80, "job=", "3 nodes{of} became unhealthy or unknown within an hour"
            )
        },
        {
            "cluster:vitald_nodes:count": {
                60: {"status=healthy": 12, "status=unhealthy": 0},
                80: {"status=healthy": 9, "status=unhealthy": 3},
            },
            "sum_over_time(cluster:vitald_interruptions:count1m[2h])": {110: {"": 3}},
        },
    ),
    Case("2 of 12 nodes", make_fleet(12, 2), {"VitaldManyNodesAtOnce": {80: ""}}),
    Case("9 of 180 nodes", make_fleet(180, 9), {"VitaldManyNodesAtOnce": {80: ""}}),
    Case("3 of 59 nodes", make_fleet(59, 3), {"VitaldManyNodesAtOnce": {80: "fleet"}}),
    Case(
        "10 of 200 nodes become unknown",
        make_fleet(200, 10, "unknown"),
        {"VitaldManyNodesAtOnce": {60: "", 75: "fleet"}},
    ),
    Case(
        "10 nodes of a drill; 10 that were unhealthy before; 10 that are new and not ready yet",
        {
            **make_fleet(10, 10),
            **{f"n{number} vitald_simulated": "1x220" for number in range(10)},
            **{f"early{number} vitald_status status=unhealthy": "1x220" for number in range(10)},
            **{f"new{number} vitald_status status=unknown": "_x70 1x150" for number in range(10)},
        },
        {"VitaldManyNodesAtOnce": {80: ""}},
    ),
    Case(
        "3 of 12 daemons stop answering, until they do; two were down before",
        {
            **{f"n{number} up": "1x70 0x30 1x100" for number in range(3)},
            **{f"n{number} up": "1x200" for number in range(3, 10)},
            **{f"n{number} up": "0x200" for number in range(10, 12)},
            **{f"z{number} up job=node": "1x200" for number in range(100)},
        },
        {"VitaldManyDaemonsDown": {75: "", 90: "fleet", 125: ""}},
        {
            "VitaldManyDaemonsDown": Text(
                90, "job=", "vitald stopped answering on 3 nodes{of} within an hour"
            )
        },
    ),
    Case(
        "the job is taken from the configuration, until it is back",
        {"x:a up": "1x10 stale _x29 1x30", "x:a up job=node": "1x80"},
        {"VitaldAbsent": {20: "", 35: "cluster=", 50: ""}},
        {
            "VitaldAbsent": Text(
                35,
                "cluster= job=",
                "No vitald is a target of Prometheus: no node is observed",
            )
        },
    ),
    Case(
        "2 of 12 daemons, and targets of another job",
        {
            **{f"n{number} up": "1x70 0x60" if number < 2 else "1x130" for number in range(12)},
            **{f"z{number} up job=node": "1x70 0x60" for number in range(12)},
        },
        {"VitaldManyDaemonsDown": {100: ""}},
    ),
    Case(
        "six of seven nodes with one code, until it is cleared; many codes on one node; six nodes"
        " with an application's fault, a drill, and an accepted finding",
        {
            **make_fleet(7, 0),
            **{make_finding(f"n{n}", "xid/79", "reboot_node"): "_x2 1x20 _x60" for n in range(6)},
            **{make_finding("n0", f"xid/{n}", "inspect"): "1x60" for n in range(200, 210)},
            **{make_finding(f"n{n}", "xid/31", "restart_workload"): "1x60" for n in range(6)},
            **{
                make_finding(f"n{n}", "xid/48", "reset_device", drill=True): "1x60"
                for n in range(6)
            },
            **{
                make_finding(f"n{n}", "xid/110", "reboot_node", accepted=True): "1x60"
                for n in range(6)
            },
        },
        {"VitaldSameCode": {5: "", 15: "code=79", 30: "code=79", 50: ""}},
        {"VitaldSameCode": Text(15, "kind=xid code=79 job=", "xid/79 on 6 nodes{of}")},
        {
            "sum by (cluster, code) (cluster:vitald_findings:count{code=~'79|48|110'})": {
                15: {"code=79": 6}
            }
        },
    ),
    Case(
        "five nodes with one code",
        {
            **make_fleet(7, 0),
            **{make_finding(f"n{n}", "xid/79", "reboot_node"): "1x60" for n in range(5)},
        },
        {"VitaldSameCode": {30: ""}},
    ),
    Case(
        "six of 600 nodes with one code",
        {
            **make_fleet(600, 0),
            **{make_finding(f"n{n}", "xid/79", "reboot_node"): "1x60" for n in range(6)},
        },
        {"VitaldSameCode": {15: ""}},
    ),
    Case(
        "two unhealthy nodes of a rack and one without power, until they are well; a rack with a"
        " drill; nodes without a rack",
        {
            **{f"r{n} vitald_node_info {RACK}1821": "1x100" for n in range(4)},
            **{f"r{n} vitald_status status=unhealthy": "0x2 1x20 0x60" for n in range(2)},
            "r2 up": "1x2 0x20 1x60",
            "r3 up": "1x82",
            **{f"d{n} vitald_node_info {RACK}77": "1x100" for n in range(3)},
            **{f"d{n} vitald_status status=unhealthy": "1x100" for n in range(3)},
            "d1 vitald_simulated": "1x100",
            **{f"b{n} vitald_node_info {RACK}": "1x100" for n in range(3)},
            **{f"b{n} vitald_status status=unhealthy": "1x100" for n in range(3)},
        },
        {
            "VitaldRackUnfit": {
                5: "",
                12: "chassis_serial=1821",
                35: "chassis_serial=1821",
                50: "",
            }
        },
        {
            "VitaldRackUnfit": Text(
                12,
                "chassis_serial=1821 job=",
                "3 nodes of the rack with the serial number 1821 are unhealthy, unknown or not"
                " observed",
            )
        },
    ),
    Case(
        "three interruptions in 400 node-minutes: one twice, one during a boot; a drill",
        {
            "a vitald_status status=unhealthy": "0x9 1x9 0x9 1x9 stale _x9 1x49",
            "a vitald_status status=healthy": "1x9 0x9 1x9 0x9 stale _x9 0x49",
            "b vitald_status status=unhealthy": "0x29 stale _x9 1x59",
            "b vitald_status status=healthy": "1x29 stale _x9 0x59",
            "c vitald_status status=healthy": "1x99",
            "drill vitald_status status=unhealthy": "0x9 1x89",
            "drill vitald_simulated": "1x99",
            "drill vitald_components component_kind=gpu status=healthy": "8x99",
            "a vitald_components component_kind=gpu status=healthy": "7x99",
            "a vitald_components component_kind=gpu status=unhealthy": "1x99",
            "c vitald_components component_kind=neuron status=healthy": "16x99",
            "c vitald_components component_kind=nic status=healthy": "8x99",
            "a vitald_incident_step_seconds step=detected simulated=false": "2x99",
            "b vitald_incident_step_seconds step=detected simulated=false": "4x99",
            "drill vitald_incident_step_seconds step=detected simulated=true": "50x99",
        },
        recorded={
            "cluster:vitald_interruptions:sum28d": {99: {"": 3}},
            "round(cluster:vitald_node_days:sum28d * 1440)": {99: {"": 280}},
            "round(cluster:vitald_interruptions_per_1000_node_days:ratio28d)": {99: {"": 15429}},
            'round(cluster:vitald_mtbf_seconds:ratio28d{limit="estimate"})': {
                99: {"limit=estimate": 5600}
            },
            # 2 T / chi-square with 8 and 6 degrees of freedom, by the tables
            "round(280 * 60 / cluster:vitald_mtbf_seconds:ratio28d, 0.1)": {
                99: {"limit=estimate": 3, "limit=low": 7.7, "limit=high": 0.8}
            },
            "sum without (status) (cluster:vitald_accelerators:count)": {
                5: {"component_kind=gpu": 8, "component_kind=neuron": 16}
            },
            "round(cluster:vitald_accelerator_hours:sum1d, 0.01)": {
                99: {
                    "component_kind=gpu status=healthy": 2.67,
                    "component_kind=gpu status=unhealthy": 9.33,
                    "component_kind=neuron status=healthy": 26.67,
                }
            },
            "cluster:vitald_incident_step_seconds:p50": {99: {"step=detected": 3}},
            "cluster:vitald_incident_step_seconds:p95": {99: {"step=detected": 3.9}},
        },
    ),
    Case(
        "no interruption: only the lower limit of the mean time between them; one",
        {
            "a vitald_status status=healthy": "1x49 0x49",
            "a vitald_status status=unhealthy": "0x49 1x49",
        },
        recorded={
            "round(3000 / cluster:vitald_mtbf_seconds:ratio28d, 0.1)": {49: {"limit=low": 3}},
            "cluster:vitald_interruptions_per_1000_node_days:ratio28d": {49: {"": 0}},
            "round(6000 / cluster:vitald_mtbf_seconds:ratio28d, 0.1)": {
                99: {"limit=estimate": 1, "limit=low": 4.7, "limit=high": 0}
            },
        },
    ),
)
