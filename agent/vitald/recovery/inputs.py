"""
The inputs of a decision of `vitald recovery run`: configuration, request, action log, clock and the
files that stop recovery.

Refuses  files that others than their owner could have written (agent/vitald/recovery/files.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from vitald import tomlfile
from vitald.config.errors import ConfigError
from vitald.config.paths import Paths
from vitald.config.sections import parse_config
from vitald.config.values import Config
from vitald.recovery import action_log, files
from vitald.recovery.action_log import ActionLog, BootClock, InvalidActionLog
from vitald.recovery.recovery_request import FILE, MAX_BYTES, InvalidRequest, Request, parse_request

_MAX_CONFIG_BYTES = 1024 * 1024


def read_config(path: Path) -> Config:
    """The configuration, from a file that only root can write. Without a file: the defaults, which
    take no action. Raises Untrusted, ConfigError.
    """
    try:
        data = files.read_root_file(path, _MAX_CONFIG_BYTES)
    except files.Absent:
        return Config()
    try:
        text = data.decode("utf-8")
        tables = tomlfile.parse_toml(text, str(path))
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return parse_config(text, tables, str(path))


def read_clock(config: Config) -> BootClock:
    """Wall clock, uptime and boot id, now. Raises OSError."""
    boot_id = (config[Paths].procfs / "sys/kernel/random/boot_id").read_text().strip()
    return BootClock(
        wall=time.time(), uptime=time.clock_gettime(time.CLOCK_BOOTTIME), boot_id=boot_id
    )


def read_request(config: Config, owners: Collection[int]) -> tuple[Request | None, str]:
    """The daemon's request, and why it is rejected. Without a request both are empty.

    `owners`: the user ids that may have written it.
    """
    path = config[Paths].runtime / FILE
    try:
        data = files.read_owned_file(path, owners, MAX_BYTES)
        files.check_folders(path.parent.parent.resolve(strict=True) / path.parent.name, owners)
        return parse_request(data), ""
    except files.Absent:
        return None, ""
    except (files.Untrusted, OSError) as error:
        return None, f"the request does not count: {error}"
    except InvalidRequest as error:
        return None, f"the request is broken: {error}"


def read_action_log(folder: Path) -> tuple[ActionLog | None, str]:
    """The action log; or None and why it cannot be read. Without a file: an empty one."""
    try:
        data = files.read_owned_file(folder / action_log.FILE, {0}, action_log.MAX_BYTES)
        return action_log.parse_action_log(data), ""
    except files.Absent:
        return ActionLog(), ""
    except files.Untrusted as error:
        return None, str(error)
    except InvalidActionLog as error:
        return None, f"{folder / action_log.FILE}: {error}"


def describe_stop(path: Path, what: str) -> str:
    """`what`, with what is known of the file, if the file at `path` stops recovery; else empty."""
    found = files.describe_existing(path)
    return f"{what}: on ({found})" if found else ""


def find_existing_folder(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())
