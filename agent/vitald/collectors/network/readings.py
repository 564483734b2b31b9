"""The readings of network adapters."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    counter,
    flag,
    gauge,
    get_id,
    get_reading,
    state,
    text_reading,
    unexported,
)
from vitald.model import ComponentKind

_NIC = ReadingTable(
    component=ComponentKind.NIC,
    prefix="vitald_nic",
    labels={
        "device": get_reading("device"),
        "interface": get_reading("interface"),
        "pci_bus_id": get_id,
        "adapter_kind": get_reading("kind"),
        "kind": get_reading("kind"),  # its former name
    },
    readings=(
        state("link", "1 for the state of the worst of the links that should be up."),
        state("carrier", "1 for the state of the worst of the interfaces that should have a link."),
        flag(
            "never_up",
            "1 for an adapter with a port that was never up, while all others of its model are.",
        ),
        flag("rdma_missing", "1 while the function has lost its RDMA device."),
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
            "transmitted_bytes",
            "Bytes that the port sent over RDMA or InfiniBand.",
            each="port",
            first=1,
        ),
        counter(
            "received_bytes",
            "Bytes that the port received over RDMA or InfiniBand.",
            each="port",
            first=1,
        ),
        counter(
            "carrier_down_changes",
            "Times that the interface lost its link.",
            "carrier_down_count",
            each="port",
            first=1,
        ),
        unexported("missing", "1 while a device that was here before is not.", unit=FLAG),
        unexported(
            "link_down_overdue",
            "1 while a port has been down for longer than the configuration allows.",
            unit=FLAG,
        ),
        flag(
            "verbs_missing",
            "1 for an RDMA device whose character device is not in /dev/infiniband.",
        ),
        flag("verbs_failed", "1 if no verbs context could be opened and queried."),
        flag("verbs_hung", "1 while opening or querying a verbs context does not return."),
        gauge("verbs_seconds", "How long it took to open, query and close a verbs context."),
        text_reading("verbs_device", "Name of the verbs character device."),
        text_reading("verbs_call", "The call that failed, or does not return."),
        text_reading("verbs_error", "The error of that call."),
        flag("pkeys_empty", "1 for an adapter with a port that is up and has no partition key."),
        flag(
            "pkeys_differ",
            "1 for an adapter with a port whose partition keys differ from those of all others of"
            " its model.",
        ),
        flag(
            "gids_lacking",
            "1 for an adapter with a RoCE port that lacks a kind of address that all others of its"
            " model have.",
        ),
        text_reading("pkeys", "Partition keys of a port, of several the one that differs."),
        text_reading("pkeys_expected", "Partition keys of all other ports, where they differ."),
        text_reading("gid_kinds_lacking", "Kinds of RoCE addresses that a port lacks."),
        text_reading("kind", "efa, ib, roce or net."),
        text_reading("others", "How the other ports of the node are."),
        text_reading("state", "State of each port, as the driver reports it."),
        text_reading("rate", "Rate of each port, as the driver reports it."),
        text_reading("phys_state", "Physical state of each port, as the driver reports it."),
    ),
)
_INFINIBAND = ReadingTable(
    component=ComponentKind.NIC,
    prefix="vitald_infiniband",
    labels=_NIC.labels,
    readings=tuple(
        counter(metric, f"The port's counter {name}: {help_}.", name, each="port", first=1)
        for metric, name, help_ in (
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
_EFA = ReadingTable(
    component=ComponentKind.NIC,
    prefix="vitald_efa",
    labels=_NIC.labels,
    readings=tuple(
        counter(name, f"The driver's counter {name}: {help_}.")
        for name, help_ in (
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
            ("tx_bytes", "bytes sent"),
            ("rx_bytes", "bytes received"),
            ("rdma_read_bytes", "bytes that RDMA reads fetched"),
            ("rdma_write_bytes", "bytes that RDMA writes sent"),
            ("rdma_read_resp_bytes", "bytes sent for RDMA reads of remote ends"),
            ("rdma_write_recv_bytes", "bytes received by RDMA writes of remote ends"),
        )
    ),
)
_PORTS = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_rdma",
    readings=(
        gauge("ports_expected", "Ports that should be up."),
        gauge("ports_up", "Ports that are up, of those."),
        gauge("ports_down", "Ports that are down, of those."),
        unexported("ports_all_down", "Ports that are down, where none is up."),
    ),
)
_INTERFACE = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_interface",
    labels={"interface": get_id},
    readings=(
        flag("up", "1 for a required interface that is up and has a link.", "interface_up"),
        text_reading("interface_state", "up, or what the interface lacks."),
    ),
)

READINGS = (
    _NIC,
    _INFINIBAND,
    _EFA,
    _PORTS,
    _INTERFACE,
)
