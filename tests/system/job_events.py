"""What tests of the job socket wait for: its path, the events of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.harness import Json, Node, is_listening
from tests.pace import patient


def job_socket(node: Node) -> Path:
    return node.runtime / "job/job.sock"


def wait_for_job_socket(node: Node) -> None:
    wait_until(lambda: is_listening(job_socket(node)))


def wait_until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    until = time.monotonic() + patient(seconds)
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def list_events(node: Node, code: str) -> list[Json]:
    return [event for event in node.events() if event["code"] == code]
