"""What all devices of a kind fail with at once is one finding of the node: for every such entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trees import NVIDIA, Tree
from tests.unit.builders import booted, catalogue, empty, event
from vitald.catalog import Rule
from vitald.judge.engine import Judge
from vitald.model.component import NODE, Component
from vitald.model.event import CLEARED, SIBLINGS, Event, Trust
from vitald.model.words import Action, ComponentKind
from vitald.topology.pci_inventory import PciInventory

ADDRESSES = ("0000:18:00.0", "0000:3b:00.0", "0000:5d:00.0")
SHARED = [rule for rule in catalogue().rules.values() if rule.shared_cause]
NOT_INITIALISED = catalogue().find_rule("nvml/gpu_not_initialised")


def report(rule: Rule, number: int, time: float, boot: str = "boot-a", **fields: object) -> Event:
    """What one of three devices has."""
    kind = ComponentKind.NIC if rule.component is ComponentKind.PCI else rule.component
    others = ",".join(each for each in ADDRESSES if each != ADDRESSES[number])
    return event(
        rule.code,
        Component(kind, ADDRESSES[number]),
        time,
        boot=boot,
        trust=Trust.DAEMON if rule.thresholds else Trust.KERNEL,
        fields={SIBLINGS: others, **fields},
    )


def list_open(judge: Judge) -> list[tuple[str, Action]]:
    return [(found.component.name, found.action) for found in judge.open_findings]


@pytest.mark.parametrize("rule", SHARED, ids=lambda rule: rule.code)
def test_all_at_once_is_the_node_and_climbs_no_ladder(rule: Rule) -> None:
    judge = empty()
    for boot in range(4):
        start = boot * 3600.0
        judge.apply_event(booted(f"boot-{boot}", start))
        for number in range(3):
            judge.apply_event(report(rule, number, start + 60 + number, f"boot-{boot}"))
        (found,) = judge.open_findings
        assert (found.component, found.action, found.unusable) == (NODE, Action.INSPECT, True)
        assert judge.accounts_for(report(rule, 1, start + 70))
        assert found.title.startswith(rule.title)
        assert found.title.endswith(
            "(3 devices of kind " + found.components[1].kind.value + " alike)"
        )
        assert [device.id for device in found.components[1:]] == [*ADDRESSES]


@pytest.mark.parametrize("rule", SHARED, ids=lambda rule: rule.code)
def test_one_of_three_is_its_own(rule: Rule) -> None:
    """A remedy that is due is asked for: of every entry, as without this. A driver's fault that the
    reboot did not end is looked at.
    """
    judge = empty()
    asked = []
    for boot in range(2):
        judge.apply_event(booted(f"boot-{boot}", boot * 3600.0))
        judge.apply_event(report(rule, 1, boot * 3600.0 + 60, f"boot-{boot}"))
        asked += list_open(judge)
    name = f"{report(rule, 1, 0.0).component.name}"
    replaceable = rule.fault_class.may_require_replacement
    again = Action.REPLACE_NODE if replaceable else Action.INSPECT
    assert asked == [(name, Action.REBOOT_NODE), (name, again)]


def test_all_lost_twice_is_still_a_replacement() -> None:
    """Xid 79 is the driver's own report that a board left the bus."""
    judge = empty()
    for boot in range(2):
        judge.apply_event(booted(f"boot-{boot}", boot * 3600.0))
        for number in range(3):
            lost = catalogue().find_rule("xid/79")
            judge.apply_event(report(lost, number, boot * 3600.0 + 60, f"boot-{boot}"))
    assert {action for _, action in list_open(judge)} == {Action.REPLACE_NODE}


def test_one_after_the_other_is_not_at_once() -> None:
    judge = empty()
    for number in range(3):
        judge.apply_event(report(NOT_INITIALISED, number, number * 3600.0))
    assert len(judge.open_findings) == 3


def test_who_else_is_here_must_be_known() -> None:
    """In a saved log it is not; and one that is present and well is not among those that fail."""
    judge = empty()
    for number in range(3):
        known = report(NOT_INITIALISED, number, 1.0)
        fields = {name: value for name, value in known.fields.items() if name != SIBLINGS}
        judge.apply_event(event(known.code, known.component, 1.0, fields=fields))
    assert len(judge.open_findings) == 3


def test_one_that_is_well_again_ends_it() -> None:
    """The others are their own from then on: they are still observed."""
    judge = empty()
    for number in range(3):
        judge.apply_event(report(NOT_INITIALISED, number, 1.0))
    judge.apply_event(report(NOT_INITIALISED, 0, 2.0, recovered=True))
    assert judge.open_findings == ()
    assert not judge.accounts_for(report(NOT_INITIALISED, 1, 3.0))


def test_what_is_not_observed_any_more_contradicts_it() -> None:
    judge = empty()
    for number in range(3):
        judge.apply_event(report(NOT_INITIALISED, number, 1.0))
    calm = {(Component(ComponentKind.GPU, ADDRESSES[0]), NOT_INITIALISED.code)}
    assert judge.find_contradicted("kernel_log", calm) == [*judge.open_findings]


def test_another_device_of_the_kind_is_its_own() -> None:
    """An adapter of another model: neither its fault nor its health is that of the others."""
    judge = empty()
    rule = catalogue().find_rule("network/missing")
    for number in range(3):
        judge.apply_event(report(rule, number, 1.0))
    (shared,) = judge.open_findings
    other = Component(ComponentKind.NIC, "0000:ee:00.0")
    assert judge.find_contradicted("kernel_log", {(other, rule.code)}) == []
    fault = event(rule.code, other, 2.0, trust=Trust.DAEMON, fields={SIBLINGS: "0000:ef:00.0"})
    assert not judge.accounts_for(fault)
    judge.apply_event(fault)
    assert list_open(judge) == [("node", Action.INSPECT), (other.name, Action.REBOOT_NODE)]
    judge.apply_event(event(rule.code, other, 3.0, trust=Trust.DAEMON, fields={"recovered": True}))
    assert judge.open_findings == (shared,)


def test_a_second_code_of_one_of_them_is_the_node_too() -> None:
    """The driver's line about one GPU, after NVML has shown that it knows none."""
    judge = empty()
    for number in range(3):
        judge.apply_event(report(NOT_INITIALISED, number, 1.0))
    line = catalogue().find_rule("gpu_init_failed/rm_init_adapter")
    judge.apply_event(report(line, 1, 2.0))
    assert list_open(judge) == [("node", Action.INSPECT), ("node", Action.INSPECT)]


def test_the_reset_of_one_leaves_the_others() -> None:
    """Lines are not observed again: what was not reset must not be forgotten."""
    judge = empty()
    line = catalogue().find_rule("gpu_init_failed/rm_init_adapter")
    for number in range(3):
        judge.apply_event(report(line, number, 1.0))
    for number, left in enumerate(([*ADDRESSES[1:]], [ADDRESSES[2]])):
        device = report(line, number, 1.0).component
        (change,) = judge.apply_event(event("device/reset", device, 100.0 + number))
        assert (change.cause.startswith(device.name), change.finding.is_open) == (True, True)
        (found,) = judge.open_findings
        assert [device.id for device in found.components[1:]] == left
        assert f"({len(left)} devices of kind gpu alike)" in found.title
    judge.apply_event(event("device/reset", report(line, 2, 1.0).component, 200.0))
    assert judge.open_findings == ()


def test_a_driver_that_is_loaded_again_ends_it() -> None:
    judge = empty()
    rule = catalogue().find_rule("gpu_init_failed/rm_init_adapter")
    for number in range(3):
        judge.apply_event(report(rule, number, 1.0))
    assert len(judge.open_findings) == 1
    judge.apply_event(event("driver/loaded", NODE, 100.0))
    assert judge.open_findings == ()


def test_siblings_are_those_of_the_model(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for address in ADDRESSES:
        tree.pci(address, NVIDIA, 0x2330, 0x030200, "nvidia")
    tree.pci("0000:01:00.0", NVIDIA, 0x1EB8, 0x030200, "nvidia")
    tree.pci("0000:02:00.0", 0x15B3, 0x1021, 0x020700, "mlx5_core")
    tree.pci("0000:03:00.0", 0x1D0F, 0xEC20, 0x020000, "ena")
    tree.link("bus/pci/devices/0000:02:00.0/infiniband", tree.root)
    inventory = PciInventory(tree.root)

    def siblings(kind: ComponentKind, address: str) -> list[str] | None:
        return inventory.list_siblings(Component(kind, address))

    assert siblings(ComponentKind.GPU, ADDRESSES[0]) is None, "the bus has not been read yet"
    inventory.scan_bus()
    assert siblings(ComponentKind.GPU, ADDRESSES[0]) == [*ADDRESSES[1:]]
    gone = "0000:99:00.0"
    assert siblings(ComponentKind.GPU, gone) == ["0000:01:00.0", *ADDRESSES]
    assert siblings(ComponentKind.NIC, gone) == ["0000:02:00.0"]


def test_a_limit_that_is_removed_ends_it_by_any_of_its_devices() -> None:
    """The source reports of each device that the configuration has no limit for it any more."""
    judge = empty()
    for number in range(3):
        judge.apply_event(report(NOT_INITIALISED, number, 1.0))
    fields = {"code": NOT_INITIALISED.code, "by": "the configuration", "reason": "no limit"}
    for number in range(3):
        device = report(NOT_INITIALISED, number, 1.0).component
        judge.apply_event(event(CLEARED, device, 2.0, trust=Trust.DAEMON, fields=fields))
        assert judge.open_findings == ()
