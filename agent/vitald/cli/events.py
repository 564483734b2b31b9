"""`vitald events`: what has happened, from the ledger; `--follow` goes on with what happens
next.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vitald.cli import UsageError, client, render, words

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_PAGE, _MAX_EVENTS = 1000, 1_000_000_000  # at once; in all


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--since",
        type=words.parse_since,
        metavar="WHEN",
        help="a duration (30m, 24h), an RFC 3339 time, or an event's id",
    )
    parser.add_argument(
        "--limit",
        type=words.parse_number(1, _MAX_EVENTS),
        metavar="N",
        default=None,
        help="at most so many (default: the newest 50; with --since, all)",
    )
    parser.add_argument(
        "--component",
        type=words.parse_device,
        metavar="NAME",
        help="of one component: gpu/0000:65:00.0, or its index, serial number, UUID, PCI address",
    )
    parser.add_argument(
        "--code", type=words.parse_code, metavar="CODE", help="of one code, e.g. xid/79"
    )
    parser.add_argument("--kind", metavar="KIND", help="of one kind, e.g. xid")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what happens next")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    if arguments.since is None and (arguments.limit or 0) > _MAX_PAGE:
        raise UsageError(f"--limit {arguments.limit}: at most {_MAX_PAGE} without --since")
    if not arguments.follow:
        if not _print_past(arguments) and not arguments.json:
            print("no events", file=sys.stderr)
        return 0
    if arguments.component is not None:
        arguments.component = _find_component(arguments, arguments.component)
    changes = client.follow_changes(arguments)
    next(changes, None)  # the stream has begun: what happens from here on is in it
    shown = _print_past(arguments)
    if not shown and not arguments.json:
        print("no events yet", file=sys.stderr)
    return _print_changes(arguments, changes, shown)


def _find_component(arguments: argparse.Namespace, name: str) -> str:
    """The component that is meant by any of its names; unchanged if the daemon knows none."""
    try:
        listed = client.call_api(arguments, "/v1/components", component=name)["components"]
    except client.DaemonRefused as error:
        if error.status != 404:
            raise
        return name
    return str(listed[0]["name"])


def _print_past(arguments: argparse.Namespace) -> set[object]:
    """Print what the ledger has. Returns the identities of what was printed: all of them where the
    stream goes on from there, else some.
    """
    chosen = {"component": arguments.component, "code": arguments.code, "kind": arguments.kind}
    if arguments.since is None:
        return _print_events(
            arguments,
            client.call_api(
                arguments, "/v1/events", **chosen, limit=arguments.limit or 50, newest="true"
            )["events"],
        )
    since, left = arguments.since, arguments.limit
    shown: set[object] = set()
    while since is not None and (left is None or left > 0):
        limit = min(left or _MAX_PAGE, _MAX_PAGE)
        page = client.call_api(arguments, "/v1/events", **chosen, since=since, limit=limit)
        printed = _print_events(arguments, page["events"])
        shown = shown | printed if arguments.follow else printed or shown
        since = page["next"]
        left = left - len(printed) if left is not None else None
    return shown


def _print_changes(
    arguments: argparse.Namespace, changes: Iterator[schema.WatchLine], shown: set[object]
) -> int:
    """Print what the stream brings, but for what was shown already."""
    for change in changes:
        if change["type"] == "lagged":
            print(
                "vitald: too slow, some events were not shown; vitald events has them",
                file=sys.stderr,
            )
            return 0
        if change["type"] == "stopping":
            print("vitald: the daemon is being stopped; follow again once it runs", file=sys.stderr)
            return 30
        if change["type"] != "event":
            continue
        event = change["event"]
        if event["identity"] not in shown and _is_chosen(event, arguments):
            _print_events(arguments, [event])
    print("vitald: the daemon ended the stream", file=sys.stderr)
    return 30


def _is_chosen(event: schema.ApiEvent, arguments: argparse.Namespace) -> bool:
    wanted = (
        (arguments.component, event["component"]),
        (arguments.code, event["code"]),
        (arguments.kind, event["kind"]),
    )
    return all(value in (None, own) for value, own in wanted)


def _print_events(arguments: argparse.Namespace, events: Iterable[schema.ApiEvent]) -> set[object]:
    for event in events:
        print(json.dumps(event) if arguments.json else render.format_event(event), flush=True)
    return {event["identity"] for event in events}
