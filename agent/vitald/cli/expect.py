"""`vitald expect`: what this node should have, who says so, and what is here. With `--confirm`,
what is here is right.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitald.cli import UsageError, client, render, words

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
        "--confirm", action="store_true", help="what is here now is right, and expected from now on"
    )
    parser.add_argument(
        "--reason",
        type=words.parse_reason,
        default=None,
        metavar="TEXT",
        help="why, and who says so; needed to confirm",
    )
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0, whatever the answer is: whether the node is fit is said by `vitald check`."""
    if arguments.confirm and not arguments.reason:
        raise UsageError("--confirm needs to know why: --reason TEXT")
    if arguments.reason and not arguments.confirm:
        raise UsageError("--reason is for --confirm")
    answer: schema.Expected
    confirmed = None
    if arguments.confirm:
        answer = told = client.call_api(
            arguments, "/v1/expect/confirm", {"reason": arguments.reason}
        )
        confirmed = told["confirmed"]
    else:
        answer = client.call_api(arguments, "/v1/expect")
    if arguments.json:
        render.emit_json(answer)
        return 0
    for line in _format_answer(answer, confirmed):
        render.print_line(line)
    return 0


def _format_answer(answer: schema.Expected, confirmed: Mapping[str, int] | None) -> Iterator[str]:
    counts = answer["counts"]
    if confirmed is not None:
        said = [
            f"{confirmed[one['kind']]} {one['title']}"
            for one in counts
            if confirmed.get(one["kind"])
        ]
        yield f"confirmed: {', '.join(said) or 'that there are none'}"
        yield ""
    if answer["instanceType"]:
        yield f"machine: {render.escape_text(answer['instanceType'])}"
        yield ""
    nothing = [one for one in counts if one["here"] == 0 and not one["expected"]]
    uncertain = [one for one in counts if one["here"] is None]
    rows = [
        one
        for one in counts
        if one not in nothing and (one["here"] is not None or one["expected"] is not None)
    ]
    if rows:
        yield from _format_table(
            ("devices", "here", "expected", "", "because"),
            [_build_count_row(one, answer) for one in rows],
            right=(1, 2),
        )
    if nothing:
        yield f"not here, and not expected: {', '.join(str(one['title']) for one in nothing)}"
    reasons = [render.escape_text(one["notObservable"]) or "not counted yet" for one in uncertain]
    for reason in dict.fromkeys(reasons):
        yield (
            "not known yet:"
            f" {', '.join(str(one['title']) for one, own in zip(uncertain, reasons) if own == reason)}:"
            f" {reason}"
        )
    versions = [one for one in answer["versions"] if one["here"] is not None or one["expected"]]
    if versions:
        yield ""
        yield from _format_table(
            ("versions", "here", "allowed", ""), [_build_version_row(one) for one in versions]
        )
    yield from _format_advice(answer, rows)


def _format_advice(answer: schema.Expected, rows: Sequence[schema.ExpectedCount]) -> Iterator[str]:
    """What somebody who reads this may want to do, or to wait for."""
    learns = (
        answer["healthyBoots"]
        and not answer["thisBootCounted"]
        and not all(one["confirmed"] for one in rows)
    )
    differs = any(_is_different(one) for one in rows)
    if learns or differs:
        yield ""
    if learns:
        yield (
            "this boot does not count as a healthy one yet: the node must be fit, some minutes"
            " after vitald was started"
        )
    if differs:
        yield (
            "if what is here is right: vitald expect --confirm --reason TEXT; a number of the"
            " configuration is changed there"
        )


def _format_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> Iterator[str]:
    """Aligned; numbers to the right. A column without a heading is a remark, in colour; one that
    nobody needs is left out.
    """
    columns = [
        number for number, title in enumerate(head) if title or any(row[number] for row in rows)
    ]
    widths = [max(len(row[number]) for row in (head, *rows)) for number in range(len(head))]
    for row in (head, *rows):
        cells = [
            (
                row[number].rjust(widths[number])
                if number in right
                else row[number].ljust(widths[number])
            )
            for number in columns
        ]
        if row is head:
            yield render.colour_text("  ".join(cells).rstrip(), "dim")
        else:
            marked = [
                render.colour_text(cell, "bold", "yellow")
                if cell.strip() and not head[number]
                else cell
                for number, cell in zip(columns, cells)
            ]
            yield "  ".join(marked).rstrip()


def _build_count_row(one: schema.ExpectedCount, answer: schema.Expected) -> tuple[str, ...]:
    unknown = (
        "not known yet, learned at healthy boots" if answer["healthyBoots"] else "nobody has said"
    )
    remark = ""
    here, expected = one["here"], one["expected"]
    if here is not None and expected is not None and here != expected:
        more = here - expected
        remark = f"{more} MORE" if more > 0 else f"{-more} FEWER"
    return (
        str(one["title"]),
        _format_count(one["here"]),
        _format_count(one["expected"]),
        remark,
        render.escape_text(one["because"]) or unknown,
    )


def _is_different(one: schema.ExpectedCount) -> bool:
    return None not in (one["here"], one["expected"]) and one["here"] != one["expected"]


def _build_version_row(one: schema.ExpectedVersion) -> tuple[str, ...]:
    here, expected = one["here"], one["expected"]
    differs = here is not None and expected and here not in expected
    name = _VERSIONS.get(str(one["name"]), str(one["name"]))
    allowed = " or ".join(map(render.escape_text, expected)) or "any"
    return (
        name,
        "not loaded" if here is None else render.escape_text(here),
        allowed,
        "DIFFERS" if differs else "",
    )


def _format_count(value: object) -> str:
    return "-" if value is None else str(value)
