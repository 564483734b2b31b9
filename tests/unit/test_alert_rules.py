"""packaging/prometheus: what each alert fires on and when it resolves, as promtool evaluates the
rules, and that its texts and links are right.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import findings_page
from tests.unit.builders import ROOT, catalogue
from tests.unit.test_docs import find_pages, read_anchors
from vitald.metrics import verdict_tier

FOLDER = ROOT / "packaging/prometheus"
RULES = FOLDER / "rules.yml"
DOCS = "https://docs.example.com/vitald/"
Rule = Mapping[str, Any]


def read_rules() -> list[Rule]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in read_rules() if "alert" in rule}


# --- what they fire on


@dataclass(frozen=True, slots=True)
class Text:
    """What an alert says at a minute at which it fires. `labels`: all but the severity."""

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
    for an alert without a node, `LABEL=VALUE` for one about something else.
    `recorded`: of an expression, by the minute: its values by their labels.
    """

    name: str
    series: Mapping[str, str]
    firing: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    texts: Mapping[str, Text] = field(default_factory=dict)
    recorded: Mapping[str, Mapping[int, Mapping[str, float]]] = field(default_factory=dict)


def make_finding(
    node: str,
    code: str,
    action: str,
    when: str = "now",
    *,
    gpu: str = "65",
    accepted: bool = False,
    drill: bool = False,
) -> str:
    kind, _, number = code.partition("/")
    flags = f"accepted={str(accepted).lower()} simulated={str(drill).lower()}"
    return (
        f"{node} vitald_findings component=gpu/0000:{gpu}:00.0 pci_bus_id=0000:{gpu}:00.0"
        f" kind={kind} code={number} action={action} when={when} {flags}"
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


FELL_OFF = make_finding("a", "xid/79", "reboot_node")
REMAP_FAILED = make_finding("a", "nvml/row_remap_failed", "replace_node")
GPU_65 = "component=gpu/0000:65:00.0 pci_bus_id=0000:65:00.0"
LASTING = "accepted=false simulated=false"
RACK = "instance_type= kernel=6.8 gpu_driver=570.1 neuron_driver= chassis_serial="

# A node of the same name in another cluster, with a drill that is no business of the first. With
# the label `cluster`, each node of a case has one.
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
            FELL_OFF: "_x2 1x7 stale _x50",
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
                f"instance=a {GPU_65} kind=xid code=79 action=reboot_node when=now {LASTING}",
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
            f"drill vitald_device_lemon_score {GPU_65} identity=GPU-1": "9x60",
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
            REMAP_FAILED: "_x3 1x7 stale _x40",
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
                f"instance=a {GPU_65} kind=nvml code=row_remap_failed action=replace_node when=now"
                f" {LASTING}",
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
                f"instance=a {GPU_65} kind=expect code=gpus action=inspect when=now {LASTING};"
                f"instance=b {GPU_65} kind=nvml code=gpu_count action=inspect when=now {LASTING}",
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
            f"a vitald_device_lemon_score {GPU_65} identity=GPU-1": "4.5x2 6x30 _x60",
            f"b vitald_device_lemon_score {GPU_65} identity=GPU-2": "4.9x80",
        },
        {"VitaldSuspectDevice": {10: "", 30: "a", 44: "a", 70: ""}},
        {
            "VitaldSuspectDevice": Text(
                30,
                f"instance=a {GPU_65} identity=GPU-1",
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
        "a prolog that lets a job through without knowing; jobs of last week",
        {
            "a vitald_slurm_unknown_jobs_total choice=allow": "0x5 1x100",
            "b vitald_slurm_unknown_jobs_total choice=allow": "7x105",
        },
        {"VitaldSlurmUnknownJobs": {4: "", 10: "a", 70: ""}},
        {
            "VitaldSlurmUnknownJobs": Text(
                30,
                "instance=a choice=allow",
                "a: the prolog had to decide without knowing the state of the node (allow),"
                " 1 times in an hour",
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


def parse_labels(words: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def format_labels(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


@dataclass(frozen=True, slots=True)
class PromtoolWriter:
    """Writes cases as `promtool test rules` reads them. `cluster`: of the nodes that name none."""

    cluster: str

    def write_case(self, case: Case) -> dict[str, Any]:
        series = {self._write_series(text): values for text, values in case.series.items()}
        if self.cluster:
            nodes = {text.partition(" ")[0] for text in case.series}
            series |= {
                self._write_series(f"other:{node} {text}"): values
                for node in sorted(node for node in nodes if ":" not in node)[:20]
                for text, values in TWIN.items()
            }
        return {
            "name": case.name,
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                self._write_firing(alert, minute, firing)
                for alert, by_minute in case.firing.items()
                for minute, firing in by_minute.items()
            ]
            + [
                self._write_recorded(expression, minute, values)
                for expression, by_minute in case.recorded.items()
                for minute, values in by_minute.items()
            ],
            "alert_rule_test": [
                self._write_text(alert, text) for alert, text in case.texts.items()
            ],
        }

    def _add_cluster(self, labels: dict[str, str]) -> dict[str, str]:
        return {"cluster": self.cluster, **labels} if self.cluster else labels

    def _split_node(self, word: str) -> dict[str, str]:
        cluster, _, node = word.rpartition(":")
        cluster = cluster or self.cluster
        return {"cluster": cluster, "instance": node} if cluster else {"instance": node}

    def _write_series(self, text: str) -> str:
        node, name, *words = text.split(" ")
        labels = {"job": "vitald", **self._split_node(node), **parse_labels(words)}
        return name + format_labels(labels)

    def _write_firing(self, alert: str, minute: int, firing: str) -> dict[str, Any]:
        """That these fire, and no others."""
        fired = [
            self._add_cluster({})
            if word == "fleet"
            else self._add_cluster(parse_labels([word]))
            if "=" in word
            else self._split_node(word)
            for word in firing.split()
        ]
        names = {"cluster", "instance"}.union(*fired)
        return {
            "expr": (
                f"group by ({', '.join(sorted(names))})"
                f' (ALERTS{{alertname="{alert}", alertstate="firing"}})'
            ),
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": format_labels(labels), "value": 1} for labels in fired],
        }

    def _write_recorded(
        self, expression: str, minute: int, values: Mapping[str, float]
    ) -> dict[str, Any]:
        name = expression if expression.startswith("cluster:") else ""
        return {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": [
                {
                    "labels": name + format_labels(self._add_cluster(parse_labels(words.split()))),
                    "value": value,
                }
                for words, value in values.items()
            ],
        }

    def _write_text(self, alert: str, text: Text) -> dict[str, Any]:
        rule = ALERTS[alert]
        fired = []
        for words, summary in zip(text.labels.split(";"), text.summary.split(";")):
            labels = self._add_cluster(
                {"job": "vitald", **parse_labels(words.split()), **rule["labels"]}
            )
            url = rule["annotations"]["runbook_url"]
            for name in ("kind", "code"):
                url = url.replace(f"{{{{ $labels.{name} }}}}", labels.get(name, ""))
            fired.append(
                {
                    "exp_labels": {name: value for name, value in labels.items() if value},
                    "exp_annotations": {
                        "summary": summary.format(of=f" of {self.cluster}" if self.cluster else ""),
                        "todo": rule["annotations"]["todo"],
                        "runbook_url": url,
                    },
                }
            )
        return {"eval_time": f"{text.minute}m", "alertname": alert, "exp_alerts": fired}


def run(program: str, *arguments: str | Path) -> str:
    """What it prints. Fails unless it ends with 0."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("cluster", ["", "one"], ids=["one cluster", "two clusters"])
def test_what_fires_and_what_does_not(cluster: str, promtool: str, tmp_path: Path) -> None:
    writer = PromtoolWriter(cluster)
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [writer.write_case(case) for case in CASES],
    }
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    run(promtool, "test", "rules", path)


def test_promtool_accepts_the_rules(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", RULES)


@pytest.mark.parametrize("alert", ALERTS)
def test_cases_show_that_an_alert_fires_and_resolves(alert: str) -> None:
    shown = [
        [firing for _, firing in sorted(case.firing[alert].items())]
        for case in CASES
        if alert in case.firing
    ]
    assert any(any(before) and not last for *before, last in shown)
    assert any(alert in case.texts for case in CASES)


# --- texts and links


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_it_is_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    paged = {"VitaldReplacementRequired", "VitaldManyNodesAtOnce", "VitaldManyDaemonsDown"}
    assert rule["labels"] == {"severity": "page" if alert in paged else "ticket"}
    assert {*rule["annotations"]} == {"summary", "todo", "runbook_url"}


@pytest.mark.parametrize("alert", ALERTS)
def test_the_link_of_an_alert_leads_somewhere(alert: str) -> None:
    """To its section; where the alert is about a code, to that code, for each that there is."""
    url: str = ALERTS[alert]["annotations"]["runbook_url"]
    page, _, anchor = url.removeprefix(DOCS).partition("#")
    anchors = read_anchors(ROOT / "docs" / page)
    assert alert.lower() in read_anchors(ROOT / "docs/alerts.md")
    if page == "alerts.md":
        assert anchor == alert.lower()
        return
    assert anchor == "{{ $labels.kind }}-{{ $labels.code }}"
    codes = [rule.code for rule in catalogue().rules.values() if findings_page.can_open(rule)]
    assert {findings_page.make_anchor(code) for code in codes} <= anchors


def test_the_table_of_the_page_is_that_of_the_rules() -> None:
    rows = [
        f"| [{name}](#{name.lower()}) | {rule['labels']['severity']} | {rule.get('for', '0m')} |"
        for name, rule in ALERTS.items()
    ]
    page = (ROOT / "docs/alerts.md").read_text("utf-8")
    assert "\n".join(rows) in page
    assert re.findall(r"^### (Vitald\w+)", page, re.MULTILINE) == [*ALERTS]


# --- what they read


def read_labels_by_metric() -> dict[str, set[str]]:
    """Of each metric on its reference page: its labels."""
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(vitald_\w+)` \| (?:gauge|counter) \| ([^|]*) \|", page, re.M)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.get("alert", "recorded"))
def test_a_rule_reads_metrics_and_labels_that_there_are(rule: Rule) -> None:
    """A misspelt label matches nothing, and an alert on it is silent for ever."""
    known = read_labels_by_metric()
    every = set().union(*known.values(), {"cluster", "instance", "job", "limit"})
    recorded = {other["record"] for other in read_rules() if "record" in other}
    expression: str = rule["expr"]
    for name, selector in re.findall(
        r"\b(vitald_\w+|cluster:[\w:]+)(?:\{(.*?)\})?", expression, re.S
    ):
        assert name in known or name in recorded, name
        assert set(re.findall(r"(\w+) *(?:=|!)", selector)) <= known.get(name, set()), name
    for grouped in re.findall(r"\b(?:by|on|without|group_left) \(([^)]*)\)", expression):
        assert set(re.findall(r"\w+", grouped)) <= every
    for text in rule.get("annotations", {}).values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= every


def test_the_rules_need_no_more_than_the_verdict_tier() -> None:
    read = {
        re.sub(r"_(total|info)$", "", name)
        for rule in read_rules()
        for name in re.findall(r"(?<!:)\bvitald_\w+", rule["expr"])
    }
    assert "vitald_findings" in read
    assert read <= {*verdict_tier.FAMILIES}


def test_missing_devices_are_these_codes() -> None:
    """Those that require a reboot have an alert of their own."""
    selector = ALERTS["VitaldDevicesMissing"]["expr"]
    kinds, codes = (
        re.compile(re.findall(rf'\b{label}=~"([^"]+)"', selector)[0]) for label in ("kind", "code")
    )
    matched = {
        rule.code
        for rule in catalogue().rules.values()
        for kind, _, code in [rule.code.partition("/")]
        if kinds.fullmatch(kind) and codes.fullmatch(code)
    }
    assert matched == {
        *("expect/gpus", "expect/neuron", "expect/efa", "expect/nics", "expect/nvme"),
        *("nvml/gpu_count", "nvml/board_incomplete", "pci/board_incomplete"),
        *("pci/missing", "nvme/missing"),
    }


def test_a_suspect_device_is_what_the_catalogue_calls_one() -> None:
    expression = ALERTS["VitaldSuspectDevice"]["expr"]
    (threshold,) = re.findall(r"vitald_device_lemon_score >= (\S+)", expression)
    assert float(threshold) == catalogue().lemon.suspect


# --- expressions in the documentation


def read_expressions(page: Path) -> Iterator[str]:
    """The blocks labelled promql, one expression a line; what is indented goes on."""
    for text in re.findall(r"^ *```promql\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S):
        yield from (part.strip() for part in re.split(r"\n(?![\s)])", text) if part.strip())


def check_expressions(promtool: str, folder: Path, expressions: Mapping[str, str]) -> None:
    """Each under the name of where it stands."""
    rules = [{"alert": name, "expr": text} for name, text in expressions.items()]
    path = folder / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    run(promtool, "check", "rules", path)


def test_the_expressions_of_the_documentation_are_expressions(
    promtool: str, tmp_path: Path
) -> None:
    expressions = {
        f"{page.relative_to(ROOT)} {number}": expression
        for page in find_pages(ROOT)
        for number, expression in enumerate(read_expressions(page))
    }
    assert len(expressions) > 3
    check_expressions(promtool, tmp_path, expressions)
    with pytest.raises(AssertionError, match="parse"):
        check_expressions(promtool, tmp_path, {"page": "vitald_status == == 1"})


def test_blocks_with_expressions_say_so() -> None:
    """A query in another block would not be checked."""
    query = re.compile(r"^[^$#\n]*\bvitald_\w+(\{.*?\})? *(==|>|<|\*|unless|and on) ", re.M)
    for page in find_pages(ROOT):
        text = re.sub(r"^ *```promql\n.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)
        assert not query.search(text), page


# --- routing


def test_what_one_alert_mutes() -> None:
    """Never what a node requires. Many nodes at once mute the tickets of each."""
    rules = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))["inhibit_rules"]

    def match(matcher: str) -> set[str]:
        found = re.fullmatch(r'alertname=~?"([^"]+)"', matcher)
        assert found is not None
        assert set(found[1].split("|")) <= {*ALERTS}
        return set(found[1].split("|"))

    muted: dict[str, set[str]] = {}
    for rule in rules:
        for source in match(*rule["source_matchers"]):
            muted.setdefault(source, set()).update(match(*rule["target_matchers"]))
    of_many = {"VitaldUnhealthy", "VitaldUnknown", "VitaldDown"}
    assert muted == {
        "VitaldManyNodesAtOnce": of_many,
        "VitaldManyDaemonsDown": of_many,
        "VitaldReplacementRequired": {"VitaldUnhealthy", "VitaldRebootRequired"},
        "VitaldRebootRequired": {"VitaldUnhealthy"},
        "VitaldDevicesMissing": {"VitaldUnhealthy"},
        "VitaldSourceDown": {"VitaldUnknown"},
    }
