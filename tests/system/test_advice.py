"""Advice to jobs, and `vitald wait`, with the real daemon."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Node
from tests.pace import patient
from tests.system.lines import vouched, xid
from tests.system.people import NOBODY
from tests.system.test_api_watch import watching

SAVE = ("advise", "save", "--for", "10m", "--reason", "GPU 3 is reset at noon")
NONE = ("advise", "none", "--reason", "put off")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "n") as node:
        yield node


# The interpreter may lie where other users cannot read: it is loaded while still root.
_AS_NOBODY = f"""
import importlib, os, pkgutil, sys
import encodings.idna, vitald.tomlfile, vitald.cli
for module in pkgutil.walk_packages(vitald.cli.__path__, "vitald.cli."):
    importlib.import_module(module.name)
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
sys.exit(vitald.cli.main(sys.argv[1:]))
"""


def wait(node: Node, *words: str, nobody: bool = False) -> subprocess.Popen[str]:
    """`vitald wait` in the background."""
    vitald = ["-c", _AS_NOBODY] if nobody else ["-m", "vitald"]
    command = [PYTHON, *vitald, "wait", "--socket", str(node.socket), *words]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/agent"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_followed(node: Node) -> bool:
    """Whether a client stays connected."""
    return all("\nvitald_api_clients 1.0\n" in node.metrics() for _ in range(5))


def waits(node: Node, *words: str) -> subprocess.Popen[str]:
    """The same, once it follows the changes."""
    waiting = wait(node, *words)
    node.until(lambda: is_followed(node), 10.0, "vitald wait to follow the changes")
    return waiting


def end(waiting: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = waiting.communicate(timeout=patient(20.0))
    return waiting.returncode, stdout, stderr


def codes(node: Node) -> list[str]:
    return [event["code"] for event in node.events("&kind=vitald") if "save" in event["code"]]


def test_a_person_advises_to_save(node: Node) -> None:
    assert node.status()["advice"]["save"] is False
    waiting = waits(node, "--until", "save", "--timeout", "1m")
    before = {key: node.status()[key] for key in ("status", "action", "reasons")}
    advised = node.cli(*SAVE)
    assert advised.returncode == 0, advised.stderr
    line = r"jobs are advised to save by .*: GPU 3 is reset at noon\n"
    assert re.fullmatch(line, advised.stdout)
    assert end(waiting) == (0, advised.stdout, "")
    status = node.status()
    assert {key: status[key] for key in before} == before
    assert (status["advice"]["action"], status["advice"]["when"]) == ("announced", "after_job")
    assert "vitald_save_advised 1.0" in node.metrics()
    assert advised.stdout.strip() in node.cli("status").stdout
    assert end(wait(node, "--until", "save"))[0] == 0  # at once

    node.restart(signal.SIGKILL)
    assert node.status()["advice"] == status["advice"]

    withdrawn = node.cli(*NONE)
    assert withdrawn.stdout == "jobs are not advised to save\n"
    assert node.cli(*NONE).stdout == "nothing was announced\njobs are not advised to save\n"
    assert "vitald_save_advised 0.0" in node.metrics()
    assert codes(node) == ["vitald/save_announced", "vitald/save_withdrawn"]
    assert node.findings() == []


def test_the_stream_has_each_change(node: Node) -> None:
    with watching(node, patient(10.0)) as lines:
        assert next(lines)["type"] == "verdict"
        node.cli(*SAVE)
        advised = next(line for line in lines if line["type"] == "advice")
        assert advised["advice"] == node.status()["advice"]
        node.cli(*NONE)
        assert not next(line for line in lines if line["type"] == "advice")["advice"]["save"]


def test_a_requested_repair_advises(tmp_path: Path) -> None:
    extra = '[recovery]\nmode = "automatic"\nafter = "1s"\n'
    with Node(tmp_path / "n", extra=extra) as node:
        waiting = waits(node, "--until", "save", "--timeout", "1m")
        node.write(vouched(xid(1)))
        code, stdout, _ = end(waiting)
        why = r"jobs are advised to save by \S+: gpu/0000:65:00.0: .* \(xid/79\) \(#1\)\n"
        assert code == 0 and re.fullmatch(why, stdout), stdout
        advice = node.status()["advice"]
        assert (advice["action"], advice["when"], advice["finding"]) == ("reboot_node", "now", 1)
        node.cli("clear", "1", "--reason", "the card was changed")
        node.wait(lambda status: not status["advice"]["save"])


def test_wait_for_an_unfit_node_and_a_command(node: Node) -> None:
    waiting = waits(
        node, "--until", "unfit", "--timeout", "1m", "--", "sh", "-c", "echo $$; exit 7"
    )
    node.write(xid(1))
    code, stdout, _ = end(waiting)
    assert (code, stdout) == (7, f"{waiting.pid}\n"), "it became the command"
    assert end(wait(node, "--until", "fit", "--timeout", "1s"))[0] == 124


def test_wait_over_a_restart(node: Node) -> None:
    waiting = waits(node, "--until", "unfit", "--timeout", "1m")
    node.stop(signal.SIGKILL)
    time.sleep(0.5)
    assert waiting.poll() is None
    node.start()
    node.write(xid(1))
    assert end(waiting)[0] == 0


def test_wait_for_a_change(node: Node) -> None:
    waiting = waits(node)
    node.write(xid(1))
    code, stdout, _ = end(waiting)
    assert code == 0 and stdout.startswith("unhealthy: gpu/0000:65:00.0: GPU has fallen off")


def test_wait_without_a_daemon(node: Node) -> None:
    node.stop()
    code, stdout, stderr = end(wait(node, "--timeout", "1s"))
    assert (code, stdout) == (30, "")
    assert "no socket at" in stderr or "nobody listens" in stderr


def test_a_command_that_is_not_there(node: Node) -> None:
    code, _, stderr = end(wait(node, "--until", "fit", "--", "/nonexistent/program"))
    assert (code, stderr) == (127, "vitald: /nonexistent/program: No such file or directory\n")


def test_a_batch_script_saves(node: Node, tmp_path: Path) -> None:
    """The line of the documentation, in a real shell script: the training process gets SIGUSR1."""
    vitald = tmp_path / "vitald"
    vitald.write_text(f'#!/bin/sh\ncd {ROOT}/agent && exec {PYTHON} -m vitald "$@"\n')
    vitald.chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(
        f"""#!/bin/bash
(trap 'echo saved > {tmp_path}/checkpoint; exit 0' USR1; touch {tmp_path}/began
 while :; do sleep 0.05; done) &
TRAINER=$!
{vitald} wait --socket {node.socket} --until save -- kill -USR1 $TRAINER &
wait $TRAINER
"""
    )
    job = subprocess.Popen(["bash", str(script)])
    node.until(lambda: (tmp_path / "began").exists() and is_followed(node), 10.0, "the job")
    assert not (tmp_path / "checkpoint").exists()
    assert node.cli(*SAVE).returncode == 0
    assert job.wait(patient(20.0)) == 0
    assert (tmp_path / "checkpoint").read_text() == "saved\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="it becomes another user")
@pytest.mark.parametrize("until", ["save", "change"])
def test_a_user_who_may_not_read_waits_on_the_job_socket(until: str) -> None:
    """Over a restart of the daemon, and it is no rank."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        with Node(Path(folder) / "n") as node:
            waiting = wait(node, "--until", until, "--timeout", "1m", nobody=True)
            node.until(lambda: connections(node) == 1, 15.0, "vitald wait to listen")
            assert node.get("/v1/jobs")["reported"] == []
            node.restart(signal.SIGKILL)
            node.until(lambda: connections(node) == 1, 15.0, "vitald wait to listen again")
            assert waiting.poll() is None
            assert node.cli(*SAVE).returncode == 0
            assert end(waiting) == (0, "jobs are advised to save\n", "")
            assert end(wait(node, "--until", "save", nobody=True))[0] == 0  # at once
            node.cli(*NONE)
            late = wait(node, "--until", "save", "--timeout", "1s", nobody=True)
            assert end(late)[0] == 124
            code, _, stderr = end(wait(node, "--until", "fit", nobody=True))
            assert (code, "not allowed to ask" in stderr) == (30, True)


def connections(node: Node) -> int:
    return int(node.get("/v1/jobs")["socket"]["connections"])
