"""
What is read of everything but GPUs, as metrics: Neuron devices, adapters, PCI functions, the host.
One table for each kind of thing.

Names are the field's own words where it has any (node_exporter, the kernel), in base units,
`_total` for what only counts up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from vitald.core.node_state import NodeState
from vitald.metrics.families import (
    Family,
    Who,
    counter,
    counters,
    gauge,
    gauges,
    made,
    read_by,
    state,
)
from vitald.model import ComponentKind, Readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The metrics of one kind of component, as one source reads it. `who`: each label, and how the
    readings say its value.
    """

    source: str
    kind: ComponentKind
    prefix: str
    who: dict[str, Callable[[Readings], str]]
    families: Sequence[Family]
    not_shown: frozenset[str] = frozenset()  # numbers that are read for the watches alone


def _id(one: Readings) -> str:
    return one.component.id


def _serial(one: Readings) -> str:
    return one.identity if one.identity != one.component.name else ""


def _pci(one: Readings) -> str:
    return one.component.id if ":" in one.component.id else ""


def _said(name: str) -> Callable[[Readings], str]:
    """A label that is read with the numbers; empty, which is no label, where it is not said."""

    def say(one: Readings) -> str:
        value = one.who.get(name, one.values.get(name, ""))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return say


_PCI = Table(
    source="pci",
    kind=ComponentKind.PCI,
    prefix="vitald_pci",
    who={"pci_bus_id": _id, "kind": lambda one: one.component.kind.value, "part": _said("part")},
    families=(
        gauge("present", "1 while the function is on the bus."),
        gauge("dead", "1 while the function's registers read as ones: it does not answer."),
        gauge("unbound", "1 while the function has no driver and should have one."),
        gauge("link_lanes", "Lanes of the link now."),
        gauge("link_lanes_max", "Lanes that both ends of the link can do."),
        gauge("link_transfers_per_second", "Speed of the link now: 16e9 is 16 GT/s."),
        gauge("link_transfers_per_second_max", "Speed that both ends of the link can do."),
        counters(
            "aer_errors",
            "PCIe errors since boot, by severity.",
            "severity",
            {s: f"aer_{s}" for s in ("correctable", "nonfatal", "fatal")},
        ),
    ),
)

_CORE_ERRORS = (
    "hw_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "hw_collectives_error",
    "hw_repairable_hbm_ue_error",
)
_NEURON = Table(
    source="neuron",
    kind=ComponentKind.NEURON,
    prefix="vitald_neuron",
    who={"neuron": _said("index"), "serial": _serial, "pci_bus_id": _pci, "model": _said("name")},
    families=(
        gauge("lost", "1 while the device is off the bus."),
        gauge("absent", "1 where machines of this type have a device and this one has none."),
        gauge("initialised", "0 while the driver does not show a device that is on PCI."),
        gauge("resetting", "1 while the device is being reset."),
        gauge("reset_state", "The driver's word: 0 resetting, 1 ready, 2 the reset failed."),
        gauge("unreachable", "1 while the driver's health check cannot reach the device."),
        gauge("unhealthy_parts", "Parts that the firmware calls unhealthy."),
        gauge(
            "ecc_observable",
            "0 while the files that count ECC errors are not where they are known to be.",
        ),
        gauge("cores", "Neuron cores."),
        gauge("memory_used_bytes", "Device memory in use."),
        gauge("host_memory_used_bytes", "Host memory in use for the device."),
        gauge("power_utilization_ratio", "Power drawn in the last minute, as a share of the most."),
        gauge(
            "hbm_ecc_unclear",
            "HBM errors of which an old driver cannot say whether they are repairable.",
        ),
        counters(
            "ecc_errors",
            "ECC errors since the driver was loaded.",
            "type",
            {
                name: f"{name.partition('_')[0]}_ecc_{name.partition('_')[2]}"
                for name in (
                    "sram_corrected",
                    "sram_uncorrected",
                    "hbm_corrected",
                    "hbm_repairable",
                    "hbm_uncorrected",
                )
            },
        ),
        counters(
            "core_errors",
            "Hardware errors of each core.",
            "type",
            {name: name for name in _CORE_ERRORS},
            each="core",
        ),
        counter("core_timeouts", "Executions of each core that timed out.", "timeout", each="core"),
        counter(
            "core_reset_requests", "Resets that were asked for.", "reset_requests", each="core"
        ),
        counter("core_reset_failures", "Resets that failed.", "reset_failures", each="core"),
        counter("hw_error_events", "Hardware errors that the driver told of."),
        counter("heartbeat", "Beats of the firmware's health check.", "heartbeat"),
    ),
    not_shown=frozenset({"dma_aborts", "index"}),  # the most of a core's counter; a label
)
_NEURON_DRIVER = Table(
    source="neuron",
    kind=ComponentKind.NODE,
    prefix="vitald_neuron",
    who={},
    families=(
        gauge("devices", "Neuron devices that the driver shows."),
        gauge("functions", "Neuron devices on PCI."),
        gauge("driver_loaded", "1 while the Neuron driver is loaded."),
        gauge("devices_without_ecc", "Devices whose ECC counters cannot be observed."),
    ),
    not_shown=frozenset({"unplaced_missing"}),  # the difference of the two
)

_NIC = Table(
    source="network",
    kind=ComponentKind.NIC,
    prefix="vitald_nic",
    who={
        "device": _said("device"),
        "interface": _said("interface"),
        "pci_bus_id": _id,
        "kind": _said("kind"),
    },
    families=(
        state("link", "1 for the state of the worst of the links that should be up."),
        state("carrier", "1 for the state of the worst of the interfaces that should have a link."),
        gauge(
            "never_up",
            "1 for an adapter with a port that was never up, while all others of its model are.",
        ),
        gauge("rdma_missing", "1 while the function has lost its RDMA device."),
        gauge(
            "rate_bytes_per_second",
            "Speed of the link, of several the one that is slowest for what it should be.",
            "bits_per_second",
            scale=1 / 8,
        ),
        gauge(
            "rate_expected_bytes_per_second",
            "Speed that this link should have.",
            "bits_per_second_expected",
            scale=1 / 8,
        ),
        gauge(
            "link_down_seconds",
            "How long a port was observed down while other ports of the node were up.",
        ),
        gauge("lanes", "Lanes of the same link."),
        gauge("lanes_expected", "Lanes that it should have."),
        gauge("counters_unreadable", "Counters that could be read before and cannot be read now."),
        gauge("commands_waiting", "EFA: commands that wait for an answer while none is answered."),
        gauge("keep_alive_still_seconds", "EFA: how long the device's heartbeat has stood still."),
        gauge(
            "keep_alive_rhythm_seconds", "EFA: time from one beat to the next, as it was until now."
        ),
        counter(
            "carrier_down_changes",
            "Times that the interface lost its link.",
            "carrier_down_count",
            each="port",
            first=1,
        ),
    ),
    not_shown=frozenset({"link_down_overdue"}),  # the seconds, compared with the configuration
)
# The kernel's own names, as node_exporter has them.
_INFINIBAND = Table(
    source="network",
    kind=ComponentKind.NIC,
    prefix="vitald_infiniband",
    who=_NIC.who,
    families=tuple(
        counter(metric, f"The port's counter {name}: {text}.", name, each="port", first=1)
        for metric, name, text in (
            ("link_downed", "link_downed", "times that the link went down"),
            (
                "link_error_recovery",
                "link_error_recovery",
                "times that the link recovered from errors",
            ),
            ("symbol_error", "symbol_error", "minor link errors"),
            ("port_receive_errors", "port_rcv_errors", "packets received with an error"),
            (
                "port_discards_transmitted",
                "port_xmit_discards",
                "packets not sent, as the port was down or congested",
            ),
            (
                "local_link_integrity_errors",
                "local_link_integrity_errors",
                "times that local errors passed their threshold",
            ),
            (
                "excessive_buffer_overrun_errors",
                "excessive_buffer_overrun_errors",
                "buffer overruns in a row",
            ),
            (
                "local_ack_timeout_err",
                "local_ack_timeout_err",
                "acknowledgements that did not come",
            ),
            ("roce_slow_restart", "roce_slow_restart", "slow restarts of RoCE"),
            (
                "packet_seq_err",
                "packet_seq_err",
                "negative acknowledgements of packets out of sequence",
            ),
            (
                "rx_icrc_encapsulated",
                "rx_icrc_encapsulated",
                "RoCE packets received with a wrong checksum",
            ),
            (
                "unrecoverable_err",
                "unrecoverable_err",
                "errors that the adapter could not recover from",
            ),
        )
    ),
)
_EFA = Table(
    source="network",
    kind=ComponentKind.NIC,
    prefix="vitald_efa",
    who=_NIC.who,
    families=tuple(
        counter(name, f"The driver's counter {name}: {text}.")
        for name, text in (
            ("submitted_cmds", "commands given to the device"),
            ("completed_cmds", "commands that it answered"),
            ("no_completion_cmds", "commands that it never answered"),
            ("keep_alive_rcvd", "heartbeats of the device"),
            ("rx_drops", "packets received and dropped"),
            ("rdma_read_wr_err", "RDMA reads that failed"),
            ("rdma_write_wr_err", "RDMA writes that failed"),
            ("retrans_pkts", "packets sent again"),
            ("retrans_bytes", "bytes sent again"),
            ("retrans_timeout_events", "timeouts after which something was sent again"),
            ("unresponsive_remote_events", "remote ends that did not answer"),
            ("impaired_remote_conn_events", "connections that were impaired at the remote end"),
        )
    ),
)
_PORTS = Table(
    source="network",
    kind=ComponentKind.NODE,
    prefix="vitald_rdma",
    who={},
    families=(
        gauge("ports_expected", "Ports that should be up."),
        gauge("ports_up", "Ports that are up, of those."),
        gauge("ports_down", "Ports that are down, of those."),
    ),
    not_shown=frozenset({"ports_all_down"}),  # the same once more, for a watch
)

_KINDS = ("gpus", "neuron", "efa", "nics", "nvme")
_EXPECT = Table(
    source="expect",
    kind=ComponentKind.NODE,
    prefix="vitald",
    who={},
    families=(
        gauges(
            "devices", "Devices that are here, by kind.", "kind", {kind: kind for kind in _KINDS}
        ),
        gauges(
            "devices_expected",
            "Devices that should be here.",
            "kind",
            {kind: f"{kind}_expected" for kind in _KINDS},
        ),
        gauges(
            "devices_expected_confirmed",
            "1 where the expected number is confirmed, 0 where it is being learned.",
            "kind",
            {kind: f"{kind}_confirmed" for kind in _KINDS},
        ),
        gauges(
            "devices_most",
            "Devices that an instance of this type can have.",
            "kind",
            {"efa": "efa_most"},
        ),
    ),
)

_DIMM = Table(
    source="host",
    kind=ComponentKind.DIMM,
    prefix="vitald_edac",
    who={"dimm": _id, "label": _said("label")},
    families=(
        counter("correctable_errors", "Memory errors that were corrected.", "corrected_errors"),
        counter(
            "uncorrectable_errors",
            "Memory errors that could not be corrected.",
            "uncorrected_errors",
        ),
    ),
)
_CPU = Table(
    source="host",
    kind=ComponentKind.CPU,
    prefix="vitald_cpu",
    who={"package": _id},
    families=(
        counter("package_throttles", "Times that the package was slowed down by its heat."),
        counter("package_throttled_seconds", "Time that the package was slowed down by its heat."),
    ),
)
_FILESYSTEM = Table(
    source="host",
    kind=ComponentKind.DISK,
    prefix="vitald_filesystem",
    who={"device": _id, "mountpoint": _said("mount")},
    families=(
        gauge(
            "readonly",
            "1 where the kernel made a file system read-only that was mounted writable.",
            "read_only",
        ),
        gauge("avail_bytes", "Space left for all users.", "free_bytes"),
        gauge("avail_ratio", "The same as a share of what all users can have.", "free_ratio"),
        gauge("files_free_ratio", "Share of inodes that is left.", "free_inodes_ratio"),
    ),
)
_NVME = Table(
    source="host",
    kind=ComponentKind.DISK,
    prefix="vitald_nvme",
    who={"device": _id, "serial": _serial},
    families=(
        state("state", "1 for the state that the kernel says the controller is in."),
        gauge("temperature_celsius", "Temperature of the drive."),
        gauge(
            "temperature_alarm", "1 while the drive says that it is too warm.", "temperature_alarm"
        ),
    ),
    not_shown=frozenset({"volume", "needed"}),  # what the drive is to the node
)
_HOST = Table(
    source="host",
    kind=ComponentKind.NODE,
    prefix="vitald_host",
    who={},
    families=(
        gauge("memory_available_bytes", "Memory that is left."),
        gauge("memory_corrupted_bytes", "Memory that the kernel took out of use for its errors."),
        gauge("load1", "Load of the last minute.", "load"),
        gauge("tasks", "Tasks, threads included."),
        gauges(
            "tasks_most",
            "Most tasks that there may be.",
            "limit",
            {"threads": "threads_most", "pids": "pids_most"},
        ),
        gauge("tasks_used_ratio", "Tasks as a share of the lower limit."),
        gauges(
            "stuck_process_seconds",
            "How long a process has been stuck in the kernel, by the driver it is stuck in.",
            "driver",
            {
                driver: f"stuck_in_{driver}_seconds"
                for driver in ("nvidia", "neuron", "efa", "mlx5", "nvme", "nfs", "lustre", "other")
            },
        ),
        gauge("clock_unsynchronised", "1 while nobody keeps the clock.", "unsynchronised"),
        gauge("clock_error_seconds", "Most that the clock may be wrong, by the kernel's estimate."),
        gauge("clock_offset_seconds", "How far the clock is from its reference."),
        gauge("nvme_drives", "NVMe drives that belong to the machine."),
    ),
)
_UNIT = Table(
    source="host",
    kind=ComponentKind.NODE,
    prefix="vitald_unit",
    who={"unit": _id},
    families=(
        state("active_state", "1 for the state that systemd says the unit is in."),
        counter("restarts", "Times that systemd restarted the unit."),
    ),
    not_shown=frozenset({"required"}),  # the configuration, and whether it is enabled
)

TABLES = (
    _NEURON,
    _NEURON_DRIVER,
    _NIC,
    _INFINIBAND,
    _EFA,
    _PORTS,
    _PCI,
    _EXPECT,
    _DIMM,
    _CPU,
    _FILESYSTEM,
    _NVME,
    _HOST,
    _UNIT,
)


def metrics(board: NodeState) -> Iterator[Metric]:
    """The families of what is read now."""
    for table in TABLES:
        own = read_by(table.families)
        whose = [
            Who(one, [say(one) for say in table.who.values()])
            for one in board.list_readings(table.source)
            if (table.kind is ComponentKind.PCI or one.component.kind is table.kind)
            and not own.isdisjoint(one.values)
        ]
        if whose:
            yield from made(table.prefix, table.families, list(table.who), whose)
