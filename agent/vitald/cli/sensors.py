"""
`vitald sensors`: what vitald-sensors.service runs, as root. It reads once what the kernel shows to
root only, and writes the file that the daemon reads (docs/node.md).

    0    written
    74   the file cannot be written
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from vitald.cli import EX_IOERR
from vitald.collectors.root_file import RELATIVE_PATH
from vitald.sensors.read import read_sensors
from vitald.sensors.write import write_sensors


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        metavar="FILE",
        default=f"/{RELATIVE_PATH}",
        help="the file to write; - prints it (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    content = read_sensors()
    if arguments.output == "-":
        print(json.dumps(content, indent=2))
        return 0
    try:
        write_sensors(Path(arguments.output), content)
    except OSError as error:
        print(f"vitald sensors: {arguments.output}: {error.strerror}", file=sys.stderr)
        return EX_IOERR
    return 0
