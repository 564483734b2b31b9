"""Network adapters over fake trees: the documented finding on the right adapter, and none where all
is well.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.looking import Looking, polled, told
from tests.network_tree import EFA, ENA, MLX5, NetworkTree
from tests.unit.builders import catalogue
from tests.waiting import until
from vitald import small_files
from vitald.collectors import polling as polled_module
from vitald.collectors.network import adapter, efa, port_history
from vitald.collectors.network import port as ports
from vitald.collectors.network.collector import KINDS, Network
from vitald.collectors.network.port import Carrier, Link
from vitald.collectors.network.settings import NetworkSettings as Settings
from vitald.model.event import Event
from vitald.model.source import Position, SourceState
from vitald.model.words import ComponentKind


class Clock:
    """The real one, and what was turned on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    turned = Clock()
    for module in (polled_module, adapter, efa, port_history):
        monkeypatch.setattr(module, "time", turned)
    return turned


class Node:
    """A tree that is looked at every half minute, while work goes on."""

    def __init__(
        self,
        tree: NetworkTree,
        clock: Clock,
        *,
        rates: dict[str, float] | None = None,
        **settings: Any,
    ) -> None:
        self.tree, self.clock, self.settings, self.rates = tree, clock, Settings(**settings), rates
        self.looking = self._begin(None, "boot-1")

    def _begin(self, after: Position | None, boot_id: str) -> Looking:
        subject = Network(self.tree.root, self.settings, self.rates)
        return Looking(polled(subject, *KINDS, boot_id=boot_id), after)

    def restart(self, *, boot_id: str = "boot-1") -> None:
        """The daemon, or the node, comes back with what was stored."""
        after = self.looking.position
        self.close()
        self.looking = self._begin(after, boot_id)

    def close(self) -> None:
        self.looking.__exit__()

    def rounds(self, count: int = 1, every_s: float = 30.0) -> list[Event]:
        """The events, without those that say who is who."""
        events: list[Event] = []
        for _ in range(count):
            self.tree.traffic()
            events += self.looking.look()
            self.clock.ahead += every_s
        return [event for event in events if event.kind != "device"]

    def told(self, count: int = 1, every_s: float = 30.0) -> set[tuple[str, str]]:
        return told(self.rounds(count, every_s))

    def values(self, address: str) -> dict[str, object]:
        return dict(self.looking.readings(f"nic/{address}").values)


@pytest.fixture
def tree(tmp_path: Path) -> NetworkTree:
    return NetworkTree(tmp_path / "sys")


@pytest.fixture
def make_node(clock: Clock) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(tree: NetworkTree, **settings: Any) -> Node:
        made.append(Node(tree, clock, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


MakeNode = Callable[..., Node]
_NIC_3 = f"nic/{MLX5[3]}"


def listen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that is opened from now on."""
    asked: list[str] = []
    real = os.open

    def opened(path: Path | str, flags: int) -> int:
        asked.append(str(path))
        return real(path, flags)

    monkeypatch.setattr(small_files.os, "open", opened)
    return asked


def trainium(tree: NetworkTree, *, old: bool = False) -> None:
    for address in EFA:
        tree.efa(address, old=old)
    tree.ena()


def infiniband(tree: NetworkTree) -> None:
    for number, address in enumerate(MLX5):
        tree.mlx5(address, f"ib{number}")
    tree.ena()


def roce(tree: NetworkTree) -> None:
    for number, address in enumerate(MLX5):
        tree.mlx5(address, f"eth{number + 1}", roce=True)


# --- all is well


@pytest.mark.parametrize(
    "build",
    [trainium, lambda tree: trainium(tree, old=True), infiniband, roce],
    ids=["efa", "old efa", "ib", "roce"],
)
def test_a_healthy_node_says_nothing_however_much_it_works(
    tree: NetworkTree, make_node: MakeNode, build: Callable[[NetworkTree], None]
) -> None:
    build(tree)
    node = make_node(tree)
    assert node.rounds(20) == []
    assert node.looking.last.state is SourceState.OK, node.looking.last.detail
    node.restart()
    assert node.rounds(5) == []
    node.restart(boot_id="boot-2")
    assert node.rounds(5) == []


def test_an_adapter_says_who_it_is(tree: NetworkTree, make_node: MakeNode) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.looking.look()
    (one,) = [event for event in node.looking.events if event.component.id == MLX5[3]]
    assert (one.code, one.fields["device"], one.fields["interface"], one.fields["pci"]) == (
        "device/identity",
        "mlx5_3",
        "ib3",
        MLX5[3],
    )
    assert one.fields["firmware"] == "28.41.1000"
    assert "InfiniBand mlx5_3, PCI 0000:5d:00.0" in one.raw
    values = node.values(MLX5[3])
    assert (values["kind"], values["link"], values["bits_per_second"], values["lanes"]) == (
        "ib",
        "up",
        400e9,
        4.0,
    )


def test_an_efa_device_without_a_guid_is_known_by_its_slot(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    """Its state, which is a constant, is not shown as if it meant something."""
    trainium(tree)
    node = make_node(tree)
    node.looking.look()
    assert node.looking.events == []
    values = node.values(EFA[3])
    assert (values["kind"], values["rate"], values["no_completion_cmds"]) == (
        "efa",
        "100 Gb/sec (4X EDR)",
        0.0,
    )
    assert not {"state", "phys_state", "link"} & set(values)


def test_a_node_without_adapters(tree: NetworkTree, make_node: MakeNode) -> None:
    (tree.root / "class/net/lo").mkdir(parents=True)
    (tree.root / "class/infiniband/rxe0").mkdir(parents=True)
    node = make_node(tree)
    assert node.rounds(2) == []
    assert node.looking.last.state is SourceState.ABSENT


# --- one fault, one finding, on its adapter alone


def counter(name: str, by: int) -> Callable[[NetworkTree], None]:
    """Of the third InfiniBand port, or the third EFA device; a path below it."""
    return lambda tree: tree.count(f"infiniband/{list(tree.rdma)[3]}/{name}", by)


IB_FAULTS = [
    ("recoveries", counter("ports/1/counters/link_error_recovery", 6), {"ib/link_errors"}),
    ("a recovery", counter("ports/1/counters/link_error_recovery", 1), set()),
    ("integrity", counter("ports/1/counters/local_link_integrity_errors", 1), {"ib/link_errors"}),
    ("some symbol errors", counter("ports/1/counters/symbol_error", 121), {"ib/symbol_errors"}),
    (
        "many symbol errors",
        counter("ports/1/counters/symbol_error", 700),
        {"ib/symbol_errors", "ib/link_errors"},
    ),
    ("few symbol errors", counter("ports/1/counters/symbol_error", 100), set()),
    ("receive errors", counter("ports/1/counters/port_rcv_errors", 700), {"ib/link_errors"}),
    (
        "overruns",
        counter("ports/1/counters/excessive_buffer_overrun_errors", 5),
        {"ib/buffer_overruns"},
    ),
    ("discards", counter("ports/1/counters/port_xmit_discards", 6100), {"ib/path"}),
    ("timeouts", counter("ports/1/hw_counters/local_ack_timeout_err", 61), {"ib/path"}),
    ("sequence errors", counter("ports/1/hw_counters/packet_seq_err", 700), {"ib/path"}),
    ("few sequence errors", counter("ports/1/hw_counters/packet_seq_err", 500), set()),
    (
        "damaged packets",
        counter("ports/1/hw_counters/rx_icrc_encapsulated", 11),
        {"ib/packets_corrupted"},
    ),
    ("few damaged packets", counter("ports/1/hw_counters/rx_icrc_encapsulated", 10), set()),
    ("peers that die", counter("ports/1/hw_counters/rnr_nak_retry_err", 500), set()),
    ("others' errors", counter("ports/1/counters/port_rcv_switch_relay_errors", 500), set()),
    ("two falls", counter("ports/1/counters/link_downed", 2), set()),
    ("three falls", counter("ports/1/counters/link_downed", 3), {"ib/flapping"}),
    ("slower", lambda tree: tree.port("mlx5_3", rate="200 Gb/sec (4X HDR)"), {"ib/rate_low"}),
    ("narrower", lambda tree: tree.port("mlx5_3", rate="400 Gb/sec (2X NDR)"), {"ib/rate_low"}),
    ("down", lambda tree: tree.down("mlx5_3"), {"ib/port_down", "ib/port_failed"}),
    ("turned off", lambda tree: tree.down("mlx5_3", physical="3: Disabled"), set()),
    (
        "no manager",
        lambda tree: tree.port("mlx5_3", state="2: INIT"),
        {"ib/port_waiting", "ib/no_subnet_manager"},
    ),
    (
        "armed",
        lambda tree: tree.port("mlx5_3", state="3: ARMED"),
        {"ib/port_waiting", "ib/no_subnet_manager"},
    ),
    (
        "retraining",
        lambda tree: tree.port("mlx5_3", phys_state="6: LinkErrorRecovery"),
        {"ib/port_retraining"},
    ),
    ("no state that we know", lambda tree: tree.port("mlx5_3", state="9: ODD"), set()),
    ("driver lost it", lambda tree: tree.without_rdma("mlx5_3"), {"network/missing"}),
    ("gone", lambda tree: tree.off_the_bus(MLX5[3]), {"network/missing"}),
]
EFA_FAULTS = [
    ("command lost", counter("hw_counters/no_completion_cmds", 1), {"efa/not_answering"}),
    ("refused commands", counter("hw_counters/cmds_err", 500), set()),
    ("peers", counter("ports/1/hw_counters/unresponsive_remote_events", 61), {"efa/path"}),
    ("some again", counter("ports/1/hw_counters/retrans_pkts", 59_000), set()),
    ("many again", counter("ports/1/hw_counters/retrans_pkts", 61_000), {"efa/path"}),
    ("drops", counter("ports/1/hw_counters/rx_drops", 6100), {"efa/drops"}),
    ("requests", counter("ports/1/hw_counters/rdma_write_wr_err", 6100), {"efa/request_errors"}),
    ("driver lost it", lambda tree: tree.without_rdma("rdmap160s25"), {"network/missing"}),
    ("gone", lambda tree: tree.off_the_bus(EFA[3]), {"network/missing"}),
]


@pytest.mark.parametrize(
    ("build", "address", "faults"),
    [(infiniband, MLX5[3], IB_FAULTS), (trainium, EFA[3], EFA_FAULTS)],
    ids=["ib", "efa"],
)
def test_each_fault_is_told_of_its_adapter_alone(
    tmp_path: Path,
    make_node: MakeNode,
    build: Callable[[NetworkTree], None],
    address: str,
    faults: list[tuple[str, Callable[[NetworkTree], None], set[str]]],
) -> None:
    wrong = []
    for title, fault, codes in faults:
        tree = NetworkTree(tmp_path / title)
        build(tree)
        device = next(name for name, own in tree.rdma.items() if own == address)
        node = make_node(tree)
        before = node.rounds(3)
        fault(tree)
        # a list: each is said once
        found = sorted(
            (event.code, event.component.name, event.fields["pci"], event.fields["device"])
            for event in node.rounds(15)
            if event.fields.get("recovered") is not True
        )
        expected = [(code, f"nic/{address}", address, device) for code in sorted(codes)]
        if before or found != expected:
            wrong.append((title, before, found))
    assert wrong == []


# --- ports


def test_a_port_that_falls_is_told_at_once_and_fails_after_five_minutes(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(3)
    tree.down("mlx5_3")
    assert node.told() == {("ib/port_down", f"nic/{MLX5[3]}")}
    assert node.told(9) == set()  # four and a half minutes
    assert node.told(1) == {("ib/port_failed", f"nic/{MLX5[3]}")}
    tree.up("mlx5_3")
    over = node.rounds()
    assert {(event.code, event.fields["recovered"]) for event in over} == {
        ("ib/port_down", True),
        ("ib/port_failed", True),
    }
    assert node.rounds(12) == []


@pytest.mark.parametrize(("number", "boot_id"), [(0, "boot-1"), (7, "boot-1"), (0, "boot-2")])
def test_a_failed_port_is_no_other_after_a_restart_whichever_is_looked_at_first(
    tree: NetworkTree, make_node: MakeNode, number: int, boot_id: str
) -> None:
    """At the first look nobody knows yet how the other ports are: that ends nothing, so a port that
    outlives a boot is seen to.
    """
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    tree.down(f"mlx5_{number}")
    assert ("ib/port_failed", f"nic/{MLX5[number]}") in node.told(13)
    node.restart(boot_id=boot_id)
    assert [event for event in node.rounds(13) if event.fields.get("recovered")] == []
    tree.up(f"mlx5_{number}")
    ended = {event.code for event in node.rounds(13) if event.fields.get("recovered")}
    assert ended == {"ib/port_down", "ib/port_failed"}


def test_while_an_adapter_was_never_looked_at_nobody_knows_whether_a_port_is_the_only_one(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    for number in range(7):
        tree.down(f"mlx5_{number}")
    node.rounds(1)
    node.restart()
    tree.hang(f"{tree.path('mlx5_7')}/ports/1/state")
    node.looking.expect_hang()
    node.looking.look()
    assert "others" not in node.values(MLX5[0])
    with (tree.root / tree.path("mlx5_7") / "ports/1/state").open("w") as file:
        file.write("4: ACTIVE\n")


def test_only_observed_time_counts_as_down(tree: NetworkTree, make_node: MakeNode) -> None:
    infiniband(tree)
    node = make_node(tree, every_s=900.0)
    node.rounds(3)
    tree.down("mlx5_3")
    node.rounds(12)
    down_s = node.values(MLX5[3])["link_down_seconds"]
    assert down_s > 0
    node.restart()
    node.clock.ahead += 10 * 3600.0  # nobody looked: this time does not count
    assert node.told(2, every_s=900.0) == set()
    assert node.values(MLX5[3])["link_down_seconds"] < down_s + 3600.0
    node.restart(boot_id="boot-2")
    assert node.told(8, every_s=900.0) == {("ib/port_down", _NIC_3), ("ib/port_failed", _NIC_3)}
    tree.up("mlx5_3")
    over = {event.code for event in node.rounds() if event.fields.get("recovered")}
    assert over == {"ib/port_down", "ib/port_failed"}
    assert node.values(MLX5[3])["link_down_seconds"] == 0.0


def test_the_configured_rate_counts_from_the_first_look(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    """All eight ports train at half their rate: no sibling and no past says so."""
    infiniband(tree)
    for name in tree.rdma:
        tree.port(name, rate="200 Gb/sec (4X HDR)")
    node = make_node(tree)
    assert node.told(4) == set()
    node = make_node(tree, rates={"mlx5_0": 200e9, "ib1": 100e9, "mlx5_*": 400e9})
    assert node.told(4) == {("ib/rate_low", f"nic/{address}") for address in MLX5[2:]}
    tree.up("mlx5_3")
    assert {event.component.id for event in node.rounds(4)} == {MLX5[3]}


def test_a_rate_below_its_best_is_right_where_the_configuration_says_so(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    node = make_node(tree, rates={"*": 200e9})
    node.rounds(3)
    tree.port("mlx5_3", rate="200 Gb/sec (2X NDR)")
    assert node.told(4) == set()


def test_all_ports_down_is_the_fabric(tree: NetworkTree, make_node: MakeNode) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(3)
    for name in tree.rdma:
        tree.down(name)
    down = {("ib/port_down", f"nic/{address}") for address in MLX5}
    assert node.told(60) == {("network/all_ports_down", "node"), *down}
    for name in tree.rdma:
        tree.up(name)
    assert all(event.fields.get("recovered") for event in node.rounds(12))


def test_what_is_turned_off_or_was_never_up_is_no_witness_and_no_fault(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    for name in ("mlx5_0", list(tree.rdma)[-1]):
        tree.port(name, state="1: DOWN", phys_state="2: Polling")  # ports for management
    node = make_node(tree)
    assert node.rounds(15) == []
    assert node.values(MLX5[0])["link"] == "unused"
    for name in list(tree.rdma)[2:]:
        tree.down(name, physical="3: Disabled")
    assert node.told(15) == set()
    tree.down("mlx5_1")
    assert node.told(15) == {
        ("ib/port_down", f"nic/{MLX5[1]}"),
        ("ib/only_port_down", f"nic/{MLX5[1]}"),
    }


def test_a_port_that_was_never_up_is_told_where_all_its_siblings_are(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    tree.port("mlx5_3", state="1: DOWN", phys_state="2: Polling")
    node = make_node(tree)
    assert node.told(8) == {("ib/never_up", f"nic/{MLX5[3]}")}
    tree.up("mlx5_3")
    assert [event.fields.get("recovered") for event in node.rounds(5)] == [True]


def test_two_ports_down_are_not_all_while_a_third_is_up(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    for number, address in enumerate(MLX5[:3]):
        tree.mlx5(address, f"ib{number}")
    node = make_node(tree)
    node.rounds(2)
    tree.down("mlx5_0")
    tree.down("mlx5_1")
    assert node.told(12) == {
        (code, f"nic/{address}")
        for code in ("ib/port_down", "ib/port_failed")
        for address in MLX5[:2]
    }


def test_a_function_with_two_ports_has_a_value_for_each(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    tree.mlx5(MLX5[0], "ib0", ports=2)
    tree.mlx5(MLX5[1], "ib1")
    tree.port("mlx5_0", 2, state="1: DOWN", phys_state="2: Polling")  # its second port is not used
    node = make_node(tree)
    assert node.rounds(3) == []
    assert node.values(MLX5[0])["port_rcv_errors"] == (14.0, 14.0)
    tree.count("infiniband/mlx5_0/ports/2/counters/link_downed", 3)
    (event,) = node.rounds(3)
    assert (event.code, event.fields["ports"]) == ("ib/flapping", [1])


def test_what_the_two_states_say_together() -> None:
    expected = {
        (4, 5, False, Carrier.UNKNOWN): Link.UP,
        (5, 5, False, Carrier.UNKNOWN): Link.UP,
        (4, 2, False, Carrier.UNKNOWN): Link.DOWN,
        (4, 0, False, Carrier.UNKNOWN): Link.UNKNOWN,
        (4, None, False, Carrier.UNKNOWN): Link.UNKNOWN,
        (None, 5, False, Carrier.UNKNOWN): Link.UNKNOWN,
        (0, 5, False, Carrier.UNKNOWN): Link.UNKNOWN,
        (1, 2, False, Carrier.OFF): Link.DOWN,  # the interface of InfiniBand is another matter
        (1, 3, False, Carrier.UNKNOWN): Link.DISABLED,
        (1, 6, False, Carrier.UNKNOWN): Link.RETRAINING,
        (2, 5, False, Carrier.UNKNOWN): Link.WAITING,
        # Mlx5 and bnxt say Disabled of any Ethernet port without a link
        (1, 3, True, Carrier.LOST): Link.DOWN,
        (1, 3, True, Carrier.OFF): Link.DISABLED,
        (1, 2, True, Carrier.OFF): Link.DISABLED,
        (1, 3, True, Carrier.UNKNOWN): Link.DISABLED,
        (1, 2, True, Carrier.UNKNOWN): Link.DOWN,
    }
    assert {
        (state, physical, ethernet, carrier): ports.classify_link(
            state, physical, ethernet=ethernet, carrier=carrier
        )
        for state, physical, ethernet, carrier in expected
    } == expected


def test_rates() -> None:
    expected = {
        "400 Gb/sec (4X NDR)": (400e9, 4.0),
        "2.5 Gb/sec (1X SDR)": (2.5e9, 1.0),
        "100 Gb/sec": (100e9, 0.0),
        "unknown": (0.0, 0.0),
        "": (0.0, 0.0),
    }
    assert {text: ports.parse_rate(text) for text in expected} == expected
    assert ports.parse_number("9: ODD") == 9
    assert ports.parse_number("<unknown>") is None


def test_a_port_that_was_never_fast_is_slower_than_all_its_siblings(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    tree.port("mlx5_3", rate="200 Gb/sec (4X HDR)")
    node = make_node(tree)
    assert node.told(6) == {("ib/rate_low", f"nic/{MLX5[3]}")}


def test_siblings_that_do_not_agree_say_nothing(tree: NetworkTree, make_node: MakeNode) -> None:
    """Two of the same model lead to the storage, over slower switches."""
    infiniband(tree)
    for name in ("mlx5_3", "mlx5_4"):
        tree.port(name, rate="200 Gb/sec (4X HDR)")
    node = make_node(tree)
    assert node.told(6) == set()


# --- Ethernet


def test_a_roce_port_follows_its_interface(tree: NetworkTree, make_node: MakeNode) -> None:
    """The driver calls it Disabled whether its cable is out or somebody turned it off: the
    interface knows.
    """
    roce(tree)
    node = make_node(tree)
    node.rounds(2)
    tree.port("mlx5_2", state="1: DOWN", phys_state="3: Disabled")
    tree.net("eth3", flags="0x1002", operstate="down", carrier=0)
    assert node.told(15) == set()
    tree.net("eth3", flags="0x1003")
    assert node.told(15) == {
        ("ib/port_down", f"nic/{MLX5[2]}"),
        ("ib/port_failed", f"nic/{MLX5[2]}"),
    }


def test_flaps_of_a_roce_port_are_counted_by_its_interface(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    roce(tree)
    node = make_node(tree)
    node.rounds(2)
    for _ in range(3):
        tree.count("net/eth3/carrier_down_count")
        last = node.told(4)
    assert last == {("ib/flapping", f"nic/{MLX5[2]}")}


def test_a_bond_that_lost_a_leg_stays_up_and_says_so(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    second = MLX5[0].replace(".0", ".1")
    tree.mlx5(MLX5[0], "eth1", roce=True, name="mlx5_bond_0")
    tree.interface("eth2", tree.pci(second, 0x15B3, 0x1021, 0x020000, "mlx5_core"))
    node = make_node(tree)
    node.rounds(2)
    tree.net("eth1", carrier=0, operstate="down")
    assert node.told(6) == {("net/leg_down", f"nic/{MLX5[0]}")}
    tree.net("eth1", carrier=1, operstate="up")
    tree.net("eth2", carrier=0, operstate="down")
    assert node.told(6) == {("net/carrier_lost", f"nic/{second}")}


def test_an_interface_that_lost_its_link_is_only_shown(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    trainium(tree)
    node = make_node(tree)
    node.rounds(2)
    tree.net("ens5", carrier=0, operstate="down")
    assert node.told() == {("net/carrier_lost", f"nic/{ENA}")}
    assert catalogue().find_rule("net/carrier_lost").action.value == "observe"


def test_an_interface_that_is_off_is_asked_again_when_it_is_on(
    tree: NetworkTree, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is off, its carrier answers EINVAL; that is not a file to leave alone for good."""
    trainium(tree)
    tree.net("ens5", flags="0x1002")
    real, off = small_files.read_attribute, [True]

    def read(path: Path | str) -> str:
        if off[0] and str(path).endswith("/carrier"):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path)

    monkeypatch.setattr(small_files, "read_attribute", read)
    node = make_node(tree)
    assert node.rounds(2) == []
    tree.net("ens5", flags="0x1003")  # it is turned on just before it is asked
    assert node.rounds() == []
    off[0] = False
    node.rounds()
    assert node.values(ENA)["carrier"] == "up"


def test_interfaces_that_nothing_stands_behind_are_not_looked_at(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    tree.mlx5(MLX5[0], "eth1", roce=True)
    function = f"devices/pci0000:18/{MLX5[0]}"
    for name, port in (("eth1_0", "pf0vf0"), ("eth1_up", "p0")):
        tree.interface(name, function)
        tree.net(name, phys_port_name=port)
    (tree.root / "class/net/veth0").mkdir()
    virtio = tree.pci("0000:00:03.0", 0x1AF4, 0x1041, 0x020000, "virtio-pci")
    tree.interface("ens3", f"{virtio}/virtio0")
    node = make_node(tree)
    node.looking.look()
    interfaces = {
        one.component.id
        for one in node.looking.last.readings
        if one.component.kind is ComponentKind.NIC
    }
    assert interfaces == {MLX5[0], "0000:00:03.0"}
    assert node.looking.events[0].fields["interface"] == "eth1, eth1_up"


# --- EFA


def test_a_dead_efa_device_is_asked_nothing_more(
    tree: NetworkTree, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further question would only add a line to the kernel log."""
    trainium(tree)
    node = make_node(tree)
    node.rounds(2)
    name = "rdmap160s25"
    tree.count(f"infiniband/{name}/hw_counters/no_completion_cmds")
    asked = listen(monkeypatch)
    assert node.told() == {("efa/not_answering", f"nic/{EFA[3]}")}
    assert [path for path in asked if f"{name}/ports/1/hw_counters" in path] == []
    assert "no commands any more" in node.looking.readings(f"nic/{EFA[3]}").missing["rx_drops"]


def unreadable(tree: NetworkTree, name: str) -> None:
    """A read gives EISDIR, which does not say that it is not supported."""
    for file in sorted((tree.root / tree.path(name) / "ports/1/hw_counters").iterdir()):
        file.unlink()
        file.mkdir()


@pytest.mark.parametrize("restarted", [False, True])
def test_port_counters_that_fail_are_a_fault_where_they_could_be_read(
    tree: NetworkTree, make_node: MakeNode, restarted: bool
) -> None:
    trainium(tree)
    unreadable(tree, "rdmap16s25")  # never could
    node = make_node(tree)
    assert node.rounds(3) == []
    unreadable(tree, "rdmap160s25")
    if restarted:
        node.restart()
    assert node.told(3) == {("efa/not_answering", f"nic/{EFA[3]}")}


def test_commands_that_wait(tree: NetworkTree, make_node: MakeNode) -> None:
    """Some are always under way on a busy device: only while none is answered do they wait."""
    trainium(tree)
    node = make_node(tree)
    tree.count("infiniband/rdmap160s25/hw_counters/submitted_cmds")
    assert node.rounds(6) == []
    tree.still = {f"rdmap160s25/{name}" for name in ("submitted_cmds", "completed_cmds")}
    assert node.told(4) == {("efa/commands_waiting", f"nic/{EFA[3]}")}


def test_a_heartbeat_that_stops(tree: NetworkTree, make_node: MakeNode) -> None:
    trainium(tree)
    node = make_node(tree)
    assert node.rounds(6) == []
    assert node.values(EFA[3])["keep_alive_rhythm_seconds"] == pytest.approx(1.0, rel=0.1)
    tree.still = {"rdmap160s25/keep_alive_rcvd"}
    assert node.told() == set()
    assert node.told(2) == {("efa/heartbeat", f"nic/{EFA[3]}")}


def test_a_heartbeat_that_was_never_seen_is_not_missed(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    trainium(tree)
    tree.still = {f"{name}/keep_alive_rcvd" for name in tree.rdma}
    node = make_node(tree)
    assert node.rounds(20) == []


# --- counters


def test_a_counter_at_its_top_is_not_known(tree: NetworkTree, make_node: MakeNode) -> None:
    """It stands still from then on: that no more errors come is not what it says."""
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    tree.put("mlx5_3", {"ports/1/counters/symbol_error": 65535})
    assert node.told() == {
        ("ib/symbol_errors", f"nic/{MLX5[3]}"),
        ("ib/link_errors", f"nic/{MLX5[3]}"),
    }
    assert node.rounds(60) == []  # half an hour
    assert (
        node.looking.readings(f"nic/{MLX5[3]}").missing["symbol_error"]
        == "stands at 65535, the most that it can count"
    )
    tree.put("mlx5_3", {"ports/1/counters/symbol_error": 0})  # somebody reset it
    assert all(event.fields.get("recovered") for event in node.rounds(60))


def test_a_counter_that_no_port_has_is_no_fault(tree: NetworkTree, make_node: MakeNode) -> None:
    infiniband(tree)
    tree.put("mlx5_3", {"ports/1/counters/symbol_error": "N/A (no PMA)"})
    tree.remove("class/infiniband/mlx5_3/ports/1/counters/link_downed")
    node = make_node(tree)
    assert node.rounds(6) == []
    one = node.looking.readings(f"nic/{MLX5[3]}")
    assert "N/A (no PMA)" in one.missing["symbol_error"]
    assert "link_downed" not in {**one.values, **one.missing}


def test_a_file_that_answers_einval_is_left_alone(
    tree: NetworkTree, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    infiniband(tree)
    asked: list[str] = []
    real = small_files.read_attribute

    def read(path: Path | str) -> str:
        if str(path).endswith("mlx5_3/ports/1/counters/port_rcv_errors"):
            asked.append(str(path))
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path)

    monkeypatch.setattr(small_files, "read_attribute", read)
    node = make_node(tree)
    assert node.rounds(6) == []
    assert len(asked) == 1
    assert "EINVAL" in node.looking.readings(f"nic/{MLX5[3]}").missing["port_rcv_errors"]


def test_what_was_counted_before_the_start_is_no_increase(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    for name in ("link_downed", "local_link_integrity_errors", "symbol_error"):
        tree.count(f"infiniband/mlx5_3/ports/1/counters/{name}", 9)
    node = make_node(tree)
    assert node.rounds(3) == []
    node.restart()
    assert node.rounds(3) == []
    node.restart(boot_id="boot-2")
    assert node.rounds(3) == []


def test_falls_are_remembered_over_a_restart_but_not_over_a_boot(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    for name in ("mlx5_3", "mlx5_4"):
        tree.count(f"infiniband/{name}/ports/1/counters/link_downed", 2)
    assert node.rounds(2) == []
    node.restart()
    tree.count("infiniband/mlx5_3/ports/1/counters/link_downed")
    assert node.told(2) == {("ib/flapping", f"nic/{MLX5[3]}")}
    node.restart(boot_id="boot-2")
    tree.count("infiniband/mlx5_4/ports/1/counters/link_downed")
    assert node.told(2) == set()


@pytest.mark.parametrize(("hours", "few", "many"), [(5, 4, 5), (72, 9, 16)])
def test_falls_of_a_long_stop_are_spread_over_it(
    tree: NetworkTree, make_node: MakeNode, hours: int, few: int, many: int
) -> None:
    """Four falls in five hours are not three in one."""
    infiniband(tree)
    node = make_node(tree)
    node.rounds(3)
    node.restart()
    node.clock.ahead += hours * 3600.0
    tree.count("infiniband/mlx5_2/ports/1/counters/link_downed", few)
    tree.count("infiniband/mlx5_3/ports/1/counters/link_downed", many)
    tree.count("infiniband/mlx5_4/ports/1/counters/symbol_error", 100 * hours)
    assert node.told(2) == {("ib/flapping", _NIC_3)}


def test_unrecoverable_errors_of_a_broadcom_adapter(tree: NetworkTree, make_node: MakeNode) -> None:
    roce(tree)
    name = next(iter(tree.rdma))
    tree.put(name, {"ports/1/hw_counters/unrecoverable_err": 7})
    node = make_node(tree)
    assert node.rounds(3) == []
    tree.count(f"infiniband/{name}/ports/1/hw_counters/unrecoverable_err", 11)
    assert node.told(2) == {("ib/unrecoverable_errors", f"nic/{tree.rdma[name]}")}


def test_five_falls_in_a_day(tree: NetworkTree, make_node: MakeNode) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    for _ in range(4):
        tree.count("infiniband/mlx5_3/ports/1/counters/link_downed")
        assert node.rounds(5, every_s=3600.0) == []
    tree.count("infiniband/mlx5_3/ports/1/counters/link_downed")
    assert node.told() == {("ib/flapping", f"nic/{MLX5[3]}")}


def test_a_port_that_was_up_before_the_boot_should_be_up(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    node.restart(boot_id="boot-2")
    tree.down("mlx5_3")
    tree.port("mlx5_4", rate="100 Gb/sec (1X NDR)")
    assert node.told(14) == {
        ("ib/port_down", f"nic/{MLX5[3]}"),
        ("ib/port_failed", f"nic/{MLX5[3]}"),
        ("ib/rate_low", f"nic/{MLX5[4]}"),
    }


def test_a_port_that_a_boot_brings_back_is_told_to_be_well(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    """What asks for a replacement outlives a boot, so only this ends it."""
    infiniband(tree)
    node = make_node(tree)
    node.rounds(2)
    tree.down("mlx5_3")
    node.rounds(14)
    node.restart(boot_id="boot-2")
    tree.up("mlx5_3")
    assert ("ib/port_failed", True) in {
        (event.code, event.fields.get("recovered")) for event in node.rounds(14)
    }


# --- what is not there, does not answer, or is none of our business


def hangs(node: Looking, *, over: bool = False) -> list[str]:
    """Look until a hang is told, or that it is over; and of which component."""
    found: list[str] = []

    def is_told() -> bool:
        node.look()
        found[:] = [
            event.component.id
            for event in node.events
            if event.code == "network/hung" and bool(event.fields.get("recovered")) is over
        ]
        return bool(found)

    until(is_told, "a hang, or its end")
    return found


def test_an_adapter_that_does_not_answer_is_named_and_the_others_go_on(tree: NetworkTree) -> None:
    infiniband(tree)
    path = "class/infiniband/mlx5_3/ports/1/counters/symbol_error"
    with Looking(polled(Network(tree.root, Settings()), *KINDS)) as node:
        node.look()
        node.expect_hang()
        tree.hang(path)
        assert hangs(node) == [MLX5[3]]
        assert node.last.state is SourceState.FAILED
        tree.count("infiniband/mlx5_5/ports/1/counters/link_downed", 3)
        assert told(node.look(2)) == {("ib/flapping", f"nic/{MLX5[5]}")}
        with (tree.root / path).open("w") as fifo:
            fifo.write("0\n")
        tree.write(path, 0)
        assert hangs(node, over=True) == [MLX5[3]]
        assert told(node.events) == {
            ("network/hung", f"nic/{MLX5[3]}"),
            ("ib/flapping", f"nic/{MLX5[5]}"),
        }


@pytest.mark.parametrize("pattern", ["mlx5_[3]", "ib3", "0000:5d:*"])
def test_what_is_excluded_is_not_read(
    tree: NetworkTree, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    infiniband(tree)
    tree.down("mlx5_3")
    asked = listen(monkeypatch)
    node = make_node(tree, exclude=(pattern,))
    assert node.rounds(14) == []
    assert [path for path in asked if "mlx5_3" in path] == []
    assert node.looking.last.state is SourceState.OK
    assert node.values(MLX5[3]) == {}


def test_an_adapter_that_is_excluded_later_is_not_missing(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    node = make_node(tree)
    node.rounds(3)
    node.settings = Settings(exclude=("mlx5_3",))
    node.restart()
    tree.without_rdma("mlx5_3")
    assert node.rounds(10) == []


def test_a_missing_adapter_that_comes_back(tree: NetworkTree, make_node: MakeNode) -> None:
    trainium(tree)
    node = make_node(tree)
    node.rounds(2)
    tree.without_rdma("rdmap160s25")
    assert node.told(5) == {("network/missing", f"nic/{EFA[3]}")}
    node.restart()
    assert node.told(5) == set()  # said before
    tree.remove((tree.root / "bus/pci/devices" / EFA[3]).resolve())
    tree.remove(f"bus/pci/devices/{EFA[3]}")
    tree.remove(f"bus/pci/drivers/efa/{EFA[3]}")
    tree.efa(EFA[3])
    assert [event.fields.get("recovered") for event in node.rounds(5)] == [True]


def test_what_is_taken_on_purpose_is_not_missing(tree: NetworkTree, make_node: MakeNode) -> None:
    """Given to a virtual machine; or the whole driver unloaded, of which nothing follows for the
    card.
    """
    trainium(tree)
    node = make_node(tree)
    node.rounds(2)
    for name, address in zip(list(tree.rdma), EFA[:2]):
        tree.without_rdma(name)
        tree.remove(f"bus/pci/devices/{address}/driver")
    tree.link(f"devices/pci0000:10/{EFA[0]}/driver", "bus/pci/drivers/vfio-pci")
    tree.remove("module/efa")
    assert node.rounds(6) == []
    assert "the driver efa is not loaded" in node.looking.last.detail


def test_virtual_functions_come_and_go(tree: NetworkTree, make_node: MakeNode) -> None:
    infiniband(tree)
    tree.link(f"bus/pci/devices/{MLX5[3]}/physfn", f"bus/pci/devices/{MLX5[2]}")
    node = make_node(tree)
    node.rounds(3)
    tree.off_the_bus(MLX5[3])
    assert node.rounds(8) == []


def test_devices_that_may_be_lent_to_a_container_are_not_missed(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    infiniband(tree)
    tree.write("module/ib_core/parameters/netns_mode", "N")
    node = make_node(tree)
    node.rounds(3)
    tree.without_rdma("mlx5_3")
    assert node.rounds(8) == []


def test_a_device_in_another_network_namespace_is_not_gone(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    """Its function stays bound, and the auxiliary bus shows it. Taken from there too, it is gone."""
    infiniband(tree)
    auxiliary = f"{MLX5[3]}/mlx5_core.rdma.3"
    tree.write(f"devices/{auxiliary}/uevent", "")
    tree.link("bus/auxiliary/devices/mlx5_core.rdma.3", f"devices/{auxiliary}")
    node = make_node(tree)
    node.rounds(3)
    tree.without_rdma("mlx5_3")
    assert node.rounds(8) == []
    readings = node.looking.readings(f"nic/{MLX5[3]}")
    assert readings.missing["rdma_missing"] == "mlx5_3 is not visible in this network namespace"
    tree.remove("bus/auxiliary/devices/mlx5_core.rdma.3")
    assert [event.code for event in node.rounds(8)] == ["network/missing"]


@pytest.mark.parametrize("before", [True, False], ids=["seen up before", "from the start"])
def test_a_port_whose_state_cannot_be_read_is_not_well(
    tree: NetworkTree, make_node: MakeNode, before: bool
) -> None:
    infiniband(tree)
    node = make_node(tree)
    if before:
        node.rounds(2)
    tree.port("mlx5_3", state="no words that we know")
    tree.port("mlx5_4", phys_state="no words that we know")
    assert node.told(4) == set()
    assert node.looking.last.state is SourceState.FAILED
    for number, unknown in ((2, False), (3, True), (4, True)):
        reason = node.looking.readings(f"nic/{MLX5[number]}").unknown_reason
        assert ("link" in reason) is unknown, number
        assert unknown or not reason


def test_an_efa_device_without_any_counter_is_not_well(
    tree: NetworkTree, make_node: MakeNode
) -> None:
    """It says that it is active whatever happens: nothing else tells of it."""
    tree.efa(EFA[0])
    node = make_node(tree)
    node.rounds(2)
    assert node.looking.last.state is SourceState.OK
    folder = tree.root / "class/infiniband" / next(iter(tree.rdma))
    shutil.rmtree(folder.resolve() / "hw_counters")
    shutil.rmtree(folder.resolve() / "ports/1/hw_counters")
    assert node.told(1) == set()
    assert node.looking.readings(f"nic/{EFA[0]}").unknown_reason
