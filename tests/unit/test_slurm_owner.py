"""The owner of a node in Slurm, by its state, its reason and the record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vitald.slurm.owner import Owner, find_owner, forget_reasons, record_reasons
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import SlurmSettings

OURS = "vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"

# As slurmctld 22.05 shows them; NO_REASON of a node in service.
CASES = {
    Owner.SLURM: [
        ("IDLE", ""),
        ("MIXED", ""),
        ("IDLE+RESERVED", ""),
        ("IDLE+NOT_RESPONDING", ""),
    ],
    Owner.VITALD: [
        ("IDLE+DRAIN", OURS),
        ("MIXED+DRAIN", OURS),
        ("IDLE+DRAIN+RESERVED", OURS),
        ("DOWN+DRAIN+NOT_RESPONDING", OURS),
        ("IDLE+DRAIN", f"{OURS} : reboot issued"),  # by `scontrol reboot`, and it is over
    ],
    Owner.OTHERS: [
        # `scontrol reboot`: busy, idle, ASAP, with and without a reason, of a node that is drained
        ("MIXED+REBOOT_REQUESTED", "reboot requested"),
        ("MIXED+REBOOT_REQUESTED", "kernel update"),
        ("MIXED+DRAIN+REBOOT_REQUESTED", "Reboot ASAP"),
        ("MIXED+DRAIN+REBOOT_REQUESTED", OURS),
        ("DOWN+REBOOT_ISSUED", "reboot requested : reboot issued"),
        ("DOWN+DRAIN+REBOOT_ISSUED", f"{OURS} : reboot issued"),
        ("DOWN", f"{OURS} : reboot issued : reboot complete"),  # nextstate=DOWN
        # power, maintenance
        ("MIXED+POWER_DOWN", ""),
        ("IDLE+POWERING_DOWN", "POWER_DOWN_ASAP"),
        ("IDLE+POWERED_DOWN", ""),
        ("IDLE+CLOUD+POWERING_UP", ""),
        ("IDLE+MAINTENANCE+RESERVED", ""),
        ("IDLE+DRAIN+MAINT", OURS),
        # drained by others, or edited
        ("IDLE+DRAIN", "ticket 4711"),
        ("IDLE+DRAIN", ""),
        ("DOWN", "Not responding"),
        ("DOWN", OURS),
        ("IDLE+FAIL", "Action:Reboot"),
        ("IDLE+DRAIN", "Prolog error"),
        ("IDLE+DRAIN", "vitald is suspected"),
        ("IDLE+DRAIN", "vitald: seen by bob, RMA 123"),
        ("IDLE+DRAIN", f"{OURS}; bob: RMA 4711"),
        ("IDLE+DRAIN", f"{OURS} "),
        ("IDLE+DRAIN", f"{OURS} : bob: reboot issued"),
    ],
}


@pytest.fixture
def settings(tmp_path: Path) -> SlurmSettings:
    made = SlurmSettings(record=tmp_path / "record")
    record_reasons(made, OURS)
    return made


def make_node(state: str, reason: str) -> SlurmNode:
    return SlurmNode(frozenset(state.split("+")), reason)


@pytest.mark.parametrize(
    ("owner", "state", "reason"),
    [(owner, *case) for owner, cases in CASES.items() for case in cases],
)
def test_whose_a_node_is(settings: SlurmSettings, owner: Owner, state: str, reason: str) -> None:
    found = find_owner(settings, make_node(state, reason))
    assert found.owner is owner
    assert bool(found.obstacle) is (owner is Owner.OTHERS)


@pytest.mark.parametrize(("state", "reason"), CASES[Owner.VITALD])
def test_without_a_record_no_reason_is_ours(
    settings: SlurmSettings, state: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_reasons(settings)
    owner, obstacle = find_owner(settings, make_node(state, reason))
    assert (owner, str(settings.record) in obstacle, reason in obstacle) == (
        Owner.OTHERS,
        True,
        True,
    )
    settings.record.mkdir()
    assert find_owner(settings, make_node(state, reason)).owner is Owner.OTHERS
    assert "not read, so no reason counts as ours: [Errno 21]" in capsys.readouterr().err


def test_a_record_of_another_reason_does_not_count(settings: SlurmSettings) -> None:
    record_reasons(settings, "vitald: something milder")
    assert find_owner(settings, make_node("IDLE+DRAIN", OURS)).owner is Owner.OTHERS


def test_a_record_that_cannot_be_written_is_reported(
    settings: SlurmSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    record_reasons(replace(settings, record=settings.record / "below a file"), OURS)
    assert "this drain will count as an administrator's" in capsys.readouterr().err
