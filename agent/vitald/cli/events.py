"""`vitald events`: what has happened, and how findings changed, from the ledger; `--follow` goes on
with what happens next.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

from vitald.cli import UsageError, argument_types, client, finding_text, render
from vitald.server import endpoints
from vitald.server.endpoint import MAX_PAGE, Get

if TYPE_CHECKING:
    from vitald.server import schema

    # An event, or a change of a finding
    Entry = Union[schema.ApiEvent, schema.ApiTransition]

_MAX_EVENTS, _NEWEST = 1_000_000_000, 50  # in all; by default
_ENDPOINTS: dict[str, Get[Any]] = {
    "events": endpoints.EVENTS,
    "transitions": endpoints.TRANSITIONS,
}


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--since",
        type=argument_types.parse_since,
        metavar="WHEN",
        help="a duration (30m, 24h), an RFC 3339 time, or an event's id",
    )
    parser.add_argument(
        "--limit",
        type=argument_types.parse_number(1, _MAX_EVENTS),
        metavar="N",
        default=None,
        help=f"at most so many (default: the newest {_NEWEST}; with --since, all)",
    )
    parser.add_argument(
        "--component",
        type=argument_types.parse_device,
        metavar="NAME",
        help="of one component: gpu/0000:65:00.0, or its index, serial number, UUID, PCI address",
    )
    parser.add_argument(
        "--code", type=argument_types.parse_code, metavar="CODE", help="of one code, e.g. xid/79"
    )
    parser.add_argument("--kind", metavar="KIND", help="of one kind, e.g. xid")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what happens next")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object a line: an event, or a change of a finding (with the key `change`)",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.since is None and (arguments.limit or 0) > MAX_PAGE:
        raise UsageError(f"--limit {arguments.limit}: at most {MAX_PAGE} without --since")
    if not arguments.follow:
        _print_past(arguments)
        return 0
    if arguments.component is not None:
        arguments.component = _find_component(arguments, arguments.component)
    stream = client.follow_changes(arguments)
    next(stream, None)  # it has begun: what happens from here on is in it
    last = _read_page(arguments, "transitions", newest="true", limit=1).get("newestId", 0)
    return _print_stream(arguments, stream, last, _print_past(arguments))


def _find_component(arguments: argparse.Namespace, name: str) -> str:
    """The component that is meant by any of its names; unchanged if the daemon knows none."""
    try:
        listed = client.get(arguments, endpoints.COMPONENTS, component=name)["components"]
    except client.DaemonRefused as error:
        if error.status != 404:
            raise
        return name
    return str(listed[0]["name"])


def _print_past(arguments: argparse.Namespace) -> set[object]:
    """Prints what the ledger has. Returns the identities of what was printed, for --follow only."""
    shown: set[object] = set()
    empty = True
    for entry in _read_past(arguments):
        _print_entry(arguments, entry)
        empty = False
        if arguments.follow:
            shown.add(_identify(entry))
    if empty and not arguments.json:
        print("no events" + (" yet" if arguments.follow else ""), file=sys.stderr)
    return shown


def _read_past(arguments: argparse.Namespace) -> Iterator[Entry]:
    """Events and changes of findings, in the order of their times, as far as --limit allows."""
    if arguments.since is not None:
        since: object = arguments.since
        events = _read_pages(arguments, "events", since)
        if arguments.since.isdigit():  # an event's id: changes since the event that follows it
            first = next(events, None)
            if first is None:
                return
            events, since = itertools.chain([first], events), first["time"]
        merged = _merge_by_time(events, _read_pages(arguments, "transitions", since))
        yield from itertools.islice(merged, arguments.limit)
        return
    limit = arguments.limit or _NEWEST
    past = _read_page(arguments, "events", limit=limit, newest="true")
    changed = _read_page(arguments, "transitions", limit=limit, newest="true")
    merged = _merge_by_time(past.get("events", ()), changed.get("transitions", ()))
    yield from [*merged][-limit:]


def _read_pages(arguments: argparse.Namespace, name: str, since: object) -> Iterator[Any]:
    """Events or transitions, to the last."""
    limit = min(arguments.limit or MAX_PAGE, MAX_PAGE)
    while since is not None:
        page = _read_page(arguments, name, since=since, limit=limit)
        yield from page.get(name, ())
        since = page.get("next")


def _read_page(arguments: argparse.Namespace, name: str, **query: object) -> dict[str, Any]:
    """The answer of /v1/events or /v1/transitions, of what was selected. What is missing in it is
    remarked: damaged rows, and all transitions where the ledger cannot be read; the latest events
    are in memory too.
    """
    try:
        page: dict[str, Any] = client.get(
            arguments, _ENDPOINTS[name], **_get_selection(arguments), **query
        )
    except client.DaemonRefused as error:
        if name == "events":
            raise
        print(f"vitald: changes of findings are not shown: {error}", file=sys.stderr)
        return {}
    if damaged := page.get("damaged"):
        print(f"vitald: {name} damaged in the ledger, left out: {damaged}", file=sys.stderr)
    return page


def _get_selection(arguments: argparse.Namespace) -> dict[str, object]:
    return {name: getattr(arguments, name) for name in ("component", "code", "kind")}


def _print_stream(
    arguments: argparse.Namespace,
    stream: Iterator[schema.WatchLine],
    last: int,
    shown: set[object],
) -> int:
    """Prints what the stream brings, but for what was shown already. It says that a finding
    changed; how is in the ledger, behind the id `last`.
    """
    for line in stream:
        if line["type"] == "lagged":
            print(
                "vitald: too slow, some events were not shown; vitald events has them",
                file=sys.stderr,
            )
            return 0
        if line["type"] == "stopping":
            print("vitald: the daemon is being stopped; follow again once it runs", file=sys.stderr)
            return 30
        entries: Iterable[Entry] = ()
        if line["type"] == "event":
            entries = [line["event"]] if _is_chosen(line["event"], arguments) else []
        elif line["type"] == "finding" and line["cause"]:
            entries = _read_pages(arguments, "transitions", last)
        for entry in entries:
            if _identify(entry) not in shown:
                _print_entry(arguments, entry)
            if "change" in entry:
                last = entry["id"]
    print("vitald: the daemon ended the stream", file=sys.stderr)
    return 30


def _is_chosen(event: schema.ApiEvent, arguments: argparse.Namespace) -> bool:
    own: Mapping[str, object] = event
    return all(value in (None, own[name]) for name, value in _get_selection(arguments).items())


def _identify(entry: Entry) -> object:
    return entry["id"] if "change" in entry else entry["identity"]


def _merge_by_time(events: Iterable[Entry], changes: Iterable[Entry]) -> Iterator[Entry]:
    return heapq.merge(events, changes, key=lambda entry: entry["time"])


def _print_entry(arguments: argparse.Namespace, entry: Entry) -> None:
    if arguments.json:
        print(json.dumps(entry))
    elif "change" in entry:
        render.print_line(finding_text.format_transition(entry))
    else:
        render.print_line(finding_text.format_event(entry))
    sys.stdout.flush()
