"""The site's own checks on the real daemon, with real programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.conftest import NOT_BESIDE_SLURM, require
from tests.harness import Json, Node
from tests.waiting import until

pytestmark = NOT_BESIDE_SLURM

# Prints its first file, and ends with the code that is in the second one.
PROGRAM = """\
#!/bin/sh
echo "looking for $1"
cat "$1" >&2
exit "$(cat "$2")"
"""


class Site:
    """A node with the check `scratch`, whose result the test sets."""

    def __init__(self, make_node: Callable[..., Node], folder: Path, keys: str = "") -> None:
        self.program, self.message, self.code = (
            folder / name for name in ("check", "message", "code")
        )
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        self.set(0)
        self.section = (
            f'[checks.scratch]\nrun = ["{self.program}", "{self.message}", "{self.code}"]\n'
            f'every = "off"\n{keys}'
        )
        self.node = make_node(extra=self.section)
        self.node.start()

    def set(self, code: int, message: str = "") -> None:
        self.code.write_text(str(code))
        self.message.write_text(message)

    def begin(self) -> str:
        body = {"check": "scratch", "level": 0, "reason": "test"}
        status, answer = self.node.request("POST", "/v1/diagnostics/run", body)
        assert status == 202, answer
        return str(cast("Json", answer["active"])["id"])

    def end_of(self, run: str) -> Json:
        path = f"/v1/diagnostics/runs/{run}"
        until(lambda: self.node.request("GET", path)[0] == 200, f"the end of {run}")
        return self.node.get(path)

    def run(self) -> Json:
        return self.end_of(self.begin())


@pytest.mark.core
def test_a_check_makes_the_node_unfit_until_it_passes(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    site = Site(make_node, tmp_path)
    assert site.run()["outcome"] == "pass"
    assert site.node.status()["status"] == "healthy"
    site.set(3, "first\nsecond\n/scratch is not mounted\n")
    run = site.run()
    assert run["outcome"] == "fail" and "looking for" in str(run["raw"])
    site.node.wait(lambda status: status["status"] == "unhealthy")
    (found,) = site.node.findings()
    assert (found["code"], found["component"], found["action"]) == (
        "check/scratch",
        "node",
        "inspect",
    )
    assert found["raw"] == (
        f"scratch: exit code 3; looking for {site.message}; first; second; /scratch is not mounted"
    )
    assert site.node.status()["rebootRequired"] is False
    shown = site.node.cli("status").stdout
    assert "check/scratch" in shown and "FAILED" not in shown, "its run is not shown once more"
    site.node.kill()  # what a check found stands until it passes
    site.node.start()
    site.node.wait(lambda status: status["status"] == "unhealthy")
    site.set(0)
    site.run()
    site.node.wait(lambda status: status["status"] == "healthy")


@pytest.mark.core
def test_a_reload_removes_a_check_and_what_it_found(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    site = Site(make_node, tmp_path, 'exit_codes = "nagios"\n')
    site.set(1, "DISK WARNING - 91 %")
    site.run()
    site.node.wait(lambda status: status["status"] == "degraded")
    new = site.section.replace("scratch", "disk")
    site.node.configure(site.section, new)
    assert site.node.reload()["applied"] == ["[checks.disk]", "[checks.scratch]"]
    site.node.wait(lambda status: status["status"] == "healthy")
    checks = cast("list[Json]", site.node.get("/v1/diagnostics")["checks"])
    names = [check["name"] for check in checks]
    assert "disk" in names and "scratch" not in names
    assert site.node.request("GET", "/v1/findings?code=check/scratch")[0] == 200


@pytest.mark.core
def test_a_check_that_needs_idle_devices_makes_room_for_a_job(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    site = Site(make_node, tmp_path, "idle = true\n")
    site.program.write_text("#!/bin/sh\nsleep 600\n")
    run = site.begin()
    until(lambda: "running" in str(site.node.get("/v1/diagnostics")["active"]), "the run")
    began = {"event": "begin", "job": "7", "user": "alice"}
    assert site.node.request("POST", "/v1/jobs", began)[0] == 200
    assert site.end_of(run)["preempted"] == "job 7"
    assert site.node.findings() == []


def test_root_runs_no_program_that_others_can_change(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    require(os.geteuid() == 0, "root")
    site = Site(make_node, tmp_path)
    site.program.chmod(0o777)
    run = site.run()
    assert run["outcome"] == "error" and "is not run as root: everybody may write" in str(
        run["why"]
    )
