"""
`vitald replay LEDGER|FILE`: judge recorded events again, by the same rules or others, and report
what would change.

The stored events of a ledger are judged in their order, with every operator action; the lines of a
saved kernel log at their own times, as `vitald scan` judges them. Without other rules a ledger is
checked: its events must lead to the findings that it has stored.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitald.catalog import Catalog
    from vitald.config.values import Config
    from vitald.judge.engine import Judge
    from vitald.ledger.queries import LedgerSnapshot
    from vitald.model.event import Event
    from vitald.model.finding import Finding
    from vitald.scan.saved_coverage import Stamp

    # By the rules in force, and by the others; and where its line is in a log
    Pair = tuple[Event | None, Event | None, Stamp | None]

from vitald.cli import EX_CONFIG, EX_NOINPUT, argument_types, render
from vitald.cli.progress import WorkProgress, describe_reading
from vitald.cli.render import Json
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.judge.settings import PolicySettings
from vitald.text import count_noun

_MAX_LISTED = 200
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
        "--profile", type=argument_types.parse_profile, metavar="NAME", help="judge by this profile"
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
    from vitald.catalog import CatalogError
    from vitald.catalog.settings import load_configured_catalog
    from vitald.config.errors import ConfigError
    from vitald.config.file import find_default_file
    from vitald.config.sections import load_config
    from vitald.ledger.errors import LedgerError

    path = arguments.config or find_default_file()
    try:
        config = load_config(path)
        force = load_configured_catalog(config)
        other = load_configured_catalog(config, arguments.profile, arguments.catalog)
    except (ConfigError, CatalogError) as error:
        print("\n".join(f"vitald: {line}" for line in error.errors), file=sys.stderr)
        return EX_CONFIG
    try:
        return _replay_ledger(arguments, force, other, config)
    except LedgerError as error:  # it names the file
        print(f"vitald: {error}", file=sys.stderr)
    except OSError as error:
        print(f"vitald: {arguments.file}: {error.strerror or error}", file=sys.stderr)
    return EX_NOINPUT


def _replay_ledger(
    arguments: argparse.Namespace, force: Catalog, other: Catalog, config: Config
) -> int:
    from vitald.ledger.queries import is_ledger, open_snapshot

    device_reset = config[PolicySettings].device_reset
    if not is_ledger(arguments.file):
        return _replay_log(arguments, force, other, config)
    with open_snapshot(arguments.file) as stored:
        events = ((event, event, None) for event in stored.events)
        return _compare_rules(
            arguments,
            force,
            other,
            events,
            stored,
            device_reset=device_reset,
            until=lambda: stored.until,
            describe=lambda judged: f"{count_noun(judged, 'event')} judged",
        )


def _replay_log(
    arguments: argparse.Namespace, force: Catalog, other: Catalog, config: Config
) -> int:
    from vitald.cli.check import EXIT
    from vitald.collectors.kernel_log.interpret import Interpreter
    from vitald.scan.opened_log import open_log
    from vitald.scan.saved_log import MarkedDrills, SavedLog

    userspace = config[KernelLogSettings].userspace
    device_reset = config[PolicySettings].device_reset
    readers = [
        Interpreter(catalog, MarkedDrills(), None, userspace=userspace)
        for catalog in (force, other)
    ]
    with open_log(str(arguments.file)) as opened:
        saved = SavedLog(opened, *readers)
        lines = saved.identify_devices(saved.read_events())
        pairs = ((line.events[0], line.events[1], line.stamp) for line in lines)
        code = _compare_rules(
            arguments,
            force,
            other,
            pairs,
            None,
            device_reset=device_reset,
            until=lambda: saved.until,
            describe=lambda _: describe_reading(saved.coverage.lines, opened.measure_share()),
        )
    problem = saved.coverage.problem
    if not problem:
        return code
    print(f"vitald: {arguments.file}: {render.escape_text(problem)}", file=sys.stderr)
    return EXIT["unknown"] if saved.coverage.mixture else code or EXIT["unknown"]


def _compare_rules(
    arguments: argparse.Namespace,
    force: Catalog,
    other: Catalog,
    events: Iterator[Pair],
    stored: LedgerSnapshot | None,
    *,
    device_reset: bool,
    until: Callable[[], float],
    describe: Callable[[int], str],
) -> int:
    """Judges the events by both catalogues and prints the differences. Returns the exit code.

    `stored`: the ledger, if it is one that is replayed. `until`: the time of the last event, in
    seconds since the epoch, once all were read. `describe`: how far it is, for the number of events
    that were judged.
    """
    comparison = _RuleComparison(arguments, force, other, device_reset=device_reset)
    with WorkProgress(lambda: f"replay: {describe(comparison.events)}") as progress:
        for pair in events:
            comparison.apply_pair(pair, progress, is_counted=stored is not None or _has_line(pair))
    summary = comparison.build_summary(until())
    in_force = remembered = summary["inForce"]
    if stored is not None:
        remembered = summary["remembered"] = sorted(map(_summarize_finding, stored.opened))
    if arguments.json:
        print(json.dumps(summary))
    else:
        same_rules = arguments.catalog is None and arguments.profile is None
        _print_summary(summary, same_rules=same_rules)
    return DIFFERENT if summary["differences"] or remembered != in_force else 0


class _RuleComparison:
    """Judges the same events by two catalogues; prints where the verdicts begin to differ."""

    def __init__(
        self, arguments: argparse.Namespace, force: Catalog, other: Catalog, *, device_reset: bool
    ) -> None:
        from vitald.judge.engine import Judge

        self._arguments = arguments
        self._judges = Judge(force), Judge(other)
        self._device_reset = device_reset
        self.events = self._differences = 0
        self._last: list[Json] | None = None  # verdicts

    def apply_pair(self, pair: Pair, progress: WorkProgress, *, is_counted: bool) -> None:
        self.events += is_counted
        for judge, event in zip(self._judges, pair[:2]):
            if event is not None:
                judge.apply_event(event)
                judge.take_changes()
        verdicts = [_summarize_verdict(judge, self._device_reset) for judge in self._judges]
        if verdicts[0] != verdicts[1] and verdicts != self._last:
            self._differences += 1
            if self._differences <= _MAX_LISTED:
                with progress.give_way():
                    _print_difference(self._arguments, pair[1] or pair[0], pair[2], verdicts)
        self._last = verdicts

    def build_summary(self, until: float) -> Json:
        """What is open at `until`, the time of the last event in seconds since the epoch."""
        for judge in self._judges:
            judge.expire_findings(until)
        force, other = self._judges
        return {
            "type": "summary",
            "events": self.events,
            "differences": self._differences,
            "listed": min(self._differences, _MAX_LISTED),
            "inForce": _summarize_findings(force.open_findings),
            "other": _summarize_findings(other.open_findings),
        }


def _has_line(pair: Pair) -> bool:
    """Whether it is a line of the log: the start of a boot is only concluded."""
    from vitald.model.event import BOOT

    return any(event is not None and event.code != BOOT for event in pair[:2])


def _summarize_findings(opened: Iterable[Finding]) -> list[str]:
    return sorted(map(_summarize_finding, opened))


def _summarize_verdict(judge: Judge, device_reset: bool) -> Json:
    from vitald.judge.verdict import compute_verdict

    verdict = compute_verdict(judge.open_findings, [], 0.0, device_reset=device_reset)
    return {
        "status": verdict.status.value,
        "action": verdict.action.value,
        "rebootRequired": verdict.reboot_required,
        "replacementRequired": verdict.replacement_required,
    }


def _summarize_finding(found: Finding) -> str:
    when = found.when.phrase
    return (
        f"{found.code} on {found.component.name}: {found.action.value}{when},"
        f" {render.describe_count(found.count)}"
    )


def _print_difference(
    arguments: argparse.Namespace, event: Event | None, stamp: Stamp | None, verdicts: list[Json]
) -> None:
    from vitald.judge.device_history import NO_DATE
    from vitald.server.serialize import format_moment

    if event is None:
        return
    time = event.time if event.time >= NO_DATE else None
    time = stamp.time if stamp is not None else time
    if arguments.json:
        difference = {
            "type": "difference",
            "time": format_moment(time),
            "line": stamp.number if stamp is not None else None,
            "event": event.raw or event.code,
            "inForce": verdicts[0],
            "other": verdicts[1],
        }
        print(json.dumps(difference))
        return
    in_force, other = map(_format_verdict, verdicts)
    when = format_moment(time) or "without a date"
    when = render.describe_stamp(stamp) if stamp is not None else when
    render.print_line(f"{when}  {in_force}  ->  {other}")
    line = render.escape_text(event.raw or event.code)
    render.print_line(f"    {render.cut_line(line, render.get_width() - 4)}")


def _format_verdict(verdict: Json) -> str:
    flags = [flag for flag in ("rebootRequired", "replacementRequired") if verdict[flag]]
    return " ".join([str(verdict["status"]), str(verdict["action"]), *flags])


def _print_summary(summary: Json, *, same_rules: bool) -> None:
    listed = ""
    if summary["listed"] != summary["differences"]:
        listed = f" (the first {summary['listed']} are listed)"
    render.print_line(
        f"{summary['events']} events judged, the verdict differs at {summary['differences']} of"
        f" them{listed}"
    )
    _print_findings("open by the rules in force", summary["inForce"])
    if not same_rules:
        _print_findings("open by the other rules", summary["other"])
    if "remembered" not in summary:
        return
    if summary["remembered"] == summary["inForce"]:
        render.print_line("the ledger remembers the same")
        return
    render.print_line("THE LEDGER REMEMBERS SOMETHING ELSE:")
    for line in summary["remembered"]:  # type: ignore[attr-defined]
        render.print_line(f"  {render.escape_text(line)}")
    render.print_line(
        "(events older than the ledger keeps are not judged again; rules may have changed since)"
    )


def _print_findings(title: str, lines: object) -> None:
    if not isinstance(lines, list) or not lines:
        return
    render.print_line(f"{title}:")
    for line in lines:
        render.print_line(f"  {render.escape_text(line)}")
