"""The flight recorder's dumps in words: which rank is where in each process group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vitald.cli.report.flight import ErrorFile, FlightDump, FlightEvidence, GroupStatus
from vitald.timestamps import format_rfc3339

_MAX_LINES = 16  # for a group
_MAX_RANGES = 8
_MAX_GROUPS = 256  # real jobs have tens


def describe_flight(evidence: FlightEvidence) -> Iterator[str]:
    """Lines for the summary: each process group, then the errors, then what could not be read."""
    groups = list(dict.fromkeys(number for dump in evidence.dumps for number in dump.groups))
    for number in groups[:_MAX_GROUPS]:
        ranks = [dump for dump in evidence.dumps if number in dump.groups]
        yield from _describe_group(number, ranks)
    if len(groups) > _MAX_GROUPS:
        yield f"{len(groups) - _MAX_GROUPS} more process groups: flight/dumps.json"
    for error in evidence.errors:
        yield _describe_error(error)
    for file, why in evidence.problems:
        yield f"not read: {file}: {why}"
    if evidence.more_problems:
        yield f"not read: {evidence.more_problems} more"


def _describe_group(number: str, dumps: Sequence[FlightDump]) -> Iterator[str]:
    """`process group 0 (default_pg): rank 3: enqueued 5, completed 5; the others: ...`"""
    name = next((dump.names[number] for dump in dumps if number in dump.names), "")
    head = f"process group {number}{f' ({name})' if name else ''}"
    counts = Counter(dump.groups[number] for dump in dumps)
    if len(counts) == 1:
        yield f"{head}: all {len(dumps)} dumps: {_format_status(dumps[0].groups[number])}"
    else:
        (first, number_first), (_, number_second) = counts.most_common(2)
        common = first if number_first > number_second else None
        odd = sorted((status for status in counts if status != common), key=_sort_key)
        for status in odd[:_MAX_LINES]:
            ranks = [dump for dump in dumps if dump.groups[number] == status]
            yield f"{head}: {_name_ranks(ranks)}: {_format_status(status)}"
        if common is not None:
            yield f"{head}: the others ({counts[common]}): {_format_status(common)}"
    yield from _describe_missing(head, number, dumps)


def _describe_missing(head: str, number: str, dumps: Sequence[FlightDump]) -> Iterator[str]:
    """Who has not enqueued what others wait for."""
    most = max(dump.groups[number].enqueued for dump in dumps)
    behind = [dump for dump in dumps if dump.groups[number].enqueued < most]
    waiting = next((dump.waiting[number] for dump in dumps if number in dump.waiting), "")
    what = f"collective {most}"
    if waiting.endswith(f" {most}"):
        what += f" ({waiting.rpartition(' ')[0]})"
    if behind:
        verb = "has" if len(behind) == 1 else "have"
        yield f"{head}: {_name_ranks(behind)} {verb} not enqueued {what}, others have"


def _format_status(status: GroupStatus) -> str:
    return f"enqueued {status.enqueued}, completed {status.completed}"


def _sort_key(status: GroupStatus) -> tuple[int, int, int]:
    return status.enqueued, status.started, status.completed


def _name_ranks(dumps: Sequence[FlightDump]) -> str:
    """`rank 3`, `ranks 0-2, 7`; a file whose name has no rank by its name."""
    ranks = sorted({dump.rank for dump in dumps if dump.rank >= 0})
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in ranges]
    more = f" and {len(shown) - _MAX_RANGES} more ranges" if len(shown) > _MAX_RANGES else ""
    files = [dump.file for dump in dumps if dump.rank < 0][:_MAX_RANGES]
    if not shown:
        return ", ".join(files)
    word = "rank" if len(ranks) == 1 else "ranks"
    return ", ".join([f"{word} {', '.join(shown[:_MAX_RANGES])}{more}", *files])


def _describe_error(error: ErrorFile) -> str:
    when = f" at {format_rfc3339(error.time)}" if error.time is not None else ""
    return f"{error.file}{when}: {' '.join(error.message.split())}"
