"""`vitald run`: the daemon, in the foreground, as systemd or a container runs it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE
from vitald.cli.resident_memory import import_aiohttp, return_memory_early
from vitald.log.settings import LogSettings


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="configuration file (default: /etc/vitald/config.toml if there)",
    )


def run(arguments: argparse.Namespace) -> int:
    gc.disable()  # start-up creates many objects, and nearly all of them stay
    from vitald.catalog import CatalogError
    from vitald.config.errors import ConfigError
    from vitald.config.file import find_default_file
    from vitald.config.sections import load_config
    from vitald.log.output import configure_log

    if sys.__stderr__ is not None:
        # The log must notice that a line cannot be written, to reconnect to the journal.
        sys.stderr = sys.__stderr__

    path = arguments.config or find_default_file()
    try:
        config = load_config(path)
        configure_log(config[LogSettings].level, config[LogSettings].format)
    except (ConfigError, CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        _report_failure(error.errors[0])
        return EX_CONFIG
    import_aiohttp()
    from vitald.daemon import Daemon  # not before the log is configured
    from vitald.http_server.listeners import CannotStart
    from vitald.worker_thread import NoThread

    return_memory_early()

    async def main() -> None:
        daemon = Daemon(config, arguments.config)
        gc.collect()
        gc.freeze()  # the objects of start-up stay: collections need not visit them
        gc.enable()
        await daemon.run()

    try:
        asyncio.run(main())
    except (CannotStart, NoThread) as error:
        print(f"vitald: {error}", file=sys.stderr)
        _report_failure(str(error))
        return EX_UNAVAILABLE
    return 0


def _report_failure(text: str) -> None:
    """Report it to systemd: `systemctl status` shows it, and `vitald status` without a daemon."""
    from vitald.systemd import Notifier

    Notifier().notify_status(" ".join(text.split())[:500])
