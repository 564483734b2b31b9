"""Two programs that change a node's reason: one after the other."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.unit.slurm_made import record_scontrol, verdict
from vitald.cli.slurm import command, health
from vitald.config import Config
from vitald.config_sections import Recovery
from vitald.recovery import cluster
from vitald.recovery.cluster import ActionContext, SlurmCluster
from vitald.slurm import scontrol
from vitald.slurm.drain import drain_node
from vitald.slurm.reasons import is_our_reason, record_reasons
from vitald.slurm.reasons_lock import ReasonsLocked, hold_reasons
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import Settings


class FakeSlurm:
    """A node whose first change returns after the second one, or after a while without one."""

    def __init__(self) -> None:
        self.node = SlurmNode(frozenset({"IDLE"}), "")
        self.first_came, self.second_is_over = threading.Event(), threading.Event()

    def read_node_state(self, name: str, seconds: float) -> SlurmNode:
        return self.node

    def update_node(self, name: str, changes: list[str], seconds: float) -> str:
        self.node = SlurmNode(frozenset({"IDLE", "DRAIN"}), changes[-1].partition("=")[2])
        if not self.first_came.is_set():
            self.first_came.set()
            self.second_is_over.wait(0.3)
        return ""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(reasons_file=tmp_path / "slurm-reason")


def test_the_record_of_two_concurrent_drains_is_what_slurm_has(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    monkeypatch.setattr(scontrol, "read_node_state", slurm.read_node_state)
    monkeypatch.setattr(scontrol, "update_node", slurm.update_node)
    first = threading.Thread(
        target=command._drain_node, args=(settings, verdict(reason="milder"), 20.0)
    )
    first.start()
    assert slurm.first_came.wait(10.0)
    assert command._drain_node(settings, verdict(reason="worse"), 20.0)
    slurm.second_is_over.set()
    first.join()
    assert slurm.node.reason == "vitald: worse"
    assert is_our_reason(settings, slurm.node)


def test_no_program_waits_longer_than_it_may(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = record_scontrol(monkeypatch, shown="   State=IDLE\n")
    monkeypatch.setattr(health, "SCONTROL_S", 0.05)
    monkeypatch.setattr(health, "report_ended_jobs", lambda *_: None)
    monkeypatch.setattr(cluster, "_SCONTROL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(cluster, "REASONS_FILE", settings.reasons_file)
    held = "another program of vitald has been changing the node"
    with hold_reasons(settings, 1.0):
        assert not command._drain_node(settings, verdict(), 0.1)
        assert held in capsys.readouterr().err
        health.check_node(settings, command.DaemonClient(None, time.monotonic()))
        assert f"nothing done: {held}" in capsys.readouterr().err
        assert not asked
        recovery = SlurmCluster(Config(recovery=Recovery(node="gpu01")))
        context = ActionContext(
            action="reboot", request_id="r" * 8, verdict=verdict(), boot_id="boot"
        )
        assert held in recovery.drain_node(context).trouble
    assert not [arguments for arguments in asked if arguments[0] == "update"]
    with hold_reasons(settings, 0.0):  # released
        pass


def test_jobs_are_signalled_without_the_lock(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals may take long: a prolog that drains the node meanwhile gives its own reason."""
    record_scontrol(monkeypatch, shown="   State=IDLE\n")
    drained = []

    def signal(*_: object) -> None:
        drained.append(command._drain_node(settings, verdict(), 0.1))

    monkeypatch.setattr(health.job_signals, "signal_jobs", signal)
    monkeypatch.setattr(health, "report_ended_jobs", lambda *_: None)
    daemon = command.DaemonClient(None, time.monotonic())
    monkeypatch.setattr(command.DaemonClient, "read_verdict", lambda _: verdict("healthy"))
    health.check_node(settings, daemon)
    assert drained == [True]


def test_a_lock_that_cannot_be_used_does_not_keep_a_node_in_service(
    settings: Settings, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "target").write_text("of others")
    lock = tmp_path / "slurm-reason.lock"
    for make in (lambda: lock.symlink_to(tmp_path / "target"), lambda: os.mkfifo(lock), lock.mkdir):
        make()
        ran = False
        with hold_reasons(settings, 0.0):
            ran = True
        assert ran and f"{lock}: no lock" in capsys.readouterr().err
        lock.rmdir() if lock.is_dir() else lock.unlink()
    assert (tmp_path / "target").read_text() == "of others"


def test_a_body_that_fails_releases_the_lock(settings: Settings) -> None:
    with pytest.raises(ValueError, match="body"), hold_reasons(settings, 0.0):
        raise ValueError("body")
    with hold_reasons(settings, 0.0), pytest.raises(ReasonsLocked), hold_reasons(settings, 0.0):
        pass


def test_a_symbolic_link_in_place_of_the_record_is_not_written_through(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record_scontrol(monkeypatch)
    (tmp_path / "target").write_text("of others")
    (tmp_path / f"slurm-reason.{os.getpid()}").symlink_to(tmp_path / "target")
    record_reasons(settings, "vitald: broken")
    assert (tmp_path / "target").read_text() == "of others"
    # Without a record the prefix decides.
    assert drain_node(settings, verdict(), "gpu01", SlurmNode(frozenset({"IDLE"}), ""), 1.0)
