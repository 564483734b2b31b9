"""When the GPUs are released for a driver upgrade of the GPU Operator, and taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.clock import StandingClock
from vitald.publish import driver_upgrade
from vitald.publish.driver_upgrade import (
    LABEL,
    LIMIT_S,
    PHASES,
    RELEASE_S,
    RELEASED_SINCE,
    DaemonReleases,
    DriverUpgradeMonitor,
    GpuReleases,
    ReleaseFailed,
    UpgradePhase,
)
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.state_store import StateStore

# The states as the operator sets them while nothing goes wrong: upgrade_state.go, ApplyState.
UPGRADE = (
    "upgrade-required",
    "cordon-required",
    "wait-for-jobs-required",
    "pod-deletion-required",
    "drain-required",
    "pod-restart-required",
    "validation-required",
    "uncordon-required",
    "upgrade-done",
)


class Api:
    """The node's label."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.error: Exception | None = None
        self.reads = 0

    async def read_node(self) -> NodeObject:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return NodeObject(name="n", uid="u", resource_version="1", labels=self.labels)


class Daemon:
    """A daemon with GPUs. `asked`: the requests that change something."""

    def __init__(self) -> None:
        self.started_at = "2026-11-20T13:46:40Z"
        self.ours, self.others, self.has_gpus = 0, 0, True
        self.error: ReleaseFailed | None = None
        self.asked: list[str] = []

    def restart(self) -> None:
        self.started_at += "+"
        self.ours = self.others = 0

    async def read_state(self) -> DaemonReleases:
        if self.error is not None:
            raise self.error
        return DaemonReleases(self.started_at, bool(self.ours or self.others))

    async def begin_release(self, seconds: float) -> bool:
        assert seconds == RELEASE_S
        if self.error is not None:
            raise self.error
        self.asked.append("release")
        self.ours += self.has_gpus
        return self.has_gpus

    async def end_release(self) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append("end")
        self.ours = 0


class Site:
    """A node in the middle of its life; `check` is one round of the monitor."""

    def __init__(self, folder: Path, clock: StandingClock) -> None:
        self.folder, self.clock = folder, clock
        self.api, self.daemon = Api(), Daemon()
        self.store = StateStore(folder)
        self.restart_publisher()

    def restart_publisher(self) -> None:
        self.store.close()
        self.store = StateStore(self.folder)
        self.monitor = DriverUpgradeMonitor(
            cast("KubernetesClient", self.api), cast("GpuReleases", self.daemon), self.store
        )

    def check(self, state: str | None = None, *, after_s: float = 20.0) -> list[str]:
        """What is asked of the daemon after the label has this value."""
        if state is not None:
            self.api.labels = {LABEL: state} if state else {}
        self.clock.now += after_s
        self.daemon.asked = []
        asyncio.run(self._run_once())
        return self.daemon.asked

    async def _run_once(self) -> None:
        async def stop() -> None:
            raise asyncio.CancelledError

        self.monitor._wait_for_change = stop  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await self.monitor.run()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    clock = StandingClock()
    monkeypatch.setattr(driver_upgrade, "time", clock)
    made = Site(tmp_path, clock)
    yield made
    made.store.close()


def test_an_upgrade_from_its_beginning_to_its_end(site: Site) -> None:
    asked = [(state, site.check(state, after_s=70.0)) for state in ("", *UPGRADE)]
    assert [(state, what) for state, what in asked if what] == [
        ("pod-deletion-required", ["release"]),
        ("uncordon-required", ["end"]),
    ]
    assert site.daemon.ours == 0
    assert site.monitor.health.is_up
    assert site.store.read_moment(RELEASED_SINCE) == 0


def test_the_gpus_are_watched_while_jobs_run() -> None:
    for state in ("upgrade-required", "cordon-required", "wait-for-jobs-required"):
        assert PHASES[state] is UpgradePhase.PENDING
    # Where the modules are unloaded
    assert PHASES["pod-restart-required"] is UpgradePhase.RELEASED


def test_a_state_that_was_missed_is_no_matter(site: Site) -> None:
    """The operator may pass several between two reads."""
    assert site.check("upgrade-required") == []
    assert site.check("pod-restart-required") == ["release"]
    assert site.check("") == ["end"]
    assert site.check("") == []


def test_the_label_is_read_when_the_node_was_changed(site: Site) -> None:
    site.check("", after_s=70)
    assert site.check("pod-restart-required", after_s=0.0) == []
    site.monitor.note_change(is_urgent=False)
    assert site.check(after_s=0.0) == ["release"]


def test_a_failed_upgrade_takes_the_gpus_back(site: Site) -> None:
    assert site.check("drain-required") == ["release"]
    assert site.check("upgrade-failed") == ["end"]
    # NVIDIA's remedy is to set the label again
    assert site.check("upgrade-required", after_s=70) == []
    assert site.check("pod-deletion-required") == ["release"]


def test_a_release_is_renewed_and_not_more(site: Site) -> None:
    asked = [what for _ in range(60) for what in site.check("validation-required")]  # 20 minutes
    assert asked == ["release"] * 4


def test_a_label_that_stands_still_is_given_up(site: Site) -> None:
    begun = site.clock.now
    while site.clock.now < begun + LIMIT_S - 60:
        site.check("pod-restart-required", after_s=60)
    assert site.monitor.health.is_up
    assert site.check("pod-restart-required", after_s=200) == []
    site.daemon.ours = 0  # the last release is over
    for _ in range(5):
        assert site.check("pod-restart-required", after_s=600) == []
    assert not site.monitor.health.is_up
    assert "pod-restart-required, and 2 h have passed" in site.monitor.health.error
    # And after a restart, too
    site.restart_publisher()
    assert site.check("pod-restart-required") == []
    assert site.check("upgrade-done", after_s=60) == ["end"]
    assert site.monitor.health.is_up
    assert site.check("pod-deletion-required", after_s=70) == ["release"]


def test_the_publisher_is_restarted_in_the_middle(site: Site) -> None:
    site.check("pod-restart-required")
    site.restart_publisher()
    site.api.error = ApiUnreachable("connection refused")
    assert site.check() == ["release"], "held, although the label cannot be read yet"
    site.api.error = None
    assert site.check("pod-restart-required", after_s=70) == []
    site.restart_publisher()
    assert site.check("upgrade-done") == ["end"], "it was begun by the process before"
    site.restart_publisher()
    assert site.check("upgrade-done") == []


def test_the_daemon_is_restarted_in_the_middle(site: Site) -> None:
    site.check("pod-restart-required")
    assert site.check() == []
    site.daemon.restart()
    site.monitor.offer_state(None)  # type: ignore[arg-type]
    assert site.monitor._changed.is_set(), "it is not waited for the next round"
    assert site.check(after_s=0.1) == ["release"]


def test_the_daemon_is_restarted_and_a_person_releases_the_gpus(site: Site) -> None:
    site.check("pod-restart-required")
    site.daemon.restart()
    site.daemon.others = 1
    assert site.check() == ["release"], "theirs may be over before the upgrade is"


def test_a_release_of_another_person_is_no_reason_to_wait(site: Site) -> None:
    site.daemon.others = 1
    assert site.check("pod-restart-required") == ["release"]
    assert site.check("upgrade-done") == ["end"]
    assert site.daemon.others == 1


def test_a_release_that_somebody_ended_is_begun_again(site: Site) -> None:
    site.check("pod-restart-required")
    site.daemon.ours = 0
    assert site.check() == ["release"]


def test_a_daemon_that_does_not_answer_is_asked_again(site: Site) -> None:
    site.daemon.error = ReleaseFailed("/v1/status: connection refused")
    assert site.check("pod-restart-required") == []
    assert site.monitor.health.error == "/v1/status: connection refused"
    site.daemon.error = None
    assert site.check() == ["release"]
    assert site.monitor.health.is_up
    site.daemon.error = ReleaseFailed("/v1/release/end: connection refused")
    site.check("upgrade-done")
    site.daemon.error = None
    assert site.check() == ["end"]


def test_a_daemon_that_cannot_end_one_release_lets_it_run_out(site: Site) -> None:
    """An older one knows no reason there."""
    site.check("pod-restart-required")
    site.daemon.error = ReleaseFailed("/v1/release/end: unknown key 'reason'", is_final=True)
    site.check("upgrade-done")
    site.daemon.error = None
    assert site.check() == []
    assert site.monitor.health.is_up


def test_a_node_whose_daemon_holds_no_gpu_is_not_asked_all_the_time(site: Site) -> None:
    site.daemon.has_gpus = False
    assert site.check("pod-restart-required") == ["release"]
    assert [site.check() for _ in range(5)] == [[]] * 5
    assert site.monitor.health.is_up


@pytest.mark.parametrize(
    "error", [ApiUnreachable("timed out"), ApiRefused(403, "forbidden"), ApiRefused(500, "etcd")]
)
def test_what_was_read_last_holds_while_the_api_server_is_away(
    site: Site, error: Exception
) -> None:
    site.check("pod-restart-required")
    site.api.error = error
    assert site.check() == []
    assert site.daemon.ours == 1
    assert not site.monitor.health.is_up
    site.api.error = None
    assert site.check("upgrade-done", after_s=70) == ["end"]


def test_a_node_that_is_gone_has_no_upgrade(site: Site) -> None:
    site.check("pod-restart-required")
    site.api.error = ApiRefused(404, "not found")
    assert site.check() == ["end"]
    assert site.monitor.health.is_up


def test_a_state_of_a_later_operator_releases_nothing(site: Site) -> None:
    assert site.check("reticulating-splines") == []


@pytest.mark.parametrize(
    ("state", "most"), [("", 66), ("upgrade-done", 66), ("drain-required", 17)]
)
def test_how_often_the_node_is_read(site: Site, state: str, most: int) -> None:
    site.check(state)
    reads = site.api.reads
    for _ in range(600):
        site.check(after_s=1.0)
    every = 600 / (site.api.reads - reads)
    assert most * 0.8 <= every <= most * 1.1


def test_the_server_says_when_to_ask_again(site: Site) -> None:
    site.api.error = ApiRefused(429, "too many requests", 300.0)
    site.check("drain-required")
    site.api.error = None
    reads = site.api.reads
    site.check(after_s=200.0)
    assert site.api.reads == reads
    assert site.check(after_s=110.0) == ["release"]
