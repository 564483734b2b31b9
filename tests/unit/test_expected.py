"""How many there should be, who says so, and what is said when there are fewer, more, or other
versions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.looking import CATALOG, Looking, polled, told
from tests.trees import AMAZON, MELLANOX, NVIDIA, Tree
from vitald.catalog import load_catalog
from vitald.catalog.catalog import InstanceType
from vitald.catalog.tables import read_instances
from vitald.collectors.inventory.collector import CountsNotSettled, ExpectedInventory
from vitald.collectors.inventory.device_counts import LearnedCount, learn_count
from vitald.collectors.inventory.readings import KINDS
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.nvml.gpu_node import GpuNode
from vitald.http_server.peer import Peer
from vitald.model.source import Batch, Position
from vitald.model.words import Action
from vitald.server.app import Handler
from vitald.server.routes.expect import ExpectRoutes
from vitald.topology.pci_inventory import PciInventory

TRAINIUM2, EFA, ENA = 0x7364, 0xEFA2, 0xEC20


def always() -> bool:
    return True


class Machine:
    """A node of our own, and the daemon on it: `boots` as often as we like."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.proc = Tree(folder / "sys"), Tree(folder / "proc")
        self.subject = self.expected()
        self.position: Position | None = None
        self.events: set[tuple[str, str]] = set()

    def expected(
        self, boot: str = "boot-1", gpus: int = 0, healthy: Callable[[], bool] = always, **said: Any
    ) -> ExpectedInventory:
        settings = ExpectSettings(
            **{name: said.pop(name) for name in list(said) if name in ExpectSettings.__slots__}
        )
        sysfs = self.tree.root
        return ExpectedInventory(
            sysfs,
            self.proc.root,
            PciInventory(sysfs),
            CATALOG.instances,
            boot,
            settings,
            gpus,
            healthy,
            **{"healthy_s": 0.0, **said},
        )

    def boots(self, boot: str, looks: int = 5, **said: Any) -> set[tuple[str, str]]:
        """So many looks in a boot. What they told is returned."""
        self.subject = self.expected(boot, **said)
        with Looking(polled(self.subject, boot_id=boot), self.position) as looking:
            looking.look(looks)
            self.position = looking.position
            return told(looking.events)

    def neuron(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            self.tree.pci(f"0000:{number:02x}:00.0", AMAZON, TRAINIUM2, 0x088000, "neuron-driver")

    def efa(self, count: int) -> None:
        for number in range(count):
            self.tree.pci(f"0000:{number + 0x40:02x}:00.0", AMAZON, EFA, 0x020000, "efa")

    def unplug(self, number: int) -> None:
        self.tree.remove(f"bus/pci/devices/0000:{number:02x}:00.0")

    def rdma(self, name: str, address: str, driver: str = "mlx5_core") -> None:
        folder = self.tree.pci(address, MELLANOX, 0x101E, 0x020700, driver)
        self.tree.link(f"class/infiniband/{name}/device", folder)

    def drive(self, name: str, model: str, transport: str = "pcie") -> None:
        self.tree.write(f"class/nvme/{name}/model", model)
        self.tree.write(f"class/nvme/{name}/transport", transport)

    def says(self, kind: str) -> tuple[int, bool] | None:
        wanted = self.subject.find_expectation(kind)
        return (wanted.count, wanted.confirmed) if wanted is not None else None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- counting


def test_what_is_counted(machine: Machine) -> None:
    machine.tree.pci("0000:65:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    machine.neuron(16)
    machine.efa(8)
    machine.tree.pci("0000:90:00.0", AMAZON, ENA, 0x020000, "ena")
    machine.rdma("mlx5_0", "0000:91:00.0")
    machine.tree.link("class/infiniband/rdmap64s0/device", "bus/pci/devices/0000:40:00.0")
    machine.drive("nvme0", "Amazon EC2 NVMe Instance Storage")
    machine.boots("boot-1")
    assert machine.subject.counts == {"gpus": 1, "neuron": 16, "efa": 8, "nics": 1, "nvme": 1}
    assert machine.subject.uncounted == {}


def test_volumes_that_come_over_the_network_do_not_count(machine: Machine) -> None:
    for number, model in enumerate(
        [
            "Amazon Elastic Block Store",
            "MSFT NVMe Accelerator v1.0",
            "nvme_card-pd",
            "nvme_card",
            "SAMSUNG MZQL2",
        ]
    ):
        machine.drive(f"nvme{number}", model)
    machine.drive("nvme7", "Linux", "tcp")
    machine.boots("boot-1")
    assert machine.subject.counts["nvme"] == 2


def test_an_adapter_that_was_lent_to_a_container_is_still_here(machine: Machine) -> None:
    """Its RDMA device is then in another network namespace, and its PCI function is where
    it was.
    """
    machine.rdma("mlx5_0", "0000:91:00.0")
    machine.rdma("mlx5_1", "0000:92:00.0")
    virtual = machine.tree.pci("0000:92:00.1", MELLANOX, 0x101E, 0x020700, "mlx5_core")
    machine.tree.link(f"{virtual}/physfn", "bus/pci/devices/0000:92:00.0")
    machine.tree.link("class/infiniband/mlx5_2/device", virtual)
    machine.tree.link(
        "class/infiniband/rxe0/device", machine.tree.write("devices/virtual/rxe0/x", "").parent
    )
    machine.boots("boot-1")
    assert machine.subject.counts["nics"] == 2
    machine.tree.remove("class/infiniband/mlx5_1")
    machine.boots("boot-1")
    assert machine.subject.counts["nics"] == 2
    machine.unplug(0x92)
    machine.boots("boot-1")
    assert machine.subject.counts["nics"] == 1


def test_a_count_is_told_when_three_looks_agree(machine: Machine) -> None:
    machine.neuron(16)
    machine.subject = machine.expected(neuron=16)
    with Looking(polled(machine.subject)) as looking:
        looking.look(2)
        assert "neuron" not in machine.subject.counts
        assert "16 so far (2 of 3 equal readings)" in machine.subject.uncounted["neuron"]
        looking.look()
        assert machine.subject.counts["neuron"] == 16
        for number in range(16):
            machine.unplug(number)
        assert looking.look(2) == []
        assert (
            "neuron" not in machine.subject.counts
        )  # it may be passing: not 16 any more, and not said to be 0
        machine.neuron(16, first=0x70)
        assert looking.look(3) == []
        machine.unplug(0x70)
        assert looking.look(2) == []
        assert told(looking.look()) == {("expect/neuron", "node")}


def test_what_cannot_be_counted_is_not_zero(machine: Machine) -> None:
    machine.neuron(16)
    machine.boots("boot-1", neuron=16)
    machine.tree.remove("bus/pci/devices")
    machine.tree.write("bus/pci/devices", "no folder")
    machine.tree.write("class/nvme/nvme0/transport", "pcie")  # and no model
    assert machine.boots("boot-1", neuron=16) == set()
    assert machine.subject.counts == {}
    assert "Not a directory" in machine.subject.uncounted["neuron"]
    assert "there is no such file" in machine.subject.uncounted["nvme"]
    with pytest.raises(CountsNotSettled, match="nothing has been counted"):
        machine.subject.confirm_counts("alice", "x")


# --- who says so


def test_the_configuration_says_so(machine: Machine) -> None:
    machine.neuron(15)
    machine.efa(7)
    assert machine.boots("boot-1", neuron=16, efa=8, nics=1, nvme=1) == {
        ("expect/neuron", "node"),
        ("expect/efa", "node"),
        ("expect/nics", "node"),
        ("expect/nvme", "node"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_is_no_witness(kind: str) -> None:
    """What only it says is looked at; what the node once had, or its type has, asks for a reboot."""
    rule = CATALOG.find_rule(f"expect/{kind}")
    asked = [rule.apply_to({f"{kind}_proven": proven}).action for proven in (0, 1)]
    assert asked == [Action.INSPECT, Action.REBOOT_NODE]


def test_what_the_node_once_had_is_missed(machine: Machine) -> None:
    """Also where nothing is learned, and after a restart."""

    def proven(boot: str) -> list[object]:
        machine.subject = machine.expected(boot, neuron=16, boots=0)
        with Looking(polled(machine.subject, boot_id=boot), machine.position) as looking:
            looking.look(5)
            machine.position = looking.position
            return [event.fields["neuron_proven"] for event in looking.events]

    machine.neuron(15)
    assert proven("boot-1") == [0]
    machine.neuron(1, first=15)
    machine.boots("boot-2", neuron=16, boots=0)
    machine.unplug(3)
    assert proven("boot-3") == [1]


def test_a_number_that_is_no_longer_configured_ends_its_finding(machine: Machine) -> None:
    """At a reload, and at a start."""
    machine.neuron(15)
    subject = machine.expected(neuron=16, nvme=2)
    with Looking(polled(subject)) as looking:
        looking.look(5)
        assert told(looking.events) == {("expect/neuron", "node"), ("expect/nvme", "node")}
        subject.configure(ExpectSettings(nvme=2), 0)
        (ended,) = looking.look()
        assert (ended.code, ended.fields["recovered"]) == ("expect/neuron", True)
        machine.position = looking.position
    with Looking(polled(machine.expected()), machine.position) as looking:
        looking.look(5)
        (ended,) = looking.events
        assert (ended.code, ended.fields["recovered"]) == ("expect/nvme", True)


def test_the_instance_type_says_so(machine: Machine) -> None:
    machine.tree.machine("trn2.48xlarge")
    machine.neuron(15)
    machine.efa(16)
    assert machine.boots("boot-1") == {("expect/neuron", "node")}
    wanted = machine.subject.find_expectation("neuron")
    assert wanted is not None and wanted.reason == "instance type trn2.48xlarge"
    machine.neuron(1, first=15)
    assert machine.boots("boot-1") == set()


@pytest.mark.parametrize(
    ("profile", "action"), [("nvidia", Action.OBSERVE), ("hyperpod", Action.INSPECT)]
)
def test_an_adapter_less_than_the_type_has_is_shown_until_somebody_says_that_it_is_right(
    machine: Machine, profile: str, action: Action
) -> None:
    machine.tree.machine("p5.48xlarge")
    machine.efa(31)
    assert machine.boots("boot-1") == {("expect/efa_not_all", "node")}
    assert machine.boots("boot-2", efa=31) == set()
    assert load_catalog(profile).find_rule("expect/efa_not_all").action is action


def test_a_gpu_less_than_the_instance_type_has(tmp_path: Path) -> None:
    known = {"g7e.24xlarge": 4, "g7.12xlarge": 2, "gr6.8xlarge": 1, "g5g.metal": 2}
    found = {}
    for kind, gpus in known.items():
        machine = Machine(tmp_path / kind)
        machine.tree.machine(kind)
        for number in range(gpus):
            machine.tree.pci(f"0000:{number + 0x10:02x}:00.0", NVIDIA, 0x2BB5, 0x030200, "nvidia")
        whole = machine.boots("boot-1", nvml=False)
        machine.unplug(0x10)
        found[kind] = (whole, machine.boots("boot-2", nvml=False))
    assert found == {kind: (set(), {("expect/gpus", "node")}) for kind in known}


def test_how_many_efa_adapters_an_instance_has_was_said_at_its_launch(machine: Machine) -> None:
    machine.tree.machine("trn2.48xlarge")
    machine.neuron(16)
    assert machine.boots("boot-0", boots=0) == set()  # none: nobody wants to use them
    machine.efa(8)
    assert machine.boots("boot-1", boots=0) == {("expect/efa_not_all", "node")}
    assert machine.boots("boot-2", efa=8) == set()
    assert machine.boots("boot-3", efa=16) == {("expect/efa", "node")}


def test_a_type_that_nobody_knows_is_no_fault(machine: Machine) -> None:
    machine.tree.machine("trn9.48xlarge")
    machine.neuron(3)
    assert machine.boots("boot-1") == set()


def test_gpus_are_nvmls_to_tell_of_where_it_is_asked(machine: Machine) -> None:
    machine.tree.machine("p5.48xlarge")
    machine.tree.pci("0000:65:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    assert machine.boots("boot-1") == set()
    assert machine.says("gpus") == (8, True)
    assert machine.boots("boot-1", nvml=False) == {("expect/gpus", "node")}
    assert machine.boots("boot-2", nvml=False, gpus=1) == set()


# --- learning


def test_what_was_the_same_at_three_healthy_boots_is_expected(machine: Machine) -> None:
    machine.neuron(4)
    for number in (1, 2, 3):
        assert machine.boots(f"boot-{number}") == set()
        assert machine.boots(f"boot-{number}") == set()  # a restart of the daemon is no boot
        assert machine.says("neuron") == (4, number == 3)
    machine.unplug(3)
    assert machine.boots("boot-4") == {("expect/neuron", "node")}
    assert machine.boots("boot-5") == {
        ("expect/neuron", "node")
    }  # said again after a boot that did not help
    assert machine.says("neuron") == (4, True)  # however often


def test_fewer_than_a_number_that_nobody_confirmed(machine: Machine) -> None:
    machine.neuron(4)
    machine.boots("boot-1")
    machine.unplug(3)
    assert machine.boots("boot-2") == {("expect/fewer", "node")}
    assert machine.boots("boot-3") == {("expect/fewer", "node")}
    assert machine.boots("boot-4") == {
        ("expect/fewer", "node")
    }  # the third in a row that has three
    assert machine.says("neuron") == (3, True)
    assert machine.boots("boot-5") == set()


def test_more_than_was_learned_is_a_notice_and_is_learned(machine: Machine) -> None:
    machine.neuron(4)
    for number in (1, 2, 3):
        machine.boots(f"boot-{number}")
    machine.neuron(1, first=4)
    assert machine.boots("boot-4") == {("expect/grown", "node")}
    assert machine.says("neuron") == (4, True)
    machine.boots("boot-5")
    machine.boots("boot-6")
    assert machine.says("neuron") == (5, True)
    assert machine.boots("boot-7") == set()


def test_nothing_is_learned_of_an_unhealthy_node_or_too_early(machine: Machine) -> None:
    machine.neuron(4)
    machine.boots("boot-1", healthy=lambda: False)
    assert machine.says("neuron") is None
    assert not machine.subject.is_boot_counted
    machine.boots("boot-1", healthy_s=600.0)
    assert machine.says("neuron") is None
    machine.boots("boot-1", boots=0)
    assert machine.says("neuron") is None
    machine.boots("boot-1")
    assert machine.says("neuron") == (4, False)
    assert machine.subject.is_boot_counted


def test_another_machine_learns_for_itself(machine: Machine) -> None:
    """The disk was moved, the instance made larger, or the image copied."""
    machine.tree.machine("trn9.48xlarge")
    machine.tree.write("devices/virtual/dmi/id/board_asset_tag", "i-0123")
    machine.neuron(4)
    for number in (1, 2, 3):
        machine.boots(f"boot-{number}")
    machine.tree.write("devices/virtual/dmi/id/board_asset_tag", "i-4567")
    machine.unplug(3)
    assert machine.boots("boot-4") == set()
    assert machine.says("neuron") == (3, False)


def test_learning_by_itself() -> None:
    known = None
    for number, count in enumerate([8, 7, 8, 8, 8]):
        known = learn_count(known, count, f"boot-{number}", 3)
    assert known is not None and (
        known.count,
        known.boots,
        known.is_confirmed(3),
        known.is_confirmed(4),
    ) == (8, 3, True, False)
    assert learn_count(known, 7, "boot-9", 3).count == 8
    assert learn_count(LearnedCount(count=8, boots=1), 9, "b", 3) == LearnedCount(
        count=9, boots=1, boot="b"
    )
    assert not LearnedCount(count=8, boots=9).is_confirmed(0)


# --- a person


def test_a_person_confirms_what_is_here(machine: Machine) -> None:
    machine.tree.machine("trn2.48xlarge")
    machine.neuron(16)
    machine.subject = machine.expected(nvme=2)
    with Looking(polled(machine.subject)) as looking:
        looking.look(3)
        machine.unplug(15)
        looking.look()
        with pytest.raises(CountsNotSettled, match="Neuron devices: 15 so far"):
            machine.subject.confirm_counts("alice (uid 0)", "too early")
        assert told(looking.look(2)) == {("expect/neuron", "node")}
        assert machine.subject.confirm_counts("alice (uid 0)", "card 15 is out until Monday") == {
            "neuron": 15,
            "efa": 0,
            "nics": 0,
        }
        assert [event.fields["recovered"] for event in looking.look()] == [True]
        machine.position = looking.position
    wanted = machine.subject.find_expectation("neuron")
    assert wanted is not None and wanted.reason.startswith("confirmed by alice (uid 0) on 2")
    assert machine.boots("boot-2") == set()
    machine.neuron(1, first=15)
    assert machine.boots("boot-3") == {("expect/grown", "node")}
    assert machine.says("neuron") == (16, True)  # what she allowed was for a time
    machine.unplug(15)
    assert machine.boots("boot-3") == {("expect/neuron", "node")}


def test_more_than_a_person_confirmed_is_a_notice(machine: Machine) -> None:
    machine.neuron(4)
    machine.subject = machine.expected(boots=0)
    with Looking(polled(machine.subject)) as looking:
        looking.look(3)
        machine.subject.confirm_counts("alice", "as delivered")
        looking.look()
        machine.neuron(1, first=4)
        assert told(looking.look(3)) == {("expect/grown", "node")}
    assert machine.says("neuron") == (4, True)


def test_the_socket_shows_it_and_lets_a_person_confirm(machine: Machine) -> None:
    machine.neuron(15)
    subject = machine.expected(neuron=0, efa=2, kernel=("6.9",))
    stored: list[Batch] = []
    source = polled(subject)

    async def store(batch: Batch) -> None:
        stored.append(batch)

    routes = ExpectRoutes(subject, source, store)

    @web.middleware
    async def as_root(request: web.Request, handler: Handler) -> web.StreamResponse:
        request["peer"] = Peer(1, 0, frozenset())
        return await handler(request)

    async def ask(method: str, path: str) -> dict[str, Any]:
        app = web.Application(middlewares=[as_root])
        app.add_routes(routes.list_routes())
        async with (
            TestClient(TestServer(app)) as client,
            client.request(method, path, json={"reason": "as delivered"}) as response,
        ):
            answered: dict[str, Any] = await response.json()
            return answered

    with Looking(source) as looking:
        looking.look(3)
    shown = asyncio.run(ask("GET", "/v1/expect"))
    counts = {one["kind"]: one for one in shown["counts"]}
    assert (
        counts["neuron"]["found"],
        counts["neuron"]["expected"],
        counts["neuron"]["confirmed"],
    ) == (15, 15, False)
    assert counts["efa"]["source"] == "configuration: [expect] efa"
    assert counts["gpus"]["expected"] is None and "nvml" in counts["gpus"]["source"]
    assert {"name": "kernel", "found": None, "expected": ["6.9"]} in shown["versions"]
    shown = asyncio.run(ask("POST", "/v1/expect/confirm"))
    assert shown["confirmed"] == {"neuron": 15, "nics": 0, "nvme": 0}
    assert next(one for one in shown["counts"] if one["kind"] == "neuron")["confirmed"]
    (event,), position = stored[0].events, stored[0].position
    assert (event.code, event.fields["reason"]) == ("vitald/confirmed", "as delivered")
    assert "confirmed 15 Neuron devices: as delivered" in event.raw
    assert position is not None and "as delivered" in position.cursor, (
        "stored with the event that says so"
    )


# --- versions and instance types


def test_instance_types_that_make_no_sense() -> None:
    errors: list[str] = []
    tables: dict[str, object] = {
        "instance": {
            "a.large": {"gpus": 8},
            "b.large": {"gpu": 8},
            "c.large": {"efa": 0},
            "d.large": {"neuron": True},
        }
    }
    assert read_instances(tables, errors) == {"a.large": InstanceType(gpus=8)}
    assert [error.partition(": ")[2] for error in errors] == [
        "[instance.b.large]: gpu: unknown key, did you mean gpus?",
        "[instance.c.large]: efa: expected a number above 0, found 0",
        "[instance.d.large]: neuron: expected a number above 0, found True",
    ]


def test_versions_of_the_fleet(machine: Machine) -> None:
    machine.tree.module("nvidia", "550.54.15")
    machine.tree.module("neuron", "2.24.7.0")
    machine.tree.module("efa")  # the kernel's own has no version
    machine.proc.write("sys/kernel/osrelease", "6.8.0-1021-aws")
    fleet: dict[str, Any] = {
        "gpu_driver": ("570.1", "550.54.15"),
        "neuron_driver": ("2.30.2.0",),
        "efa_driver": ("2.13.0",),
        "kernel": ("6.8.0-1030-aws",),
    }
    assert machine.boots("boot-1", **fleet) == {
        ("expect/neuron_driver", "node"),
        ("expect/kernel", "node"),
    }
    assert machine.subject.versions == {
        "gpu_driver": "550.54.15",
        "neuron_driver": "2.24.7.0",
        "kernel": "6.8.0-1021-aws",
    }
    assert machine.boots("boot-1") == set()


def test_what_was_said_of_a_version_ends_when_the_configuration_no_longer_names_one(
    machine: Machine,
) -> None:
    machine.tree.module("nvidia", "550.54.15")
    machine.boots("boot-1", gpu_driver=("570.1",))
    machine.subject = machine.expected()
    with Looking(polled(machine.subject), machine.position) as looking:
        assert [(event.code, event.fields["recovered"]) for event in looking.look()] == [
            ("expect/gpu_driver", True)
        ]


def test_a_driver_that_is_not_loaded_has_no_version(machine: Machine) -> None:
    assert machine.boots("boot-1", gpu_driver=("570.1",), kernel=("6.8",)) == set()


def test_a_vbios_that_the_fleet_does_not_have() -> None:
    gpu, said = "0000:65:00.0", {}
    for may_have in ((), ("96.1", "96.2"), ("96.2",)):
        node = GpuNode(CATALOG, "boot-1", of_type=0, configured=0, vbios=may_have)
        events = node.process_answers(
            {gpu: {"values": {"uuid": "GPU-a", "vbios": "96.1", "name": "H100"}}}, {gpu}
        )
        said[may_have] = [event.code for event in events].count("nvml/vbios_unexpected")
    assert said == {(): 0, ("96.1", "96.2"): 0, ("96.2",): 1}


def test_the_site_says_how_many_are_enough(tmp_path: Path) -> None:
    """Then what is gone was taken out on purpose; an instance type or a habit is no such word."""
    machine = Machine(tmp_path)
    machine.neuron(15)
    machine.boots("boot-1")
    assert not machine.subject.has_all_expected("neuron")
    machine.boots("boot-1", neuron=16)
    assert not machine.subject.has_all_expected("neuron")
    machine.boots("boot-1", neuron=15)
    assert machine.subject.has_all_expected("neuron")
    assert not machine.subject.has_all_expected("efa", "nics")


def test_memory_that_makes_no_sense_stops_nothing(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"counts": []},
        {"counts": {"neuron": 5}},
        {"counts": {"neuron": {"count": "many"}}},
        {"counts": {"neuron": {"count": 16, "boots": "many", "by": 5, "more": 1}}},
        {"rdma": 5},
        {"rdma": [5]},
        {"machine": 5},
    ]
    wrong = []
    for number, memory in enumerate(cases):
        machine = Machine(tmp_path / str(number))
        machine.neuron(16)
        machine.position = Position("expect", "boot-1", json.dumps({"subject": memory}))
        said = machine.boots("boot-1")
        if said or machine.subject.counts.get("neuron") != 16:
            wrong.append((memory, said, machine.subject.counts))
    assert wrong == []
