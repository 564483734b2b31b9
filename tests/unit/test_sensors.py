"""`vitald sensors` over a tree that stands for the node, with programs that print what tools do."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.trees import Tree
from tests.unit.smbios import memory_device
from tests.unit.test_tuning import GPU_PORT, REDIRECT, config_space
from vitald.cli import sensors as verb
from vitald.collectors.root_file import MAX_BYTES, read_root_file
from vitald.collectors.small_files import RawReadings
from vitald.collectors.tuning.memory_speed import parse_module, read_speeds
from vitald.recovery import programs
from vitald.sensors import read
from vitald.sensors.read import read_memory_modules, read_sensors
from vitald.sensors.write import write_sensors

OTHER = bytes((0, 4, 0, 0)) + b"\0\0"  # without texts
END = bytes((127, 4, 0, 0)) + b"\0\0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "node")
    tree.write("sys/firmware/dmi/tables/DMI", OTHER + memory_device("A1", 4800) + END)
    tree.write(f"sys/bus/pci/devices/{GPU_PORT}/class", "0x060400")
    tree.write(f"sys/bus/pci/devices/{GPU_PORT}/config", config_space(REDIRECT))
    tree.write("sys/bus/pci/devices/0000:83:00.0/class", "0x030200")
    return tree


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that are found before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(programs, "RECOVERY_PATH", f"{folder}:{programs.RECOVERY_PATH}")
    monkeypatch.setattr(programs.files, "check_program", lambda _: None)
    return folder


def add_tool(tools: Path, name: str, script: str) -> None:
    tool = tools / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def test_what_root_reads_is_what_the_daemon_gets(tree: Tree, tools: Path, tmp_path: Path) -> None:
    tree.write("dev/ipmi0", "")
    tree.write("sys/devices/nic/vendor", "0x15b3")
    tree.link("sys/class/net/eth0/device", "sys/devices/nic")
    tree.write("sys/class/net/bond0/operstate", "up")  # no PCI function
    tree.write("sys/devices/vf/vendor", "0x15b3")
    tree.write("sys/devices/vf/physfn", "")
    tree.link("sys/class/net/eth1/device", "sys/devices/vf")
    add_tool(tools, "ipmitool", 'echo "$* $TZ"; [ "$1" = sel ] || { echo "no SDR" >&2; exit 1; }')
    add_tool(tools, "ethtool", 'echo "$*"')
    path = tmp_path / "sensors.json"
    write_sensors(path, read_sensors(tree.root))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    file = read_root_file(path)
    assert file is not None
    assert 0.0 <= file.age_s < 60.0
    assert (file.bmc_log.output, file.bmc_log.trouble) == ("sel elist last 256 UTC\n", "")
    assert file.bmc_sensors.trouble.endswith("ipmitool failed: exit 1: no SDR")
    assert {name: answer.output for name, answer in file.transceivers.items()} == {
        "eth0": "-m eth0\n"
    }
    assert file.acs == {GPU_PORT: REDIRECT}
    assert [parse_module(module) for module in file.memory_modules] == [
        parse_module(memory_device("A1", 4800))
    ]


def test_a_node_that_has_nothing_to_read(tmp_path: Path) -> None:
    path = tmp_path / "sensors.json"
    write_sensors(path, read_sensors(tmp_path))
    file = read_root_file(path)
    assert file is not None
    assert "no BMC" in file.bmc_log.absent and "no BMC" in file.bmc_sensors.absent
    assert (file.transceivers, file.acs, file.memory_modules) == ({}, {}, ())


@pytest.mark.parametrize("name", ["storage+1", "-s", "eth\xe9", "\udcff"], ids=range(4))
def test_an_unusual_name_of_an_interface_does_not_spoil_the_file(
    tree: Tree, tools: Path, tmp_path: Path, name: str
) -> None:
    """The kernel accepts nearly any name; the daemon gets the others."""
    tree.write("sys/devices/nic/vendor", "0x15b3")
    for each in (name, "eth0"):
        tree.link(f"sys/class/net/{each}/device", "sys/devices/nic")
    add_tool(tools, "ethtool", "echo plugged in")
    path = tmp_path / "sensors.json"
    write_sensors(path, read_sensors(tree.root))
    found = read_root_file(path)
    assert found is not None and set(found.transceivers) == {"eth0"}


def test_a_bmc_that_hangs_is_given_up(
    tree: Tree, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write("dev/ipmi0", "")
    add_tool(tools, "ipmitool", "sleep 60")
    monkeypatch.setattr(read, "_BMC_DEADLINE_S", 0.2)
    content = read_sensors(tree.root)
    assert "did not end within" in str(content["bmc_log"])


def test_what_a_tool_prints_without_end_is_bounded(tree: Tree, tools: Path, tmp_path: Path) -> None:
    tree.write("dev/ipmi0", "")
    add_tool(tools, "ipmitool", "head -c 3000000 /dev/zero")
    path = tmp_path / "sensors.json"
    write_sensors(path, read_sensors(tree.root))
    assert path.stat().st_size <= MAX_BYTES
    assert read_root_file(path) is not None


def test_a_link_in_the_files_place_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    for name in ("sensors.json", ".sensors.json.new"):
        (tmp_path / name).symlink_to(target)
    write_sensors(tmp_path / "sensors.json", {"version": 1})
    assert target.read_text() == "kept"
    assert not (tmp_path / "sensors.json").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sensors.json", "target"]


def test_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "read_sensors", lambda: {"version": 1})
    parser = verb.argparse.ArgumentParser()
    verb.options(parser)
    assert parser.parse_args([]).output == "/run/vitald-sensors/sensors.json"
    assert verb.run(parser.parse_args(["--output", "-"])) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1}
    assert verb.run(parser.parse_args(["--output", f"{tmp_path}/none/x"])) == 74
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [*range(0, 100, 7), 3])
def test_a_firmware_table_that_is_cut_off(tree: Tree, cut: int) -> None:
    table = OTHER + memory_device("A1", 4800)
    tree.write("sys/firmware/dmi/tables/DMI", table[:cut])
    assert read_memory_modules(tree.root / "sys") == []
    assert parse_module(memory_device("A1", 4800)[: min(cut, 0x5B)]) is None


@pytest.mark.parametrize(
    ("modules", "unequal", "slow", "slowest"),
    [
        ([("A1", 4800), ("B1", 4800)], 0.0, "", 4800),
        ([("A1", 4800), ("B1", 4400)], 1.0, "B1", 4400),
        (
            [("A1", 0xFFFF, 32_768, 0x22, 70_000), ("B1", 0xFFFF, 32_768, 0x22, 70_000)],
            0.0,
            "",
            70_000,
        ),
        ([("A1", 4800), ("B1", 2133, 32_768, 0x1A)], 0.0, "", 2133),  # other types are no peers
        ([("A1", 4800), ("B1", 0, 0)], 0.0, "", 4800),  # an empty slot
    ],
)
def test_the_speed_of_memory_modules(
    modules: list[tuple[str, int]], unequal: float, slow: str, slowest: int
) -> None:
    raw = RawReadings()
    read_speeds(raw, [memory_device(*module) for module in modules])
    assert raw.values["memory_speed_unequal"] == unequal
    assert raw.values["memory_slow_modules"] == slow
    assert raw.values["memory_speed_transfers_per_second"] == slowest * 1e6


def test_a_speed_that_is_not_listed_is_not_judged() -> None:
    raw = RawReadings()
    read_speeds(raw, [memory_device("A1", 4800), memory_device("B1", 0)])
    assert raw.values == {"memory_modules_listed": 2.0}
    assert "memory_speed_unequal" in raw.missing
