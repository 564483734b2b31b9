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
from vitald.model.words import ComponentKind

_NIC = ReadingTable(
    component=ComponentKind.NIC,
    prefix="vitald_nic",
    labels={
        "device": get_reading("device"),
        "interface": get_reading("interface"),
        "pci_bus_id": get_id,
        "adapter_kind": get_reading("kind"),
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
            "carrier_down_changes",
            "Times that the interface lost its link.",
            "carrier_down_count",
            each="port",
            first=1,
        ),
        unexported("missing", "1 while a device that was here before is not.", unit=FLAG),
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

READINGS = (
    _NIC,
    _INFINIBAND,
    _EFA,
    _PORTS,
)
