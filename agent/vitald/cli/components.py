"""`vitald components`: what is watched, by which source, and what cannot be observed here. A dash
is an unknown value.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vitald.cli import client, render
from vitald.cli.gpu_numbers import add_gpu_numbers
from vitald.cli.table import Column, format_table
from vitald.text import join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_LISTED = 16  # of one kind; beyond that the healthy ones are only counted
_MAX_READINGS = 6  # readings of one gap
_KINDS = ("node", "gpu", "nvswitch", "neuron", "nic", "pci", "cpu", "dimm", "disk")
_COLUMNS = (
    Column("component"),
    Column("identity", 3),
    Column("looked at", 1, folded=True),
    Column("readings", 2),
    Column("status"),
    Column(""),  # SIMULATED
)


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
    if arguments.kind is not None:
        kind = arguments.kind
        answer["components"] = [item for item in answer["components"] if item["kind"] == kind]
        answer["coverage"] = [item for item in answer["coverage"] if item["kind"] == kind]
    if arguments.json:
        render.emit_json(answer)
        return 0
    components = answer["components"]
    findings = _list_findings(arguments, components)
    add_gpu_numbers(arguments, answer, findings)
    whole = arguments.all or arguments.kind is not None
    for line in _format_rows(components, findings, whole=whole):
        render.print_line(line)
    print()
    render.print_line(render.colour_text("what cannot be observed here", "bold"))
    for line in _format_coverage(answer["coverage"], answer["sources"], whole=arguments.all):
        render.print_line(line)
    if arguments.kind is None:
        for name in map(render.escape_text, answer["off"]):
            render.print_line(f"  {name}: switched off, [{name}] enabled = false")
    for line in _format_unwatched(components):
        render.print_line(line)
    return 0


# --- components


def _list_findings(
    arguments: argparse.Namespace, components: Iterable[schema.WatchedComponent]
) -> list[schema.ApiFinding]:
    """The open findings, if a component has some."""
    if not any(component["findings"] for component in components):
        return []
    return client.call_api(arguments, "/v1/findings", limit=1000)["findings"]


def _format_rows(
    components: Sequence[schema.WatchedComponent],
    findings: Iterable[schema.ApiFinding],
    *,
    whole: bool,
) -> Iterator[str]:
    """A line each, and one more for each finding and for each reason that its state is unknown.
    `whole`: healthy ones of a large kind are listed too.
    """
    kinds = Counter(component["kind"] for component in components)
    by_component: dict[str, list[schema.ApiFinding]] = {}
    for finding in findings:
        by_component.setdefault(finding["component"], []).append(finding)
    folded: Counter[str] = Counter()
    rows, notes = [], []
    for component in components:
        kind, own = component["kind"], by_component.get(component["name"], [])
        if whole or component["status"] != "healthy" or kinds[kind] <= _MAX_LISTED:
            rows.append(_build_row(component, own))
            unseen = [f"not known: {render.escape_text(why)}" for why in component["unseen"]]
            notes.append([*map(render.describe_finding, own), *unseen])
        else:
            folded[str(kind)] += 1
    yield from format_table(_COLUMNS, rows, notes)
    for name, count in folded.items():
        yield f"and {count} {name}, healthy (--all, --kind {name})"


def _build_row(
    component: schema.WatchedComponent, findings: Sequence[schema.ApiFinding]
) -> tuple[str, ...]:
    observations = component["sights"]
    readings = sum(observation["asked"] for observation in observations)
    observed = sum(observation["observable"] for observation in observations)
    identity = component["identity"]
    is_simulated = any(part["simulated"] for part in (*observations, *findings))
    return (
        render.escape_text(component["name"]),
        render.escape_text(identity) if identity else "-",
        ", ".join(map(_format_last_read, observations)) or "-",
        f"{observed}/{readings}" if readings else "-",
        render.show_status(str(component["status"])),
        render.colour_text("SIMULATED", "bold", "magenta") if is_simulated else "",
    )


def _format_last_read(observation: schema.Sight) -> str:
    if not observation["looked"]:
        return f"{observation['name']} never"
    return f"{observation['name']} {render.format_age(observation['looked'])} ago"


# --- coverage


def _format_coverage(
    coverage: Sequence[schema.ApiCoverage], sources: Sequence[schema.ApiSource], *, whole: bool
) -> Iterator[str]:
    """By source: its state, and how many readings of each kind it observes."""
    for source in sources:
        if source["state"] != "ok":
            yield _format_state(source)
        for part in coverage:
            if part["source"] != source["name"]:
                continue
            share = "nothing was ever read"
            if part["asked"]:
                share = f"{part['observable']} of {part['asked']} readings observed"
            yield f"  {source['name']}: {part['components'] or 'any'} {part['kind']}, {share}"
            for gap in part["gaps"]:
                yield f"      {_format_gap(gap, part['components'], whole=whole)}"


def _format_state(source: schema.ApiSource) -> str:
    state = str(source["state"])
    if state != "not present":
        state = render.colour_text(state.upper(), "bold", "magenta")
    detail = f": {render.escape_text(source['detail'])}" if source["detail"] else ""
    return f"  {source['name']}: {state}{detail}"


def _format_gap(gap: schema.ApiGap, total: int, *, whole: bool) -> str:
    """Readings that cannot be observed, on which components of `total`, and why."""
    readings, components = gap["readings"], gap["components"]
    names = join_first(readings, len(readings) if whole else _MAX_READINGS)
    if len(components) >= total:
        where = ""
    elif whole or len(components) <= 2:
        where = f" ({', '.join(components)})"
    else:
        where = f" ({len(components)} of {total})"
    return render.escape_text(f"{names}{where}: {gap['reason']}")


def _format_unwatched(components: Iterable[schema.WatchedComponent]) -> Iterator[str]:
    """How many components have no source, by kind."""
    counts = Counter(
        str(component["kind"])
        for component in components
        if not component["sources"] and component["kind"] != "node"
    )
    if counts:
        counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        yield f"  {counted}: no source reads them; only the kernel log can report on them"
