"""A daemon that is started into a storm of faults answers at once, while it is judged."""

from __future__ import annotations

from tests.bench.backlog import line
from tests.harness import Node
from tests.waiting import until

LINES = 6000


def test_status_does_not_wait_for_a_backlog(node: Node) -> None:
    """It says `unknown` until the kernel log has been read to its end."""
    node.stop()
    with node.log.open("a") as log:
        log.writelines(f"{line(number)}\n" for number in range(LINES))
    node.start(wait=False)
    until(lambda: node.answers("/healthz"), "the daemon to answer")
    answers = 0
    while (status := node.status())["sources"][0]["state"] == "starting":
        assert status["status"] == "unknown"
        answers += 1
    assert answers, "it was over before anybody asked"
    until(lambda: count_faults(node) == LINES, "all lines to be judged")


def count_faults(node: Node) -> int:
    """Also of those that are cleared: the lines are of the boot's first seconds, so that they may
    have been quiet for long enough when the last is judged.
    """
    findings = (node.findings(f"&code=xid/31&state={state}") for state in ("open", "cleared"))
    return sum(one["count"] for listed in findings for one in listed)
