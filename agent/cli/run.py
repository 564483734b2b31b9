"""`vitald run`: the daemon, in the foreground; systemd or a container keeps it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path

from agent.cli import EX_CONFIG, EX_UNAVAILABLE


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=None, help="configuration file (default: /etc/vitald/config.toml if there)")


def run(arguments: argparse.Namespace) -> int:
    from agent import config as configs
    from agent import log
    from agent.catalog import CatalogError

    path = arguments.config or (configs.DEFAULT_PATH if configs.DEFAULT_PATH.exists() else None)
    try:
        config = configs.load(path)
        log.configure(config.log.level, config.log.format)
    except (configs.ConfigError, CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        _last_words(error.errors[0])
        return EX_CONFIG
    from agent.daemon import CannotStart, Daemon  # not before the log is configured

    async def main() -> None:
        daemon = Daemon(config, path)
        gc.collect()
        gc.freeze()  # what start-up made stays; the collector need not look at it again
        await daemon.run()

    try:
        asyncio.run(main())
    except CannotStart as error:
        print(f"vitald: {error}", file=sys.stderr)
        _last_words(str(error))
        return EX_UNAVAILABLE
    return 0


def _last_words(text: str) -> None:
    """Kept by systemd: `systemctl status` shows them, and `vitald status` where nobody answers."""
    from agent.outputs.systemd import Notifier

    Notifier().status(" ".join(text.split())[:500])
