"""`vitald components`: what is watched, who looks at it, and what cannot be observed here. What
nobody knows is a dash.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vitald.cli import client, render
from vitald.text import join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_LISTED = 16  # of one kind; beyond that the healthy ones are only counted
_MAX_READINGS = 6  # readings of one gap
_KINDS = ("node", "gpu", "nvswitch", "neuron", "nic", "pci", "cpu", "dimm", "disk")
_TITLES = ("component", "identity", "looked at", "readings", "status")


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="the answer of GET /v1/components, with every reading"
    )
    parser.add_argument("--kind", choices=_KINDS, help="only components of this kind")
    parser.add_argument(
        "--all",
        action="store_true",
        help="shorten nothing: each healthy component, each reading that cannot be observed",
    )


def run(arguments: argparse.Namespace) -> int:
    answer = client.call_api(arguments, "/v1/components")
    answer["components"] = [
        one for one in answer["components"] if arguments.kind in (None, one["kind"])
    ]
    answer["coverage"] = [
        one for one in answer["coverage"] if arguments.kind in (None, one["kind"])
    ]
    if arguments.json:
        render.emit_json(answer)
        return 0
    listed, told = answer["components"], answer["coverage"]
    for line in _format_rows(listed, whole=arguments.all or arguments.kind is not None):
        render.print_line(line)
    print()
    print(render.colour_text("what cannot be observed here", "bold"))
    for line in _format_coverage(told, answer["sources"], whole=arguments.all):
        render.print_line(line)
    for line in _format_unwatched(answer, listed, only=arguments.kind):
        render.print_line(line)
    return 0


# --- components


def _format_rows(listed: Sequence[schema.WatchedComponent], *, whole: bool) -> Iterator[str]:
    """A line each, and one more for each source that cannot say how it is."""
    shown = [one for one in listed if whole or not _is_folded(one, listed)]
    rows = [_TITLES, *(_build_row(one) for one in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    yield render.colour_text(
        "  ".join(cell.ljust(width) for cell, width in zip(_TITLES, widths)).rstrip(), "dim"
    )
    for one, row in zip(shown, rows[1:]):
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths)]
        yield "  ".join(
            [*cells, row[-1] if row[-1] == "healthy" else render.colour_status(row[-1])]
        )
        for reason in one["unseen"]:
            yield f"    not known: {render.escape_text(reason)}"
    folded: dict[str, int] = {}
    for one in listed:
        if not whole and _is_folded(one, listed):
            folded[str(one["kind"])] = folded.get(str(one["kind"]), 0) + 1
    for kind, count in folded.items():
        yield f"and {count} {kind}, healthy (--all, --kind {kind})"


def _is_folded(one: schema.WatchedComponent, listed: Sequence[schema.WatchedComponent]) -> bool:
    return (
        one["status"] == "healthy"
        and sum(other["kind"] == one["kind"] for other in listed) > _MAX_LISTED
    )


def _build_row(one: schema.WatchedComponent) -> tuple[str, ...]:
    by = one["sights"]
    asked = sum(sight["asked"] for sight in by)
    observed = sum(sight["observable"] for sight in by)
    return (
        render.escape_text(one["name"]),
        render.escape_text(one["identity"]) if one["identity"] else "-",
        ", ".join(_format_last_read(sight) for sight in by) or "-",
        f"{observed}/{asked}" if asked else "-",
        str(one["status"]),
    )


def _format_last_read(sight: schema.Sight) -> str:
    return (
        f"{sight['name']} {render.format_age(sight['looked'])} ago"
        if sight["looked"]
        else f"{sight['name']} never"
    )


# --- coverage


def _format_coverage(
    told: Sequence[schema.Coverage], sources: Sequence[schema.Source], *, whole: bool
) -> Iterator[str]:
    """By source: how it fares, how much it observes of each kind, and what not."""
    for source in sources:
        own = [one for one in told if one["source"] == source["name"]]
        detail = f": {render.escape_text(source['detail'])}" if source["detail"] else ""
        if source["state"] != "ok":
            word = str(source["state"])
            yield (
                f"  {source['name']}:"
                f" {word if word == 'not present' else render.colour_text(word.upper(), 'bold', 'magenta')}{detail}"
            )
        for one in own:
            asked, seen = one["asked"], one["observable"]
            share = f"{seen} of {asked} readings observed" if asked else "nothing was ever read"
            yield f"  {source['name']}: {one['components'] or 'any'} {one['kind']}, {share}"
            for gap in one["gaps"]:
                yield f"      {_format_gap(gap, one['components'], whole=whole)}"


def _format_gap(gap: schema.Gap, of: int, *, whole: bool) -> str:
    readings, components = gap["readings"], gap["components"]
    most = len(readings) if whole else _MAX_READINGS
    names = join_first(readings, most)
    if len(components) >= of:
        whom = ""
    elif whole or len(components) <= 2:
        whom = f" ({', '.join(components)})"
    else:
        whom = f" ({len(components)} of {of})"
    return render.escape_text(f"{names}{whom}: {gap['reason']}")


def _format_unwatched(
    answer: schema.Components, listed: Iterable[schema.WatchedComponent], *, only: str | None
) -> Iterator[str]:
    """Who is not asked, and whom nobody asks."""
    if only is None:
        for name in answer["off"]:
            yield f"  {render.escape_text(name)}: switched off, [{render.escape_text(name)}] enabled = false"
    alone: dict[str, int] = {}
    for one in listed:
        if not one["sources"] and one["kind"] != "node":
            alone[str(one["kind"])] = alone.get(str(one["kind"]), 0) + 1
    if alone:
        yield (
            f"  {', '.join(f'{count} {kind}' for kind, count in alone.items())}: nobody looks at"
            " them; only the kernel log would tell"
        )
