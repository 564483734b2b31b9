"""Versions, how they compare, their minimum, and how they are read of a node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.looking import CATALOG, Looking, polled, told
from tests.pace import patient
from tests.trees import MELLANOX, Tree
from tests.whole_tree import Clock
from vitald.catalog.tables import read_minimums
from vitald.catalog.versions import MinimumVersions, Version, parse_version
from vitald.collectors.inventory.collector import ExpectedInventory
from vitald.collectors.inventory.settings import SOFTWARE, ExpectSettings
from vitald.collectors.inventory.software import Software
from vitald.collectors.pci.inventory import PciInventory
from vitald.model import Readings

RUNC = "runc version {}\ncommit: v{}-0-gb2ec7f93\nspec: 1.2.1\ngo: go1.23.5\nlibseccomp: 2.5.4"
TOOLKIT = "NVIDIA Container Toolkit CLI version {}\ncommit: 4bd3b9f8b5f4d0e6"
DCGM = "\ndcgmi  version: {}\n"
NUMBERS = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)

# --- comparing


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("1.2.8", "1.10.0"),
        ("1.4.0-rc.3", "1.4.0"),
        ("1.4.0-rc.3", "1.4.0-rc.10"),
        ("1.4.0-beta.9", "1.4.0-rc.1"),
        ("1.0.0-rc95", "1.0.0"),
        ("535.288.01", "535.309.01"),
        ("6.8.0-87-generic", "6.8.0-124-generic"),
        ("28.39.4082", "28.46.3008"),
        ("v1.3.2", "1.3.3"),
    ],
)
def test_one_version_is_lower(lower: str, higher: str) -> None:
    assert parse_version(lower) < parse_version(higher)
    assert not parse_version(higher) < parse_version(lower)


def test_what_follows_does_not_count() -> None:
    assert parse_version("1.1.12-0ubuntu3.1").rest == "ubuntu3.1"
    assert parse_version("6.8.0-124-generic") == parse_version("6.8.0-124-aws")
    assert parse_version("1.2") == parse_version("1.2.0")
    assert len({parse_version("1.2"), parse_version("1.2.0")}) == 1


@pytest.mark.parametrize("text", ["", "latest", "unknown", "-1.2", "x1.2"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version such as"):
        parse_version(text)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_versions_have_one_order(one: list[int], other: list[int], third: list[int]) -> None:
    a, b, c = (Version(tuple(numbers)) for numbers in (one, other, third))
    assert (a < b) + (b < a) + (a == b) == 1
    assert not (a < b and b < c) or a < c


@given(NUMBERS, st.integers(0, 4), st.integers(1, 1000))
def test_a_higher_number_is_a_higher_version(numbers: list[int], place: int, more: int) -> None:
    higher = list(numbers)
    higher[place % len(numbers)] += more
    text, above = (".".join(map(str, each)) for each in (numbers, higher))
    assert parse_version(text) < parse_version(above)
    assert parse_version(f"{text}-rc.1") < parse_version(text)


@given(st.text(max_size=60))
def test_no_text_is_too_strange(text: str) -> None:
    try:
        version = parse_version(text)
    except ValueError:
        return
    assert version.numbers


# --- published minimums


@pytest.mark.parametrize(
    ("software", "version", "minimum"),
    [
        ("gpu_driver", "535.183.06", "535.309.01"),
        ("gpu_driver", "580.159.03", "580.159.03"),
        ("gpu_driver", "600.10", "595.71.05"),
        ("gpu_driver", "550.54.15", ""),  # the bulletins do not name this branch
        ("container_toolkit", "1.17.8", "1.19.1"),
        ("runc", "1.1.12", "1.2.8"),
        ("runc", "1.3.2", "1.3.3"),
        ("runc", "1.4.0-rc.2", "1.4.0-rc.3"),
        ("runc", "1.5.0", "1.4.0-rc.3"),
        ("connectx_firmware", "28.43.2026", "28.43.8002"),
        ("connectx_firmware", "22.42.1000", "22.43.8002"),
        ("connectx_firmware", "40.47.1000", "40.46.3008"),
        ("connectx_firmware", "14.32.1010", "14.32.1908"),
        ("connectx_firmware", "12.28.2006", "12.28.4702"),
        ("dcgm", "3.3.9", "4.5.3"),
    ],
)
def test_the_published_minimum_of_a_branch(software: str, version: str, minimum: str) -> None:
    assert CATALOG.minimums[software].find_minimum(parse_version(version)) == minimum


def test_each_published_minimum_is_one_of_a_known_software_with_its_source() -> None:
    assert set(CATALOG.minimums) == set(SOFTWARE) - {"kernel"}
    for published in CATALOG.minimums.values():
        assert published.source
        time.strptime(published.dated, "%Y-%m-%d")


@given(NUMBERS)
def test_a_version_at_its_minimum_is_not_below_it(numbers: list[int]) -> None:
    version = Version(tuple(numbers))
    for published in CATALOG.minimums.values():
        minimum = published.find_minimum(version)
        if minimum and not version < parse_version(minimum):
            continue
        if minimum:
            again = published.find_minimum(parse_version(minimum))
            assert again and not parse_version(minimum) < parse_version(again)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"branches": {"1": "x"}, "dated": "", "source": ""}, "'x' is not a version"),
        ({"branches": {}, "dated": "", "source": ""}, "branches: expected at least one"),
        ({"dated": "", "source": ""}, "'branches' is missing"),
        ({"branches": {"1": "1.2"}, "dated": "", "source": "", "odd": 1}, "odd"),
    ],
)
def test_a_mistake_in_the_table_is_reported(table: dict[str, Any], error: str) -> None:
    errors: list[str] = []
    assert read_minimums({"minimum": {"runc": table}}, errors) == {}
    assert errors[0].startswith("versions.toml: [minimum.runc]: ")
    assert error in errors[0]


# --- reading


class Machine:
    """A node with programs that print what the real ones print."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = Tree(root / "sys"), Tree(root / "proc")
        self.programs = root / "bin"
        self.programs.mkdir()
        self.proc.write("sys/kernel/osrelease", "6.8.0-124-generic")
        self.sys.module("nvidia", "580.159.03")

    def install(self, program: str, output: str, *, exit_code: int = 0) -> Path:
        path = self.programs / program
        path.write_text(
            '#!/bin/sh\n[ "$1" = --version ] || exit 9\n'
            f"cat <<'E'\n{output}\nE\nexit {exit_code}\n"
        )
        path.chmod(0o755)
        return path

    def add_adapter(
        self, name: str, address: str, firmware: str, driver: str = "mlx5_core"
    ) -> None:
        folder = self.sys.pci(address, MELLANOX, 0x1021, 0x020700, driver)
        self.sys.link(f"class/infiniband/{name}/device", folder)
        self.sys.write(f"class/infiniband/{name}/fw_ver", firmware)

    def build(self, **configured: str) -> ExpectedInventory:
        sysfs, proc = self.sys.root, self.proc.root
        software = Software(sysfs, proc, CATALOG.minimums, configured, [str(self.programs)])
        return ExpectedInventory(
            sysfs,
            proc,
            PciInventory(sysfs),
            CATALOG.instances,
            "boot-1",
            ExpectSettings(),
            0,
            lambda: True,
            software=software,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def read(machine: Machine, name: str, **configured: str) -> tuple[Readings, set[tuple[str, str]]]:
    """What is read of a software, and what is reported of it. On a busy machine a program may
    answer after the first poll.
    """
    codes: set[tuple[str, str]] = set()
    end = time.monotonic() + patient(10.0)
    with Looking(polled(machine.build(**configured))) as looking:
        while True:
            codes |= {fault for fault in told(looking.look()) if fault[1] == f"node/{name}"}
            names = {each.component.name for each in looking.last.readings}
            if f"node/{name}" in names or time.monotonic() > end:
                return looking.readings(f"node/{name}"), codes
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "program", "output", "version"),
    [
        ("runc", "runc", RUNC.format("1.3.3", "1.3.3"), "1.3.3"),
        ("container_toolkit", "nvidia-ctk", TOOLKIT.format("1.17.8"), "1.17.8"),
        ("dcgm", "dcgmi", DCGM.format("4.5.3"), "4.5.3"),
    ],
)
def test_what_programs_print(
    machine: Machine, name: str, program: str, output: str, version: str
) -> None:
    machine.install(program, output)
    readings, _ = read(machine, name)
    assert readings.values["version"] == version


def test_a_version_below_the_configured_minimum_is_a_finding_until_it_is_updated(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    machine.sys.module("nvidia", "535.183.06")
    with Looking(polled(machine.build(gpu_driver="published"))) as looking:
        (fault,) = [event for event in looking.look() if event.code == "expect/below_minimum"]
        assert fault.component.name == "node/gpu_driver"
        assert "gpu driver 535.183.06, minimum 535.309.01" in fault.raw
        assert fault.fields["version"] == "535.183.06"
        assert fault.fields["minimum"] == "535.309.01"
        assert "NVIDIA security bulletins 5821" in str(fault.fields["minimum_source"])
        machine.sys.module("nvidia", "535.309.01")
        assert looking.look() == []  # read once an hour
        clock.ahead += 3601
        (over,) = looking.look()
    assert (over.code, over.fields["recovered"]) == ("expect/below_minimum", True)


def test_a_version_below_the_published_minimum_is_noted_only(machine: Machine) -> None:
    machine.install("runc", RUNC.format("1.1.12", "1.1.12"))
    readings, codes = read(machine, "runc")
    assert codes == {("expect/below_published", "node/runc")}
    assert readings.values["below_minimum"] == 1.0
    assert readings.values["minimum"] == "1.2.8"
    assert read(machine, "runc", runc="1.1.12")[1] == set()
    assert read(machine, "runc", runc="1.1.13")[1] == {("expect/below_minimum", "node/runc")}


def test_a_distributions_build_is_not_compared_with_upstream(machine: Machine) -> None:
    machine.install("runc", RUNC.format("1.1.12-0ubuntu3.1", "1.1.12"))
    readings, codes = read(machine, "runc")
    assert codes == set()
    assert "a distribution's build" in readings.missing["below_minimum"]
    assert read(machine, "runc", runc="1.2.8")[1] == {("expect/below_minimum", "node/runc")}


def test_the_adapter_that_is_below_is_named(machine: Machine) -> None:
    machine.add_adapter("mlx5_0", "0000:3b:00.0", "28.46.3008")
    machine.add_adapter("mlx5_1", "0000:5e:00.0", "28.43.2026")
    machine.add_adapter("mlx5_2", "0000:86:00.0", "28.43.2026")
    machine.add_adapter("rdmap0", "0000:a0:00.0", "0.0.0.0", driver="efa")
    readings, codes = read(machine, "connectx_firmware")
    assert codes == {("expect/below_published", "node/connectx_firmware")}
    assert readings.values["version"] == "28.43.2026"
    assert readings.values["adapters"] == "mlx5_1, mlx5_2"
    assert readings.values["minimum"] == "28.43.8002"


@pytest.mark.parametrize("minimum", ["28.46.3008", "46.3008"])
def test_a_configured_firmware_is_that_of_any_family(machine: Machine, minimum: str) -> None:
    machine.add_adapter("mlx5_0", "0000:3b:00.0", "22.46.3008")
    assert read(machine, "connectx_firmware", connectx_firmware=minimum)[1] == set()
    machine.add_adapter("mlx5_0", "0000:3b:00.0", "22.46.3007")
    codes = read(machine, "connectx_firmware", connectx_firmware=minimum)[1]
    assert codes == {("expect/below_minimum", "node/connectx_firmware")}


def test_what_is_not_here_is_not_listed_and_what_prints_nothing_is_no_fault(
    machine: Machine,
) -> None:
    machine.install("runc", "segmentation fault", exit_code=139)
    machine.install("dcgmi", "dcgmi  version: unknown")
    machine.sys.remove("module/nvidia")
    with Looking(polled(machine.build(**dict.fromkeys(SOFTWARE, "published")))) as looking:
        assert told(looking.look()) == set()
        found = {one.component.name: one for one in looking.last.readings}
    assert set(found) == {"node", "node/runc", "node/dcgm"}
    assert [name for name, one in found.items() if one.unknown_reason] == []
    missing = found["node/runc"].missing
    assert missing["version"] == "runc --version printed no version (exit code 139)"
    assert "is not a version" in found["node/dcgm"].missing["below_minimum"]


def test_what_is_off_is_not_read(machine: Machine) -> None:
    ran = machine.programs / "ran"
    machine.install("runc", RUNC.format("1.1.12", "1.1.12")).write_text(f"#!/bin/sh\n: > {ran}\n")
    with Looking(polled(machine.build(**dict.fromkeys(SOFTWARE, "off")))) as looking:
        assert told(looking.look()) == set()
        assert {one.component.name for one in looking.last.readings} == {"node"}
    assert not ran.exists()


def test_a_program_that_hangs_ends_with_its_deadline(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitald.collectors.inventory.software._ANSWER_S", 0.2)
    path = machine.install("runc", "")
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    readings, codes = read(machine, "runc")
    assert codes == set()
    assert readings.missing["version"] == "runc did not answer within 0.2 s"


def test_a_running_kernel_below_its_minimum(machine: Machine) -> None:
    assert read(machine, "kernel", kernel="6.8.0-124")[1] == set()
    assert read(machine, "kernel", kernel="6.8.0-125")[1] == {
        ("expect/below_minimum", "node/kernel")
    }


def test_minimums_of_one_branch_do_not_hide_others() -> None:
    published = MinimumVersions(branches={"1.2": "1.2.8"}, dated="2025-11-05", source="test")
    assert published.find_minimum(parse_version("1.1.0")) == ""
    assert published.find_minimum(parse_version("1.3.0")) == "1.2.8"
