"""`vitald run`: the daemon, in the foreground, as systemd or a container runs it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE
from vitald.cli.memory import import_aiohttp, return_memory_early


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="configuration file (default: /etc/vitald/config.toml if there)",
    )


def run(arguments: argparse.Namespace) -> int:
    gc.disable()  # start-up creates many objects, and nearly all of them stay
    from vitald import config as configs
    from vitald import config_file, log
    from vitald.catalog import CatalogError

    if sys.__stderr__ is not None:
        # The log must notice that a line cannot be written, to reconnect to the journal.
        sys.stderr = sys.__stderr__

    path = arguments.config or config_file.find_default_file()
    try:
        config = configs.load(path)
        log.configure_log(config.log.level, config.log.format)
    except (config_file.ConfigError, CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        _report_failure(error.errors[0])
        return EX_CONFIG
    import_aiohttp()
    from vitald.daemon import Daemon  # not before the log is configured
    from vitald.server.listeners import CannotStart
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
