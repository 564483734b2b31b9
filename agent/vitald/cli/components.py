"""`vitald components`: what is watched, by which source, and what cannot be observed here. A dash
is an unknown value.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitald.cli import argument_types, client, finding_text, render
from vitald.cli.render import lay_out_table
from vitald.server import endpoints
from vitald.text import join_first

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_LISTED = 16  # of one kind; beyond that the healthy ones are only counted
_MAX_READINGS = 6  # readings of one gap
_KINDS = ("node", "gpu", "nvswitch", "neuron", "nic", "pci", "cpu", "dimm", "disk")
_TITLES = ("component", "status", "", "readings", "last read", "device")


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "component",
        nargs="?",
        type=argument_types.parse_device,
        metavar="NAME",
        default=None,
        help="only this one, by any of its names: index, serial number, UUID, slot, PCI address,"
        " interface",
    )
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
    answer = client.get(arguments, endpoints.COMPONENTS, component=arguments.component)
    kind = arguments.kind
    if arguments.component is not None and kind is None:
        kind = str(answer["components"][0]["kind"])
    if kind is not None:
        answer["components"] = [item for item in answer["components"] if item["kind"] == kind]
        answer["coverage"] = [item for item in answer["coverage"] if item["kind"] == kind]
    if arguments.json:
        render.emit_json(answer)
        return 0
    components = answer["components"]
    findings: dict[str, list[schema.ApiFinding]] = {}
    more = False
    if any(component["findings"] for component in components):
        findings, more = client.read_findings_by_component(arguments)
    for line in _format_rows(components, findings, whole=arguments.all or kind is not None):
        render.print_line(line)
    if more:
        render.print_line(finding_text.MORE_FINDINGS)
    print()
    print(render.colour_text("what cannot be observed here", "bold"))
    for line in _format_coverage(answer["coverage"], answer["sources"], whole=arguments.all):
        render.print_line(line)
    if kind is None:
        for name in map(render.escape_text, answer["off"]):
            render.print_line(f"  {name}: switched off, [{name}] enabled = false")
    for line in _format_unwatched(components):
        render.print_line(line)
    return 0


# --- components


def _format_rows(
    components: Sequence[schema.WatchedComponent],
    findings: Mapping[str, Sequence[schema.ApiFinding]],
    *,
    whole: bool,
) -> Iterator[str]:
    """A line each, and one more for each open finding and each reason that its state is unknown.
    `findings`: by component. `whole`: healthy ones of a large kind are listed too.
    """
    kinds = Counter(component["kind"] for component in components)
    folded: Counter[str] = Counter()
    shown = []
    for component in components:
        kind = component["kind"]
        if whole or component["status"] != "healthy" or kinds[kind] <= _MAX_LISTED:
            shown.append(component)
        else:
            folded[str(kind)] += 1
    rows = lay_out_table(_TITLES, [_build_row(component) for component in shown])
    yield from next(rows)
    for component, lines in zip(shown, rows):
        yield from lines
        for finding in findings.get(component["name"], ()):
            yield f"    {finding_text.format_brief(finding)}"
        for reason in component["unknownReasons"]:
            yield f"    not known: {render.escape_text(reason)}"
    for name, count in folded.items():
        yield f"and {render.count_kind(count, name)}, healthy (--all, --kind {name})"


def _build_row(component: schema.WatchedComponent) -> tuple[str, ...]:
    observations = component["observations"]
    readings = sum(observation["attempted"] for observation in observations)
    observed = sum(observation["observable"] for observation in observations)
    status = str(component["status"])
    is_simulated = any(observation["simulated"] for observation in observations)
    return (
        render.escape_text(component["name"]),
        status if status == "healthy" else render.colour_status(status),
        finding_text.mark_simulated() if is_simulated else "",
        f"{observed}/{readings}" if readings else "-",
        ", ".join(map(_format_last_read, observations)) or "-",
        render.escape_text(component.get("device", {}).get("text") or component["identity"] or ""),
    )


def _format_last_read(observation: schema.ApiObservation) -> str:
    if not observation["lastRead"]:
        return f"{observation['name']} never"
    return f"{observation['name']} {render.format_age(observation['lastRead'])}"


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
            if part["attempted"]:
                share = f"{part['observable']} of {part['attempted']} readings observed"
            count, kind = part["components"], str(part["kind"])
            watched = render.count_kind(count, kind) if count else f"any {kind}"
            yield f"  {source['name']}: {watched}, {share}"
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
        counted = ", ".join(render.count_kind(count, kind) for kind, count in counts.items())
        yield f"  {counted}: no source reads them; only the kernel log can report on them"
