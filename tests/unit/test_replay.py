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


def replayed(log: Path, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "vitald", "replay", str(log), *options],
        cwd=ROOT,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


def summary_of(log: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(replayed(log, "--json")[-1])
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


@pytest.mark.parametrize(
    ("prefix", "time", "shown"),
    [
        ("[  100.000000] ", None, "100.000000 s after the start (line 2)"),
        ("kernel: ", None, "line 2, which has no date"),
        ("2025-02-19T21:20:00Z node7 kernel: ", "2025-02-19T21:20:00.000Z", "2025-02-1"),
    ],
)
def test_a_difference_has_the_date_of_its_line_or_none(
    prefix: str, time: str | None, shown: str, tmp_path: Path
) -> None:
    log, rules = tmp_path / "kernel.log", tmp_path / "rules"
    rules.mkdir()
    (rules / "mild.toml").write_text('["xid/79"]\naction = "inspect"\n')
    log.write_text(f"kernel: usb 1-1: ordinary\n{prefix}{BUS}\n")
    difference = json.loads(replayed(log, "--json", "--catalog", str(rules))[0])
    assert (difference["type"], difference["time"], difference["line"]) == ("difference", time, 2)
    assert replayed(log, "--catalog", str(rules))[0].startswith(shown)
