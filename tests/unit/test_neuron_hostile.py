"""Neuron devices that do what they should not, and drivers that come, go and change their minds."""

from __future__ import annotations

import multiprocessing
import os
import pwd
from pathlib import Path

import pytest

from tests.looking import CATALOG, Looking, polled, told
from tests.neuron_tree import TRN2, NeuronTree
from tests.waiting import WAIT_S
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.neuron import layout
from vitald.collectors.neuron.collector import Neuron
from vitald.model.event import Trust
from vitald.model.source import Position, SourceState
from vitald.topology.neuron_locations import NeuronLocations
from vitald.topology.pci_inventory import PciInventory

ECC = "stats/hardware/sram_ecc_uncorrected"
HEALTH = "stats/hardware/health_status"


def watching(
    tree: NeuronTree,
    after: Position | None = None,
    *,
    places: NeuronLocations | None = None,
    boot_id: str = "boot-1",
) -> Looking:
    return Looking(
        polled(
            Neuron(tree.root, PciInventory(tree.root), places or NeuronLocations()), boot_id=boot_id
        ),
        after,
    )


def only(index: int, *codes: str) -> set[tuple[str, str]]:
    return {(f"neuron/{code}", f"neuron/{TRN2[index]}") for code in codes}


@pytest.fixture
def tree(tmp_path: Path) -> NeuronTree:
    return NeuronTree(tmp_path / "sys", TRN2[:4], machine="unknown")


@pytest.fixture
def places() -> NeuronLocations:
    """As the driver's lines said."""
    told = NeuronLocations()
    for index, address in enumerate(TRN2[:4]):
        told.record_location(index, address)
    return told


# --- the driver is loaded again


def reload(tree: NeuronTree) -> None:
    """The module's folder is another one, though all in it reads the same."""
    tree.remove("module/neuron")
    (tree.root / "module/another").mkdir()
    tree.module("neuron", tree.driver)


def test_what_still_holds_after_a_reload_is_said_again(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    """The driver's line at its start ends the finding: all that a reload repairs should be
    repaired.
    """
    tree.ecc(1, "mem_ecc_repairable_uncorrected", 1)
    with watching(tree, places=places) as node:
        assert told(node.look()) == only(1, "hbm_ecc_repairable")
        assert node.look(2) == []
        reload(tree)
        assert told(node.look()) == only(1, "hbm_ecc_repairable")
        assert node.look(2) == []
        position = node.position
    with watching(tree, position, places=places) as node:
        assert node.look(2) == [], "a restart of the daemon is no reload"


def test_counters_that_a_reload_begins_anew_are_told_from_zero(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    tree.count(1, 0, "hw_nc_ue_error", 2)
    tree.ecc(1, "sram_ecc_uncorrected", 2)
    with watching(tree, places=places) as node:
        assert told(node.look()) == only(1, "runtime_sram", "sram_ecc")
        reload(tree)
        tree.count(1, 0, "hw_nc_ue_error", 0)
        assert told(node.look()) == set(), "the card's own count is no new error"
        tree.count(1, 0, "hw_nc_ue_error", 1)
        assert told(node.look()) == only(1, "runtime_sram")


def test_after_a_reload_each_device_is_asked_anew_who_it_is(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    with watching(tree, places=places) as node:
        node.look()
        tree.put(0, "info/serial_number", tree.serial(1))
        tree.put(1, "info/serial_number", tree.serial(0))
        assert node.look() == [], "the serial number is asked of the card, so once"
        reload(tree)
        found = {
            (event.component.id, event.fields["serial"])
            for event in node.look()
            if event.code == "device/identity"
        }
        assert found == {(TRN2[0], tree.serial(1)), (TRN2[1], tree.serial(0))}


@pytest.mark.parametrize("placed", [True, False], ids=["placed", "not placed"])
def test_a_reload_is_no_loss(tree: NeuronTree, places: NeuronLocations, placed: bool) -> None:
    """Its devices are away for a moment, and that is announced with a flood of uevents."""
    with watching(tree, places=places if placed else None) as node:
        node.look()
        for index in range(4):
            tree.unprobe(index)
        tree.remove("module/neuron")
        for _ in range(6):
            node.source.poll_now()
            node.until(lambda _: True)
        tree.module("neuron", tree.driver)
        for index in range(4):
            tree.add(index)
        node.look(3)
        assert {code for code, _ in told(node.events)} <= {"neuron/driver_missing"}
        assert node.last.state is SourceState.OK


def test_nobody_is_missing_for_as_long_as_no_driver_is_loaded(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    with watching(tree, places=places) as node:
        node.look()
        tree.unload()
        assert told(node.look(5)) == {("neuron/driver_missing", "node")}
        assert "not loaded" in node.last.detail
        tree.module("neuron", tree.driver)
        for index in range(4):
            tree.add(index)
        assert told(node.look(5)) == set()
        assert node.last.state is SourceState.OK


def test_a_driver_that_comes_after_the_daemon_leaves_nobody_missing(tree: NeuronTree) -> None:
    tree.unload()
    with watching(tree) as node:
        node.look(2)
        tree.module("neuron", tree.driver)
        for index in range(4):
            tree.add(index)
        assert told(node.look(5)) == set()


def test_a_driver_that_is_being_loaded_at_the_start_is_no_healthy_node(tree: NeuronTree) -> None:
    tree.write("module/neuron/initstate", "coming")
    with watching(tree) as node:
        assert node.look(2) == []
        assert "is being loaded" in node.last.detail


def test_who_it_is_outlasts_the_driver(tree: NeuronTree, places: NeuronLocations) -> None:
    with watching(tree, places=places) as node:
        node.look()
        tree.write("module/neuron/initstate", "going")
        node.look()
        tree.write("module/neuron/initstate", "live")
        tree.unplug(2)
        (event,) = node.look(3)
        assert (event.code, event.fields["pci"], event.fields["serial"]) == (
            "neuron/missing",
            TRN2[2],
            tree.serial(2),
        )
        assert "Trainium2 neuron2" in event.raw


def test_a_driver_of_ones_own_is_known_by_its_numbers() -> None:
    expected: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("2.30.2.0-dirty", "2.30.2.0+build7", "2.30.2.0 (custom)"), (2, 30, 2, 0)),
        **dict.fromkeys(("", "unknown", "v", "\u00b2.3", ".."), ()),
    }
    assert {version: layout.parse_version(version) for version in expected} == expected


# --- cards that are another driver's


def test_cards_that_were_given_to_a_virtual_machine_are_not_missing(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    with watching(tree, places=places) as node:
        node.look()
        for index in range(4):
            tree.unprobe(index)
            folder = f"devices/pci{TRN2[index][:7]}/{TRN2[index]}"
            (tree.root / "bus/pci/drivers/vfio-pci").mkdir(parents=True, exist_ok=True)
            tree.link(f"{folder}/driver", "bus/pci/drivers/vfio-pci")
            assert node.look(4) == [], f"after {index + 1} cards"
            assert node.last.state is (SourceState.ABSENT if index == 3 else SourceState.OK)


# --- resets


def test_what_the_firmware_says_during_a_reset_is_nothing(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    with watching(tree, places=places) as node:
        node.look()
        tree.reset(1, 0)
        tree.put(1, f"{HEALTH}/unhealthy_components", "device_unreachable")
        assert node.look(2) == []
        tree.put(1, f"{HEALTH}/unhealthy_components", "hbm")
        assert node.look(2) == []
        tree.reset(1, 1)
        assert told(node.look()) == only(1, "unhealthy")


def test_a_reset_that_begins_in_the_middle_of_a_look(
    tree: NeuronTree, places: NeuronLocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.ecc(1, "mem_ecc_repairable_uncorrected", 1)
    with watching(tree, places=places) as node:
        assert told(node.look()) == only(1, "hbm_ecc_repairable")
        from vitald import small_files

        real = small_files.read_attribute

        def attribute(path: Path | str) -> str:
            if str(path).endswith(f"neuron1/{ECC}"):
                tree.reset(1, 0)
                tree.put(1, f"{HEALTH}/unhealthy_components", "device_unreachable")
            return real(path)

        monkeypatch.setattr(small_files, "read_attribute", attribute)
        assert node.look(2) == []
        assert "hbm_ecc_repairable" not in node.readings(f"neuron/{TRN2[1]}").values


def test_a_reset_that_nobody_tells_of_repairs_nothing(
    tmp_path: Path, places: NeuronLocations
) -> None:
    """Drivers before 2.30 tell root alone."""
    tree = NeuronTree(tmp_path / "old", TRN2[:4], driver="2.24.7.0", machine="unknown")
    tree.remove(tree.path(1, "reset"))
    (tree.root / tree.path(1, "reset")).mkdir()  # which nobody can read
    tree.ecc(1, "mem_ecc_repairable_uncorrected", 1)
    with watching(tree, places=places) as node:
        assert told(node.look()) == only(1, "hbm_ecc_repairable")
        tree.ecc(1, "mem_ecc_repairable_uncorrected", 0)
        assert node.look() == []
        tree.ecc(1, "mem_ecc_repairable_uncorrected", 1)
        assert node.look() == []
        reload(tree)
        tree.ecc(1, "mem_ecc_repairable_uncorrected", 0)
        assert [event.fields.get("recovered") for event in node.look()] == [True]


# --- values that are none


def test_an_odd_value_of_no_weight_blinds_nobody(tree: NeuronTree, places: NeuronLocations) -> None:
    files = (
        "neuron_core0/stats/status/timeout/total",
        f"{HEALTH}/healthcheck_heartbeat",
        "stats/power/utilization",
    )
    huge = str(2**64)
    odd = ("-1", "-9223372036854775808", "9" * 400, "9" * 5000, "nan", "1e3", "\u0663", "1_000")
    wrong = []
    with watching(tree, places=places) as node:
        node.look()
        for value in (*odd, huge):
            for file in files:
                tree.put(1, file, value)
            found = node.look(2)
            state = node.last.state
            for file in files:
                tree.put(1, file, "0")
            said = {code for code, _ in told(found + node.look(2))}
            # whoever counts that far has counted
            possible = {"neuron/timeout", "neuron/timeouts"} if value == huge else set()
            if state is not SourceState.OK or said - possible:
                wrong.append((value[:30], state, said))
    assert wrong == []


def test_an_odd_count_of_errors_is_unknown(tree: NeuronTree, places: NeuronLocations) -> None:
    wrong = []
    with watching(tree, places=places) as node:
        node.look()
        for value in ("-1", "9" * 400, "nan", "0x", "1 2", "", "-"):
            tree.put(1, ECC, value)
            found = node.look(2)
            unknown = node.readings(f"neuron/{TRN2[1]}").unknown_reason
            tree.put(1, ECC, "0")
            found += node.look(2)
            if found or not unknown or node.last.state is not SourceState.OK:
                wrong.append((value[:30], found, unknown, node.last.state))
    assert wrong == []


def test_files_of_no_weight_may_be_of_any_kind(tree: NeuronTree, places: NeuronLocations) -> None:
    with watching(tree, places=places) as node:
        node.look()
        for odd in (
            "stats/memory_usage/host_mem",
            "stats/power/utilization",
            "info/architecture/device_name",
            "fw_api_version",
        ):
            tree.remove(tree.path(1, odd))
            (tree.root / tree.path(1, odd)).symlink_to(odd.rpartition("/")[2])  # to itself: ELOOP
        assert node.look(2) == []
        assert node.last.state is SourceState.OK, node.last.detail


@pytest.mark.parametrize(
    "serial", ["0" * 16, "f" * 16, "", "1234"], ids=["zeros", "ones", "none", "one for all"]
)
def test_serial_numbers_that_are_none(
    tree: NeuronTree, places: NeuronLocations, serial: str
) -> None:
    for index in range(4):
        tree.put(index, "info/serial_number", serial)
    tree.ecc(2, "sram_ecc_uncorrected", 1)
    with watching(tree, places=places) as node:
        assert told(node.look()) == only(2, "sram_ecc")
        assert node.look(4) == []
        assert [event for event in node.events if event.code == "device/identity"] == []


# --- routing


def test_what_is_wrong_follows_the_card_when_the_driver_numbers_anew(
    tree: NeuronTree, places: NeuronLocations
) -> None:
    tree.ecc(3, "mem_ecc_repairable_uncorrected", 1)
    with watching(tree, places=places) as node:
        assert told(node.look()) == only(3, "hbm_ecc_repairable")
        position = node.position
    other = NeuronLocations()
    for index, address in enumerate(reversed(TRN2[:4])):
        other.record_location(index, address)
    with watching(tree, position, places=other, boot_id="boot-2") as node:
        events = node.look()
        assert told(events) == only(0, "hbm_ecc_repairable")
        (event,) = [event for event in events if event.code == "neuron/hbm_ecc_repairable"]
        assert (event.fields["serial"], event.fields["index"]) == (tree.serial(3), "3")


def test_a_place_that_is_learnt_late_loses_no_finding(tree: NeuronTree) -> None:
    tree.ecc(3, "mem_ecc_repairable_uncorrected", 1)
    places = NeuronLocations()
    with watching(tree, places=places) as node:
        assert told(node.look()) == {("neuron/hbm_ecc_repairable", "neuron/3")}
        for index, address in enumerate(TRN2[:4]):
            places.record_location(index, address)
        assert told(node.look()) == only(3, "hbm_ecc_repairable")
        assert node.look(3) == []


def test_a_drill_moves_no_device(places: NeuronLocations) -> None:
    reader = Interpreter(CATALOG, DrillRegistry(), None, userspace="ignore", places=places)
    for device, now, facility in ((2, 100.0, 1), (3, 200.0, 1)):
        line = (
            f"neuron:neuron_pci_get_device_id_v3: ** BDF: 00:1b.0 => nd[{device}] (routing id: 12)"
        )
        if device == 3:
            reader.drills.announce_drill(line, now, 60.0)
        sighting = reader.parse_record(line.encode())
        assert sighting is not None
        event = reader.make_event(
            sighting, line.encode(), facility, identity=line, time=now, boot_id="boot-1", usec=None
        )
        assert event.trust is (Trust.ANNOUNCED if device == 3 else Trust.UNTRUSTED)
        assert places.find_address(device) == TRN2[device]


# --- as an ordinary user


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("driver", ["2.24.7.0", "2.30.2.0"])
def test_an_ordinary_user_sees_a_healthy_node_and_its_faults(
    tmp_path: Path, places: NeuronLocations, driver: str
) -> None:
    tree = NeuronTree(tmp_path / "sys", TRN2[:2], driver=driver, machine="unknown")
    tree.ecc(1, "sram_ecc_uncorrected", 1)
    for index in range(2):
        (tree.root / tree.path(index, "reset")).chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o011)

    def look_at_it() -> None:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
        with watching(tree, places=places) as node:
            assert told(node.look(3)) == only(1, "sram_ecc")
            assert (node.last.state, node.last.detail) == (SourceState.OK, "")
            assert "EACCES" in node.readings(f"neuron/{TRN2[0]}").missing["reset_state"]

    other = multiprocessing.get_context("fork").Process(target=look_at_it)
    other.start()
    other.join(WAIT_S)
    assert other.exitcode == 0
