"""
Log in, verdict out: each `*.scenario` beside this file tells what happens to one node. A new one
needs no code.

Before the first line:

    profile hyperpod                 judge by another profile
    device_reset                     the site resets devices itself
    userspace confirmed              what records of processes are taken for
    override xid/63 action = "inspect"

What happens:

    # a comment
    at 90s                           time since the beginning
    line NVRM: Xid (PCI:...          in any form that a rendered log has
    times 300 NVRM: ... Ch {n}       300 lines, numbered
    old 5m NVRM: ...                 a line of 5 minutes ago that is read only now
    doubt NVRM: ...                  a line that may be the rest of the record before it
    fact nvml/recovery_action gpu/0000:65:00.0 recovery=2     what another source reports
    reboot, restart                  the node boots; the daemon is killed and started
    deaf, hears                      the kernel log cannot be read; it can again
    step 1h, step -1h                somebody sets the clock
    drill 10m NVRM: Xid (...         an announced drill, written by a process
    clear xid/64@0000:65:00.0 why    a named person closes a finding; `replaced`: because the board
                                     was; `remedy`: begins it
    accept xid/79@0000:65:00.0 7d why

What is expected:

    expect status=unhealthy action=reboot_node reboot=true replace=false findings=...
    because xid/79@0000:65:00.0 TEXT what it requires has this reason
    told TEXT                        something that changed since the last `expect` had this cause

`expect` checks what it names, lists exactly. `findings`: CODE@ID:ACTION, `/after_job`,
`/maintenance`, `/unusable`, `/in_remedy`, `/accepted` behind the action, `*N` if seen N times, `~`
before a drill's. `incidents` (the open ones) and `over` (those without an open finding, as long as
they can be joined): ROOT+MEMBER+..., each CODE@ID, `*N` if printed N times. `lines`: the number of
lines that `vitald status` needs. `running`, `prolog`, `epilog`: the status for that work.
`confirmed`: the findings that a second source confirmed, or that saw the fault itself;
`reboot_confirmed`, `replace_confirmed`: whether one of those requires it. `scores`:
DEVICE:POINTS.
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
