"""`vitald expect`: what this node should have, who says so, and what is here. With `--confirm`, what is here is right."""

from __future__ import annotations

import argparse
import sys
from typing import cast

from agent.cli import EX_USAGE, client, render
from agent.cli.render import Json


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument("--confirm", action="store_true", help="what is here now is right, and expected from now on")
    parser.add_argument("--reason", default=None, help="why, and who says so; needed to confirm")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0, whatever the answer is: whether the node is fit is said by `vitald check`."""
    if arguments.confirm and not arguments.reason:
        print("vitald: say why: --reason TEXT", file=sys.stderr)
        return EX_USAGE
    if arguments.confirm:
        answer = client.ask(arguments, "/v1/expect/confirm", {"reason": arguments.reason})
    else:
        answer = client.ask(arguments, "/v1/expect")
    if arguments.json:
        render.emit_json(answer)
        return 0
    if "confirmed" in answer:
        print(f"confirmed: {', '.join(f'{kind} {count}' for kind, count in cast('Json', answer['confirmed']).items())}")
    _show(answer)
    return 0


def _show(answer: Json) -> None:
    if answer["instanceType"]:
        print(f"machine: {render.safe(answer['instanceType'])}")
    rows = [("", "here", "expected", "why"), *map(_count, cast("list[Json]", answer["counts"]))]
    rows += [_version(one) for one in cast("list[Json]", answer["versions"]) if one["here"] is not None or one["expected"]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for number, row in enumerate(rows):
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip()
        print(render.colour(text, "dim") if not number else text)
    if cast("int", answer["healthyBoots"]) and not answer["thisBootCounted"]:
        print("this boot has not been counted yet: it is once the node has been up for a while and is healthy")


def _count(one: Json) -> tuple[str, str, str, str]:
    here, expected = one["here"], one["expected"]
    notes = [render.safe(one["because"]) if one["because"] else "nobody has said, and nothing was learned yet"]
    if here is None:
        notes.append(render.safe(one["notObservable"]) or "not counted yet")
    elif expected is not None and here != expected:
        notes.append(render.colour("FEWER" if cast("int", here) < cast("int", expected) else "MORE", "bold", "yellow"))
    return str(one["title"]), _known(here), _known(expected), "; ".join(reversed(notes))


def _version(one: Json) -> tuple[str, str, str, str]:
    expected = cast("list[str]", one["expected"])
    differs = one["here"] is not None and expected and one["here"] not in expected
    note = "not loaded" if one["here"] is None else render.colour("DIFFERS", "bold", "yellow") if differs else ""
    return str(one["name"]).replace("_", " "), _known(one["here"]), " or ".join(map(render.safe, expected)) or "-", note


def _known(value: object) -> str:
    return "-" if value is None else render.safe(value)
