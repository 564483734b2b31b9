"""
`vitald replay LEDGER|FILE`: judge what has happened once more, under the same rules or others, and say what would change.

Of a ledger its stored events are judged in their order, with everything that people did; of a saved kernel log its
lines. Without other rules a ledger is checked: the fold over its events must give the findings that it remembers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.catalog import Catalog
    from agent.judge.judge import Judge
    from agent.model import Event, Finding

from agent.cli import EX_CONFIG, EX_UNAVAILABLE, render
from agent.cli.render import Json

_SHOWN = 200
DIFFERENT = 10


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="LEDGER|FILE", type=Path, help="a ledger (ledger.db), or a saved kernel log")
    parser.add_argument("--catalog", type=Path, metavar="DIR", help="lay the *.toml files of this folder over the catalogue")
    parser.add_argument("--profile", help="judge by this profile")
    parser.add_argument("--config", type=Path, default=None, help="the rules in force: profile, overrides and policy of this file")
    parser.add_argument("--json", action="store_true", help="one JSON object a difference, and a summary")


def run(arguments: argparse.Namespace) -> int:
    from agent import catalog as catalogs
    from agent import config as configs
    from agent.ledger import LedgerError

    path = arguments.config or (configs.DEFAULT_PATH if configs.DEFAULT_PATH.exists() else None)
    try:
        config = configs.load(path)
        force = catalogs.load(config.catalog.profile, config.catalog.overrides)
        other = catalogs.load(arguments.profile or config.catalog.profile, config.catalog.overrides, extra=arguments.catalog)
    except (configs.ConfigError, catalogs.CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        return EX_CONFIG
    try:
        return _replay(arguments, force, other, device_reset=config.policy.device_reset)
    except (LedgerError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"vitald: {arguments.file}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return EX_UNAVAILABLE


def _replay(arguments: argparse.Namespace, force: Catalog, other: Catalog, *, device_reset: bool) -> int:
    from agent.judge.judge import Judge
    from agent.ledger import is_ledger, read_all, read_open

    stored = is_ledger(arguments.file)
    events = read_all(arguments.file) if stored else _logged(arguments.file, force)
    judges = Judge(force), Judge(other)
    differences, shown, count, last = 0, None, 0, 0.0
    for event in events:
        count, last = count + 1, max(last, event.time)
        for judge in judges:
            judge.apply(event)
            judge.take_changes()
        said = [_verdict(judge, device_reset) for judge in judges]
        if said[0] != said[1] and said != shown:
            differences += 1
            if differences <= _SHOWN:
                _say(
                    arguments,
                    {"type": "difference", "time": event.time, "event": event.raw or event.code, "inForce": said[0], "other": said[1]},
                )
        shown = said
    now, then = ([_short(found) for found in judge.opened if not found.shadow] for judge in judges)
    trials = [_short(found) for found in judges[1].opened if found.shadow]
    remembered = sorted(_short(found) for found in read_open(arguments.file)) if stored else sorted(now)
    summary: Json = {
        "type": "summary",
        "events": count,
        "differences": differences,
        "inForce": sorted(now),
        "other": sorted(then),
        "trials": trials,
    }
    if stored:
        summary["remembered"] = remembered
    agrees = remembered == sorted(now)
    if arguments.json:
        print(json.dumps(summary))
    else:
        _tell(summary, stored=stored, agrees=agrees, same=arguments.catalog is None and arguments.profile is None)
    return DIFFERENT if differences or not agrees else 0


def _verdict(judge: Judge, device_reset: bool) -> Json:
    from agent.judge.verdict import fold

    verdict = fold([found for found in judge.opened if not found.shadow], [], 0.0, device_reset=device_reset)
    return {
        "status": verdict.status.value,
        "action": verdict.action.value,
        "rebootRequired": verdict.reboot_required,
        "replacementRequired": verdict.replacement_required,
    }


def _short(found: Finding) -> str:
    when = " after the job" if found.when.value == "after_job" else ""
    return f"{found.code} on {found.component.name}: {found.action.value}{when}, {render.times(found.count)}"


def _say(arguments: argparse.Namespace, difference: Json) -> None:
    if arguments.json:
        print(json.dumps(difference))
        return
    from datetime import datetime, timezone

    stamp = datetime.fromtimestamp(float(str(difference["time"])), timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    words = [" ".join([str(said["status"]), str(said["action"]), *(flag for flag in ("rebootRequired", "replacementRequired") if said[flag])])  # type: ignore[index]
             for said in (difference["inForce"], difference["other"])]  # fmt: skip
    print(f"{stamp}  {words[0]}  ->  {words[1]}")
    print(f"    {render.cut(render.safe(difference['event']), render.width() - 4)}")


def _tell(summary: Json, *, stored: bool, agrees: bool, same: bool) -> None:
    print(f"{summary['events']} events judged, the verdict differs at {summary['differences']} of them")
    for title, key in (
        ("open by the rules in force", "inForce"),
        ("open by the other rules", "other"),
        ("asked for by rules on trial", "trials"),
    ):
        listed = summary[key]
        if listed and not (same and key == "other"):
            print(f"{title}:")
            for line in listed:  # type: ignore[attr-defined]
                print(f"  {render.safe(line)}")
    if stored:
        print("the ledger remembers the same" if agrees else "THE LEDGER REMEMBERS SOMETHING ELSE:")
        for line in () if agrees else summary["remembered"]:  # type: ignore[attr-defined]
            print(f"  {render.safe(line)}")
        if not agrees:
            print("(events older than the ledger keeps are not judged again; rules may have changed since)")


def _logged(path: Path, catalog: Catalog) -> Iterator[Event]:
    """The events of a saved kernel log, a second apart: rendered forms hardly agree on a clock."""
    from agent.sources.kernel_log.announced import Announcements
    from agent.sources.kernel_log.interpret import Interpreter
    from agent.sources.kernel_log.lines import strip

    interpreter = Interpreter(catalog, Announcements(), None, accept_userspace=False)
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            line = strip(raw)
            sighting = interpreter.recognise(line.message) if line is not None else None
            if line is not None and sighting is not None:
                yield interpreter.event(
                    sighting, line.message, line.facility, identity=f"line:{number}", time=float(number), boot_id="replay", usec=None
                )
