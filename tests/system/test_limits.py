"""What the machine gives a process is used up: descriptors, threads. Said in a line, not in
thousands, and in words.
"""

from __future__ import annotations

import json
import resource
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import fresh_pci, wait_for_pid, xid
from tests.system.test_api_clients import connected
from tests.waiting import WAIT_S, until

# A machine that has so many threads for this process, or none of that name. Root is held to no
# limit of processes, so the limit is played.
_FEW_THREADS = """
import sys, threading
wanted, begin = sys.argv.pop(1), threading.Thread.start
left = int(wanted) if wanted.isdecimal() else 1000
def start(thread):
    global left
    left -= 1
    if left < 0 or thread.name == wanted:
        raise RuntimeError("can't start new thread")
    begin(thread)
threading.Thread.start = start
from vitald.cli import main
sys.exit(main())
"""


def test_clients_that_cannot_be_let_in(make_node: Callable[..., Node]) -> None:
    """They wait, all goes on, and the log has a line of it."""
    node = make_node()
    node.start()
    assert node.process is not None
    pid = node.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
    with ExitStack() as stack:
        for port in (False, True):
            for _ in range(30):
                stack.enter_context(connected(node, port=port))
        time.sleep(2.5)  # asyncio tries every second, a backlog's length of times
        before = len(node.errors.read_text().splitlines())
        assert before < 20, node.errors.read_text()[-2000:]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: node.answers("/healthz"), "an answer")
    said, *_ = node.said("clients_not_let_in")
    assert (said["error"], said["times"]) == ("Too many open files", 1)
    node.write(xid(1, pci=fresh_pci()))
    wait_for_pid(node, 1)
    assert "Traceback" not in node.errors.read_text()
    for line in node.errors.read_text().splitlines():
        assert json.loads(line)["event"]


@pytest.mark.parametrize("threads", [0, 1, 3, 5])
def test_no_thread_to_be_had(make_node: Callable[..., Node], threads: int) -> None:
    """The daemon needs its lanes. Without them it says so, and is tried again by whoever
    keeps it.
    """
    node = make_node()
    command = [PYTHON, "-c", _FEW_THREADS, str(threads), "run", "--config", str(node.config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, len(lines)) == (69, 1), done.stderr
    assert "no thread for" in lines[0] and "TasksMax" in lines[0]
    assert not node.socket.exists()


def test_no_thread_later(make_node: Callable[..., Node], tmp_path: Path) -> None:
    """What is looked at by threads of its own fails, in words, and the rest goes on."""
    node = make_node(looks=("host",))
    node.command = [PYTHON, "-c", _FEW_THREADS, "host", "run", "--config", str(node.config)]
    node.start(wait=False)
    until(lambda: node.answers("/healthz"), "the daemon")
    until(lambda: node.said("source_failed"), "the word of it")
    assert "no thread for" in str(node.said("source_failed")[0]["error"])
    node.write(xid(1, pci=fresh_pci()))
    wait_for_pid(node, 1)
    assert "Traceback" not in node.errors.read_text()
