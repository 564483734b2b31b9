"""What is watched: who looks at what, what nobody knows, and what cannot be observed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from tests.trees import NVIDIA, Tree
from vitald.cli import client, main
from vitald.core.node_state import NodeState
from vitald.model.component import NODE, Component
from vitald.model.source import Readings, Sample, SourceHealth, SourceState
from vitald.model.words import ComponentKind
from vitald.server.routes import components
from vitald.server.serialize import Json
from vitald.topology.pci_inventory import PciInventory

GPU, DIMM = Component(ComponentKind.GPU, "0000:65:00.0"), Component(ComponentKind.DIMM, "mc0/dimm1")


def read(
    component: Component,
    age: float = 0.0,
    *,
    identity: str = "",
    blind: str = "",
    missing: str = "",
    **values: Sample,
) -> Readings:
    """`missing`: names of readings, with spaces between."""
    return Readings(
        component=component,
        identity=identity or component.name,
        time=time.time() - age,
        polled_at=time.monotonic() - age,
        values=values,
        fresh=frozenset(values),
        missing=dict.fromkeys(missing.split(), "there is no such file"),
        unknown_reason=blind,
    )


class Told:
    """A board, and what the outputs make of it."""

    def __init__(self, folder: Path) -> None:
        self.board = NodeState("boot-a", time.time(), device_reset=False)
        self.tree = Tree(folder)
        self.inventory = PciInventory(folder)

    def source(
        self, name: str, *readings: Readings, state: SourceState = SourceState.OK, detail: str = ""
    ) -> None:
        """One batch of a source."""
        self.board.sources.setdefault(
            name, SourceHealth(name=name, state=SourceState.STARTING, deadline=60.0)
        )
        self.board.replace_readings(name, readings)
        self.board.update_source(name, state, detail)

    def gpu_on_pci(self) -> None:
        self.tree.pci(GPU.id, NVIDIA, 0x2330, 0x030200, "nvidia")
        self.inventory.scan_bus()

    def all(self) -> dict[str, Json]:
        return {
            str(one["name"]): one
            for one in cast(
                "list[Json]",
                components.describe_components(self.board, self.inventory)["components"],
            )
        }

    def coverage(self) -> dict[tuple[str, str], components.ComponentCoverage]:
        told = components.compute_coverage(components.list_observations(self.board, self.inventory))
        return {(one.source, one.kind.value): one for one in told}

    def sight(self, component: Component) -> Json:
        """What its only source sees."""
        sights = cast("list[Json]", self.all()[component.name]["observations"])
        assert len(sights) == 1
        return sights[0]

    def state(self, component: Component) -> tuple[object, object]:
        one = self.all()[component.name]
        return one["status"], one["unknownReasons"]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_what_only_a_source_reads_is_watched(told: Told) -> None:
    told.source("host", read(DIMM, 3.0, identity="SN123", correctable=0.0, missing="uncorrectable"))
    one = told.all()[DIMM.name]
    assert (one["kind"], one["status"], one["identity"], one["sources"], one["attributes"]) == (
        "dimm",
        "healthy",
        "SN123",
        ["host"],
        {},
    )
    sight = told.sight(DIMM)
    assert (sight["observable"], sight["attempted"], sight["readings"]) == (
        1,
        2,
        {"correctable": 0},
    )
    assert sight["notObservable"] == {"uncorrectable": "there is no such file"}


def test_nobody_knows_an_identity(told: Told) -> None:
    """The slot's own name is none."""
    told.source("host", read(DIMM))
    assert (told.all()[DIMM.name]["identity"], told.all()["node"]["identity"]) == (None, None)


def test_one_source_of_two_is_silent(told: Told) -> None:
    """What one sees does not make up for what the other does not."""
    told.source("pci", read(GPU, width=16.0))
    told.source("nvml", read(GPU, 61.0, temperature_celsius=40.0))
    assert told.state(GPU) == ("unknown", ["nvml: not polled within the deadline"])
    assert [one.component for one in told.board.list_readings("pci")] == [GPU]
    assert told.board.list_readings("nvml") == []


def test_looked_at_and_nothing_to_say(told: Told) -> None:
    told.source("neuron", read(GPU, blind="the driver is not loaded"))
    assert told.state(GPU) == ("unknown", ["neuron: the driver is not loaded"])


def test_nvml_must_look_at_each_gpu(told: Told) -> None:
    """Also where it never did; not where it is switched off, or says that there is none for it."""
    told.gpu_on_pci()
    assert told.state(GPU) == ("healthy", [])
    told.source("nvml", state=SourceState.FAILED, detail="driver not loaded")
    assert told.state(GPU) == ("unknown", ["nvml: failed: driver not loaded"])
    sight = told.sight(GPU)
    assert (sight["lastRead"], sight["attempted"]) == (None, 0)
    told.source("nvml", state=SourceState.ABSENT, detail="no NVIDIA GPU on PCI")
    assert told.state(GPU) == ("healthy", [])


def test_what_a_failed_source_no_longer_hands_in_is_not_known(told: Told) -> None:
    """It stays, with the time of the last look; what a source that looks does not hand in is not
    there.
    """
    told.source("network", read(GPU, 5.0, identity="SN9", state=4.0))
    told.source("network", state=SourceState.FAILED, detail="it broke")
    one = told.all()[GPU.name]
    assert (one["status"], one["unknownReasons"], one["identity"]) == (
        "unknown",
        ["network: failed: it broke"],
        "SN9",
    )
    told.source("network")
    assert GPU.name not in told.all()


def test_two_readings_of_the_node(told: Told) -> None:
    told.source("host", read(NODE, 9.0, load=1.0, missing="clock"), read(NODE, 2.0, space=0.5))
    (one,) = told.board.list_readings("host")
    assert (dict(one.values), dict(one.missing)) == (
        {"load": 1.0, "space": 0.5},
        {"clock": "there is no such file"},
    )
    assert time.monotonic() - one.polled_at > 8.0


def test_order(told: Told) -> None:
    """As a person counts."""
    told.source(
        "x",
        *(
            read(Component(kind, id_))
            for kind, id_ in ((ComponentKind.DISK, "nvme10n1"), (ComponentKind.DISK, "nvme2n1"))
        ),
    )
    told.source("y", read(Component(ComponentKind.NEURON, "3")))
    assert list(told.all()) == ["node", "neuron/3", "disk/nvme2n1", "disk/nvme10n1"]


# --- coverage


def test_coverage_counts_readings(told: Told) -> None:
    dimms = [Component(ComponentKind.DIMM, str(number)) for number in range(4)]
    told.source(
        "host",
        *(read(one, a=0.0, b=0.0, missing="c d") for one in dimms[:3]),
        read(dimms[3], a=0.0, missing="b c d"),
    )
    one = told.coverage()["host", "dimm"]
    assert (one.components, one.observable, one.attempted) == (4, 7, 16)
    assert [(gap.readings, len(gap.components)) for gap in one.gaps] == [
        (("c", "d"), 4),
        (("b",), 1),
    ]


def test_what_is_not_seen_is_not_observed(told: Told) -> None:
    """Of one that never answered, as much is asked as of its siblings."""
    here, stale, blind = (Component(ComponentKind.NEURON, str(number)) for number in range(3))
    told.source(
        "neuron",
        read(here, a=0.0, b=0.0),
        read(stale, 61.0, a=0.0, b=0.0),
        read(blind, blind="unknown layout"),
    )
    one = told.coverage()["neuron", "neuron"]
    assert (one.components, one.observable, one.attempted, one.gaps) == (3, 2, 6, ())


def test_a_whole_kind_that_cannot_be_observed(told: Told) -> None:
    """It is told as coverage, and is no component that could be well."""
    told.source("host", read(Component(ComponentKind.DIMM), missing="corrected_errors"))
    one = told.coverage()["host", "dimm"]
    assert (one.components, one.observable, one.attempted, len(one.gaps)) == (0, 0, 1, 1)
    assert list(told.all()) == ["node"]


def test_who_is_switched_off(told: Told) -> None:
    told.source("nvml")
    off = components.describe_components(told.board, told.inventory)["off"]
    assert off == ["neuron", "network", "pci", "host", "hwmon"]


# --- the command line


def shown(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> list[str]:
    """The lines of `vitald components`."""
    monkeypatch.setattr(
        client,
        "get",
        lambda *_, **__: components.describe_components(told.board, told.inventory),
    )
    assert main(["components", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_many_that_are_well_are_only_counted(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dimms = [Component(ComponentKind.DIMM, f"MC0.dimm{number}") for number in range(20)]
    told.source(
        "host", read(dimms[0], blind="cannot be read"), *(read(one, a=0.0) for one in dimms[1:])
    )
    lines = shown(told, monkeypatch, capsys)
    assert [line.split()[0] for line in lines if line.startswith("dimm/")] == ["dimm/MC0.dimm0"]
    assert "    not known: host: cannot be read" in lines
    assert "and 19 DIMMs, healthy (--all, --kind dimm)" in lines
    for whole in (["--all"], ["--kind", "dimm"]):
        assert (
            sum(line.startswith("dimm/") for line in shown(told, monkeypatch, capsys, *whole)) == 20
        )


def test_the_coverage_table(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disks = [Component(ComponentKind.DISK, f"nvme{number}") for number in range(4)]
    names = " ".join(f"r{number}" for number in range(9))
    told.source(
        "host",
        read(disks[0], a=0.0, missing=f"{names} b"),
        *(read(one, a=0.0, missing=names) for one in disks[1:]),
    )
    told.source("neuron", state=SourceState.ABSENT, detail="no Neuron device on PCI")
    told.source("pci", state=SourceState.FAILED, detail="/sys: \x1b[31m")
    lines = shown(told, monkeypatch, capsys)
    for line in (
        "  host: 4 disks, 4 of 41 readings observed",
        "      r0, r1, r2, r3, r4, r5 and 3 more: there is no such file",
        "      b (disk/nvme0): there is no such file",
        "  neuron: not present: no Neuron device on PCI",
        "  pci: FAILED: /sys: \\x1b[31m",
        "  network: switched off, [network] enabled = false",
    ):
        assert line in lines, line
    assert "      r0, r1, r2, r3, r4, r5, r6, r7, r8: there is no such file" in shown(
        told, monkeypatch, capsys, "--all"
    )


def test_what_nobody_knows_is_a_dash(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told.gpu_on_pci()
    (row,) = [line for line in shown(told, monkeypatch, capsys) if line.startswith("gpu/")]
    assert row.split() == [GPU.name, "healthy", "-", "-"]
    assert "  1 GPU: no source reads them; only the kernel log can report on them" in shown(
        told, monkeypatch, capsys
    )
