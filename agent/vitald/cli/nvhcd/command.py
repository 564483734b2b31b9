"""
`vitald nvhcd`: the node health service that NVIDIA's ft_launcher asks before each rendezvous, in
the foreground.

    ft_launcher --ft-node-health-check-endpoint unix:///run/vitald/job/nvhcd.sock ...

It answers what `vitald check --for prolog` does. Every local user may ask; a request changes
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.cli import EX_CONFIG, EX_UNAVAILABLE
from vitald.cli.config_options import find_default_file

if TYPE_CHECKING:
    from vitald.cli.nvhcd.config import NvhcdConfig


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        metavar="FILE",
        help="configuration file (default: /etc/vitald/config.toml if there)",
    )
    parser.add_argument(
        "--listen",
        type=Path,
        default=None,
        metavar="PATH",
        help="where to listen, unless systemd holds the socket (default: job/nvhcd.sock in the"
        " daemon's runtime folder)",
    )


def run(arguments: argparse.Namespace) -> int:
    from vitald import log
    from vitald.cli.nvhcd.config import load_config
    from vitald.config_file import ConfigError

    try:
        config = load_config(arguments.config or find_default_file())
    except ConfigError as error:
        return _report_failure(error.errors, EX_CONFIG)
    log.configure_log(config.log.level, config.log.format)
    try:
        import grpclib  # noqa: F401
    except ModuleNotFoundError as error:
        missing = f"the Python module {error.name} is missing: pip install 'vitald[nvhcd]'"
        return _report_failure([missing], EX_UNAVAILABLE)
    return _serve(config, (arguments.listen or config.default_path).absolute())


def _serve(config: NvhcdConfig, path: Path) -> int:
    from vitald.cli.nvhcd.listener import CannotListen, open_listeners
    from vitald.cli.nvhcd.server import serve
    from vitald.worker_thread import NoThread

    gc.collect()
    gc.freeze()
    try:
        with open_listeners(path) as listeners:
            asyncio.run(serve(config, listeners))
    except (CannotListen, NoThread) as error:
        return _report_failure([str(error)], EX_UNAVAILABLE)
    return 0


def _report_failure(errors: list[str], code: int) -> int:
    """On standard error, and to systemd: `systemctl status` shows the first."""
    from vitald.systemd import Notifier

    print("\n".join(f"vitald: {line}" for line in errors), file=sys.stderr)
    Notifier().notify_status(" ".join(errors[0].split())[:500])
    return code
