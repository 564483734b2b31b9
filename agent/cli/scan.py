"""
`vitald scan FILE|-`: judge a saved kernel log of any form, as if it were this boot's.

Constant memory: lines are read one at a time, and the open findings are bounded. Lines that a process wrote (a raw
record or a `<prio>` with facility 1 or more) are shown as untrusted and not judged, as in the daemon.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from agent.catalog import Catalog
    from agent.config import Config

from agent.cli import EX_CONFIG, EX_NOINPUT, render, words
from agent.cli.check import EXIT

_LONGEST = 1 << 16


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a saved log, or - for standard input")
    parser.add_argument("--config", type=Path, default=None, help="take profile, overrides and policy from this file")
    parser.add_argument("--profile", type=words.profile, metavar="NAME", default=None, help="judge by another profile")
    parser.add_argument("--accept-userspace", action="store_true", help="believe records that a process wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object a recognised line, and the verdict")


def run(arguments: argparse.Namespace) -> int:
    from agent import catalog as catalogs
    from agent import config as configs

    try:
        config = configs.load(arguments.config)
        catalog = catalogs.load(arguments.profile or config.catalog.profile, config.catalog.overrides)
    except (configs.ConfigError, catalogs.CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        return EX_CONFIG
    try:
        with sys.stdin.buffer if arguments.file == "-" else Path(arguments.file).open("rb") as stream:
            return _scan(arguments, stream, config, catalog)
    except OSError as error:
        print(f"vitald: {arguments.file}: {error.strerror}", file=sys.stderr)
        return EX_NOINPUT


def _scan(arguments: argparse.Namespace, stream: BinaryIO, config: Config, catalog: Catalog) -> int:
    from agent.judge.judge import Judge
    from agent.judge.verdict import by_strength, fold
    from agent.model import Trust
    from agent.outputs import form
    from agent.sources.kernel_log.announced import Announcements
    from agent.sources.kernel_log.interpret import Interpreter
    from agent.sources.kernel_log.lines import Clock, strip

    interpreter = Interpreter(catalog, Announcements(), None, accept_userspace=arguments.accept_userspace)
    judge = Judge(catalog)
    now, clock = time.time(), Clock()
    events = untrusted = number = 0
    for number, raw in enumerate(_lines(stream), start=1):
        line = strip(raw)
        if line is None:
            continue
        boot, _ = clock.tell(line)
        sighting = interpreter.recognise(line.message)
        if sighting is None:
            continue
        # All of it stands, however old: only stories are told by the lines' own clock.
        event = interpreter.event(
            sighting, line.message, line.facility, identity=f"line:{number}", time=now, boot_id=f"scan {boot}", usec=line.usec
        )
        if event.trust is not Trust.UNTRUSTED:
            judge.apply(event)
        if sighting.context:
            continue  # no fault: it only explains others
        if event.trust is Trust.UNTRUSTED:
            untrusted += 1
        else:
            events += 1
        shown = form.scan_event(number, raw.rstrip(b"\r\n").decode("utf-8", "replace"), event)
        if arguments.json:
            print(json.dumps(shown))
        else:
            mark = render.colour("UNTRUSTED (written by a process, not judged) ", "magenta") if event.trust is Trust.UNTRUSTED else ""
            print(f"{number:>8}  {event.code:<24} {mark}{render.cut(event.raw, render.width() - 36)}")
    standing = [found for found in judge.opened if not found.shadow]
    told = {incident.id: incident for incident in judge.incidents}
    verdict = fold(standing, [], now, told, device_reset=config.policy.device_reset)
    open_findings = [form.finding(found, catalog) for found in by_strength(standing)]
    if arguments.json:
        counts = {"lines": number, "events": events, "untrusted": untrusted}
        print(json.dumps({"type": "verdict", **form.verdict(verdict), **counts, "findings": open_findings}))
    else:
        print(f"\n{number} lines, {events} events, {untrusted} not believed\n{render.status_word(verdict.status.value)}")
        for finding in open_findings:
            for text in render.finding_lines(finding):
                render.tell(text)
    return EXIT[verdict.status.value]


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines, however long: of one that is longer than any kernel record only the beginning is looked at."""
    while line := stream.readline(_LONGEST):
        yield line
        while not line.endswith(b"\n") and (line := stream.readline(_LONGEST)):
            pass
