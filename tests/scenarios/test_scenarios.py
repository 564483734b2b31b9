"""
Log in, verdict out: each `*.scenario` beside this file is a story of one node. A new one needs no
code.

    # a comment                      profile hyperpod           before the first line: judge by
    another profile at 90s                           device_reset               before the first
    line: the site resets devices itself line NVRM: Xid (PCI:...          userspace confirmed
    before the first line: what records of processes are taken for times 300 NVRM: ... Ch {n}
    override xid/63 action = "inspect", shadow = true    before the first line old 5m NVRM: ...
    a line of 5 minutes ago, read only now fact nvml/recovery_action gpu/0000:65:00.0 recovery=2
    what another source says
    reboot      restart              the node boots; the daemon is killed and started
    deaf        hears                the kernel log cannot be read; it can again
    step 1h     step -1h             somebody sets the clock
    drill 10m NVRM: Xid (...         an announced drill, written by a process
    clear xid/64@0000:65:00.0 why    a named person closes a finding; `replaced`: because the board
    was; `remedy`: begins it accept xid/79@0000:65:00.0 7d why    a named person lives with it for
    so long expect status=unhealthy action=reboot_node reboot=true replace=false
    findings=xid/79@0000:65:00.0:reboot_node because xid/79@0000:65:00.0 TEXT what it asks for has
    this reason told TEXT                        something that changed since the last `expect` had
    this cause

`at` is the time since the beginning. A line may have any form that a rendered log has. `expect`
checks what it names, lists exactly. `findings`: CODE@ID:ACTION, `/after_job`, `/maintenance`,
`/unusable`, `/in_remedy`, `/accepted` behind the action, `*N` if seen N times, `~` before a
drill's. `incidents` (the open ones) and `over` (those without an open finding, as long as they can
be joined): ROOT+MEMBER+..., each CODE@ID, `*N` if printed N times. `lines`: how many lines `vitald
status` says it in. `running`, `prolog`, `epilog`: the status for that work. `confirmed`: the
findings that a second source confirmed, or that saw it itself; `reboot_confirmed`,
`replace_confirmed`: whether one of those asks for it. `trials`: what rules on trial would ask for.
`scores`: DEVICE:POINTS.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.story import tell_story

FOLDER = Path(__file__).parent
STORIES = sorted(FOLDER.glob("**/*.scenario"))


@pytest.mark.parametrize("restarting", [False, True], ids=["", "restarting"])
@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_scenario(path: Path, restarting: bool, tmp_path: Path) -> None:
    tell_story(path, tmp_path, restarting=restarting).end()


def test_there_are_stories() -> None:
    assert len(STORIES) >= 80
