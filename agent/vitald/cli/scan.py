"""
`vitald scan FILE|-`: judge a saved kernel log as a daemon of that time would.

The lines are judged at their own times: quiet periods, windows and boots are those of the log. The
verdict is that of the last line; what ended before is listed as history. Memory is constant: lines
are read one at a time, and what is kept of them is bounded. Lines that a process wrote (a raw
record or a `<prio>` with facility 1 or more) are marked, and judged as the daemon would
([kernel_log] userspace). A drill is shown and marked, and has no part in the verdict.

A log that could not be read is `unknown`, never healthy, with the command that makes it readable.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.config.values import Config
    from vitald.model.event import Event
    from vitald.model.finding import Finding, FindingKey, Transition, Verdict
    from vitald.scan.saved_coverage import LogCoverage, Stamp
    from vitald.scan.saved_log import SavedEvent, SavedLog
    from vitald.server import schema

from vitald.cli import EX_NOINPUT, config_options, finding_text, render
from vitald.cli.check import EXIT
from vitald.cli.progress import WorkProgress, describe_reading
from vitald.cli.render import Json
from vitald.collectors.kernel_log.settings import USERSPACE, KernelLogSettings
from vitald.judge.settings import PolicySettings
from vitald.model.words import Status
from vitald.text import count_noun

# Findings that ended within the log: how many are kept, and how many are printed.
_MAX_ENDED, _MAX_LISTED = 4096, 20


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a saved log, or - for standard input")
    config_options.add_catalog_options(
        parser,
        config="take profile, overrides and policy from this file",
        profile="judge by another profile",
    )
    parser.add_argument(
        "--userspace",
        choices=USERSPACE,
        default=None,
        help="how to treat records that a process wrote (default: as configured)",
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
    config, catalog = config_options.load_catalog(arguments.config, arguments.profile)
    gc.disable()  # nothing of a log makes cycles, and a collection visits all that is kept
    try:
        return _scan_log(arguments, config, catalog)
    except OSError as error:
        print(f"vitald: {arguments.file}: {error.strerror or error}", file=sys.stderr)
    finally:
        gc.enable()
    return EX_NOINPUT


@dataclass(slots=True)
class _EndedFinding:
    """A fault of a device that ended within the log, however often it recurred."""

    finding: Finding  # the latest
    first: Stamp
    last: Stamp
    count: int
    cause: str


def _scan_log(arguments: argparse.Namespace, config: Config, catalog: Catalog) -> int:
    from vitald.collectors.kernel_log.interpret import Interpreter
    from vitald.scan.opened_log import open_log
    from vitald.scan.saved_log import MarkedDrills, SavedLog

    reader = Interpreter(
        catalog,
        MarkedDrills(),
        None,
        userspace=arguments.userspace or config[KernelLogSettings].userspace,
    )
    scan = _LogScan(arguments, catalog)
    with open_log(arguments.file) as opened:
        saved = SavedLog(opened, reader)

        def describe() -> str:
            lines = describe_reading(saved.coverage.lines, opened.measure_share())
            return f"scan: {lines}"

        with WorkProgress(describe) as progress:
            scan.read_log(saved, progress)
    return scan.report_verdict(saved.coverage, device_reset=config[PolicySettings].device_reset)


class _LogScan:
    """Judges the events of a log, and reports on them."""

    def __init__(self, arguments: argparse.Namespace, catalog: Catalog) -> None:
        from vitald.judge.engine import Judge

        self._json: bool = arguments.json
        self._width = render.get_width()
        self._catalog = catalog
        self._judge = Judge(catalog)
        self._stamps: dict[FindingKey, tuple[Stamp, Stamp]] = {}  # of its first line and its last
        self._ended: dict[FindingKey, _EndedFinding] = {}
        self._forgotten = 0  # ended findings beyond _MAX_ENDED
        self._until = 0.0
        self._events = self._untrusted = self._drills = 0

    def read_log(self, saved: SavedLog, progress: WorkProgress) -> None:
        """Lines are shown as they are read."""
        for line in saved.identify_devices(self._show_lines(saved.read_events(), progress)):
            (event,) = line.events
            if event is not None:
                self._note_lines(self._judge.apply_event(event), event.time, line.stamp)
                self._judge.take_changes()
        self._until = saved.until
        self._note_lines(self._judge.expire_findings(self._until), self._until, None)

    def _show_lines(
        self, lines: Iterator[SavedEvent], progress: WorkProgress
    ) -> Iterator[SavedEvent]:
        from vitald.model.event import Trust

        for line in lines:
            (event,) = line.events
            # A line of context only explains others.
            if event is not None and line.stamp is not None and not line.context:
                self._untrusted += event.trust is Trust.UNTRUSTED
                self._events += event.trust is not Trust.UNTRUSTED
                self._drills += event.is_simulated
                with progress.give_way():
                    self._show_line(line.stamp, line.raw, event)
            yield line

    def _note_lines(self, changes: list[Transition], time: float, here: Stamp | None) -> None:
        """Keeps the first and the last line of each finding."""
        for change in changes:
            found, key = change.finding, change.finding.key
            if not found.is_open:
                self._note_end(change)
            elif here is not None and (key not in self._stamps or found.last >= time):
                self._stamps[key] = self._stamps.get(key, (here, here))[0], here

    def _note_end(self, change: Transition) -> None:
        from vitald.judge.lifecycle import SUPPRESSED

        found, key = change.finding, change.finding.key
        stamps = self._stamps.pop(key, None)
        if stamps is None or found.is_simulated or change.cause.startswith(SUPPRESSED):
            return  # a suppressed consequence, listed with its cause
        before = self._ended.pop(key, None)  # the latest is last
        first, count = (before.first, before.count) if before is not None else (stamps[0], 0)
        self._ended[key] = _EndedFinding(found, first, stamps[1], count + found.count, change.cause)
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
            self._forgotten += 1

    def _show_line(self, stamp: Stamp, line: bytes, event: Event) -> None:
        from vitald.server import serialize

        if self._json:
            text = line.rstrip(b"\r\n").decode("utf-8", "replace")
            print(json.dumps(serialize.scan_event(stamp.number, text, event, stamp.time)))
            return
        mark = _mark_event(event)
        mark = render.colour_text(mark, "magenta") if mark else ""
        head = f"{stamp.number:>8}  {event.code:<18} {mark}"
        raw = render.cut_line(event.raw, self._width - render.count_columns(head))
        render.print_line(f"{head}{raw}")

    def report_verdict(self, coverage: LogCoverage, *, device_reset: bool) -> int:
        """Prints the verdict, and what could not be read. Returns the exit code."""
        from vitald.judge.verdict import compute_verdict, sort_by_strength

        if coverage.mixture:
            self._ended.clear()
        opened = [] if coverage.mixture else self._judge.open_findings
        incidents = {incident.id: incident for incident in self._judge.incidents}
        real = [found for found in opened if not found.is_simulated]
        drills = [found for found in opened if found.is_simulated]
        verdict = compute_verdict(real, [], self._until, incidents, device_reset=device_reset)
        verdict = _add_problem(replace(verdict, simulated=bool(drills)), coverage)
        by_rank = [*sort_by_strength(real), *sort_by_strength(drills)]
        findings = [self._add_lines(found) for found in by_rank]
        if self._json:
            self._print_json(verdict, coverage, findings)
        else:
            self._print_report(verdict, coverage, findings)
        return EXIT[verdict.status.value]

    def _add_lines(self, found: Finding) -> schema.ApiFinding:
        from vitald.server import serialize

        first, last = self._stamps[found.key]
        until = f", last {render.describe_stamp(last)}" if last != first else ""
        shown = {
            **serialize.format_finding(found, self._catalog),
            "confirmed": None,  # a log has no second source
            "since": serialize.format_moment(first.time),
            "last": serialize.format_moment(last.time),
            "firstLine": first.number,
            "lastLine": last.number,
            "simulatedUntil": None,
            "seen": f"{render.describe_stamp(first)}, {render.describe_count(found.count)}{until}",
        }
        return cast("schema.ApiFinding", shown)  # as in an answer, with what a log lacks

    def _list_ended(self) -> list[Json]:
        """What ended within the log, the strongest first. What recurred is among the open findings,
        too.
        """
        from vitald.server import serialize

        by_rank = sorted(
            self._ended.values(), key=lambda ended: (-ended.finding.action.rank, ended.first.number)
        )
        return [
            {
                "component": ended.finding.component.name,
                "code": ended.finding.code,
                "title": ended.finding.title,
                "action": ended.finding.action.value,
                "count": ended.count,
                "since": serialize.format_moment(ended.first.time),
                "last": serialize.format_moment(ended.last.time),
                "firstLine": ended.first.number,
                "lastLine": ended.last.number,
                "ended": ended.cause,
                "seen": f"{render.describe_count(ended.count)},"
                f" last {render.describe_stamp(ended.last)}",
            }
            for ended in by_rank
        ]

    def _print_json(
        self, verdict: Verdict, coverage: LogCoverage, findings: list[schema.ApiFinding]
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
            "lost": coverage.lost,
            "loss": coverage.loss or None,
            "hosts": list(coverage.hosts),
        }
        latest = coverage.latest
        as_of = None
        if latest is not None:
            as_of = {"line": latest.number, "time": serialize.format_moment(latest.time)}
        findings_of_log = {
            "asOf": as_of,
            "findings": findings,
            "ended": self._list_ended(),
            "endedNotListed": self._forgotten,
        }
        summary = {"type": "verdict", **serialize.format_verdict(verdict), **counts, **unread}
        print(json.dumps({**summary, **findings_of_log}))

    def _print_report(
        self, verdict: Verdict, coverage: LogCoverage, findings: list[schema.ApiFinding]
    ) -> None:
        drills = f" ({self._drills} of a drill)" if self._drills else ""
        events = f"{count_noun(self._events, 'event')}{drills}"
        ignored = f", {self._untrusted} ignored (written by processes)" if self._untrusted else ""
        render.print_line(f"\n{count_noun(coverage.lines, 'line')}, {events}{ignored}")
        _print_coverage(coverage)
        _print_heading(verdict, coverage, findings)
        if coverage.problem:
            render.print_line(f"  {render.escape_text(coverage.problem)}")
        for finding in findings:
            for line in finding_text.format_finding(finding):
                render.print_line(line)
        self._print_ended()

    def _print_ended(self) -> None:
        ended = self._list_ended()
        if ended:
            render.print_line("  ended within the log:")
        for finding in ended[:_MAX_LISTED]:
            component, title = (render.escape_text(finding[key]) for key in ("component", "title"))
            cause = render.escape_text(finding["ended"])
            name = f"{component}  {title}  {finding['code']}"
            render.print_line(f"    {name}: {finding['seen']}; {cause}")
        more = len(ended) - _MAX_LISTED + self._forgotten
        if more > 0:
            hint = "" if self._forgotten else ": --json lists them"
            render.print_line(f"    and {more} more{hint}")


def _mark_event(event: Event) -> str:
    if event.is_simulated:
        return "SIMULATED (a drill) "
    if not event.is_trusted:
        return f"UNTRUSTED ({event.fields.get('untrusted') or 'written by a process'}, not judged) "
    if "doubted" in event.fields:
        return "DOUBTFUL (perhaps the rest of the line before) "
    return "written by a process " if event.is_hearsay else ""


def _print_coverage(coverage: LogCoverage) -> None:
    """What could not be read."""
    if coverage.unread:
        render.print_line(
            f"{coverage.unread} not read, though they have words that fault lines have:"
        )
        for number, raw in coverage.shown:
            line = render.cut_line(render.escape_text(raw), render.get_width() - 10)
            render.print_line(f"{number:>8}  {line}")
    if coverage.loss:
        render.print_line(f"{coverage.loss}: a fault may be among them")


def _print_heading(
    verdict: Verdict, coverage: LogCoverage, findings: list[schema.ApiFinding]
) -> None:
    flags = {
        "rebootRequired": verdict.reboot_required,
        "replacementRequired": verdict.replacement_required,
    }
    heading = [render.colour_status(verdict.status.value)]
    for flag in finding_text.describe_flags(findings, flags):
        heading.append(render.colour_text(flag, "bold", "red"))
    if coverage.latest is not None:
        heading.append(f"as of its latest line: {render.describe_stamp(coverage.latest)}")
    render.print_line("  ".join(heading))


def _add_problem(verdict: Verdict, coverage: LogCoverage) -> Verdict:
    """Unknown if the log could not be read, unless what was read is unhealthy; and if it lost
    records and what is left shows no fault.
    """
    problem = coverage.problem
    if not problem and verdict.status is Status.HEALTHY:
        problem = coverage.loss
    if not problem:
        return verdict
    is_unhealthy = verdict.status is Status.UNHEALTHY
    status = verdict.status if is_unhealthy else Status.UNKNOWN
    return replace(verdict, status=status, reasons=(*verdict.reasons, problem))
