"""Network adapters in a folder that stands for /sys, as the drivers efa, mlx5_core and ena lay them
out.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.trees import AMAZON, MELLANOX, Tree

EFA = [f"0000:{bus}:19.0" for bus in ("10", "20", "90", "a0")]
MLX5 = [f"0000:{bus}:00.0" for bus in ("18", "2a", "3a", "5d", "91", "ab", "ba", "db")]
ENA = "0000:00:05.0"

_EFA_PORT = {
    **dict.fromkeys(
        [
            "tx_bytes",
            "tx_pkts",
            "rx_bytes",
            "rx_pkts",
            "send_bytes",
            "send_wrs",
            "recv_bytes",
            "recv_wrs",
        ],
        10**12,
    ),
    **dict.fromkeys(
        ["rdma_read_wrs", "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_write_wrs"], 10**9
    ),
    **dict.fromkeys(["rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"], 7),
}
_EFA_NEW = {
    "retrans_bytes": 40960,
    "retrans_pkts": 10,
    **dict.fromkeys(
        ["retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"], 0
    ),
}
_EFA_DEVICE = {
    "submitted_cmds": 812,
    "completed_cmds": 812,
    "keep_alive_rcvd": 86400,
    **dict.fromkeys(["cmds_err", "no_completion_cmds", "create_qp_err", "reg_mr_err"], 0),
}
_MLX5_PORT = {
    "port_rcv_data": 7 * 10**12,
    "port_xmit_data": 6 * 10**12,
    "port_xmit_wait": 10**9,
    "excessive_buffer_overrun_errors": 15,  # a healthy port does not read zero
    "port_rcv_errors": 14,
    "port_rcv_switch_relay_errors": 1,
    **dict.fromkeys(
        [
            "symbol_error",
            "link_error_recovery",
            "link_downed",
            "local_link_integrity_errors",
            "port_xmit_discards",
        ],
        0,
    ),
}
_MLX5_HW = {
    "out_of_buffer": 5,
    **dict.fromkeys(
        ["local_ack_timeout_err", "roce_slow_restart", "out_of_sequence", "rnr_nak_retry_err"], 0
    ),
}
_MLX5_HW |= {"packet_seq_err": 3, "rx_icrc_encapsulated": 0}


class NetworkTree(Tree):
    """`rdma` are the RDMA devices' PCI addresses by name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.rdma: dict[str, str] = {}
        self.still: set[str] = set()  # counters that no longer move, as NAME/COUNTER
        self._random = random.Random(1)

    # --- what there is

    def efa(self, address: str, *, old: bool = False) -> str:
        bus, slot = address.split(":")[1:]
        name = f"rdmap{int(bus, 16)}s{int(slot[:2], 16)}"
        self.module("efa")
        self._device(
            name, self.pci(address, AMAZON, 0xEFA1, 0x020000, "efa"), guid="0000:0000:0000:0000"
        )
        self.port(
            name,
            state="4: ACTIVE",
            phys_state="5: LinkUp",
            rate="100 Gb/sec (4X EDR)",
            link_layer="Unknown",
        )
        counters = {**_EFA_PORT, **({} if old else _EFA_NEW)}
        self.put(name, {f"ports/1/hw_counters/{key}": value for key, value in counters.items()})
        self.put(name, {f"hw_counters/{key}": value for key, value in _EFA_DEVICE.items()})
        self.put(name, {"hw_counters/lifespan": 10, "ports/1/hw_counters/lifespan": 10})
        return name

    def mlx5(
        self, address: str, interface: str, *, roce: bool = False, name: str = "", ports: int = 1
    ) -> str:
        name = name or f"mlx5_{len(self.rdma)}"
        self.module("mlx5_core")
        folder = self.pci(address, MELLANOX, 0x1021, 0x020000 if roce else 0x020700, "mlx5_core")
        self._device(
            name, folder, guid=":".join(f"{self._random.getrandbits(16):04x}" for _ in range(4))
        )
        self.put(name, {"fw_ver": "28.41.1000"})
        for port in range(1, ports + 1):
            layer = "Ethernet" if roce else "InfiniBand"
            self.port(
                name,
                port,
                state="4: ACTIVE",
                phys_state="5: LinkUp",
                rate="400 Gb/sec (4X NDR)",
                link_layer=layer,
            )
            self.put(
                name, {f"ports/{port}/counters/{key}": value for key, value in _MLX5_PORT.items()}
            )
            self.put(
                name, {f"ports/{port}/hw_counters/{key}": value for key, value in _MLX5_HW.items()}
            )
            self.pkeys(name, 0xFFFF, port=port)
            self.gids(name, ipv4=roce, port=port)
        self.interface(interface, folder)
        return name

    def ena(self, address: str = ENA, interface: str = "ens5") -> str:
        self.interface(interface, self.pci(address, AMAZON, 0xEC20, 0x020000, "ena"))
        return interface

    def _device(self, name: str, function: str, guid: str) -> None:
        self.rdma[name] = function.rpartition("/")[2]
        folder = f"{function}/infiniband/{name}"
        for key, value in {
            "node_guid": guid,
            "node_desc": "",
            "fw_ver": "",
            "node_type": "1: CA",
        }.items():
            self.write(f"{folder}/{key}", value)
        self.link(f"{folder}/device", function)
        self.link(f"class/infiniband/{name}", folder)
        self.write(f"{function}/infiniband_verbs/uverbs{len(self.rdma) - 1}/ibdev", name)

    def interface(self, name: str, function: str) -> None:
        folder = f"{function}/net/{name}"
        (self.root / folder).mkdir(parents=True)
        self.link(f"{folder}/device", function)
        self.link(f"class/net/{name}", folder)
        self.net(
            name,
            operstate="up",
            carrier=1,
            carrier_changes=2,
            carrier_up_count=1,
            carrier_down_count=1,
            flags="0x1003",
        )

    # --- what changes

    def path(self, name: str) -> str:
        return f"class/infiniband/{name}"

    def put(self, name: str, values: dict[str, object]) -> None:
        """Files of an RDMA device."""
        for key, value in values.items():
            self.write(f"{self.path(name)}/{key}", value)

    def port(self, name: str, number: int = 1, **values: str) -> None:
        self.put(name, {f"ports/{number}/{key}": value for key, value in values.items()})

    def pkeys(self, name: str, *keys: int, port: int = 1) -> None:
        """The first entries of the table; it has eight here, and 128 on adapters."""
        for number in range(8):
            key = keys[number] if number < len(keys) else 0
            self.put(name, {f"ports/{port}/pkeys/{number}": f"{key:#06x}"})

    def gids(self, name: str, *, ipv4: bool, port: int = 1) -> None:
        """A link-local address and, of RoCE, that of the interface, for both versions of RoCE."""
        number = sorted(self.rdma).index(name)
        addresses = [f"fe80:0000:0000:0000:0a00:00ff:fe00:{number:04x}"] * 2
        if ipv4:
            addresses += [f"0000:0000:0000:0000:0000:ffff:0a00:{number + 1:04x}"] * 2
        folder = self.root / self.path(name) / f"ports/{port}"
        for entry in range(8):
            gid = addresses[entry] if entry < len(addresses) else ":".join(["0000"] * 8)
            self.put(name, {f"ports/{port}/gids/{entry}": gid})
            kind = f"ports/{port}/gid_attrs/types/{entry}"
            if entry < len(addresses):
                self.put(name, {kind: ("IB/RoCE v1", "RoCE v2")[entry % 2]})
            elif (folder / f"gid_attrs/types/{entry}").exists():
                self.remove(f"{self.path(name)}/{kind}")  # the kernel answers EINVAL

    def net(self, name: str, **values: object) -> None:
        for key, value in values.items():
            self.write(f"class/net/{name}/{key}", value)

    def count(self, path: str, by: int = 1) -> None:
        """A counter rises; the path is below the class folder, as
        `infiniband/mlx5_0/ports/1/counters/symbol_error`.
        """
        file = self.root / "class" / path
        self.write(f"class/{path}", int(file.read_text()) + by)

    def traffic(self) -> None:
        """Half a minute of work: everything that healthy hardware counts."""
        for name in self.rdma:
            device = self.root / self.path(name)
            for pattern, by in (
                ("ports/*/*counters/*_bytes", 10**6),
                ("ports/*/counters/port_*_data", 10**9),
                ("hw_counters/*", 30),
            ):
                for file in device.glob(pattern):
                    busy = pattern != "hw_counters/*" or file.name in (
                        "submitted_cmds",
                        "completed_cmds",
                        "keep_alive_rcvd",
                    )
                    if busy and file.is_file() and f"{name}/{file.name}" not in self.still:
                        file.write_text(f"{int(file.read_text()) + by}\n")

    def down(self, name: str, number: int = 1, physical: str = "2: Polling") -> None:
        self.port(name, number, state="1: DOWN", phys_state=physical, rate="10 Gb/sec (4X SDR)")
        self.count(f"infiniband/{name}/ports/{number}/counters/link_downed")

    def up(self, name: str, number: int = 1) -> None:
        self.port(
            name, number, state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)"
        )

    def without_rdma(self, name: str) -> None:
        """The device goes, its function stays."""
        self.remove(self.path(name))
        self.remove(f"bus/pci/devices/{self.rdma[name]}/infiniband")
        self.remove(f"bus/pci/devices/{self.rdma[name]}/infiniband_verbs")

    def off_the_bus(self, address: str) -> None:
        for group in ("infiniband", "net"):
            for entry in (self.root / "class" / group).glob("*"):
                if entry.resolve().parent.parent.name == address:
                    entry.unlink()
        self.remove((self.root / "bus/pci/devices" / address).resolve())
        self.remove(f"bus/pci/devices/{address}")
