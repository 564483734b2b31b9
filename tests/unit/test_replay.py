"""`vitald replay` of a saved kernel log: told by the lines' own clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builders import ROOT
from tests.waiting import WAIT_S

BUS = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=x, GPU has fallen off the bus."
AFTER = (
    "NVRM: Xid (PCI:0000:65:00): 31, pid=1896, name=train, Ch 00000010, intr 00000000. MMU Fault: x"
)


def summary_of(log: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "vitald", "replay", str(log), "--json"],
        cwd=ROOT,
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ((f"[  100.000000] {BUS}", f"[  101.000000] {AFTER}"), ["xid/79"]),
        ((f"[  100.000000] {BUS}", f"[ 3700.000000] {AFTER}"), ["xid/31", "xid/79"]),
        ((f"4,1,100000000,-;{BUS}", f"4,2,3700000000,-;{AFTER}"), ["xid/31", "xid/79"]),
        (
            (f"[  100.000000] {BUS}", f"[   90.000000] {AFTER}"),
            ["xid/31", "xid/79"],
        ),  # of the next boot
        ((BUS, *["usb 1-1: ordinary"] * 20, AFTER), ["xid/79"]),
        (
            (f"[  100.000000] {AFTER}", f"[ 3800.000000] {BUS}"),
            ["xid/79"],
        ),  # its quiet hour is over
    ],
)
def test_a_saved_log_is_judged_by_its_own_clock(
    lines: tuple[str, ...], wanted: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    summary = summary_of(log)
    assert sorted(one.partition(" ")[0] for one in summary["inForce"]) == wanted
