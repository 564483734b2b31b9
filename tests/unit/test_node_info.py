"""What kind of node it is, for comparing faults over a fleet."""

from __future__ import annotations

from vitald.core.node_state import NodeState
from vitald.metrics.node import NodeIdentity
from vitald.model.component import NODE, Component
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind


def read(component: Component, **values: Sample) -> Readings:
    return Readings(
        component=component,
        identity="",
        time=0.0,
        polled_at=0.0,
        values=values,
        fresh=frozenset(values),
    )


def show(identity: NodeIdentity) -> dict[str, str]:
    (sample,) = identity.make_info().samples
    assert sample.name == "vitald_node_info"
    return dict(sample.labels)


def test_what_was_read_last_stays() -> None:
    """A source fails just when faults are compared."""
    state = NodeState("boot", 0.0, device_reset=False)
    identity = NodeIdentity(state, "p5.48xlarge")
    empty = dict.fromkeys(("kernel", "gpu_driver", "neuron_driver", "chassis_serial"), "")
    assert show(identity) == {"instance_type": "p5.48xlarge", **empty}
    state.replace_readings("expect", [read(NODE, kernel="6.8.0", gpu_driver="570.1")])
    assert (show(identity)["kernel"], show(identity)["gpu_driver"]) == ("6.8.0", "570.1")
    gpus = [Component(ComponentKind.GPU, f"0000:0{number}:00.0") for number in range(3)]
    state.replace_readings("nvml", [read(gpu, driver_version="570.2") for gpu in gpus])
    assert show(identity)["gpu_driver"] == "570.2", "the driver that runs, not its module's file"
    state.replace_readings("nvml", [])
    state.replace_readings("expect", [])
    assert show(identity) == {
        **empty,
        "instance_type": "p5.48xlarge",
        "kernel": "6.8.0",
        "gpu_driver": "570.2",
    }


def test_of_several_values_the_most_frequent() -> None:
    state = NodeState("boot", 0.0, device_reset=False)
    gpus = [Component(ComponentKind.GPU, f"0000:0{number}:00.0") for number in range(3)]
    serials = ("", "rack-2", "rack-2")
    state.replace_readings(
        "nvml", [read(gpu, chassis_serial=serial) for gpu, serial in zip(gpus, serials)]
    )
    assert show(NodeIdentity(state, ""))["chassis_serial"] == "rack-2"
