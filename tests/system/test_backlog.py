"""A daemon that is started into a storm of faults answers at once, while it is judged."""

from __future__ import annotations

import time

import pytest

from tests.bench.backlog import line
from tests.harness import Node
from tests.pace import patient

LINES = 6000


@pytest.mark.timed
def test_status_does_not_wait_for_a_backlog(node: Node) -> None:
    """It says `unknown` until the kernel log has been read to its end, and is told so in far less
    than it waits for an ordinary start.
    """
    node.stop()
    with node.log.open("a") as log:
        log.writelines(f"{line(number)}\n" for number in range(LINES))
    node.start(wait=False)
    node.until(lambda: node.answers("/healthz"), 20.0, "the daemon to answer")
    taken = []
    while True:
        begun = time.monotonic()
        status = node.status()
        if status["sources"][0]["state"] != "starting":
            break
        taken.append(time.monotonic() - begun)
        assert status["status"] == "unknown"
    assert taken, "it was over before anybody asked"
    assert max(taken) < patient(0.5)
    node.until(
        lambda: sum(one["count"] for one in node.findings("&code=xid/31")) == LINES,
        60.0,
        "all lines to be judged",
    )
