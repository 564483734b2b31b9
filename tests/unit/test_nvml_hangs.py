"""What is known of GPUs that hang, that are lost and that say nothing."""

from __future__ import annotations

from tests.unit.test_nvml_readings import GPUS, Node
from vitald.collectors.nvml.gpu_history import GpuHistory
from vitald.model.component import NODE, Component
from vitald.model.words import ComponentKind


def test_what_hangs_is_present_while_it_is_on_pci() -> None:
    """The node itself always is."""
    history = GpuHistory()
    here, gone = (Component(ComponentKind.GPU, address) for address in GPUS[:2])
    for component in (NODE, here, gone):
        history.hung[component.name] = {"call": "c"}
    assert [one for one, _ in history.list_hanging({here.id})] == [here, NODE]
    assert [history.end_hang(here), history.end_hang(here)] == [True, False]
    assert [one for one, _ in history.list_hanging({here.id})] == [NODE]


def test_of_a_lost_gpu_no_reading_is_current() -> None:
    node = Node(1)
    node.look(temperature_celsius=34.0)
    node.answer({GPUS[0]: {"values": {}, "missing": {}, "faults": ["lost"]}})
    assert node.read(0).missing["temperature_celsius"] == "lost"


def test_a_silence_that_is_a_finding_is_not_told_twice() -> None:
    """The look is not incomplete for it."""
    node = Node(2)
    node.look(temperature_celsius=34.0)
    for _ in range(3):
        node.answer({GPUS[0]: {"lookup": 23}, GPUS[1]: node.state[GPUS[1]]})
    assert node.read(0).unknown_reason
    assert node.node.current.list_unreadable(GPUS[:2]) == []
