"""The generic polled source, over a subject of our own: hangs, identities, who is missing, and what
a restart remembers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.looking import CATALOG, Looking, polled, told
from vitald import catalog
from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.raw_readings import RawReadings
from vitald.model.component import Component, DeviceNames
from vitald.model.event import Event
from vitald.model.source import Position, Readings, Sample, SourceState
from vitald.model.words import ComponentKind


@dataclass
class Part:
    """One device of the subject, as the test wants it to be."""

    serial: str = ""
    values: dict[str, Sample] = field(default_factory=lambda: {"lost": 0.0})
    words: str = ""
    epoch: str = ""
    blind: str = ""
    error: Exception | None = None
    expected: bool = True
    fields: dict[str, str] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    looks: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def look(self) -> RawReadings:
        self.looks += 1
        look = RawReadings(
            dict(self.values),
            serial=self.serial,
            display_name=self.words,
            epoch=self.epoch,
            unreadable_reason=self.blind,
            fields=self.fields,
        )
        self.gate.wait()
        if self.error is not None:
            raise self.error
        return look


class Things:
    """A subject whose devices sit in named slots."""

    name = "neuron"

    def __init__(self, **slots: Part) -> None:
        self.slots = slots
        self.memory: dict[str, Any] = {}
        self.takes_s = 0.0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def find_devices(self) -> Found:
        self.gate.wait()
        time.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        return Found(
            [
                PolledDevice(slot(name), part.look, expected=part.expected)
                for name, part in self.slots.items()
            ]
        )

    def combine_readings(
        self, read: Mapping[Component, Readings], found: Found
    ) -> Iterable[Readings]:
        return ()


def slot(name: str) -> Component:
    return Component(ComponentKind.NEURON, name)


def watching(things: Things, after: Position | None = None, *, boot_id: str = "boot-1") -> Looking:
    return Looking(polled(things, boot_id=boot_id), after)


def begun(events: Iterable[Event]) -> set[tuple[str, str]]:
    """Code and slot of what begins."""
    return {(code.partition("/")[2], name.partition("/")[2]) for code, name in told(events)}


def over(events: Iterable[Event]) -> set[tuple[str, str]]:
    """The same of what is over."""
    return {
        (one.code.partition("/")[2], one.component.id)
        for one in events
        if one.fields.get("recovered") is True
    }


def moves(events: Iterable[Event]) -> list[tuple[str, object]]:
    """Who is said to be where."""
    return [
        (one.component.id, one.fields["serial"]) for one in events if one.code == "device/identity"
    ]


# --- names

_FIELDS = {"index": "3", "slot": "7", "pci": "0000:10:1c.0", "device": "rdma0", "interface": "a, b"}


def test_the_names_of_a_device_outlast_it_and_a_restart() -> None:
    """What PCI does not have, such as a drive of a fabric, has no address of it."""
    things = Things(a=Part("A", fields=_FIELDS), b=Part(fields={"pci": "traddr=10.0.0.1"}))
    named = (
        DeviceNames(
            component=slot("a"),
            index="3",
            serial="A",
            slot="7",
            address="0000:10:1c.0",
            aliases=("rdma0", "a", "b"),
        ),
        DeviceNames(component=slot("b")),
    )
    with watching(things) as node:
        node.look()
        assert sorted(node.last.devices or (), key=lambda names: names.component.id) == [*named]
        del things.slots["a"]
        node.look()
        assert named[0] in (node.last.devices or ())
        position = node.position
    with watching(things, position) as node:
        node.look()
        assert named[0] in (node.last.devices or ())


# --- looks that hang or are late


def test_a_list_of_devices_that_takes_its_time_is_used() -> None:
    things = Things(a=Part("A", {"lost": 1.0}))
    things.takes_s = 0.45
    with watching(things) as node:
        node.expect_hang(3600.0, 0.2)
        batch = node.until(lambda batch: bool(begun(batch.events)))
        assert begun(batch.events) == {("lost", "a")}


def test_what_has_never_been_looked_at_is_not_healthy() -> None:
    things = Things(a=Part("A"), b=Part("B"))
    things.slots["b"].gate.clear()
    with watching(things) as node:
        node.expect_hang()
        node.look()
        assert node.last.state is SourceState.STARTING
        assert "neuron/b" in node.last.detail
        things.slots["b"].gate.set()
        node.until(lambda batch: batch.state is SourceState.OK)
    things.gate.clear()
    with watching(things) as node:
        node.expect_hang()
        node.look()
        assert node.last.state is SourceState.STARTING, "nobody knows which devices there are"
        things.gate.set()
        node.until(lambda batch: batch.state is SourceState.OK and len(batch.readings) == 2)


def test_what_comes_back_after_its_deadline_is_not_believed() -> None:
    """It was read long ago; and a card that did not answer for so long is given as 0 by its
    driver.
    """
    part = Part("A")
    things = Things(a=part)
    with watching(things) as node:
        node.look()
        node.expect_hang()
        part.values = {"lost": 1.0}
        part.gate.clear()
        node.look()
        node.until(lambda batch: ("hung", "a") in begun(batch.events))
        part.values = {"lost": 0.0}
        part.gate.set()
        batch = node.until(lambda batch: bool(batch.events))
        assert over(batch.events) == {("hung", "a")}, "of a look that came back in time"
        assert begun(node.events) == {("hung", "a")}
        assert node.last.state is SourceState.OK


def test_a_device_that_is_always_late_is_told_once() -> None:
    class Late(Part):
        def look(self) -> RawReadings:
            time.sleep(1.6)
            return super().look()

    things = Things(a=Late("A"), b=Part("B"))
    with watching(things) as node:
        node.expect_hang(1.0)
        node.until(lambda batch: things.slots["a"].looks >= 3)
        assert [
            event.fields.get("recovered") for event in node.events if event.code == "neuron/hung"
        ] == [None]
        assert (node.last.state, "neuron/a" in node.last.detail) == (SourceState.FAILED, True)


def test_a_look_that_returns_when_its_device_is_gone_says_nothing_of_it() -> None:
    part = Part("A")
    things = Things(a=part, b=Part("B"))
    with watching(things) as node:
        node.look()
        node.expect_hang()
        part.gate.clear()
        node.look()
        node.until(lambda batch: ("hung", "a") in begun(batch.events))
        del things.slots["a"]
        node.look()
        part.values = {"lost": 1.0}
        part.gate.set()
        node.until(lambda batch: ("hung", "a") in over(batch.events))
        assert ("lost", "a") not in begun(node.events)
        assert node.last.state is SourceState.OK


def test_a_restart_while_it_hangs_does_not_say_that_it_answers() -> None:
    part = Part("A")
    things = Things(a=part)
    with watching(things) as node:
        node.look()
        node.expect_hang()
        part.gate.clear()
        node.look()
        node.until(lambda batch: ("hung", "a") in begun(batch.events))
        position = node.position
    things.error = OSError(5, "Input/output error", "/sys/class/things")
    with watching(things, position) as node:
        node.expect_hang()
        node.look(2)
        assert over(node.events) == set(), "nobody has looked"
        things.error = None
        node.look()
        node.until(lambda batch: "neuron/a: a read has not returned" in batch.detail)
        assert node.events == [], "it was said before the restart"
        part.gate.set()
        node.until(lambda batch: ("hung", "a") in over(batch.events))


# --- looks that fail


@pytest.mark.parametrize("how", [{"blind": "it is off the bus"}, {"error": OSError(5, "no")}])
def test_a_device_that_cannot_be_read_keeps_its_labels_over_a_restart(how: dict[str, Any]) -> None:
    fields = {"device": "mlx5_0", "interface": "eth2"}
    with watching(Things(a=Part("A", fields=fields))) as node:
        node.look()
        position = node.position
    with watching(Things(a=Part("A", values={}, **how)), position) as node:
        node.look()
        assert node.readings("neuron/a").unknown_reason
        assert node.readings("neuron/a").labels == fields


def test_a_device_that_failed_and_went_leaves_nothing_behind() -> None:
    things = Things(a=Part("A", error=OSError(5, "Input/output error", "/sys/a")), b=Part("B"))
    with watching(things) as node:
        node.look()
        assert (node.last.state, "/sys/a" in node.last.detail) == (SourceState.FAILED, True)
        del things.slots["a"]
        node.look()
        assert (node.last.state, node.last.detail) == (SourceState.OK, "")


def test_an_error_neither_begins_nor_ends_anything() -> None:
    part = Part("A", {"lost": 1.0})
    with watching(Things(a=part)) as node:
        node.look()
        part.error = OSError(5, "Input/output error", "/sys/a")
        assert node.look(2) == []
        part.error = None
        assert node.look(2) == []


# --- who is who


def test_a_finding_follows_its_device_to_another_slot() -> None:
    """What still holds is said again where the device is now; what only happened is not."""
    sick, well = (
        Part("A", {"hbm_ecc_repairable": 1.0, "sram_ecc_uncorrected": 2.0}),
        Part("B", {"hbm_ecc_repairable": 0.0}),
    )
    things = Things(a=sick, b=well)
    with watching(things) as node:
        assert begun(node.look()) == {("hbm_ecc_repairable", "a"), ("sram_ecc", "a")}
        things.slots = {"a": well, "b": sick}
        events = node.look(2)
        assert sorted(moves(events)) == [("a", "B"), ("b", "A")]
        assert begun(events) == {("hbm_ecc_repairable", "b")}
        assert node.look(2) == []
        position = node.position
    things.slots = {"a": sick, "b": well}
    with watching(things, position, boot_id="boot-2") as node:
        events = node.look(2)
        assert sorted(moves(events)) == [("a", "A"), ("b", "B")]
        assert begun(events) == {("hbm_ecc_repairable", "a")}


@pytest.mark.parametrize("together", [True, False], ids=["at once", "one after the other"])
def test_a_serial_that_two_devices_say_names_neither(together: bool) -> None:
    first, second = (
        Part("S", {"sram_ecc_uncorrected": 3.0}),
        Part("S", {"sram_ecc_uncorrected": 0.0}),
    )
    things = Things(a=first, b=second) if together else Things(a=first)
    with watching(things) as node:
        node.look()
        things.slots["b"] = second
        node.look()
        assert begun(node.events) == {("sram_ecc", "a")}
        assert [event for event in node.look(5) if event.kind] == []
        second.values["sram_ecc_uncorrected"] = 1.0
        assert begun(node.look()) == {("sram_ecc", "b")}
        assert "several devices" in node.readings("neuron/b").missing["serial"]
        position = node.position
    with watching(things, position) as node:
        assert node.look(3) == []


def test_another_serial_in_the_slot_begins_anew() -> None:
    things = Things(a=Part("A", {"sram_ecc_uncorrected": 3.0}))
    with watching(things) as node:
        node.look()
        things.slots["a"] = Part("B", {"sram_ecc_uncorrected": 3.0})
        events = node.look()
        assert (moves(events), begun(events)) == ([("a", "B")], {("sram_ecc", "a")})
        assert node.look(4) == [], "the former one is replaced and not missing"


def test_who_does_not_say_who_it_is_for_a_while_is_who_it_was() -> None:
    part = Part("A", {"sram_ecc_uncorrected": 3.0}, words="board A", fields={"pci": "1"})
    with watching(Things(a=part)) as node:
        node.look()
        part.serial = ""
        assert node.look(3) == []
        part.serial, part.words, part.fields, part.blind = "A", "", {}, "nothing can be said"
        node.look()
        part.blind, part.words, part.values = "", "", {"lost": 1.0}
        part.serial = ""
        (event,) = node.look()
        assert (event.fields["serial"], event.fields["pci"], event.raw) == (
            "A",
            "1",
            "neuron: lost is 1: board A",
        )


def test_what_a_device_says_is_made_fit_to_be_shown() -> None:
    evil = "\x1b[2J\nvitald: all is well\u202e" + "x" * 65536
    part = Part(evil, {"lost": 1.0, "name": evil}, words=evil, fields={"label": evil})
    with watching(Things(a=part)) as node:
        events = node.look()
        assert begun(events) == {("lost", "a")}
        one = node.readings("neuron/a")
        said = [
            str(value)
            for event in events
            for value in (event.raw, event.identity, *event.fields.values())
        ]
        said += [one.identity, *map(str, one.values.values()), *one.labels.values()]
        for text in said:
            assert text.isprintable()
            assert len(text) < 2048
        assert len(json.dumps(node.memory)) < 8192


def test_devices_without_end_are_not_remembered_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitald.collectors.device_registry._MAX_DEVICES", 8)
    things = Things()
    with watching(things) as node:
        for number in range(40):
            things.slots = {f"s{number}": Part(f"S{number}", expected=False)}
            assert moves(node.look()) == [(f"s{number}", f"S{number}")]
            assert moves(node.look()) == []
        assert len(node.memory["known"]) <= 8


# --- who is missing


def test_announcements_hasten_nothing_but_looks() -> None:
    """A driver that is loaded again is announced many times, and its devices are back before three
    rounds are over.
    """
    things = Things(a=Part("A"), b=Part("B"))
    with watching(things) as node:
        node.look()
        away = things.slots.pop("a")
        for _ in range(10):
            node.source.poll_now()
            node.until(lambda _: True)
        assert node.events == node.events[:2], "who is who"
        things.slots["a"] = away
        assert node.look(2) == []
        del things.slots["a"]
        assert node.look(2) == []
        assert begun(node.look()) == {("missing", "a")}
        assert node.look(3) == []
        things.slots["a"] = away
        assert over(node.look()) == {("missing", "a")}


def test_rounds_that_were_brought_forward_put_off_no_other() -> None:
    with watching(Things(a=Part("A"))) as node:
        node.look(2)
        due = node.source._due
        for _ in range(5):
            node.source.poll_now()
            node.until(lambda _: True)
        assert node.source._due == due


def test_looks_that_come_back_one_by_one_are_one_round() -> None:
    things = Things(a=Part("A"), **{name: Part(name.upper()) for name in "bcdef"})
    with watching(things) as node:
        node.look()
        node.expect_hang(3600.0, 0.2)
        for part in things.slots.values():
            part.gate.clear()
        del things.slots["a"]
        node.look()
        for part in things.slots.values():
            part.gate.set()
            node.until(lambda _: True)
        assert begun(node.events) == set()


def test_after_a_boot_a_missing_device_has_its_time_again() -> None:
    """A drive may come up late, and what is back after a reboot has not come back in spite
    of it.
    """
    things = Things(a=Part("A"), b=Part("B"))
    with watching(things) as node:
        node.look()
        away = things.slots.pop("a")
        assert begun(node.look(3)) == {("missing", "a")}
        position = node.position
    with watching(things, position, boot_id="boot-2") as node:
        assert node.look(2) == []
        things.slots["a"] = away
        assert over(node.look()) == {("missing", "a")}, "some findings no boot ends"
        del things.slots["a"]
        assert begun(node.look(3)) == {("missing", "a")}


def test_nobody_is_missing_where_nobody_could_look() -> None:
    things = Things(a=Part("A"))
    with watching(things) as node:
        node.look()
        things.error = OSError(5, "Input/output error", "/sys/class/things")
        assert node.look(5) == []
        things.error, things.slots = None, {}
        assert node.look(2) == []
        assert begun(node.look()) == {("missing", "a")}


# --- what is remembered


def test_what_held_before_a_boot_and_no_longer_does_is_over() -> None:
    part = Part("A", {"unhealthy_components": "hbm", "lost": 1.0})
    things = Things(a=part)
    with watching(things) as node:
        assert ("lost", "a") in begun(node.look())
        position = node.position
    part.values = {"unhealthy_components": "", "lost": 0.0}
    with watching(things, position, boot_id="boot-2") as node:
        assert over(node.look()) == {("lost", "a"), ("unhealthy", "a")}


def test_another_driver_begins_anew() -> None:
    part = Part("A", {"hbm_ecc_repairable": 1.0, "reset_failures": 2.0}, epoch="1")
    with watching(Things(a=part)) as node:
        assert begun(node.look()) == {("hbm_ecc_repairable", "a"), ("reset_failures", "a")}
        part.epoch, part.values = "2", {"hbm_ecc_repairable": 1.0, "reset_failures": 0.0}
        assert begun(node.look()) == {("hbm_ecc_repairable", "a")}, (
            "its finding ended with the driver's start"
        )
        part.values["reset_failures"] = 1.0
        assert begun(node.look()) == {("reset_failures", "a")}


GOOD = {
    "said": {
        "A": {"on": {"neuron/lost": "lost"}, "said": {"neuron/sram_ecc:sram_ecc_uncorrected": 2.0}}
    },
    "known": {
        "A": {
            "component": "neuron/a",
            "words": "board A",
            "fields": {},
            "expected": True,
            "epoch": "",
        }
    },
    "missed": {},
    "hung": [],
    "subject": {},
}


def test_memory_of_a_newer_version_is_used_as_far_as_it_is_understood() -> None:
    memory = json.loads(json.dumps(GOOD))
    memory["known"]["A"]["colour"] = "blue"
    memory["known"]["B"] = {"component": "quantum/b", "words": ""}
    memory["missed"] = {"B": "quantum/b"}
    memory["hung"] = ["quantum/b"]
    memory["more"] = [1, 2]
    things = Things(a=Part("A", {"lost": 1.0, "sram_ecc_uncorrected": 2.0}))
    with watching(things, Position("neuron", "boot-1", json.dumps(memory))) as node:
        assert node.look(2) == []
        assert node.last.state is SourceState.OK


HOSTILE: list[Any] = [
    None,
    [],
    "text",
    {"known": []},
    {"known": {"A": None}},
    {"known": {"A": {"component": 5, "words": ""}}},
    {"known": {"A": {"component": "neuron/a", "words": 5, "fields": [1]}}},
    {"missed": {"A": "neither"}},
    {"missed": ["A"]},
    {"hung": ["nothing of ours"]},
    {"hung": 5},
    {"hung": [["neuron/a"]]},
    {"said": []},
    {"said": {"A": {"on": 5}}},
    {"said": {"A": {"on": {"neuron/lost": 5}}}},
    {"said": {"A": {"said": {"neuron/sram_ecc:sram_ecc_uncorrected": ["a", "b"]}}}},
    {"said": {"A": {"said": {"neuron/sram_ecc:sram_ecc_uncorrected": {"x": 1}}}}},
    {"said": {"A": {"said": {"neuron/sram_ecc:sram_ecc_uncorrected": None}}}},
    {"said": {"A": {"grown": {"timeout": [[0, [1]], ["x"]]}}}},
    {"said": {"A": {"grown": {"timeout": [[0, 1]]}}}},
    {"subject": []},
]


def test_memory_that_makes_no_sense_stops_nothing() -> None:
    values: dict[str, Sample] = {"lost": 1.0, "sram_ecc_uncorrected": 2.0, "timeout": (1.0, 2.0)}
    for memory in HOSTILE:
        after = Position("neuron", "boot-1", json.dumps(memory))
        with watching(Things(a=Part("A", values)), after) as node:
            node.look(2)
            assert node.last.state is SourceState.OK, memory
            json.loads(node.position.cursor if node.position is not None else "")


def test_a_truncated_memory_is_forgotten() -> None:
    with watching(
        Things(a=Part("A", {"lost": 1.0})), Position("neuron", "boot-1", json.dumps(GOOD)[:-9])
    ) as node:
        assert begun(node.look()) == {("lost", "a")}


def test_a_quiet_node_stores_nothing() -> None:
    things = Things(a=Part("A", {"lost": 1.0, "sram_ecc_uncorrected": 2.0}))
    with watching(things) as node:
        node.look()
        for _ in range(5):
            node.look()
            assert (node.last.events, node.last.position) == ((), None)


def test_a_changed_entry_is_judged_anew() -> None:
    """An entry that asked for nothing for a while had its finding closed; what holds must be said
    when it asks again.
    """
    quiet = catalog.load_catalog("nvidia", {"neuron": {"lost": {"action": "none"}}})
    things = Things(a=Part("A", {"lost": 1.0, "hbm_ecc_repairable": 1.0}))
    with watching(things) as node:
        assert begun(node.look()) == {("lost", "a"), ("hbm_ecc_repairable", "a")}
        node.source.configure(CATALOG)
        assert node.look(2) == [], "nothing changed"
        node.source.configure(quiet)
        node.look()
        node.source.configure(CATALOG)
        assert begun(node.look()) == {("lost", "a")}
        assert node.look(2) == []


def test_the_watches_remember_no_end_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitald.collectors.threshold_memory._MAX_COMPONENTS", 16)
    things = Things(a=Part("A", {"sram_ecc_uncorrected": 1.0}))
    with watching(things) as node:
        node.look()
        for number in range(60):
            things.slots["b"] = Part(f"B{number}", expected=False)
            node.look()
        assert len(node.source._evaluator._memory.components) <= 16
        assert node.look(2) == []
