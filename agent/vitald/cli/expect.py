"""`vitald expect`: the devices and versions expected on this node, by which source, and what was
found. `--confirm` makes what was found the expectation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitald.cli import UsageError, argument_types, client, render
from vitald.cli.render import format_table
from vitald.server import endpoints
from vitald.text import count_noun

if TYPE_CHECKING:
    from vitald.server import schema

_VERSIONS = {
    "gpu_driver": "GPU driver",
    "neuron_driver": "Neuron driver",
    "efa_driver": "EFA driver",
}


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--confirm", action="store_true", help="expect from now on what is here now"
    )
    parser.add_argument(
        "--reason",
        type=argument_types.parse_reason,
        default=None,
        metavar="TEXT",
        help="reason, recorded with the caller; needed to confirm",
    )
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0, whatever the answer is: `vitald check` decides whether the node is fit."""
    if arguments.confirm and not arguments.reason:
        raise UsageError("--confirm needs a reason: --reason TEXT")
    if arguments.reason and not arguments.confirm:
        raise UsageError("--reason is for --confirm")
    answer: schema.ApiExpected
    confirmed = None
    if arguments.confirm:
        body: schema.ConfirmRequest = {"reason": arguments.reason}
        answer = result = client.post(arguments, endpoints.CONFIRM, body)
        confirmed = result["confirmed"]
    else:
        answer = client.get(arguments, endpoints.EXPECT)
    if arguments.json:
        render.emit_json(answer)
        return 0
    for line in _format_answer(answer, confirmed):
        render.print_line(line)
    return 0


def _format_answer(
    answer: schema.ApiExpected, confirmed: Mapping[str, int] | None
) -> Iterator[str]:
    """`confirmed`: how many of each kind were confirmed just now; None if nothing was."""
    counts = answer["counts"]
    if confirmed is not None:
        yield f"confirmed: {_format_confirmed(counts, confirmed)}"
        yield ""
    if answer["instanceType"]:
        yield f"machine: {render.escape_text(answer['instanceType'])}"
        yield ""
    absent = [count for count in counts if _is_absent(count)]
    rows = [count for count in counts if _is_listed(count)]
    if rows:
        titles = ("devices", "found", "expected", "", "source")
        cells = [_build_count_row(count, answer) for count in rows]
        yield from format_table(titles, cells, right=(1, 2))
    if absent:
        yield f"not found, and not expected: {_join_titles(absent)}"
    yield from _format_unknown([count for count in counts if count["found"] is None])
    yield from _format_versions(answer["versions"])
    yield from _format_advice(answer, rows)


def _format_confirmed(counts: Iterable[schema.ExpectedCount], confirmed: Mapping[str, int]) -> str:
    counted = [
        count_noun(confirmed[count["kind"]], count["title"].removesuffix("s"))
        for count in counts
        if confirmed.get(count["kind"])
    ]
    return ", ".join(counted) or "that there are none"


def _is_absent(count: schema.ExpectedCount) -> bool:
    """Neither here nor expected."""
    return count["found"] == 0 and not count["expected"]


def _is_listed(count: schema.ExpectedCount) -> bool:
    if _is_absent(count):
        return False
    return count["found"] is not None or count["expected"] is not None


def _format_versions(versions: Iterable[schema.ExpectedVersion]) -> Iterator[str]:
    rows = [
        _build_version_row(version)
        for version in versions
        if version["found"] is not None or version["expected"]
    ]
    if rows:
        yield ""
        yield from format_table(("versions", "found", "allowed", ""), rows)


def _join_titles(counts: Iterable[schema.ExpectedCount]) -> str:
    return ", ".join(str(count["title"]) for count in counts)


def _format_unknown(uncounted: Sequence[schema.ExpectedCount]) -> Iterator[str]:
    """A line for each reason why devices are not counted."""
    groups: dict[str, list[schema.ExpectedCount]] = {}
    for count in uncounted:
        reason = render.escape_text(count["notObservable"]) or "not read yet"
        groups.setdefault(reason, []).append(count)
    for reason, group in groups.items():
        yield f"not counted yet: {_join_titles(group)}: {reason}"


def _format_advice(
    answer: schema.ApiExpected, rows: Sequence[schema.ExpectedCount]
) -> Iterator[str]:
    """What the operator can do, or wait for."""
    learns = (
        answer["healthyBoots"]
        and not answer["thisBootCounted"]
        and not all(count["confirmed"] for count in rows)
    )
    differs = any(_is_different(count) for count in rows)
    if learns or differs:
        yield ""
    if learns:
        yield (
            "this boot does not count as a healthy one yet: the node must be fit, some minutes"
            " after vitald was started"
        )
    if differs:
        yield (
            "if what is found is right: vitald expect --confirm --reason TEXT; a number of the"
            " configuration is changed there"
        )


def _build_count_row(count: schema.ExpectedCount, answer: schema.ApiExpected) -> tuple[str, ...]:
    found, expected = count["found"], count["expected"]
    remark = ""
    if found is not None and expected is not None and found != expected:
        more = found - expected
        remark = _colour_remark(f"{more} MORE" if more > 0 else f"{-more} FEWER")
    source = render.escape_text(count["source"])
    if not source:
        source = "not configured"
        if answer["healthyBoots"]:
            source = f"learning: 0 of {answer['healthyBoots']} healthy boots in a row"
    return (str(count["title"]), _format_count(found), _format_count(expected), remark, source)


def _is_different(count: schema.ExpectedCount) -> bool:
    return None not in (count["found"], count["expected"]) and count["found"] != count["expected"]


def _build_version_row(version: schema.ExpectedVersion) -> tuple[str, ...]:
    found, expected = version["found"], version["expected"]
    differs = found is not None and expected and found not in expected
    name = _VERSIONS.get(str(version["name"]), str(version["name"]))
    allowed = " or ".join(map(render.escape_text, expected)) or "any"
    loaded = "not loaded" if found is None else render.escape_text(found)
    return (name, loaded, allowed, _colour_remark("DIFFERS") if differs else "")


def _colour_remark(text: str) -> str:
    return render.colour_text(text, "bold", "yellow")


def _format_count(value: object) -> str:
    return "-" if value is None else str(value)
