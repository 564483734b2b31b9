"""`vitald explain xid/79`: what the catalogue says. Needs no daemon."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vitald.cli import Parser, UsageError, config_options, finding_text, render

if TYPE_CHECKING:
    from vitald.server import schema


def options(parser: Parser) -> None:
    parser.intermixed = True
    help_ = (
        "kind/code, or in two words; e.g. xid/79, sxid 20034, fs/shutdown; or a kind, to list its"
        " codes"
    )
    parser.add_argument("code", nargs="+", metavar="CODE", help=help_)
    config_options.add_catalog_options(
        parser,
        config=(
            "take profile and overrides from this file (default: /etc/vitald/config.toml if there)"
        ),
        profile="by another profile",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    from vitald.config.file import find_default_file
    from vitald.server import serialize

    path = arguments.config or find_default_file()
    _, catalog = config_options.load_catalog(path, arguments.profile)
    code = re.sub(r"[\s:/]+", "/", " ".join(arguments.code).strip().lower()).strip("/")
    kind, _, number = code.partition("/")
    if kind not in catalog.list_kinds():
        raise UsageError(_describe_unknown_kind(kind, catalog.list_kinds()))
    listed = [rule for rule in catalog.rules.values() if rule.kind == kind]
    if not number and listed:
        return _list_rules([serialize.format_rule(rule) for rule in listed], arguments.json)
    rule = serialize.format_rule(catalog.find_rule(code if number else f"{kind}/NAME"))
    if arguments.json:
        render.emit_json(rule)
    else:
        _show_rule(rule, catalog.profile)
    return 0


def _describe_unknown_kind(kind: str, kinds: Iterable[str]) -> str:
    from vitald import tomlfile

    hint = tomlfile.suggest_word(kind, kinds) or f"; there are {', '.join(sorted(kinds))}"
    return f"the catalogue has no kind {kind!r}{hint} (write kind/code, such as xid/79)"


def _list_rules(rules: list[schema.ApiRule], as_json: bool) -> int:
    if as_json:
        render.emit_json({"rules": rules})
        return 0
    for rule in rules:
        render.print_line(f"{rule['code']!s:<28} {rule['action']!s:<17} {rule['title']}")
    return 0


def _show_rule(rule: schema.ApiRule, profile: str) -> None:
    from vitald.catalog import FaultClass

    render.print_line(f"{render.colour_text(str(rule['code']), 'bold')}  {rule['title']}")
    if rule["mnemonic"]:
        print(render.colour_text(f"  {rule['mnemonic']}", "dim"))
    for text in (rule["meaning"], rule["advice"]):
        for line in textwrap.wrap(str(text), min(96, render.get_width() - 2)):
            print(f"  {line}")
    after = finding_text.describe_when(rule["when"])
    print(f"\n  class       {rule['class']}")
    render.print_line(f"  action      {rule['action']}: {rule['instruction']}{after}")
    for case in rule["cases"]:
        condition = ", ".join(
            _format_condition(field, values) for field, values in case["where"].items()
        )
        wanted = case["action"] or f"at least {case['atLeast']}"
        if case["escalation"]:
            wanted += f" (escalation {case['escalation']})"
        title = f": {case['title']}" if case["title"] else ""
        render.print_line(f"              {wanted} where {condition}{title}")
    render.print_line(f"  cleared by  {', '.join([*rule['clears'], 'a named person'])}")
    limit = ""
    if rule["escalation"] != "none" and not FaultClass(rule["class"]).is_inside_device:
        limit = f", with inspect instead of a replacement for class {rule['class']}"
    render.print_line(f"  escalation  {rule['escalation']}{limit}")
    if rule["sharedCause"]:
        render.print_line(
            "  shared      all devices of the kind at once: one finding of the node, inspect"
        )
    if rule["ofPeers"]:
        inside = FaultClass(rule["class"]).is_inside_device
        action = rule["action"] if inside else "observe"
        render.print_line(
            f"  shared      several devices at once: one finding of the node, {action}"
        )
    render.print_line(
        f"  source      {rule['source']} (profile {profile}, {rule['origin'] or 'not listed'})"
    )


def _format_condition(field: str, values: Iterable[object]) -> str:
    """`unit RLW_REMAP`, `recovery other than 0 or 1`, `seconds above 899`."""
    if field.endswith("_above"):
        return f"{field.removesuffix('_above')} above {' or '.join(map(str, values))}"
    return f"{field.replace('_not', ' other than')} {_format_values(values)}"


def _format_values(values: Iterable[object]) -> str:
    shown = [
        hex(value) if type(value) is int and value > 9 else str(value).lower() for value in values
    ]
    return " or ".join(shown)
