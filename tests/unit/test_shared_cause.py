"""What all devices of a kind fail with at once is one finding of the node: for every such entry."""

from __future__ import annotations

import pytest

from tests.trees import NVIDIA, Tree
from tests.unit.builders import booted, catalogue, empty, event
from vitald.catalog import Rule
from vitald.collectors.pci.inventory import PciInventory
from vitald.judge.engine import Judge
from vitald.model import NODE, Action, Component, ComponentKind, Event, Trust
from vitald.model.event import SIBLINGS

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
        assert found.title.startswith(f"Every {rule.component.value} of this node")


@pytest.mark.parametrize("rule", SHARED, ids=lambda rule: rule.code)
def test_one_of_three_is_its_own(rule: Rule) -> None:
    """A remedy that is due is asked for: of every entry, as without this."""
    judge = empty()
    asked = []
    for boot in range(2):
        judge.apply_event(booted(f"boot-{boot}", boot * 3600.0))
        judge.apply_event(report(rule, 1, boot * 3600.0 + 60, f"boot-{boot}"))
        asked += list_open(judge)
    name = f"{report(rule, 1, 0.0).component.name}"
    assert asked == [(name, Action.REBOOT_NODE), (name, Action.REPLACE_NODE)]


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


def test_a_driver_that_is_loaded_again_ends_it() -> None:
    judge = empty()
    rule = catalogue().find_rule("gpu_init_failed/rm_init_adapter")
    for number in range(3):
        judge.apply_event(report(rule, number, 1.0))
    assert len(judge.open_findings) == 1
    judge.apply_event(event("driver/loaded", NODE, 100.0))
    assert judge.open_findings == ()


def test_siblings_are_those_of_the_model(tmp_path: object) -> None:
    tree = Tree(tmp_path)  # type: ignore[arg-type]
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
