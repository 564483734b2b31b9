"""Required network interfaces, over a tree that stands for /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clock import Clock
from tests.looking import Looking, polled, told
from tests.network_tree import NetworkTree
from vitald.collectors import polling
from vitald.collectors.inventory.settings import read_interfaces
from vitald.collectors.network.collector import KINDS, Network
from vitald.collectors.network.settings import NetworkSettings
from vitald.model import SourceState


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


@pytest.fixture
def tree(tmp_path: Path) -> NetworkTree:
    tree = NetworkTree(tmp_path)
    tree.ena(interface="ens5")
    return tree


def start(tree: NetworkTree, *names: str) -> Looking:
    return Looking(polled(Network(tree.root, NetworkSettings(), interfaces=names), *KINDS))


def poll_for(looking: Looking, clock: Clock, rounds: int) -> set[tuple[str, str]]:
    """The findings of so many rounds, half a minute apart, but for who is who."""
    events = []
    for _ in range(rounds):
        events += looking.look()
        clock.ahead += 30.0
    return told(events)


def test_an_interface_that_is_up(tree: NetworkTree, clock: Clock) -> None:
    with start(tree, "ens5") as looking:
        assert poll_for(looking, clock, 8) == set()
        assert looking.readings("node/ens5").values["interface_state"] == "up"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"carrier": 0, "operstate": "down"}, "no link"),
        ({"flags": "0x1002", "operstate": "down"}, "turned off"),
        ({"operstate": "dormant"}, "dormant"),
        ({"operstate": "lowerlayerdown"}, "lowerlayerdown"),
    ],
)
def test_an_interface_that_never_came_up_since_the_boot(
    tree: NetworkTree, clock: Clock, files: dict[str, object], state: str
) -> None:
    tree.net("ens5", **files)
    with start(tree, "ens5") as looking:
        assert poll_for(looking, clock, 4) == set()  # as while a node boots
        assert poll_for(looking, clock, 2) == {("net/expected_down", "node/ens5")}
        (event,) = (event for event in looking.events if event.code == "net/expected_down")
        assert event.fields["interface_state"] == state
        tree.net("ens5", carrier=1, flags="0x1003", operstate="up")
        over = [event for event in looking.look() if event.code == "net/expected_down"]
    assert [event.fields["recovered"] for event in over] == [True]


def test_an_interface_that_is_absent(tree: NetworkTree, clock: Clock) -> None:
    with start(tree, "bond0") as looking:
        assert poll_for(looking, clock, 6) == {("net/expected_down", "node/bond0")}
        assert looking.readings("node/bond0").values["interface_state"] == "absent"


def test_a_driver_that_does_not_say_its_state_is_believed_by_its_carrier(
    tree: NetworkTree, clock: Clock
) -> None:
    tree.net("ens5", operstate="unknown")
    with start(tree, "ens5") as looking:
        assert poll_for(looking, clock, 8) == set()


def test_what_cannot_be_read_is_not_down(tree: NetworkTree, clock: Clock) -> None:
    tree.net("ens5", flags="many")
    with start(tree, "ens5") as looking:
        assert poll_for(looking, clock, 8) == set()
        assert "interface_up" in looking.readings("node/ens5").missing


def test_without_adapters_the_required_interface_is_still_read(
    tmp_path: Path, clock: Clock
) -> None:
    with start(NetworkTree(tmp_path), "eth0") as looking:
        assert poll_for(looking, clock, 6) == {("net/expected_down", "node/eth0")}
        assert looking.last.state is SourceState.OK


def test_names_of_interfaces() -> None:
    assert read_interfaces(["ens5", "bond0.100"]) == ("ens5", "bond0.100")
    for name in ("..", "a/b", "eth0:1", "sixteen-letters-"):
        with pytest.raises(ValueError, match="names of network interfaces"):
            read_interfaces([name])
