"""
flood: 100,000 ordinary records with 100 Xids among them, into the real kernel log.

At full speed the ring (some 1,100 records on a small machine) overtakes every reader, and what counts is that nothing is
lost silently: each Xid's sequence number is among the judged events, or within a span that the daemon reported as lost. Each
form is run against a bare reader alone first, which is its floor.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from typing import cast

from tests.bench import ring
from tests.bench.measure import SETTLE_S, Helper, Json, Node, Usage, forget_peak, load, memory_mib, node, pid_of, rss_mib, scratch

LINES, XIDS = 100_000, 100
_PACE = 20_000  # records a second, in the paced form
_BURST = 20
_CATCH_UP_S = 60.0


def run() -> Json:
    with scratch() as folder, ring.unlimited() as out, node(folder, kernel_log="kmsg") as running:
        time.sleep(SETTLE_S)
        domain = random.randrange(0x1000, 0xF000)
        lines = ring.ordinary(LINES)
        figures: Json = {"lines": LINES, "xids": XIDS, "rss_before_mib": rss_mib(pid_of(running))}
        for name, pace in (("full_speed", None), (f"paced_{_PACE}_per_s", _PACE), ("full_speed_again", None), ("full_speed_third", None)):
            running.process.send_signal(19)  # type: ignore[union-attr]  # SIGSTOP: the floor is measured alone
            try:
                floor = _bare(out, lines, pace, domain)
            finally:
                running.process.send_signal(18)  # type: ignore[union-attr]
            _catch_up(running, out, domain, 0)
            figures[name] = {"daemon": _daemon(running, out, lines, pace, domain), "floor": floor}
        time.sleep(SETTLE_S)
        figures["memory_after_all_mib"] = memory_mib(pid_of(running))
        figures["load"] = load()
    return figures
