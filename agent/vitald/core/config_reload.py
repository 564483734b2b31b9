"""
Reloads the configuration, at SIGHUP and on request, and compares the file with what is in force
every few seconds: a mistake in it would otherwise be noticed at the next start.

Owns     the configuration in force, what a changed key needs to take effect, and what the node's
         state says of the file.
Refuses  putting a configuration in force: the daemon does that (`apply`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import structlog

from vitald.catalog import Catalog, CatalogError
from vitald.catalog.settings import load_configured_catalog
from vitald.config.errors import ConfigError
from vitald.config.file import find_default_file
from vitald.config.section import TakesEffect
from vitald.config.sections import GROUPS, SECTIONS, load_config
from vitald.config.values import Config
from vitald.core.node_state import ConfigurationFile, NodeState
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("config")

_PERIOD_S = 20.0
_FORMER = "the former configuration stays in force"
_NO_START = f"{_FORMER}, and a start would fail"

FileVersion = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """What came of one: why the file was refused, or the keys that have changed, by when they take
    effect.
    """

    path: Path | None  # None: there is no file, and the defaults are in force
    errors: Sequence[str] = ()
    changes: Mapping[TakesEffect, Sequence[str]] = field(default_factory=dict)


class ConfigReload:
    """`path`: the file that was given at the start; None for the default one, where it exists.
    `apply` puts a configuration and its catalogue in force.
    """

    def __init__(
        self,
        config: Config,
        path: Path | None,
        reader: WorkerThread,
        node_state: NodeState,
        apply: Callable[[Config, Catalog], Awaitable[None]],
    ) -> None:
        self.config = config
        self.requested = asyncio.Event()
        self._given = path
        self._reader = reader
        self._node_state = node_state
        self._apply = apply
        self._waiting: list[asyncio.Future[Reload]] = []
        self._version: FileVersion | None = None  # of the file that was read last
        self._loaded_at = time.time()
        self._publish_file(path or find_default_file())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with anyio.move_on_after(_PERIOD_S):
                await self.requested.wait()
            if self.requested.is_set():
                self.requested.clear()
                waiting, self._waiting = self._waiting, []
                outcome = await self._reload()
                for answer in waiting:
                    if not answer.done():
                        answer.set_result(outcome)
            else:
                await self._compare_file()

    async def request_reload(self) -> Reload:
        """What comes of a reload that begins now, and is completed if the caller is cancelled."""
        answer: asyncio.Future[Reload] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self.requested.set()
        return await answer

    async def _reload(self) -> Reload:
        try:
            path, self._version = await self._reader.call(self._identify_file)
        except ThreadStuck as error:
            return _refuse(self._given, [str(error)], _FORMER)
        try:
            loaded = await self._reader.call(lambda: load_config(path))
            catalog = await self._reader.call(lambda: load_configured_catalog(loaded))
        except ConfigError as error:
            self._publish_file(path, errors=error.errors)
            return _refuse(path, error.errors, _NO_START)
        except (CatalogError, ThreadStuck) as error:  # not for anything in this file
            self._version = None
            return _refuse(path, str(error).splitlines(), _FORMER)
        changes = compare_configs(self.config, loaded)
        restart = changes[TakesEffect.RESTART]
        self.config = merge_reloaded(self.config, loaded)
        await self._apply(self.config, catalog)
        self._loaded_at = time.time()
        self._publish_file(path, restart=restart)
        log.info(
            "reloaded",
            level="notice",
            applied=changes[TakesEffect.RELOAD],
            needs_restart=restart,
            publisher_needs_restart=changes[TakesEffect.PUBLISHER],
        )
        return Reload(path=path, changes=changes)

    async def _compare_file(self) -> None:
        """Update the node's state if the file is another one than was read last."""
        former = self._node_state.configuration.errors
        try:
            path, version = await self._reader.call(self._identify_file)
            if version == self._version:
                return
            loaded = await self._reader.call(lambda: load_config(path))
        except ConfigError as error:
            self._version = version
            self._publish_file(path, errors=error.errors)
            if error.errors != former:
                log.error("configuration_refused", errors=error.errors, effect=_NO_START)
            return
        except ThreadStuck as error:
            log.warning("configuration_not_compared", error=str(error))
            return
        self._version = version
        changes = compare_configs(self.config, loaded)
        reload, restart = changes[TakesEffect.RELOAD], changes[TakesEffect.RESTART]
        self._publish_file(path, reload=reload, restart=restart)
        if former:
            log.info(
                "configuration_corrected",
                level="notice",
                needs_reload=reload,
                needs_restart=restart,
            )

    def _publish_file(
        self,
        path: Path | None,
        *,
        errors: Sequence[str] = (),
        reload: Sequence[str] = (),
        restart: Sequence[str] = (),
    ) -> None:
        self._node_state.configuration = ConfigurationFile(
            path=path,
            settings_hash=self.config.settings_hash,
            loaded_at=self._loaded_at,
            errors=errors,
            reload=reload,
            restart=restart,
        )

    def _identify_file(self) -> tuple[Path | None, FileVersion]:
        """The file to read, and what differs once it is another one."""
        path = self._given or find_default_file()
        if path is None:
            return None, ()
        try:
            found = path.stat()
        except OSError as error:
            return path, (error.errno,)
        return path, (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


def _refuse(path: Path | None, errors: Sequence[str], effect: str) -> Reload:
    log.error("reload_refused", errors=errors, effect=effect)
    return Reload(path=path, errors=errors)


def merge_reloaded(old: Config, new: Config) -> Config:
    """What is in force after a reload: `new`, except for what needs a restart."""
    merged = []
    for section in SECTIONS.values():
        before, after = old[section.settings], new[section.settings]
        kept = {
            attribute: getattr(before, attribute)
            for key, (attribute, _) in section.list_settings().items()
            if section.find_effect(key) is TakesEffect.RESTART
        }
        merged.append(replace(after, **kept))
    return new.replace(*merged)


def compare_configs(old: Config, new: Config) -> dict[TakesEffect, list[str]]:
    """The keys that differ, such as `[metrics] listen`, by what makes them take effect."""
    changes: dict[TakesEffect, list[str]] = {effect: [] for effect in TakesEffect}
    for name, section in SECTIONS.items():
        before, after = old[section.settings], new[section.settings]
        for key, (attribute, _) in section.list_settings().items():
            if getattr(before, attribute) != getattr(after, attribute):
                changes[section.find_effect(key)].append(f"[{name}] {key}")
    for name, group in GROUPS.items():
        before, after = old.get_group(group.settings), new.get_group(group.settings)
        changes[group.effect] += [
            f"[{name}.{member}]"
            for member in sorted(before.keys() | after.keys())
            if before.get(member) != after.get(member)
        ]
    return changes
