"""
`vitald report`: one archive for a support case, readable without vitald; with --html one web page.

It is written in any state of the node. The past is read from the ledger, the present from the
daemon; each part that is unavailable is named in `errors.txt` with the reason.

    0    written, perhaps without some parts
    69   not written
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from vitald import tomlfile
from vitald.cli import EX_UNAVAILABLE, UsageError, argument_types, render
from vitald.cli.progress import WorkProgress
from vitald.cli.report.archive import Archive, CannotWrite, create_file
from vitald.cli.report.redact import CONFIG
from vitald.timestamps import format_compact

_HINT = (
    "look through it before you send it: it has host and user names, serial numbers and lines of"
    " the kernel log"
)
_MIN_BYTES = 2 * 1024 * 1024
_MAX_AGE_S = 3650 * argument_types.DAY_S


def options(parser: argparse.ArgumentParser) -> None:
    _add_archive_options(parser)
    _add_content_options(parser)
    _add_daemon_options(parser)
    parser.add_argument("--json", action="store_true", help="report as JSON what was written")


def _add_archive_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        default=Path(),
        metavar="FILE|DIR|-",
        help="where to (default: here, named after host and time)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--html",
        action="store_true",
        help="instead of an archive one web page for a ticket, as vitald page shows it",
    )


def _add_content_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=argument_types.parse_duration(1, _MAX_AGE_S, "1s to 3650d"),
        default=30 * argument_types.DAY_S,
        metavar="TIME",
        help="how far back (default: 30d)",
    )
    parser.add_argument(
        "--max-size",
        type=_parse_size,
        default=50 * 1024 * 1024,
        metavar="SIZE",
        help="of the archive (default: 50MiB)",
    )
    parser.add_argument(
        "--no-logs", action="store_true", help="without the kernel's messages and vitald's own log"
    )
    parser.add_argument(
        "--ledger",
        action="store_true",
        help="with the ledger itself, unchanged: nothing is redacted in it",
    )


def _add_daemon_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        default=CONFIG,
        metavar="FILE",
        help=f"the daemon's configuration (default: {CONFIG})",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        default=None,
        metavar="PATH",
        help="the daemon's socket (default: as configured)",
    )
    parser.add_argument(
        "--timeout",
        type=argument_types.parse_seconds(600),
        default=10.0,
        metavar="SECONDS",
        help="timeout per answer (default: 10)",
    )


def _parse_size(text: str) -> int:
    try:
        size = tomlfile.parse_size(text)
    except ValueError:
        size = 0
    if size < _MIN_BYTES:
        raise argument_types.InvalidArgument("a size such as 50MiB or 1GiB, at least 2MiB", text)
    return size


def run(arguments: argparse.Namespace) -> int:
    now = time.time()
    render.use_utc()
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname())[:63].strip("-.") or "node"
    name = f"vitald-report-{host}-{format_compact(now)}"
    path: Path = arguments.output
    if arguments.html and arguments.ledger:
        raise UsageError("--ledger is for an archive, and --html writes none")
    if str(path) == "-" and sys.stdout.isatty() and not arguments.html:
        raise UsageError("an archive is nothing for a terminal: vitald report --output - > FILE")
    if path.is_dir():
        path = path / f"{name}{'.html' if arguments.html else '.tar.gz'}"

    def write(file: IO[bytes]) -> tuple[int, list[tuple[str, str]]]:
        if arguments.html:
            return _write_page(arguments, file)
        return _write_archive(arguments, file, name, now)

    try:
        if str(path) == "-":
            with tempfile.TemporaryFile() as spool:
                size, missing = write(spool)
                spool.seek(0)
                shutil.copyfileobj(spool, sys.stdout.buffer)
                sys.stdout.buffer.flush()
        else:
            with create_file(path, force=arguments.force) as (file, publish):
                size, missing = write(file)
                publish()
    except CannotWrite as error:
        print(f"vitald: {render.escape_text(path)}: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    # With `--output -` standard output is the file.
    _print_result(arguments, path, size, missing, sys.stderr if str(path) == "-" else sys.stdout)
    return 0


def _print_result(
    arguments: argparse.Namespace,
    path: Path,
    size: int,
    missing: list[tuple[str, str]],
    stream: IO[str],
) -> None:
    """`size`: bytes. `missing`: part and reason."""
    if arguments.json:
        parts = [{"part": part, "why": why} for part, why in missing]
        result = {"file": str(path), "bytes": size, "missing": parts}
        print(json.dumps(result), file=stream)
        return
    print(f"{render.escape_text(path)}  {size / 1024:.0f} KiB", file=stream)
    for part, why in missing:
        print(f"  without {part}: {render.escape_text(why)}", file=stream)
    print(_HINT, file=stream)


def _write_page(
    arguments: argparse.Namespace, file: IO[bytes]
) -> tuple[int, list[tuple[str, str]]]:
    from vitald.cli.report.html import make_page  # a template engine, which no archive needs

    with WorkProgress(lambda: "report: the answers of the daemon"):
        page, missing = make_page(arguments.config, arguments.socket, arguments.timeout)
    file.write(page)
    return len(page), missing


def _write_archive(
    arguments: argparse.Namespace, file: IO[bytes], name: str, now: float
) -> tuple[int, list[tuple[str, str]]]:
    # The formatters of the API's routes, and the server's library with them
    from vitald.cli.report.parts import ReportOptions, SupportReport

    archive = Archive(file, name, now, arguments.max_size)
    wanted = ReportOptions(
        since=now - arguments.since,
        config=arguments.config,
        socket=arguments.socket,
        timeout=arguments.timeout,
        logs=not arguments.no_logs,
        ledger=arguments.ledger,
        most=arguments.max_size,
    )
    report = SupportReport(archive, wanted, now)
    with WorkProgress(lambda: f"report: {report.part}"):
        return report.write(), report.missing
