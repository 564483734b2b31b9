"""Neuron devices over fake trees: the documented finding on the right device, and none where all is
well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.looking import CATALOG, Looking, polled, told
from tests.neuron_tree import TRN2, NeuronTree
from vitald.collectors import polling as polled_module
from vitald.collectors.neuron.collector import Neuron
from vitald.collectors.polling import PollingSource
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.model.source import Position, SourceState
from vitald.topology.neuron_locations import NeuronLocations
from vitald.topology.pci_inventory import PciInventory


class Ahead:
    """A clock that is so many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return time.time() + self.seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.seconds


def watching(
    tree: NeuronTree,
    after: Position | None = None,
    *,
    places: NeuronLocations | None = None,
    boot_id: str = "boot-1",
) -> Looking:
    subject = Neuron(tree.root, PciInventory(tree.root), places or NeuronLocations())
    return Looking(polled(subject, "neuron", boot_id=boot_id), after)


@pytest.fixture
def tree(tmp_path: Path) -> NeuronTree:
    return NeuronTree(tmp_path / "sys")


def test_a_healthy_machine_says_who_its_devices_are_and_nothing_else(tree: NeuronTree) -> None:
    with watching(tree) as node:
        events = node.look(3)
        assert {event.code for event in events} == {"device/identity"}
        assert {(event.component.id, event.fields["serial"]) for event in events} == {
            (address, tree.serial(index)) for index, address in enumerate(TRN2)
        }
        assert node.last.state is SourceState.OK
        one = node.readings(f"neuron/{TRN2[3]}")
        assert (one.values["name"], one.values["cores"], one.values["sram_ecc_uncorrected"]) == (
            "Trainium2",
            8.0,
            0.0,
        )
        assert one.values["power_utilization_ratio"] == 0.325
        assert one.values["memory_used_bytes"] == 8 << 20


def says(word: str) -> Callable[[NeuronTree], None]:
    return lambda tree: tree.put(3, "stats/hardware/health_status/unhealthy_components", word)


FAULTS: list[tuple[str, Callable[[NeuronTree], None], set[str]]] = [
    ("sram", lambda tree: tree.ecc(3, "sram_ecc_uncorrected", 1), {"sram_ecc"}),
    ("hbm", lambda tree: tree.ecc(3, "mem_ecc_uncorrected", 2), {"hbm_ecc"}),
    (
        "repairable",
        lambda tree: tree.ecc(3, "mem_ecc_repairable_uncorrected", 1),
        {"hbm_ecc_repairable"},
    ),
    ("lost", lambda tree: tree.lose(3), {"lost"}),
    ("not probed", lambda tree: tree.unprobe(3), {"not_initialised"}),
    ("unplugged", lambda tree: tree.unplug(3), {"missing"}),
    ("reset failed", lambda tree: tree.reset(3, 2), {"reset_invalid"}),
    *(
        (f"{name} {count}", lambda tree, n=name, c=count: tree.count(3, 5, n, c), codes)
        for name, count, codes in (
            ("hw_nc_ue_error", 1, {"runtime_sram"}),
            ("hw_hbm_ue_error", 1, {"runtime_hbm"}),
            ("hw_repairable_hbm_ue_error", 1, {"runtime_repairable"}),
            ("hw_dma_abort_error", 1, {"dma_abort"}),
            ("hw_dma_abort_error", 2, {"dma_abort", "dma_aborts"}),
            ("hw_error", 1, {"hw_error"}),
            ("hw_collectives_error", 1, {"collectives"}),
            ("timeout", 1, {"timeout"}),
            ("exec_bad_input", 9, set()),  # the program's own
        )
    ),
    *(
        (f"health {word}", says(word), {code} if code else set())
        for code, words in {
            "unhealthy": (
                *("sram", "hbm,axi_fabric", "axi_fabric", "link_host", "link_intraserver"),
                *("firmware_service_api", "firmware_service_processor"),
            ),
            "unhealthy_outside": (
                *("link_switch", "link_efa", "link_interserver", "link_efa, link_switch"),
            ),
            "unhealthy_unlisted": ("something_new", "no faults"),
            "unreachable": ("device_unreachable",),
            "": ("none", "OK", "None\n", " "),
        }.items()
        for word in words
    ),
]


def test_each_fault_is_told_of_its_device_alone(tmp_path: Path) -> None:
    """Whether it comes while the device is watched or stands when the daemon starts."""
    wrong = []
    for number, (title, fault, codes) in enumerate(FAULTS):
        tree = NeuronTree(tmp_path / str(number))
        expected = [(f"neuron/{code}", f"neuron/{TRN2[3]}", TRN2[3], "3") for code in sorted(codes)]
        for seen_healthy in (True, False):
            with watching(tree) as node:
                if seen_healthy:
                    node.look()
                    fault(tree)
                # a list: each is said once
                found = sorted(
                    (event.code, event.component.name, event.fields["pci"], event.fields["index"])
                    for event in node.look(4)
                    if event.kind != "device"
                )
                unnamed = [
                    event.code
                    for event in node.events
                    if event.fields.get("serial") != tree.serial(3)
                    and event.kind != "device"
                    and (seen_healthy or codes.isdisjoint({"lost", "not_initialised", "missing"}))
                ]
            if found != expected or unnamed:
                wrong.append((title, seen_healthy, found, unnamed))
    assert wrong == []


@pytest.mark.parametrize(
    ("family", "driver", "count"),
    [
        *(("Trn1", "2.24.7.0", 1), ("Inf2", "2.30.2.0", 12)),
        *(("Trn2", "2.24.7.0", 16), ("Trn3", "2.30.2.0", 16)),
    ],
)
def test_every_family_is_healthy_when_it_is(
    tmp_path: Path, family: str, driver: str, count: int
) -> None:
    addresses = [f"0000:{0x10 + index:02x}:1b.0" for index in range(count)]
    tree = NeuronTree(
        tmp_path / "sys", addresses, family=family, driver=driver, machine="inf2.unknown"
    )
    with watching(tree) as node:
        assert told(node.look(4)) == set()
        assert node.last.state is SourceState.OK, node.last.detail
        assert len(node.last.readings) == count + 1  # and the node's


def test_what_is_asked_for_where_the_firmware_goes_on_naming_a_part(
    tree: NeuronTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        "hbm": "neuron/unhealthy_confirmed",
        "axi_fabric,link_efa": "neuron/unhealthy_confirmed",
        "firmware_service_api": "neuron/unhealthy_restart",
        "link_host": "neuron/unhealthy_restart",
        "link_efa": None,
        "something_new": None,
    }
    with watching(tree) as node:
        node.look()
        for index, word in enumerate(expected):
            tree.put(index, "stats/hardware/health_status/unhealthy_components", word)
        node.look()
        monkeypatch.setattr(polled_module, "time", Ahead(61.0))
        assert told(node.look()) == {
            (code, f"neuron/{TRN2[index]}") for index, code in enumerate(expected.values()) if code
        }
    assert {
        name: CATALOG.find_rule(f"neuron/unhealthy_{name}").action.value
        for name in ("confirmed", "restart", "unlisted")
    } == {"confirmed": "replace_node", "restart": "reboot_node", "unlisted": "inspect"}


@pytest.mark.parametrize("driver", ["2.14.5.0", "2.24.13.0", ""])
def test_inferentia_1_has_no_error_counters_and_is_well(tmp_path: Path, driver: str) -> None:
    addresses = [f"0000:00:{0x1C + index:02x}.0" for index in range(4)]
    tree = NeuronTree(
        tmp_path / "sys", addresses, family="Inf1", driver=driver, machine="inf1.6xlarge"
    )
    with watching(tree) as node:
        assert told(node.look(4)) == set()
        assert node.last.state is SourceState.OK, node.last.detail
        assert "no such file" in node.readings("neuron/2").missing["sram_ecc_uncorrected"]
        tree.count(2, 3, "hw_nc_ue_error", 1)
        assert told(node.look()) == {("neuron/runtime_sram", "neuron/2")}


def test_inferentia_1_whose_counters_cannot_be_read_is_not_well(tmp_path: Path) -> None:
    """It has no error counters of its own, so those of the runtime are all that there is."""
    tree = NeuronTree(
        tmp_path / "sys", TRN2[:4], family="Inf1", driver="2.21.40.0", machine="inf1.24xlarge"
    )
    for core in range(4):
        tree.remove(tree.path(2, f"neuron_core{core}"))
    with watching(tree) as node:
        assert told(node.look()) == set()
        assert node.last.state is SourceState.FAILED
        assert node.readings("neuron/2").unknown_reason == "hw_error: the driver shows no cores"
        assert not node.readings("neuron/1").unknown_reason


def test_a_driver_that_moved_the_error_counters_leaves_the_other_checks_alive(
    tree: NeuronTree,
) -> None:
    with watching(tree) as node:
        node.look(2)
    for index in range(len(TRN2)):
        tree.reorganise(index)
    with watching(tree, node.position, boot_id="boot-2") as node:
        assert told(node.look(2)) == {("neuron/ecc_not_observable", "node")}
        assert node.last.state is SourceState.OK, node.last.detail
        one = node.readings(f"neuron/{TRN2[0]}")
        assert "stats/elsewhere/sram_ecc_uncorrected" in one.missing["sram_ecc_uncorrected"]
        assert (
            one.values["ecc_observable"],
            node.readings("node").values["devices_without_ecc"],
        ) == (0.0, 16.0)
        tree.count(3, 5, "hw_nc_ue_error", 1)
        tree.reset(5, 2)
        assert told(node.look()) == {
            ("neuron/runtime_sram", f"neuron/{TRN2[3]}"),
            ("neuron/reset_invalid", f"neuron/{TRN2[5]}"),
        }
        tree.lose_link(7)
        assert told(node.look()) == {("neuron/lost", f"neuron/{TRN2[7]}")}
    for index in range(len(TRN2)):
        tree.remove(tree.path(index, "stats/elsewhere"))
        tree.add_counters(index)
    with watching(tree, node.position, boot_id="boot-2") as node:
        recovered = [event.code for event in node.look(2) if event.fields.get("recovered")]
        assert "neuron/ecc_not_observable" in recovered


def test_a_driver_that_moved_the_serial_number_too_makes_no_device_missing(
    tree: NeuronTree,
) -> None:
    with watching(tree) as node:
        node.look(2)
    for index in range(len(TRN2)):
        tree.reorganise(index)
        tree.remove(tree.path(index, "info/serial_number"))
    with watching(tree, node.position, boot_id="boot-2") as node:
        assert told(node.look(5)) == {("neuron/ecc_not_observable", "node")}


def test_a_counter_that_is_in_its_place_and_holds_no_number_is_no_moved_file(
    tree: NeuronTree,
) -> None:
    tree.module("neuron", "2.31.7.0")
    tree.put(0, "stats/hardware/sram_ecc_uncorrected", "many")
    with watching(tree) as node:
        node.look(2)
        assert node.readings(f"neuron/{TRN2[0]}").unknown_reason
        assert node.last.state is SourceState.FAILED


def test_a_reset_is_no_error_and_no_repair(tree: NeuronTree) -> None:
    tree.ecc(2, "sram_ecc_uncorrected", 4)
    tree.ecc(2, "mem_ecc_repairable_uncorrected", 1)
    with watching(tree) as node:
        assert told(node.look()) == {
            ("neuron/sram_ecc", f"neuron/{TRN2[2]}"),
            ("neuron/hbm_ecc_repairable", f"neuron/{TRN2[2]}"),
        }
        tree.reset(2, 0)
        assert node.look(2) == []
        assert "being reset" in node.readings(f"neuron/{TRN2[2]}").missing["sram_ecc_uncorrected"]
        assert node.last.state is SourceState.OK
        tree.ecc(2, "sram_ecc_uncorrected", 4)
        tree.ecc(2, "mem_ecc_repairable_uncorrected", 1)
        tree.reset(2, 1)
        assert node.look(2) == []
        tree.ecc(2, "sram_ecc_uncorrected", 0)  # read between the reset and its end
        assert node.look() == []
        tree.ecc(2, "sram_ecc_uncorrected", 4)
        assert node.look() == []
        tree.ecc(2, "sram_ecc_uncorrected", 5)
        assert [(event.code, event.fields["rise"]) for event in node.look()] == [
            ("neuron/sram_ecc", 1)
        ]


def test_a_reset_that_does_not_end_is_told(
    tree: NeuronTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(tree) as node:
        node.look()
        tree.reset(3, 0)
        for ahead, expected in ((0.0, set()), (290.0, set()), (301.0, {"neuron/reset_lasts"})):
            monkeypatch.setattr(polled_module, "time", Ahead(ahead))
            assert told(node.look()) == {(code, f"neuron/{TRN2[3]}") for code in expected}
        assert node.last.state is SourceState.OK  # it was well before


def test_whoever_may_not_read_reset_sees_it_by_the_firmware(tree: NeuronTree) -> None:
    """The file is root's alone; the service is an ordinary user. Here it is a folder, which root
    cannot read either.
    """
    tree.remove(tree.path(1, "reset"))
    (tree.root / tree.path(1, "reset")).mkdir()
    with watching(tree) as node:
        node.look()
        tree.put(1, "fw_api_version", "busy")
        tree.ecc(1, "sram_ecc_uncorrected", 0)
        assert node.look() == []
        one = node.readings(f"neuron/{TRN2[1]}")
        assert one.values["resetting"] == 1.0
        assert "sram_ecc_uncorrected" not in one.values


def test_counters_that_shrink_are_no_errors(tree: NeuronTree) -> None:
    """From 2.30 they are sums over the processes that hold the device."""
    tree.count(0, 1, "hw_collectives_error", 5)
    with watching(tree) as node:
        assert len([event for event in node.look() if event.kind == "neuron"]) == 1
        tree.count(0, 1, "hw_collectives_error", 3)
        assert node.look() == []
        tree.count(0, 1, "hw_collectives_error", 4)
        (event,) = node.look()
        assert (event.fields["rise"], event.fields["cores"]) == (1, [1])


def test_a_restart_tells_nothing_twice(tree: NeuronTree) -> None:
    tree.ecc(4, "mem_ecc_uncorrected", 2)
    tree.ecc(5, "mem_ecc_repairable_uncorrected", 1)
    tree.count(6, 0, "hw_dma_abort_error", 2)
    tree.unplug(7)
    with watching(tree) as node:
        first = told(node.look(4))
        assert len(first) == 5
        position = node.position
    with watching(tree, position) as node:
        assert node.look(4) == []
        position = node.position
    tree.ecc(5, "mem_ecc_repairable_uncorrected", 0)
    tree.count(6, 0, "hw_dma_abort_error", 0)
    with watching(
        tree, position, boot_id="boot-2"
    ) as node:  # what outlived the reboot is the same error; what is still away is said again
        assert told(node.look(4)) == {("neuron/missing", f"neuron/{TRN2[7]}")}


def test_a_device_that_is_missing_was_here_before_and_is_found_again(tmp_path: Path) -> None:
    addresses = [f"0000:{0x20 + index:02x}:00.0" for index in range(4)]
    tree = NeuronTree(tmp_path / "sys", addresses, machine="unknown")
    places = NeuronLocations()
    for index, address in enumerate(addresses):
        places.record_location(index, address)
    with watching(tree, places=places) as node:
        node.look()
        tree.unplug(2)
        assert node.look(2) == [], (
            "a driver that is loaded again takes its devices away for a moment"
        )
        (event,) = node.look()
        assert (event.code, event.component.id, event.fields["serial"]) == (
            "neuron/missing",
            addresses[2],
            tree.serial(2),
        )
        position = node.position
    with watching(tree, position, boot_id="boot-2") as node:
        assert told(node.look(4)) == {("neuron/missing", f"neuron/{addresses[2]}")}, (
            "a boot is no excuse"
        )
        tree.add(2)
        (event,) = [event for event in node.look() if event.kind == "neuron"]
        assert event.fields["recovered"] is True


def test_a_device_that_the_machine_should_have_comes_back(tree: NeuronTree) -> None:
    tree.unplug(2)
    with watching(tree) as node:
        assert told(node.look(4)) == {("neuron/missing", f"neuron/{TRN2[2]}")}
        tree.add(2)
        (event,) = [event for event in node.look(2) if event.kind == "neuron"]
        assert (event.code, event.fields["recovered"]) == ("neuron/missing", True)


def test_a_device_that_the_site_gave_up_is_not_missing_any_more(tree: NeuronTree) -> None:
    enough = [False]
    subject = Neuron(tree.root, PciInventory(tree.root), NeuronLocations(), lambda: enough[0])
    source = PollingSource(
        subject, CATALOG, "boot-1", every_s=60.0, timeout_s=5.0, has_enough=lambda: enough[0]
    )
    with Looking(source) as node:
        node.look()
        tree.unplug(2)
        assert told(node.look(4)) == {("neuron/missing", f"neuron/{TRN2[2]}")}
        enough[0] = True
        (event,) = node.look(2)
        assert (event.code, event.fields["recovered"]) == ("neuron/missing", True)
        assert node.look(3) == []
        assert f"neuron/{TRN2[2]}" not in {one.component.name for one in node.last.readings}


def test_files_in_unknown_places_mean_nobody_knows(tree: NeuronTree) -> None:
    (tree.root / tree.path(0, "stats")).rename(tree.root / tree.path(0, "telemetry"))
    tree.put(0, "telemetry/hardware/sram_ecc_uncorrected", 3)
    with watching(tree) as node:
        assert told(node.look(3)) == set()
        assert node.last.state is SourceState.FAILED
        assert (
            "telemetry/hardware/sram_ecc_uncorrected, a layout that is not known here"
            in node.readings(f"neuron/{TRN2[0]}").unknown_reason
        )
        assert not node.readings(f"neuron/{TRN2[1]}").unknown_reason


def test_a_driver_that_is_not_loaded_says_nothing_of_the_cards(tree: NeuronTree) -> None:
    with watching(tree) as node:
        node.look()
        tree.unload()
        assert told(node.look(4)) == {("neuron/driver_missing", "node")}
        assert node.last.state is SourceState.FAILED


def test_a_driver_that_comes_or_goes_is_not_read(tree: NeuronTree) -> None:
    with watching(tree) as node:
        node.look()
        tree.write("module/neuron/initstate", "going")
        tree.hang(tree.path(0, "stats/hardware/sram_ecc_uncorrected"))
        assert node.look(4) == []
        assert "loaded or unloaded" in node.last.detail


def test_old_drivers_mix_errors_of_new_firmware(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path / "sys", driver="2.24.7.0")
    tree.ecc(0, "mem_ecc_uncorrected", 3 * 4096)
    with watching(tree) as node:
        assert told(node.look()) == {("neuron/hbm_ecc_unclear", f"neuron/{TRN2[0]}")}


def test_a_lost_card_is_not_a_thousand_errors_even_where_its_place_is_unknown(
    tmp_path: Path,
) -> None:
    addresses = [f"0000:{0x20 + index:02x}:00.0" for index in range(4)]
    tree = NeuronTree(tmp_path / "sys", addresses, machine="unknown")
    tree.lose(1)
    with watching(tree) as node:
        assert told(node.look()) == {("neuron/lost", "neuron/1")}
        assert node.readings("neuron/1").values.keys() <= {"lost", "initialised", "absent", "name"}


@pytest.mark.parametrize(
    ("machine", "counter"),
    [
        ("trn2.48xlarge", "sram_ecc_uncorrected"),
        ("unknown", "hbm_ecc_uncorrected"),
        ("trn2.48xlarge", "hbm_ecc_repairable"),
    ],
)
def test_a_card_that_is_lost_while_it_is_read_has_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, counter: str
) -> None:
    """It leaves the bus between two of its counters: what the second reads is no error."""
    addresses = [f"0000:{0x20 + index:02x}:00.0" for index in range(4)]
    if machine != "unknown":
        addresses = TRN2
    tree = NeuronTree(tmp_path / "sys", addresses, machine=machine)
    read_number = Files.read_number

    def lose_after(files: Files, look: RawReadings, name: str, path: Path | str) -> float | None:
        value = read_number(files, look, name, path)
        if name == counter and "neuron1/" in str(path):
            tree.lose(1)
        return value

    with watching(tree) as node:
        assert told(node.look()) == set()
        monkeypatch.setattr(Files, "read_number", lose_after)
        found = told(node.look()) | told(node.look())
        assert {code for code, _ in found} == {"neuron/lost"}


def test_a_count_that_a_lost_card_read_is_not_remembered(
    tree: NeuronTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is back without a new driver: its true count is less than what it read while it fell."""
    config = next(tree.root.glob(f"devices/*/{TRN2[1]}/config"))
    answering = config.read_bytes()
    read_number = Files.read_number

    def lose_before(files: Files, raw: RawReadings, name: str, path: Path | str) -> float | None:
        if name == "hbm_ecc_repairable" and "neuron1/" in str(path):
            tree.lose_link(1)
            tree.ecc(1, "mem_ecc_repairable_uncorrected", 60)
        return read_number(files, raw, name, path)

    with watching(tree) as node:
        assert told(node.look()) == set()
        with monkeypatch.context() as patched:
            patched.setattr(Files, "read_number", lose_before)
            assert {code for code, _ in told(node.look())} == {"neuron/lost"}
        config.write_bytes(answering)
        tree.ecc(1, "mem_ecc_repairable_uncorrected", 0)
        node.look(2)
        assert node.readings(f"neuron/{TRN2[1]}").values["hbm_ecc_repairable"] == 0.0


def test_what_a_card_reads_that_was_silent_for_a_moment_is_no_reading(
    tree: NeuronTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its link is trained anew while it is read: it answers again a tenth of a second later."""
    config = next(tree.root.glob(f"devices/*/{TRN2[1]}/config"))
    answering = config.read_bytes()
    read_number = Files.read_number
    silent: list[str] = []

    def break_link(files: Files, look: RawReadings, name: str, path: Path | str) -> float | None:
        if name == "hbm_ecc_uncorrected" and "neuron1/" in str(path):
            silent.append(name)
            tree.lose_link(1)
            tree.ecc(1, "mem_ecc_uncorrected", 60)
        return read_number(files, look, name, path)

    def answer_again(seconds: float) -> None:
        config.write_bytes(answering)

    with watching(tree) as node:
        assert told(node.look()) == set()
        monkeypatch.setattr(Files, "read_number", break_link)
        monkeypatch.setattr("vitald.collectors.neuron.device.time.sleep", answer_again)
        assert told(node.look()) == set()
        assert silent == ["hbm_ecc_uncorrected"]
        silenced = node.readings(f"neuron/{TRN2[1]}")
        assert "hbm_ecc_uncorrected" not in silenced.values
        assert silenced.unknown_reason == "the device did not answer while it was read"
        monkeypatch.setattr(Files, "read_number", read_number)
        tree.ecc(1, "mem_ecc_uncorrected", 0)
        assert told(node.look()) == set()
        assert node.readings(f"neuron/{TRN2[1]}").unknown_reason == ""


def test_fewer_devices_than_functions_where_no_place_is_known(tmp_path: Path) -> None:
    addresses = [f"0000:{0x20 + index:02x}:00.0" for index in range(4)]
    tree = NeuronTree(tmp_path / "sys", addresses, machine="unknown")
    tree.unprobe(1)
    with watching(tree) as node:
        assert told(node.look()) == {("neuron/fewer", "node")}


def test_a_look_that_hangs_delays_nobody_and_is_told(tree: NeuronTree) -> None:
    with watching(tree) as node:
        node.look()
        node.expect_hang()
        tree.hang(tree.path(9, "stats/hardware/mem_ecc_uncorrected"))
        tree.ecc(10, "sram_ecc_uncorrected", 1)
        assert told(node.look()) == {("neuron/sram_ecc", f"neuron/{TRN2[10]}")}
        batch = node.until(lambda batch: any(event.code == "neuron/hung" for event in batch.events))
        assert [event.component.id for event in batch.events] == [TRN2[9]]
        assert (batch.state, f"neuron/{TRN2[9]}: a read has not returned" in batch.detail) == (
            SourceState.FAILED,
            True,
        )
        assert node.look(3) == [], "said once, and no second read is started"
        with (tree.root / tree.path(9, "stats/hardware/mem_ecc_uncorrected")).open("w") as fifo:
            fifo.write("0\n")
        tree.ecc(9, "mem_ecc_uncorrected", 0)
        batch = node.until(
            lambda batch: any(event.fields.get("recovered") for event in batch.events)
        )
        node.look()
        assert node.last.state is SourceState.OK


def test_a_heartbeat_that_moved_and_stands_is_told(
    tree: NeuronTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = "stats/hardware/health_status/healthcheck_heartbeat"
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    subject = Neuron(tree.root, PciInventory(tree.root), NeuronLocations())
    source = polled(subject, "neuron")
    found = subject.find_devices()

    def look() -> set[tuple[str, str]]:
        source._poller.found = found
        return told(
            source._process_results(
                {device.component.name: device.read() for device in found.devices}
            ).events
        )

    assert look() == set()
    now[0] += 600
    assert look() == set(), "it never moved: nobody knows how fast it should"
    tree.put(0, heartbeat, 8)
    assert look() == set()
    now[0] += 119
    assert look() == set()
    now[0] += 2
    assert look() == {("neuron/heartbeat", f"neuron/{TRN2[0]}")}


def test_nothing_is_opened_for_writing_and_no_device_file_at_all(
    tree: NeuronTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    opened: list[tuple[str, int]] = []
    real = os.open
    monkeypatch.setattr(
        "os.open",
        lambda path, flags, *rest, **more: (
            opened.append((str(path), flags)),
            real(path, flags, *rest, **more),
        )[1],
    )
    with watching(tree) as node:
        node.look(2)
    assert opened
    assert all(
        flags & os.O_ACCMODE == os.O_RDONLY and not path.startswith("/dev/neuron")
        for path, flags in opened
    )


def test_no_neuron_device_is_no_fault(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path / "sys", [], machine="p5.48xlarge")
    with watching(tree) as node:
        assert node.look() == []
        assert (node.last.state, node.last.detail) == (
            SourceState.ABSENT,
            "no Neuron device on PCI",
        )
