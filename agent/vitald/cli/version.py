"""`vitald version`."""

from __future__ import annotations

import argparse
import platform

from vitald import __version__
from vitald.cli import render


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    if arguments.json:
        render.emit_json({"version": __version__, "python": platform.python_version()})
    else:
        print(f"vitald {__version__} (Python {platform.python_version()})")
    return 0
