"""What a reload brings about, and what is shown of a file that is edited without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.waiting import WAIT_S, until_async
from vitald.catalog import Catalog, CatalogError
from vitald.config import file
from vitald.config.section import TakesEffect
from vitald.config.sections import load_config
from vitald.config.values import Config
from vitald.core import config_reload
from vitald.core.config_reload import ConfigReload, Reload
from vitald.core.node_state import NodeState
from vitald.log.settings import LogSettings
from vitald.metrics.settings import MetricsSettings
from vitald.worker_thread import ThreadStuck, WorkerThread

GOOD, BAD = "[log]\nlevel = 'debug'\n", "[log]\n\nlevel = 'loud'\n"
MISTAKE = ":3: [log] level: must be one of"


class Reloading:
    """A daemon's reload, with what it has put in force."""

    def __init__(self, path: Path | None, text: str = "") -> None:
        self.state = NodeState("boot", 0.0, device_reset=False)
        self.reader = WorkerThread("test")
        self.applied: list[tuple[Config, str]] = []
        self.may_apply = asyncio.Event()
        self.may_apply.set()
        if path is not None:
            path.write_text(text)
        self.reload = ConfigReload(load_config(path), path, self.reader, self.state, self.apply)

    async def apply(self, config: Config, catalog: Catalog) -> None:
        await self.may_apply.wait()
        self.applied.append((config, catalog.profile))

    async def request(self) -> Reload:
        return await asyncio.wait_for(self.reload.request_reload(), WAIT_S)

    @property
    def shown(self) -> tuple[list[str], list[str], list[str]]:
        found = self.state.configuration
        return list(found.errors), list(found.reload), list(found.restart)


def reloading(
    test: Callable[[Reloading, Any], Coroutine[None, None, None]],
) -> Callable[[Path | None], None]:
    """Run a test beside the reload of a daemon with a file in this folder, or without one."""

    async def run(path: Path | None) -> None:
        daemon = Reloading(path)
        task = asyncio.create_task(daemon.reload.run())
        try:
            await test(daemon, path)
        finally:
            task.cancel()
            daemon.reader.close()

    def run_in_loop(tmp_path: Path | None) -> None:
        asyncio.run(run(tmp_path / "c.toml" if tmp_path is not None else None))

    return run_in_loop


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_reload, "_PERIOD_S", 0.01)


@reloading
async def test_what_a_reload_applies(daemon: Reloading, path: Path) -> None:
    path.write_text(f"{GOOD}[metrics]\nlisten = 'off'\n[catalog]\nprofile = 'hyperpod'\n")
    done = await daemon.request()
    assert (done.path, done.errors) == (path, ())
    assert done.changes[TakesEffect.RELOAD] == ["[catalog] profile", "[log] level"]
    assert done.changes[TakesEffect.RESTART] == ["[metrics] listen"]
    ((config, profile),) = daemon.applied
    assert (config[LogSettings].level, profile, config) == (
        "debug",
        "hyperpod",
        daemon.reload.config,
    )
    assert config[MetricsSettings].listen is not None, "it needs a restart"
    assert daemon.shown == ([], [], ["[metrics] listen"])

    again = await daemon.request()
    assert again.changes[TakesEffect.RELOAD] == []
    assert again.changes[TakesEffect.RESTART] == ["[metrics] listen"]


@reloading
async def test_a_refused_file_changes_nothing(daemon: Reloading, path: Path) -> None:
    before = daemon.reload.config
    path.write_text(BAD)
    with capture_logs() as logged:
        done = await daemon.request()
    (error,) = done.errors
    assert MISTAKE in error
    assert (dict(done.changes), daemon.applied, daemon.reload.config) == ({}, [], before)
    assert daemon.shown == ([error], [], [])
    assert [(one["event"], one["log_level"]) for one in logged] == [("reload_refused", "error")]


@pytest.mark.usefixtures("often")
@reloading
async def test_an_edited_file_is_noticed_without_a_reload(daemon: Reloading, path: Path) -> None:
    """Once in the log, and in the state until it is corrected; nothing of it is in force."""
    with capture_logs() as logged:
        path.write_text(BAD)
        await until_async(lambda: daemon.shown[0], "the mistake")
        assert MISTAKE in daemon.shown[0][0]
        path.unlink()
        await until_async(lambda: "cannot be read" in daemon.shown[0][0], "its loss")
        path.write_text(f"{GOOD}[metrics]\nlisten = 'off'\n")
        await until_async(lambda: not daemon.shown[0], "its end")
        assert daemon.shown == ([], ["[log] level"], ["[metrics] listen"])
        path.write_text("")
        await until_async(lambda: daemon.shown == ([], [], []), "the former content")
    assert [one["event"] for one in logged] == [
        "configuration_refused",
        "configuration_refused",
        "configuration_corrected",
    ]
    assert daemon.applied == []


@pytest.mark.usefixtures("often")
@reloading
async def test_what_was_refused_at_a_reload_is_not_reported_twice(
    daemon: Reloading, path: Path
) -> None:
    path.write_text(BAD)
    with capture_logs() as logged:
        await daemon.request()
        path.write_text(f"{BAD}# another version with the same mistake\n")
        read = daemon.reload._version
        await until_async(lambda: daemon.reload._version != read, "the next comparison")
    assert [one["event"] for one in logged] == ["reload_refused"]


def test_the_default_file_may_come_and_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default = tmp_path / "default.toml"
    monkeypatch.setattr(file, "DEFAULT_PATH", default)

    @reloading
    async def come_and_go(daemon: Reloading, path: Path | None) -> None:
        assert daemon.state.configuration.path is path is None
        default.write_text(GOOD)
        done = await daemon.request()
        assert (done.path, daemon.state.configuration.path) == (default, default)
        assert done.changes[TakesEffect.RELOAD] == ["[log] level"]
        default.unlink()
        done = await daemon.request()
        assert (done.path, done.errors, daemon.reload.config) == (None, (), Config())

    come_and_go(None)


@reloading
async def test_a_caller_that_is_gone_does_not_interrupt_it(daemon: Reloading, path: Path) -> None:
    """A request that comes meanwhile is answered for the file as it is then."""
    path.write_text(GOOD)
    daemon.may_apply.clear()
    gone = asyncio.create_task(daemon.request())
    await until_async(lambda: daemon.reload.config[LogSettings].level == "debug", "the first")
    gone.cancel()
    path.write_text("[log]\nlevel = 'error'\n")
    second = asyncio.create_task(daemon.request())
    await asyncio.sleep(0)
    daemon.may_apply.set()
    assert (await second).changes[TakesEffect.RELOAD] == ["[log] level"]
    assert [config[LogSettings].level for config, _ in daemon.applied] == ["debug", "error"]


@pytest.mark.usefixtures("often")
@reloading
async def test_a_broken_catalogue_is_no_mistake_in_the_file(daemon: Reloading, path: Path) -> None:
    """As while a package is unpacked. The node's state is right once more afterwards."""

    def fail(*_: object) -> Catalog:
        raise CatalogError(["xid.toml: not valid TOML"])

    path.write_text(GOOD)
    with pytest.MonkeyPatch.context() as unpacking:
        unpacking.setattr(config_reload, "load_configured_catalog", fail)
        done = await daemon.request()
    assert (done.errors, daemon.applied) == (["xid.toml: not valid TOML"], [])
    await until_async(lambda: daemon.shown == ([], ["[log] level"], []), "the file's own state")


@pytest.mark.usefixtures("often")
@reloading
async def test_a_disk_that_hangs_is_no_mistake_in_the_file(daemon: Reloading, path: Path) -> None:
    async def hang(*_: object) -> object:
        raise ThreadStuck("test: still waiting for an earlier call")

    with pytest.MonkeyPatch.context() as hanging:
        hanging.setattr(WorkerThread, "call", hang)
        done = await daemon.request()
        assert done.errors == ["test: still waiting for an earlier call"]
        assert daemon.shown == ([], [], [])
        with capture_logs() as logged:
            await until_async(lambda: logged, "a comparison")
        assert logged[0]["event"] == "configuration_not_compared"
    path.write_text(GOOD)
    await until_async(lambda: daemon.shown[1] == ["[log] level"], "the file, once it can be read")


@reloading
async def test_the_hash_is_that_of_the_settings_in_force(daemon: Reloading, path: Path) -> None:
    def hash_now() -> int:
        return daemon.state.configuration.settings_hash

    loaded_at = daemon.state.configuration.loaded_at
    assert (hash_now(), loaded_at > 0) == (0, True), "nothing is set"
    path.write_text("[log]\nlevel = 'debug'\n[policy]\ndevice_reset = true\n")
    await daemon.request()
    first = hash_now()
    assert first > 0 and daemon.state.configuration.loaded_at > loaded_at
    path.write_text('# the same\n[policy]\ndevice_reset = true\n[log]\nlevel = "debug"\n')
    await daemon.request()
    assert hash_now() == first
    loaded_at = daemon.state.configuration.loaded_at
    path.write_text(BAD)
    await daemon.request()
    assert (hash_now(), daemon.state.configuration.loaded_at) == (first, loaded_at)
    path.write_text(GOOD)
    await daemon.request()
    assert hash_now() not in (0, first)
