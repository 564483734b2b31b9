"""What confirms a finding that rests on the text of a log: the cases that no line of a scenario can
tell.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.unit.builders import catalogue, empty, event, gpu
from vitald.judge.engine import Judge
from vitald.judge.open_findings import MAX_FINDINGS
from vitald.model.component import NODE, Component
from vitald.model.event import TOO_MANY, Event, Trust
from vitald.model.words import Action, ComponentKind

PORT = Component(ComponentKind.PCI, "0000:00:01.0")


def seen(code: str, component: Component, time: float = 5.0, **fields: object) -> Event:
    """What another source than the log says."""
    return replace(event(code, component, time, trust=Trust.DAEMON, fields=fields), source="nvml")


def confirmed(judge: Judge) -> dict[str, str]:
    return {one.code: one.confirmed_by for one in judge.open_findings if one.is_confirmed}


def test_an_address_that_is_not_here_is_borne_out_by_itself_only() -> None:
    """Neither a count of the node, nor the port that the line names: by who saw a device at that
    address.
    """
    judge = empty()
    judge.apply_event(event("xid/79", gpu(1), 0.0, fields={"on_pci": False, "port": PORT.id}))
    judge.apply_event(seen("expect/gpus", NODE))
    judge.apply_event(seen("pci/removed", PORT))
    assert "xid/79" not in confirmed(judge)
    judge.apply_event(seen("pci/removed", Component(ComponentKind.PCI, gpu(1).id)))
    assert confirmed(judge)["xid/79"] == "nvml (pci/removed)"


def test_a_count_bears_out_the_loss_of_a_device_that_was_here() -> None:
    judge = empty()
    judge.apply_event(event("xid/79", gpu(1), 0.0, fields={"on_pci": True}))
    judge.apply_event(seen("expect/gpus", NODE, gpus_proven=0))
    assert "xid/79" not in confirmed(judge), "the configuration is no witness"
    judge.apply_event(seen("expect/gpus", NODE, gpus_proven=1))
    assert confirmed(judge)["xid/79"] == "nvml (expect/gpus)"


def test_what_stands_for_many_is_never_confirmed() -> None:
    """Of thousands of findings that had no room one may be no more than text."""
    judge = empty()
    for number in range(MAX_FINDINGS):
        judge.apply_event(
            event("xid/79", Component(ComponentKind.GPU, f"{number:04x}:00:00.0"), 0.0)
        )
    judge.apply_event(event("xid/79", Component(ComponentKind.GPU, "ffff:00:00.0"), 1.0))
    judge.apply_event(
        seen("nvml/gpu_lost", Component(ComponentKind.GPU, "ffff:01:00.0"), 2.0, lost=1)
    )
    (many,) = [one for one in judge.open_findings if one.code == TOO_MANY]
    assert (many.count, many.is_confirmed) == (2, False)


def test_what_still_holds_confirms_what_it_was_told_under() -> None:
    """An older version told NVML's loss under the line, and remembers no witness: the next look is
    one.
    """
    judge = empty()
    judge.apply_event(event("xid/79", gpu(1), 0.0))
    judge.apply_event(seen("nvml/gpu_lost", gpu(1), 1.0, lost=1))
    assert judge.accounts_for(seen("nvml/gpu_lost", gpu(1), 2.0, lost=1))
    memory = judge.memory
    judge = Judge(
        catalogue(),
        replace(memory, findings=tuple(replace(one, confirmed_by="") for one in memory.findings)),
    )
    held = seen("nvml/gpu_lost", gpu(1), 2.0, lost=1)
    assert not judge.accounts_for(held), "it has something new to say"
    judge.apply_event(held)
    assert confirmed(judge) == {"xid/79": "nvml (nvml/gpu_lost)"}
    assert judge.accounts_for(held)


def test_a_board_that_was_moved_is_to_be_seen_where_it_is_now() -> None:
    judge = empty()
    judge.apply_event(seen("device/identity", gpu(1), 0.0, uuid="GPU-a"))
    judge.apply_event(seen("nvml/row_remap_failed", gpu(1), 1.0, remap_failure=True))
    judge.apply_event(seen("device/identity", gpu(2), 2.0, uuid="GPU-a"))
    (carried,) = judge.open_findings
    assert (carried.component, carried.is_confirmed) == (gpu(2), False)
    judge.apply_event(seen("nvml/row_remap_failed", gpu(2), 3.0, remap_failure=True))
    assert confirmed(judge) == {"nvml/row_remap_failed": "nvml"}


def test_a_witness_confirms_no_more_than_it_asks() -> None:
    """For every line and every observation of the same device: what asks for less confirms less."""
    judged = 0
    rules = catalogue()
    texts = [rules.find_rule(f"xid/{number}") for number in (48, 62, 79, 95, 119)]
    for text, witness in product(texts, rules.rules.values()):
        if witness.kind not in ("nvml", "pci") or witness.fault == text.fault:
            continue
        judge = empty()
        judge.apply_event(event(text.code, gpu(1), 0.0))
        judge.apply_event(seen(witness.code, gpu(1)))
        for line in judge.open_findings:
            if line.code == text.code and line.is_confirmed:
                judged += 1
                assert line.action.rank <= witness.action.rank, witness.code
    assert judged


def test_text_that_raises_what_was_confirmed_is_not_confirmed() -> None:
    """The driver's word in a line asks for a reboot, the observed fault for a reset."""
    judge = empty()
    judge.apply_event(seen("nvml/ecc_uncorrected", gpu(1), 0.0))
    assert confirmed(judge) == {"nvml/ecc_uncorrected": "nvml"}
    judge.apply_event(event("xid/154", gpu(1), 1.0, fields={"recovery": 2}))
    (raised,) = [one for one in judge.open_findings if one.code == "nvml/ecc_uncorrected"]
    assert raised.action is Action.REBOOT_NODE
    assert not raised.is_confirmed
    judge.apply_event(seen("nvml/recovery_action", gpu(1), 2.0, recovery=2))
    assert "nvml/ecc_uncorrected" in confirmed(judge)


@pytest.mark.parametrize(
    ("code", "kind", "witnesses"),
    [
        ("xid/79", ComponentKind.GPU, ("dcgm", "expect", "nvml", "pci")),
        ("xid/13", ComponentKind.GPU, ("nvml", "pci")),
        ("xid/999", ComponentKind.GPU, ("nvml",)),
        ("aer/fatal", ComponentKind.GPU, ("nvml", "pci")),
        ("sxid/20034", ComponentKind.NVSWITCH, ("nvml",)),
        ("edac/uncorrected", ComponentKind.DIMM, ("edac",)),
        ("lockup/soft", ComponentKind.CPU, ()),
    ],
)
def test_who_could_confirm_it(code: str, kind: ComponentKind, witnesses: tuple[str, ...]) -> None:
    assert catalogue().find_witnesses(code, kind) == witnesses
