"""Killed at any moment, the daemon loses no fault silently and judges none twice."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system import chaos
from tests.system.chaos import Gap, Held, Ledger, Written, account


@pytest.mark.kmsg
@pytest.mark.usefixtures("kmsg")
def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each kind of round once. What happened, seed included, is shown where an account does not
    balance.
    """
    figures = chaos.run(tmp_path, rounds=8, seed=secrets.randbelow(1 << 32))
    told = json.dumps(figures, indent=2)
    assert figures["wrong"] == 0, told
    assert figures["faults_judged"] and figures["faults_in_gaps"], told
    assert (figures["dropped_by_kernel"], figures["unread_by_writer"]) == (0, 0), told
    complaints = figures["complaints"]
    assert isinstance(complaints, dict)
    assert not complaints.keys() & {"source_broke", "event_not_judged", "ledger_damaged"}, told


# Records 10 to 13 were taken; 10 and 13 were judged, 11 to 12 are told as lost at a time when the
# ring began with 13.
TEXTS = {seq: f"fault {seq}" for seq in range(10, 14)}
WRITTEN = Written(faults=dict(TEXTS), oldest=[(1.0, 10), (2.0, 13)])
GAP = Gap(11, 12, 1.5, 2)


def held(seq: int, text: str | None = None) -> Held:
    return Held(seq, text or TEXTS[seq], "gpu/a", "xid/31")


BALANCED = Ledger(
    events=[held(10), held(13)],
    gaps=[GAP],
    gap_events=1,
    findings={("gpu/a", "xid/31"): 2, ("node", "vitald/records_lost"): 1},
    incidents={("gpu/a", "xid/31"): 2, ("node", "vitald/records_lost"): 1},
)


def test_an_account_that_balances() -> None:
    assert account(WRITTEN, BALANCED) == []


def with_events(events: list[Held]) -> Ledger:
    """Folded as they stand."""
    counted = {**BALANCED.findings, ("gpu/a", "xid/31"): len(events)}
    return replace(BALANCED, events=events, findings=counted, incidents=counted)


def with_gaps(*gaps: Gap) -> Ledger:
    counted = {**BALANCED.findings, ("node", "vitald/records_lost"): len(gaps)}
    return replace(
        BALANCED, gaps=list(gaps), gap_events=len(gaps), findings=counted, incidents=counted
    )


MISTAKES: dict[str, tuple[list[str], Ledger]] = {
    "neither": (["missing"], with_events([held(13)])),
    "both": (["contradicted"], with_events([*BALANCED.events, held(12)])),
    "judged twice": (["twice", "twice"], with_events([*BALANCED.events, held(13)])),
    "under two numbers": (
        ["invented", "twice"],
        with_events([*BALANCED.events, held(14, "fault 13")]),
    ),
    "counted twice": (
        ["misfolded"],
        replace(BALANCED, findings={**BALANCED.findings, ("gpu/a", "xid/31"): 3}),
    ),
    "not counted": (
        ["misfolded"],
        replace(BALANCED, findings={("node", "vitald/records_lost"): 1}),
    ),
    "told twice": (
        ["misfolded"],
        replace(BALANCED, incidents={**BALANCED.findings, ("gpu/a", "xid/31"): 3}),
    ),
    "a gap of another size": (["miscounted"], with_gaps(replace(GAP, count=3))),
    "a gap told twice": (["miscounted"], with_gaps(GAP, GAP)),
    "a gap over what the ring held": (["contradicted", "invented"], with_gaps(Gap(11, 13, 1.5, 3))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_account_that_does_not_balance(mistake: str) -> None:
    """The test above would see it."""
    expected, ledger = MISTAKES[mistake]
    assert sorted(wrong.partition(":")[0] for wrong in account(WRITTEN, ledger)) == expected
