"""
`vitald publish`: writes the node's state to Kubernetes and to files, in the foreground, as systemd
or a container runs it. `vitald publish kubernetes --retire` removes what was written.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sqlite3
import sys
from pathlib import Path

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, UsageError
from vitald.cli.config_options import find_default_file


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sink", nargs="?", choices=["kubernetes"], help="with --retire: where to remove it"
    )
    parser.add_argument(
        "--retire",
        action="store_true",
        help="remove everything that was written to this node, and exit",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="configuration file (default: /etc/vitald/config.toml if there)",
    )


def run(arguments: argparse.Namespace) -> int:
    if (arguments.sink is not None) != arguments.retire:
        raise UsageError("to remove what was written: vitald publish kubernetes --retire")
    gc.disable()  # start-up creates many objects, and nearly all of them stay
    from vitald import log
    from vitald.config_file import ConfigError
    from vitald.publish.config import load_config

    try:
        config = load_config(arguments.config or find_default_file())
    except ConfigError as error:
        return _report_failure(error.errors, EX_CONFIG)
    log.configure_log(config.log.level, config.log.format)
    from vitald.publish.kubernetes.credentials import NoCredentials
    from vitald.publish.publisher import Publisher
    from vitald.publish.sinks import NoSink

    publisher = Publisher(config)
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        asyncio.run(publisher.run())
    except NoSink as error:
        return _report_failure([str(error)], EX_CONFIG)
    except (NoCredentials, OSError, sqlite3.Error) as error:
        return _report_failure([str(error)], EX_UNAVAILABLE)
    return 0


def _report_failure(errors: list[str], code: int) -> int:
    """On standard error, and to systemd: `systemctl status` shows the first."""
    from vitald.systemd import Notifier

    print("\n".join(f"vitald: {line}" for line in errors), file=sys.stderr)
    Notifier().notify_status(" ".join(errors[0].split())[:500])
    return code
