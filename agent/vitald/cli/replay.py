"""
`vitald replay LEDGER|FILE`: judge what has happened once more, under the same rules or others, and
say what would change.

Of a ledger its stored events are judged in their order, with everything that people did; of a saved
kernel log its lines, at the times that they have, as `vitald scan` judges them. Without other rules
a ledger is checked: the fold over its events must give the findings that it remembers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.config import Config
    from vitald.judge.engine import Judge
    from vitald.ledger import Stored
    from vitald.model import Event, Finding

    Pair = tuple[Event | None, Event | None]  # as the rules in force see it, and as the others do

from vitald.cli import EX_CONFIG, EX_NOINPUT, render, words
from vitald.cli.render import Json

_SHOWN = 200
DIFFERENT = 10


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="LEDGER|FILE", type=Path, help="a ledger (ledger.db), or a saved kernel log"
    )
    parser.add_argument(
        "--catalog",
        type=Path,
        metavar="DIR",
        help="lay the *.toml files of this folder over the catalogue",
    )
    parser.add_argument(
        "--profile", type=words.profile, metavar="NAME", help="judge by this profile"
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="the rules in force: profile, overrides and policy of this file",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a difference, and a summary"
    )


def run(arguments: argparse.Namespace) -> int:
    from vitald import catalog as catalogs
    from vitald import config as configs
    from vitald.collectors.kernel_log.unpack import CannotUnpack
    from vitald.ledger import LedgerError

    path = arguments.config or (configs.DEFAULT_PATH if configs.DEFAULT_PATH.exists() else None)
    try:
        config = configs.load(path)
        force = catalogs.load(config.catalog.profile, config.catalog.overrides)
        other = catalogs.load(
            arguments.profile or config.catalog.profile,
            config.catalog.overrides,
            extra=arguments.catalog,
        )
    except (configs.ConfigError, catalogs.CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        return EX_CONFIG
    try:
        return _replay(arguments, force, other, config)
    except LedgerError as error:  # it names the file
        print(f"vitald: {error}", file=sys.stderr)
    except CannotUnpack as error:
        print(f"vitald: {arguments.file}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"vitald: {arguments.file}: {error.strerror or error}", file=sys.stderr)
    return EX_NOINPUT


def _replay(arguments: argparse.Namespace, force: Catalog, other: Catalog, config: Config) -> int:
    from vitald.ledger import is_ledger, reading

    device_reset = config.policy.device_reset
    if not is_ledger(arguments.file):
        return _replay_log(arguments, force, other, config)
    with reading(arguments.file) as stored:
        events = ((event, event) for event in stored.events)
        return _judge(
            arguments,
            force,
            other,
            events,
            stored,
            device_reset=device_reset,
            until=lambda: stored.until,
        )


def _replay_log(
    arguments: argparse.Namespace, force: Catalog, other: Catalog, config: Config
) -> int:
    from vitald.cli.check import EXIT
    from vitald.collectors.kernel_log.interpret import Interpreter
    from vitald.collectors.kernel_log.saved_log import MarkedDrills, SavedLog, opened

    userspace, device_reset = config.kernel_log.userspace, config.policy.device_reset
    readers = [
        Interpreter(catalog, MarkedDrills(), None, userspace=userspace)
        for catalog in (force, other)
    ]
    with opened(str(arguments.file)) as stream:
        saved = SavedLog(stream, *readers)
        pairs = ((told.events[0], told.events[1]) for told in saved.lived(saved.told()))
        code = _judge(
            arguments,
            force,
            other,
            pairs,
            None,
            device_reset=device_reset,
            until=lambda: saved.until,
        )
    problem = saved.coverage.problem
    if not problem:
        return code
    print(f"vitald: {arguments.file}: {render.safe(problem)}", file=sys.stderr)
    return code or EXIT["unknown"]


def _judge(
    arguments: argparse.Namespace,
    force: Catalog,
    other: Catalog,
    events: Iterator[Pair],
    stored: Stored | None,
    *,
    device_reset: bool,
    until: Callable[[], float],
) -> int:
    from vitald.judge.engine import Judge
    from vitald.model.codes import BOOT

    judges = Judge(force), Judge(other)
    differences, shown, count = 0, None, 0
    for pair in events:
        count += stored is not None or any(
            event is not None and event.code != BOOT for event in pair
        )  # a log has lines
        for judge, event in zip(judges, pair):
            if event is not None:
                judge.apply(event)
                judge.take_changes()
        said = [_verdict(judge, device_reset) for judge in judges]
        if said[0] != said[1] and said != shown:
            differences += 1
            if differences <= _SHOWN:
                _say(arguments, pair[1] or pair[0], said)
        shown = said
    for judge in judges:
        judge.expire(until())
    now, then = (
        sorted(_short(found) for found in judge.opened if not found.shadow) for judge in judges
    )
    remembered = sorted(map(_short, stored.opened)) if stored is not None else now
    summary: Json = {
        "type": "summary",
        "events": count,
        "differences": differences,
        "listed": min(differences, _SHOWN),
        "inForce": now,
        "other": then,
    }
    summary["trials"] = sorted(_short(found) for found in judges[1].opened if found.shadow)
    if stored is not None:
        summary["remembered"] = remembered
    if arguments.json:
        print(json.dumps(summary))
    else:
        _tell(
            summary,
            stored=stored is not None,
            agrees=remembered == now,
            same=arguments.catalog is None and arguments.profile is None,
        )
    return DIFFERENT if differences or remembered != now else 0


def _verdict(judge: Judge, device_reset: bool) -> Json:
    from vitald.judge.verdict import fold

    verdict = fold(
        [found for found in judge.opened if not found.shadow], [], 0.0, device_reset=device_reset
    )
    return {
        "status": verdict.status.value,
        "action": verdict.action.value,
        "rebootRequired": verdict.reboot_required,
        "replacementRequired": verdict.replacement_required,
    }


def _short(found: Finding) -> str:
    when = found.when.words
    return (
        f"{found.code} on {found.component.name}: {found.action.value}{when},"
        f" {render.times(found.count)}"
    )


def _say(arguments: argparse.Namespace, event: Event | None, said: list[Json]) -> None:
    from vitald.server.serialize import format_moment

    if event is None:
        return
    if arguments.json:
        print(
            json.dumps(
                {
                    "type": "difference",
                    "time": format_moment(event.time),
                    "event": event.raw or event.code,
                    "inForce": said[0],
                    "other": said[1],
                }
            )
        )
        return
    words = [
        " ".join(
            [
                str(one["status"]),
                str(one["action"]),
                *(flag for flag in ("rebootRequired", "replacementRequired") if one[flag]),
            ]
        )
        for one in said
    ]
    print(f"{format_moment(event.time)}  {words[0]}  ->  {words[1]}")
    print(f"    {render.cut(render.safe(event.raw or event.code), render.width() - 4)}")


def _tell(summary: Json, *, stored: bool, agrees: bool, same: bool) -> None:
    listed = (
        ""
        if summary["listed"] == summary["differences"]
        else f" (the first {summary['listed']} are listed)"
    )
    print(
        f"{summary['events']} events judged, the verdict differs at {summary['differences']} of"
        f" them{listed}"
    )
    for title, key in (
        ("open by the rules in force", "inForce"),
        ("open by the other rules", "other"),
        ("asked for by rules on trial", "trials"),
    ):
        lines = summary[key]
        if lines and not (same and key == "other"):
            print(f"{title}:")
            for line in lines:  # type: ignore[attr-defined]
                print(f"  {render.safe(line)}")
    if stored:
        print("the ledger remembers the same" if agrees else "THE LEDGER REMEMBERS SOMETHING ELSE:")
        for line in () if agrees else summary["remembered"]:  # type: ignore[attr-defined]
            print(f"  {render.safe(line)}")
        if not agrees:
            print(
                "(events older than the ledger keeps are not judged again; rules may have changed"
                " since)"
            )
