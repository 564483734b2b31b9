"""Temperatures and fans, from trees that stand for /sys/class/hwmon."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.looking import Looking, polled
from tests.trees import Tree
from vitald.collectors.hwmon.collector import Hwmon
from vitald.model.source import SourceState

CORETEMP, BOARD = "node/coretemp-coretemp.0", "node/nct6775-nct6775.656"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A processor with two cores, whose sensors have gaps, and a board's chip with two fans."""
    tree = Tree(tmp_path)
    for number, (name, device) in enumerate(
        (("coretemp", "coretemp.0"), ("nct6775", "nct6775.656"))
    ):
        tree.write(f"class/hwmon/hwmon{number}/name", name)
        (tree.root / f"devices/platform/{device}").mkdir(parents=True)
        tree.link(f"class/hwmon/hwmon{number}/device", f"devices/platform/{device}")
    for sensor, label in ((1, "Package id 0"), (4, "Core 2")):
        set_sensor(tree, "hwmon0/temp", sensor, label=label, input=41_000, max=80_000, crit=100_000)
    for fan in (1, 2):
        set_sensor(tree, "hwmon1/fan", fan, input=1200, alarm=0)
    return tree


def set_sensor(tree: Tree, sensor: str, number: int, **files: object) -> None:
    for file, content in files.items():
        tree.write(f"class/hwmon/{sensor}{number}_{file}", content)


def test_sensors_keep_their_numbers(tree: Tree) -> None:
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        processor = looking.readings(CORETEMP)
        assert processor.values["temperature_celsius"] == pytest.approx(
            (41.0, math.nan, math.nan, 41.0), nan_ok=True
        )
        assert processor.values["temperature_critical_celsius"] == pytest.approx(
            (100.0, math.nan, math.nan, 100.0), nan_ok=True
        )
        assert processor.values["critical_sensors"] == 0.0
        assert looking.readings(BOARD).values["fan_rpm"] == (1200.0, 1200.0)
        assert looking.last.state is SourceState.OK


@pytest.mark.parametrize("file", [{"input": 100_000}, {"crit_alarm": 1}])
def test_a_sensor_at_its_limit_is_critical(tree: Tree, file: dict[str, int]) -> None:
    set_sensor(tree, "hwmon0/temp", 4, **file)
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        values = looking.readings(CORETEMP).values
    assert (values["critical_sensors"], values["critical_names"]) == (1.0, "Core 2")


def test_a_fan_stands_still_where_the_chip_raises_its_alarm(tree: Tree) -> None:
    set_sensor(tree, "hwmon1/fan", 1, input=0, alarm=0)  # as some do when nothing is hot
    set_sensor(tree, "hwmon1/fan", 2, input=0, alarm=1)
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        values = looking.readings(BOARD).values
    assert values["fan_rpm"] == (0.0, 0.0)
    assert (values["stopped_fans"], values["stopped_names"]) == (1.0, "fan2")


def test_what_no_sensor_can_have_is_not_observable(tree: Tree) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"input": -128_000}, "reads -128, which no such sensor can have"),
        ({"input": 65_261_850}, "reads 65261.8, which no such sensor can have"),
        ({"input": "hot"}, "reads 'hot', which is no value"),
        ({"input": ""}, "the file is empty"),
        ({"fault": 1}, "the chip reports a fault of this sensor"),
    ]
    for files, reason in cases:
        set_sensor(tree, "hwmon0/temp", 4, **{"input": 41_000, **files})
        with Looking(polled(Hwmon(tree.root))) as looking:
            looking.look()
            readings = looking.readings(CORETEMP)
        assert readings.missing["temp4"] == reason
        assert readings.values["temperature_celsius"] == (41.0,)


def test_a_limit_that_is_none_is_not_compared_with(tree: Tree) -> None:
    for limit in (0, -1000, 65_261_850):
        set_sensor(tree, "hwmon0/temp", 1, crit=limit)
        with Looking(polled(Hwmon(tree.root))) as looking:
            looking.look()
            assert looking.readings(CORETEMP).values["critical_sensors"] == 0.0, limit


def test_names_are_not_trusted(tree: Tree) -> None:
    tree.write("class/hwmon/hwmon0/name", "../x\x1b[31m y/z")
    set_sensor(tree, "hwmon0/temp", 1, label="a\x1b[2J,b", input=120_000)
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        (readings,) = [one for one in looking.last.readings if "nct" not in one.component.id]
    assert readings.component.id == ".._x__31m_y_z-coretemp.0"
    names = str(readings.values["critical_names"])
    assert names.isprintable()
    assert "," not in names


def test_two_chips_of_one_device_are_told_apart(tree: Tree) -> None:
    tree.write("class/hwmon/hwmon2/name", "coretemp")
    tree.link("class/hwmon/hwmon2/device", "devices/platform/coretemp.0")
    set_sensor(tree, "hwmon2/temp", 1, input=30_000)
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        ids = {one.component.name for one in looking.last.readings}
    assert ids == {CORETEMP, BOARD, f"{CORETEMP}-hwmon2"}


def test_a_chip_without_a_device_is_virtual(tree: Tree) -> None:
    tree.write("class/hwmon/hwmon3/name", "memory")  # as a part of the host is called
    set_sensor(tree, "hwmon3/temp", 1, input=30_000)
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        assert "node/memory-virtual" in {one.component.name for one in looking.last.readings}


def test_a_drive_is_left_to_the_host_collector(tree: Tree) -> None:
    tree.write("class/hwmon/hwmon3/name", "nvme")
    set_sensor(tree, "hwmon3/temp", 1, input=30_000)
    with Looking(polled(Hwmon(tree.root))) as looking:
        looking.look()
        assert {one.component.name for one in looking.last.readings} == {CORETEMP, BOARD}


def test_a_machine_without_sensors_has_none(tmp_path: Path) -> None:
    with Looking(polled(Hwmon(Tree(tmp_path).root))) as looking:
        looking.look()
        assert looking.last.state is SourceState.ABSENT
