"""
`vitald scan FILE|-`: judge a saved kernel log of any form, as if it were this boot's.

Constant memory: lines are read one at a time, and the open findings are bounded. Lines that a process wrote (a raw
record or a `<prio>` with facility 1 or more) are shown as untrusted and not judged, as in the daemon. Findings are
dated by the log's own stamps. A drill is shown and marked, and is no part of the verdict: it was over long ago.

A log that could not be read is `unknown`, never healthy.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.catalog import Catalog
    from agent.config import Config
    from agent.model import Event, Finding, FindingKey, Transition, Verdict
    from agent.sources.kernel_log.interpret import Interpreter
    from agent.sources.kernel_log.saved import Coverage, SavedLog, Seen

from agent.cli import EX_CONFIG, EX_NOINPUT, render, words
from agent.cli.check import EXIT
from agent.cli.render import Json


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a saved log, or - for standard input")
    parser.add_argument("--config", type=Path, default=None, help="take profile, overrides and policy from this file")
    parser.add_argument("--profile", type=words.profile, metavar="NAME", default=None, help="judge by another profile")
    parser.add_argument("--accept-userspace", action="store_true", help="believe records that a process wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object a recognised line, and the verdict")


def run(arguments: argparse.Namespace) -> int:
    from agent import catalog as catalogs
    from agent import config as configs
    from agent.sources.kernel_log.unpack import CannotUnpack

    try:
        config = configs.load(arguments.config)
        catalog = catalogs.load(arguments.profile or config.catalog.profile, config.catalog.overrides)
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line stands in the log, and when it was written, as exactly as the log tells."""

    number: int
    time: float | None
    usec: int | None

    @property
    def words(self) -> str:
        from agent.outputs import form

        where = f"line {self.number}"
        if self.time is not None:
            moment = form.moment(self.time)
            return f"{render.clock(moment)} ({render.age(moment)} ago, {where})"
        if self.usec is not None:
            return f"{self.usec / 1e6:.6f} s after the start ({where})"
        return f"{where}, which has no date"


def _scan(arguments: argparse.Namespace, config: Config, catalog: Catalog) -> int:
    from agent.sources.kernel_log.interpret import Interpreter
    from agent.sources.kernel_log.saved import MarkedDrills, SavedLog, opened

    reader = Interpreter(catalog, MarkedDrills(), None, accept_userspace=arguments.accept_userspace)
    scan = _Scan(arguments, catalog, reader)
    with opened(arguments.file) as stream:
        saved = SavedLog(stream, reader)
        scan.read(saved)
    return scan.tell(saved.coverage, device_reset=config.policy.device_reset)


class _Scan:
    """The events of a log, judged; and what is said of them."""

    def __init__(self, arguments: argparse.Namespace, catalog: Catalog, reader: Interpreter) -> None:
        from agent.judge.judge import Judge

        self._json: bool = arguments.json
        self._catalog = catalog
        self._reader = reader
        self._judge = Judge(catalog)
        self._now = time.time()
        self._stamps: dict[FindingKey, tuple[_Place, _Place]] = {}  # of its first line and its last
        self._events = self._untrusted = self._drills = 0

    def read(self, saved: SavedLog) -> None:
        from agent.model import Trust

        for seen in saved.seen():
            (sighting,) = seen.sightings
            if sighting is None:
                continue
            # All of it stands, however old: only stories are told by the lines' own clock.
            event = self._reader.event(
                sighting,
                seen.line.message,
                seen.line.facility,
                identity=f"line:{seen.record.number}",
                time=self._now,
                boot_id=f"scan {seen.boot}",
                usec=seen.line.usec,
            )
            if event.trust is not Trust.UNTRUSTED:
                self._place(self._judge.apply(event), _Place(seen.record.number, seen.time, seen.line.usec))
            if sighting.context:
                continue  # no fault: it only explains others
            self._untrusted += event.trust is Trust.UNTRUSTED
            self._events += event.trust is not Trust.UNTRUSTED
            self._drills += event.simulated
            self._show(seen, event)

    def _place(self, changes: list[Transition], here: _Place) -> None:
        for change in changes:
            key = change.finding.key
            if not change.finding.open:
                self._stamps.pop(key, None)
            else:
                self._stamps[key] = self._stamps.get(key, (here, here))[0], here

    def _show(self, seen: Seen, event: Event) -> None:
        from agent.outputs import form

        shown = form.scan_event(seen.record.number, seen.record.raw.rstrip(b"\r\n").decode("utf-8", "replace"), event, seen.time)
        if self._json:
            print(json.dumps(shown))
            return
        mark = "" if event.judged else render.colour("UNTRUSTED (written by a process, not judged) ", "magenta")
        mark = render.colour("SIMULATED (a drill) ", "magenta") if event.simulated else mark
        print(f"{seen.record.number:>8}  {event.code:<24} {mark}{render.cut(event.raw, render.width() - 36)}")

    def tell(self, coverage: Coverage, *, device_reset: bool) -> int:
        """The verdict, and what could not be read. The exit code."""
        from agent.judge.verdict import by_strength, fold

        standing = [found for found in self._judge.opened if not found.shadow]
        told = {incident.id: incident for incident in self._judge.incidents}
        real = [found for found in standing if not found.simulated]
        verdict = fold(real, [], self._now, told, device_reset=device_reset)
        verdict = _with_problem(replace(verdict, simulated=len(real) < len(standing)), coverage.problem)
        findings = [self._dated(found) for found in [*by_strength(real), *by_strength([one for one in standing if one.simulated])]]
        if self._json:
            self._print_json(verdict, coverage, findings)
        else:
            self._print(verdict, coverage, findings)
        return EXIT[verdict.status.value]

    def _dated(self, found: Finding) -> Json:
        from agent.outputs import form

        shown = form.finding(found, self._catalog)
        first, last = self._stamps[found.key]
        until = f", last {last.words}" if last != first else ""
        return shown | {
            "since": form.moment(first.time),
            "last": form.moment(last.time),
            "firstLine": first.number,
            "lastLine": last.number,
            "simulatedUntil": None,
            "seen": f"{first.words}, {render.times(found.count)}{until}",
        }

    def _print_json(self, verdict: Verdict, coverage: Coverage, findings: list[Json]) -> None:
        from agent.outputs import form

        counts = {"lines": coverage.lines, "events": self._events, "untrusted": self._untrusted, "drills": self._drills}
        unread = {
            "kernelLines": coverage.kernel,
            "unread": coverage.unread,
            "unreadLines": [{"line": number, "raw": raw} for number, raw in coverage.shown],
            "problem": coverage.problem or None,
            "hosts": list(coverage.hosts),
        }
        print(json.dumps({"type": "verdict", **form.verdict(verdict), **counts, **unread, "findings": findings}))

    def _print(self, verdict: Verdict, coverage: Coverage, findings: list[Json]) -> None:
        drills = f" ({self._drills} of a drill)" if self._drills else ""
        print(f"\n{coverage.lines} lines, {self._events} events{drills}, {self._untrusted} not believed")
        if coverage.unread:
            print(f"{coverage.unread} not read, though they have words that fault lines have:")
            for number, raw in coverage.shown:
                print(f"{number:>8}  {render.cut(render.safe(raw), render.width() - 10)}")
        if len(coverage.hosts) > 1:
            print(f"lines of {len(coverage.hosts)} hosts ({render.safe(', '.join(coverage.hosts))}), judged as if of one node")
        up = render.flag_words(findings, reboot=verdict.reboot_required, replacement=verdict.replacement_required)
        flags = [render.colour(word, "bold", "red") for word in up]
        print("  ".join([render.status_word(verdict.status.value), *flags]))
        if coverage.problem:
            render.tell(f"  {render.safe(coverage.problem)}")
        for finding in findings:
            for text in render.finding_lines(finding):
                render.tell(text)


def _with_problem(verdict: Verdict, problem: str) -> Verdict:
    """A log that could not be read says nothing, unless what was read says enough."""
    from agent.model import Status

    if not problem:
        return verdict
    reasons = (*verdict.reasons, problem)
    return replace(verdict, status=verdict.status if verdict.status is Status.UNHEALTHY else Status.UNKNOWN, reasons=reasons)
