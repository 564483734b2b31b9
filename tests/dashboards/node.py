"""The dashboard of one node. Beyond its first rows it needs the full metrics (`/metrics`)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.dashboards import common, panels
from tests.dashboards.panels import Column, Panel, Query, Row, Table

_SELECTION = f'{common.FLEET_SELECTION},instance="$instance"'
_RATE = "$__rate_interval"
_GPU, _NEURON, _NIC = "GPU {{gpu}} {{pci_bus_id}}", "Neuron {{neuron}}", "{{device}} {{interface}}"
_YES_NO = {1: ("yes", panels.ORANGE), 0: ("no", panels.BLUE)}
_UP_DOWN = {1: ("read", panels.BLUE), 0: ("down", panels.RED)}


def build() -> Table:
    instance = panels.make_query_variable(
        "instance",
        "Node",
        f"label_values(vitald_status{{{common.FLEET_SELECTION}}}, instance)",
    )
    link: Table = {
        "title": "Fleet",
        "type": "link",
        "url": f"/d/{common.FLEET_UID}",
        "icon": "dashboard",
        "tooltip": "All nodes",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": True,
    }
    return panels.build_dashboard(
        uid=common.NODE_UID,
        title="vitald / Node",
        description="One node: its status over time, open findings, devices and the daemon itself.",
        variables=(*common.make_variables(), instance),
        links=(link,),
        rows=(
            Row(title="Health", panels=_make_health_panels()),
            Row(title="GPUs", panels=_make_gpu_panels()),
            Row(title="GPU memory errors and links", panels=_make_gpu_error_panels()),
            Row(title="Neuron devices", panels=_make_neuron_panels(), collapsed=True),
            Row(title="Network adapters", panels=_make_network_panels(), collapsed=True),
            Row(title="Host and PCI", panels=_make_host_panels(), collapsed=True),
            Row(title="Diagnostics", panels=_make_diagnostic_panels(), collapsed=True),
            Row(title="vitald itself", panels=_make_daemon_panels(), collapsed=True),
        ),
    )


def _select(name: str, **labels: str) -> str:
    more = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{_SELECTION}{more}}}"


def _draw(
    title: str,
    expr: str,
    description: str,
    *,
    legend: str = _GPU,
    unit: str = "short",
    maximum: float | None = None,
    width: int = 8,
) -> Panel:
    """One query as lines over time."""
    query = Query(expr=expr, legend=legend)
    return panels.make_series(title, query, description, unit=unit, maximum=maximum, width=width)


def _draw_rate(
    title: str, name: str, description: str, *, legend: str = _GPU, unit: str = "short"
) -> Panel:
    """The rate of a counter by its labels."""
    return _draw(title, f"rate({_select(name)}[{_RATE}])", description, legend=legend, unit=unit)


def _draw_increase(title: str, name: str, description: str, *, legend: str = _GPU) -> Panel:
    """What a counter gained in each hour."""
    return _draw(title, f"increase({_select(name)}[1h])", description, legend=legend)


def _make_health_panels() -> tuple[Panel, ...]:
    flags = {
        "reboot_required": "reboot required",
        "replacement_required": "replacement required",
        "simulated": "drill",
    }
    steps = _select("vitald_incident_step_seconds", simulated="false")
    return (
        panels.make_timeline(
            "Status",
            Query(expr=common.make_status_value(_SELECTION, "instance"), legend="status"),
            "The node's status over time.",
            values=common.STATES,
            height=4,
        ),
        panels.make_timeline(
            "Flags",
            [
                Query(expr=_select(f"vitald_{name}"), legend=legend)
                for name, legend in flags.items()
            ],
            "What the node requires, and whether something on it is simulated.",
            values=_YES_NO,
            height=5,
        ),
        common.make_findings_table(_SELECTION, with_node=False),
        panels.make_table(
            "Components that are not healthy",
            Query(
                expr="sum by (component_kind, component, status)"
                f' (vitald_component_status{{{_SELECTION},status!="healthy"}})',
                is_table=True,
            ),
            "Scraped with collect[]=verdict, this table is empty.",
            columns=(
                Column(name="component_kind", title="Kind"),
                Column(name="component", title="Component"),
                Column(name="status", title="Status"),
                Column(name="Value", title="Components"),
            ),
            width=12,
            height=7,
            no_value="all healthy",
        ),
        panels.make_timeline(
            "Sources",
            Query(expr=_select("vitald_source_up"), legend="{{source}}"),
            "Whether each source is read within its deadline. What a source that is down would show"
            " is unknown.",
            values=_UP_DOWN,
            width=12,
            height=7,
        ),
        panels.make_table(
            "Steps of the last incident",
            Query(expr=f"max by (step) ({steps})", is_table=True),
            "Seconds from the last fault that made the node unfit until it was detected, unfit,"
            " drained, validated and back. Drills are left out.",
            columns=(
                Column(name="step", title="Step"),
                Column(name="Value", title="After the fault", properties={"unit": "dtdurations"}),
            ),
            width=12,
            height=7,
            no_value="no incident yet",
        ),
    )


def _make_gpu_panels() -> tuple[Panel, ...]:
    return (
        _draw(
            "Temperature",
            _select("vitald_gpu_temperature_celsius", sensor="gpu"),
            "Temperature of each GPU.",
            unit="celsius",
        ),
        _draw(
            "Margin until the GPU slows down",
            _select("vitald_gpu_temperature_margin_celsius"),
            "Degrees left until the GPU slows down.",
            unit="celsius",
        ),
        _draw("Power", _select("vitald_gpu_power_watts"), "Power draw.", unit="watt"),
        _draw(
            "Utilisation",
            _select("vitald_gpu_utilization_ratio"),
            "Share of time in which a kernel ran.",
            unit="percentunit",
            maximum=1,
        ),
        _draw(
            "Memory in use",
            _select("vitald_gpu_memory_used_bytes"),
            "Memory in use of each GPU.",
            unit="bytes",
        ),
        _draw(
            "SM clock",
            _select("vitald_gpu_clock_hertz", domain="sm"),
            "Clock of the streaming multiprocessors.",
            unit="hertz",
        ),
        panels.make_series(
            "Clock events",
            Query(
                expr=f'sum by (reason) (vitald_gpu_clock_event{{{_SELECTION},reason!="idle"}})',
                legend="{{reason}}",
            ),
            "GPUs whose clocks are held down, by reason.",
            width=12,
            stacked=True,
        ),
        panels.make_series(
            "Share of time with lowered clocks",
            Query(
                expr="sum by (reason) ("
                f"rate(vitald_gpu_throttled_seconds_total{{{_SELECTION}}}[{_RATE}]))",
                legend="{{reason}}",
            ),
            "Of all GPUs together: 2 is two GPUs all the time.",
            width=12,
        ),
    )


def _make_gpu_error_panels() -> tuple[Panel, ...]:
    return (
        _draw_increase(
            "ECC errors in an hour",
            "vitald_gpu_ecc_errors_total",
            "Errors of the GPU's memory since the driver was loaded.",
            legend=f"{_GPU} {{{{type}}}}",
        ),
        _draw(
            "Remapped rows",
            f"sum by (gpu, pci_bus_id, type) ({_select('vitald_gpu_remapped_rows')})",
            "Memory rows that were remapped. A pending remap needs a reset of the GPU.",
            legend=f"{_GPU} {{{{type}}}}",
        ),
        _draw(
            "Xids in an hour",
            "sum by (gpu, pci_bus_id, code) "
            + common.count_gained(_select("vitald_gpu_xid_events_total"), "1h"),
            "Xid events of the kernel log by GPU and code.",
            legend=f"{_GPU} Xid {{{{code}}}}",
        ),
        _draw(
            "NVLink traffic",
            "sum by (gpu, pci_bus_id, direction) (rate("
            f"{_select('vitald_gpu_nvlink_bytes_total')}[{_RATE}]))",
            "Bytes in a second over all links of each GPU.",
            legend=f"{_GPU} {{{{direction}}}}",
            unit="Bps",
        ),
        _draw(
            "NVLink replays and CRC errors",
            f"sum by (gpu, pci_bus_id)"
            f" (rate({_select('vitald_gpu_nvlink_replays_total')}[{_RATE}]))"
            f" + sum by (gpu, pci_bus_id)"
            f" (rate({_select('vitald_gpu_nvlink_crc_errors_total')}[{_RATE}]))",
            "Errors in a second over all links. NVLink 5 counts others: see docs/nvml.md.",
        ),
        _draw(
            "NVLinks that are not active",
            _select("vitald_gpu_nvlinks_expected") + " - " + _select("vitald_gpu_nvlinks_active"),
            "Links that should be active and are not.",
        ),
        _draw(
            "PCIe traffic",
            "sum by (gpu, pci_bus_id, direction) (rate("
            f"{_select('vitald_gpu_pcie_bytes_total')}[{_RATE}]))",
            "Bytes in a second.",
            legend=f"{_GPU} {{{{direction}}}}",
            unit="Bps",
        ),
        _draw_rate(
            "PCIe replays", "vitald_gpu_pcie_replays_total", "Packets sent again in a second."
        ),
        _draw(
            "PCIe lanes",
            _select("vitald_gpu_pcie_width"),
            "Lanes of the link of each GPU now.",
        ),
    )


def _make_neuron_panels() -> tuple[Panel, ...]:
    return (
        _draw(
            "Memory in use",
            _select("vitald_neuron_memory_used_bytes"),
            "Device memory in use.",
            legend=_NEURON,
            unit="bytes",
        ),
        _draw(
            "Power",
            _select("vitald_neuron_power_utilization_ratio"),
            "Average power over the last minute as a ratio of the limit.",
            legend=_NEURON,
            unit="percentunit",
        ),
        _draw_increase(
            "ECC errors in an hour",
            "vitald_neuron_ecc_errors_total",
            "Errors of memories, by type.",
            legend=f"{_NEURON} {{{{type}}}}",
        ),
    )


def _make_network_panels() -> tuple[Panel, ...]:
    return (
        panels.make_timeline(
            "Links",
            Query(expr=_select("vitald_rdma_ports_down"), legend="RDMA ports down"),
            "RDMA ports that are down and should be up.",
            values={0: ("none", panels.BLUE)},
            width=8,
            height=8,
        ),
        _draw(
            "Rate of the slowest link",
            _select("vitald_nic_rate_bytes_per_second"),
            "Speed of the link of each adapter.",
            legend=_NIC,
            unit="Bps",
        ),
        _draw_increase(
            "Times that a link went down, in an hour",
            "vitald_infiniband_link_downed_total",
            "By the port's counter.",
            legend=f"{_NIC} {{{{port}}}}",
        ),
    )


def _make_host_panels() -> tuple[Panel, ...]:
    return (
        _draw(
            "Memory left",
            _select("vitald_host_memory_available_bytes"),
            "Memory that is left.",
            legend="available",
            unit="bytes",
        ),
        _draw(
            "File systems",
            _select("vitald_filesystem_avail_ratio"),
            "Share of space that is left.",
            legend="{{mountpoint}}",
            unit="percentunit",
            maximum=1,
        ),
        _draw(
            "Clock",
            _select("vitald_host_clock_offset_seconds"),
            "How far the clock is from its reference.",
            legend="offset",
            unit="s",
        ),
        _draw(
            "Tasks",
            _select("vitald_host_tasks_used_ratio"),
            "Tasks as a share of the lower limit.",
            legend="used",
            unit="percentunit",
        ),
        _draw(
            "PCIe errors in an hour",
            "sum by (component_kind, role, pci_bus_id, severity)"
            f" (increase({_select('vitald_pci_aer_errors_total')}[1h])) > 0",
            "Advanced error reporting of PCI functions, those with errors only.",
            legend="{{pci_bus_id}} {{severity}}",
        ),
        _draw(
            "Memory errors in an hour",
            f"increase({_select('vitald_edac_correctable_errors_total')}[1h])",
            "Corrected errors of the node's memory.",
            legend="{{dimm}} {{label}}",
        ),
    )


def _select_measures(unit: str) -> str:
    return f'vitald_diagnostic_measure{{{_SELECTION},measure=~".*_{unit}"}}'


def _make_diagnostic_panels() -> tuple[Panel, ...]:
    return (
        panels.make_table(
            "Last runs",
            (
                Query(
                    expr="sum by (check, level, outcome)"
                    f" ({_select('vitald_diagnostic_last_outcome')} == 1)",
                    is_table=True,
                ),
                Query(
                    expr="max by (check, level)"
                    f" (time() - {_select('vitald_diagnostic_last_end_timestamp_seconds')})",
                    is_table=True,
                ),
                Query(
                    expr="max by (check, level)"
                    f" ({_select('vitald_diagnostic_last_duration_seconds')})",
                    is_table=True,
                ),
                Query(
                    expr="max by (check, level)"
                    f" (time() - {_select('vitald_diagnostic_last_pass_timestamp_seconds')})",
                    is_table=True,
                ),
                Query(
                    expr=f"max by (check, level) ({_select('vitald_diagnostic_pass_age_ratio')})",
                    is_table=True,
                ),
            ),
            "How the last run of each check ended, and how long ago the last pass was: after two"
            " periods it is no evidence any more.",
            columns=(
                Column(name="check", title="Check"),
                Column(name="level", title="Level"),
                Column(name="outcome", title="Outcome"),
                Column(name="Value #B", title="Ago", properties={"unit": "dtdurations"}),
                Column(name="Value #C", title="Took", properties={"unit": "dtdurations"}),
                Column(name="Value #D", title="Passed ago", properties={"unit": "dtdurations"}),
                Column(name="Value #E", title="In periods", properties={"decimals": 1}),
                Column(name="Value #A", title="Runs"),
            ),
            width=12,
            height=8,
            no_value="no diagnostic has run",
        ),
        panels.make_series(
            "Measured, relative to the limit",
            Query(
                expr=_select("vitald_diagnostic_measure_ratio"),
                legend="{{check}} {{measure}} {{device}}",
            ),
            "What a diagnostic measured last: below 1 is bad.",
            width=12,
            thresholds=((None, panels.BLUE), (1, panels.GREY)),
        ),
        _draw(
            "Measured bandwidth",
            _select_measures("bytes_per_second"),
            "What each run measured, also where no limit is known.",
            legend="{{check}} {{measure}} {{device}}",
            unit="Bps",
            width=12,
        ),
        _draw(
            "Measured latency",
            _select_measures("seconds"),
            "What each run measured, also where no limit is known.",
            legend="{{check}} {{measure}} {{device}}",
            unit="s",
            width=12,
        ),
    )


def _make_daemon_panels() -> tuple[Panel, ...]:
    numbers: Mapping[str, tuple[str, str, str]] = {
        "Version": ("vitald_build_info", "{{version}}", "The daemon's version."),
        "Configuration is valid": (
            "vitald_config_last_reload_successful",
            "",
            "0 after a reload of a wrong file: the daemon goes on with the former one.",
        ),
        "Ledger can be written": ("vitald_ledger_ok", "", "1 while the ledger can be written."),
    }
    return (
        *(
            panels.make_stat(
                title,
                Query(expr=_select(name), legend=legend),
                description,
                width=panels.COLUMNS // 3,
            )
            for title, (name, legend, description) in numbers.items()
        ),
        _draw(
            "CPU",
            f"rate({_select('process_cpu_seconds_total')}[{_RATE}])",
            "Of the daemon, without the processes that it starts.",
            legend="CPU",
            unit="percentunit",
        ),
        _draw(
            "Memory",
            _select("process_resident_memory_bytes"),
            "Resident memory of the daemon.",
            legend="resident",
            unit="bytes",
        ),
        _draw(
            "Time of a commit",
            _select("vitald_ledger_last_commit_seconds"),
            "Of the last transaction of the ledger, waiting for the disk included.",
            legend="commit",
            unit="s",
        ),
        _draw(
            "Kernel log records",
            f"rate({_select('vitald_kernel_records_read_total')}[{_RATE}])",
            "Records read in a second.",
            legend="read",
        ),
        _draw(
            "Changes of findings in an hour",
            f"increase({_select('vitald_transitions_total')}[1h])",
            "Findings opened, changed or cleared. Many are a device that comes and goes.",
            legend="changes",
        ),
        panels.make_timeline(
            "Publishing",
            Query(expr=_select("vitald_publish_up"), legend="{{sink}}"),
            "Whether vitald publish can write to each of its sinks.",
            values={1: ("up", panels.BLUE), 0: ("down", panels.RED)},
            width=8,
            height=8,
        ),
    )
