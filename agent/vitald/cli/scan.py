"""
`vitald scan FILE|-`: judge a saved kernel log of any form, as a daemon that had lived through it.

The lines are judged at their own times, so that quiet times, windows and boots are the log's; the
verdict is of its last line, and what ended before is told as history. Constant memory: lines are
read one at a time, and what is remembered of them is bounded. Lines that a process wrote (a raw
record or a `<prio>` with facility 1 or more) are marked, and judged as the daemon would
([kernel_log] userspace). A drill is shown and marked, and is no part of the verdict: it was over
long ago.

A log that could not be read is `unknown`, never healthy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.collectors.kernel_log.saved_log import Coverage, SavedLog, Stamp, Told
    from vitald.config import Config
    from vitald.model import Event, Finding, FindingKey, Transition, Verdict
    from vitald.server import schema

from vitald.cli import EX_CONFIG, EX_NOINPUT, render, words
from vitald.cli.check import EXIT
from vitald.cli.render import Json

USERSPACE = ("unconfirmed", "confirmed", "ignore")  # as in vitald.config, which is slow to import
_ENDED, _LISTED = (
    4096,
    20,
)  # faults remembered that ended within the log, and how many a person is shown


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a saved log, or - for standard input")
    parser.add_argument(
        "--config",
        type=Path,
        default=None,
        help="take profile, overrides and policy from this file",
    )
    parser.add_argument(
        "--profile",
        type=words.profile,
        metavar="NAME",
        default=None,
        help="judge by another profile",
    )
    parser.add_argument(
        "--userspace",
        choices=USERSPACE,
        default=None,
        help="what records that a process wrote are taken for (default: as configured)",
    )
    parser.add_argument(
        "--accept-userspace",
        action="store_const",
        dest="userspace",
        const="confirmed",
        help="as --userspace confirmed",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a recognised line, and the verdict"
    )


def run(arguments: argparse.Namespace) -> int:
    from vitald import catalog as catalogs
    from vitald import config as configs
    from vitald.collectors.kernel_log.unpack import CannotUnpack

    try:
        config = configs.load(arguments.config)
        catalog = catalogs.load(
            arguments.profile or config.catalog.profile, config.catalog.overrides
        )
    except (configs.ConfigError, catalogs.CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        return EX_CONFIG
    try:
        return _scan(arguments, config, catalog)
    except CannotUnpack as error:
        print(f"vitald: {arguments.file}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"vitald: {arguments.file}: {error.strerror or error}", file=sys.stderr)
    return EX_NOINPUT


@dataclass(slots=True)
class _Ended:
    """What the log tells the end of: a fault of a device, however often it came and went."""

    finding: Finding  # the latest
    first: Stamp
    last: Stamp
    count: int
    cause: str


def _scan(arguments: argparse.Namespace, config: Config, catalog: Catalog) -> int:
    from vitald.collectors.kernel_log.interpret import Interpreter
    from vitald.collectors.kernel_log.saved_log import MarkedDrills, SavedLog, opened

    reader = Interpreter(
        catalog, MarkedDrills(), None, userspace=arguments.userspace or config.kernel_log.userspace
    )
    scan = _Scan(arguments, catalog)
    with opened(arguments.file) as stream:
        saved = SavedLog(stream, reader)
        scan.read(saved)
    return scan.tell(saved.coverage, device_reset=config.policy.device_reset)


class _Scan:
    """The events of a log, judged; and what is said of them."""

    def __init__(self, arguments: argparse.Namespace, catalog: Catalog) -> None:
        from vitald.judge.engine import Judge

        self._json: bool = arguments.json
        self._catalog = catalog
        self._judge = Judge(catalog)
        self._stamps: dict[FindingKey, tuple[Stamp, Stamp]] = {}  # of its first line and its last
        self._ended: dict[FindingKey, _Ended] = {}
        self._forgotten = 0  # ends beyond those
        self._until = 0.0
        self._events = self._untrusted = self._drills = 0

    def read(self, saved: SavedLog) -> None:
        """Lines are shown as they are read, and judged in the order in which they were written."""
        for told in saved.lived(self._shown(saved.told())):
            (event,) = told.events
            if event is not None:
                self._note(self._judge.apply(event), event.time, told.stamp)
                self._judge.take_changes()
        self._until = saved.until
        self._note(self._judge.expire(self._until), self._until, None)

    def _shown(self, told: Iterator[Told]) -> Iterator[Told]:
        from vitald.model import Trust

        for one in told:
            (event,) = one.events
            if (
                event is not None and one.stamp is not None and not one.context
            ):  # context only explains others
                self._untrusted += event.trust is Trust.UNTRUSTED
                self._events += event.trust is not Trust.UNTRUSTED
                self._drills += event.simulated
                self._show(one.stamp, one.raw, event)
            yield one

    def _note(self, changes: list[Transition], time: float, here: Stamp | None) -> None:
        """Which lines each finding had: its first and its last."""
        for change in changes:
            found, key = change.finding, change.finding.key
            if not found.open:
                self._end(change)
            elif here is not None and (key not in self._stamps or found.last >= time):
                self._stamps[key] = self._stamps.get(key, (here, here))[0], here

    def _end(self, change: Transition) -> None:
        from vitald.judge.findings import TOLD

        found, key = change.finding, change.finding.key
        stamps = self._stamps.pop(key, None)
        if stamps is None or found.shadow or found.simulated or change.cause.startswith(TOLD):
            return  # what its cause explains is told with that
        before = self._ended.pop(key, None)  # the latest stands last
        first, count = (before.first, before.count) if before is not None else (stamps[0], 0)
        self._ended[key] = _Ended(found, first, stamps[1], count + found.count, change.cause)
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]
            self._forgotten += 1

    def _show(self, stamp: Stamp, line: bytes, event: Event) -> None:
        from vitald.server import serialize

        shown = serialize.scan_event(
            stamp.number, line.rstrip(b"\r\n").decode("utf-8", "replace"), event, stamp.time
        )
        if self._json:
            print(json.dumps(shown))
            return
        mark = render.colour("written by a process ", "magenta") if event.hearsay else ""
        mark = (
            mark
            if event.judged
            else render.colour("UNTRUSTED (written by a process, not judged) ", "magenta")
        )
        mark = render.colour("SIMULATED (a drill) ", "magenta") if event.simulated else mark
        print(
            f"{stamp.number:>8}  {event.code:<24}"
            f" {mark}{render.cut(event.raw, render.width() - 36)}"
        )

    def tell(self, coverage: Coverage, *, device_reset: bool) -> int:
        """The verdict, and what could not be read. The exit code."""
        from vitald.judge.verdict import by_strength, fold

        standing = [found for found in self._judge.opened if not found.shadow]
        told = {incident.id: incident for incident in self._judge.incidents}
        real = [found for found in standing if not found.simulated]
        verdict = fold(real, [], self._until, told, device_reset=device_reset)
        verdict = _with_problem(
            replace(verdict, simulated=len(real) < len(standing)), coverage.problem
        )
        findings = [
            self._dated(found)
            for found in [
                *by_strength(real),
                *by_strength([one for one in standing if one.simulated]),
            ]
        ]
        if self._json:
            self._print_json(verdict, coverage, findings)
        else:
            self._print(verdict, coverage, findings)
        return EXIT[verdict.status.value]

    def _dated(self, found: Finding) -> schema.Finding:
        from vitald.server import serialize

        first, last = self._stamps[found.key]
        until = f", last {_words(last)}" if last != first else ""
        shown = {
            **serialize.format_finding(found, self._catalog),
            "confirmed": None,  # there is no other witness in a log
            "since": serialize.format_moment(first.time),
            "last": serialize.format_moment(last.time),
            "firstLine": first.number,
            "lastLine": last.number,
            "simulatedUntil": None,
            "seen": f"{_words(first)}, {render.times(found.count)}{until}",
        }
        return cast("schema.Finding", shown)  # as an answer has it, but for what a log cannot say

    def _history(self) -> list[Json]:
        """What ended within the log, the strongest first; what came back after its end is among
        what stands, too.
        """
        from vitald.server import serialize

        return [
            {
                "component": one.finding.component.name,
                "code": one.finding.code,
                "title": one.finding.title,
                "action": one.finding.action.value,
                "count": one.count,
                "since": serialize.format_moment(one.first.time),
                "last": serialize.format_moment(one.last.time),
                "firstLine": one.first.number,
                "lastLine": one.last.number,
                "ended": one.cause,
                "seen": f"{render.times(one.count)}, last {_words(one.last)}",
            }
            for one in sorted(
                self._ended.values(), key=lambda one: (-one.finding.action.rank, one.first.number)
            )
        ]

    def _print_json(
        self, verdict: Verdict, coverage: Coverage, findings: list[schema.Finding]
    ) -> None:
        from vitald.server import serialize

        counts = {
            "lines": coverage.lines,
            "events": self._events,
            "untrusted": self._untrusted,
            "drills": self._drills,
        }
        unread = {
            "kernelLines": coverage.kernel,
            "unread": coverage.unread,
            "unreadLines": [{"line": number, "raw": raw} for number, raw in coverage.shown],
            "problem": coverage.problem or None,
            "hosts": list(coverage.hosts),
        }
        latest = coverage.latest
        as_of = (
            {"line": latest.number, "time": serialize.format_moment(latest.time)}
            if latest is not None
            else None
        )
        told = {
            "asOf": as_of,
            "findings": findings,
            "ended": self._history(),
            "endedNotListed": self._forgotten,
        }
        print(
            json.dumps(
                {"type": "verdict", **serialize.format_verdict(verdict), **counts, **unread, **told}
            )
        )

    def _print(self, verdict: Verdict, coverage: Coverage, findings: list[schema.Finding]) -> None:
        drills = f" ({self._drills} of a drill)" if self._drills else ""
        print(
            f"\n{coverage.lines} lines, {self._events} events{drills}, {self._untrusted} not"
            " believed"
        )
        if coverage.unread:
            print(f"{coverage.unread} not read, though they have words that fault lines have:")
            for number, raw in coverage.shown:
                print(f"{number:>8}  {render.cut(render.safe(raw), render.width() - 10)}")
        if len(coverage.hosts) > 1:
            print(
                f"lines of {len(coverage.hosts)} hosts ({render.safe(', '.join(coverage.hosts))}),"
                " judged as if of one node"
            )
        up = render.flag_words(
            findings,
            {
                "rebootRequired": verdict.reboot_required,
                "replacementRequired": verdict.replacement_required,
            },
        )
        flags = [render.colour(word, "bold", "red") for word in up]
        as_of = (
            f"as of its latest line: {_words(coverage.latest)}"
            if coverage.latest is not None
            else ""
        )
        print(
            "  ".join(
                [render.status_word(verdict.status.value), *flags, *([as_of] if as_of else [])]
            )
        )
        if coverage.problem:
            render.tell(f"  {render.safe(coverage.problem)}")
        for finding in findings:
            for text in render.finding_lines(finding):
                render.tell(text)
        history = self._history()
        if history:
            render.tell("  ended within the log:")
        for one in history[:_LISTED]:
            what = f"{render.safe(one['component'])}  {render.safe(one['title'])}  {one['code']}"
            render.tell(f"    {what}: {one['seen']}; {render.safe(one['ended'])}")
        more = len(history) - _LISTED + self._forgotten
        if more > 0:
            render.tell(f"    and {more} more{'' if self._forgotten else ': --json lists them'}")


def _words(stamp: Stamp) -> str:
    """When a line was written, and which it is."""
    from vitald.server import serialize

    where = f"line {stamp.number}"
    if stamp.time is not None:
        moment = serialize.format_moment(stamp.time)
        return f"{render.clock(moment)} ({render.age(moment)} ago, {where})"
    if stamp.usec is not None:
        return f"{stamp.usec / 1e6:.6f} s after the start ({where})"
    return f"{where}, which has no date"


def _with_problem(verdict: Verdict, problem: str) -> Verdict:
    """A log that could not be read says nothing, unless what was read says enough."""
    from vitald.model import Status

    if not problem:
        return verdict
    reasons = (*verdict.reasons, problem)
    return replace(
        verdict,
        status=verdict.status if verdict.status is Status.UNHEALTHY else Status.UNKNOWN,
        reasons=reasons,
    )
