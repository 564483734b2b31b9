"""
Forged kernel lines: texts that a user chose, at the beginning of what the kernel itself writes.

Two proofs. By form: every shape that asks for something is strict: more bytes than a name has are
fixed before any free text, or it holds up to the line's end. By trial: the beginnings of all
shapes, as names, before every message of the kernel's that begins with one.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice, product
from typing import Any

import pytest

from tests.named import (
    NAME,
    OF_A_FILE,
    OF_A_NETWORK_DEVICE,
    OF_A_PACKET,
    OF_A_PROCESS,
    PREFIX,
    SEGFAULT,
)
from tests.unit.builders import catalogue, recogniser
from vitald.catalog.rules import Rule
from vitald.collectors.kernel_log import recognise
from vitald.collectors.kernel_log.record import escape
from vitald.model.words import Action

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_op: Any = importlib.import_module(
    "re._constants" if sys.version_info >= (3, 11) else "sre_constants"
)

BEYOND = 3  # letters that a shape must fix after those that a name can hold
HARMLESS = {"crash/segfault", "crash/trap", "oom/invoked"}  # what such a message is
MILD = {Action.NONE, Action.OBSERVE}


def asks(rule: Rule) -> bool:
    """Whether a line of it can ask for anything but to be looked at in passing."""
    actions = {rule.action, *(case.action or case.at_least for case in rule.cases)} - {None}
    return not actions <= MILD or rule.unusable


# Of the two grammars that are code.
CODES = (
    "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:65:00): 79, pid=4021, name=python3, GPU has fallen off the bus.",
    (
        "NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node"
        " Reboot Required)"
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
)
SHAPES = [(rule, pattern) for rule in catalogue().rules.values() for pattern in rule.match]


# --- by form


def _is_free(items: Any) -> bool:
    """Whether a part stands for any character."""
    for op, value in items:
        if op in (_op.ANY, _op.NOT_LITERAL) or (op is _op.IN and value[0][0] is _op.NEGATE):
            return True
        if op is _op.SUBPATTERN and _is_free(value[3]):
            return True
    return False


def fixed(tree: Any, *, backwards: bool = False) -> tuple[int, bool]:
    """How many bytes at least are bound before the first free text (behind the last one), and
    whether there is any.
    """
    width = 0
    for op, value in reversed(list(tree)) if backwards else tree:
        inner, free = 0, False
        if op in (_op.MAX_REPEAT, _op.MIN_REPEAT):
            least, most, part = value
            inner, free = (
                (0, True) if most > NAME and _is_free(part) else fixed(part, backwards=backwards)
            )
            inner *= least
        elif op is _op.SUBPATTERN:
            inner, free = fixed(value[3], backwards=backwards)
        elif op is _op.BRANCH:
            branches = [fixed(branch, backwards=backwards) for branch in value[1]]
            inner, free = min(width for width, _ in branches), any(free for _, free in branches)
        elif op not in (_op.AT, _op.ASSERT, _op.ASSERT_NOT):
            inner = 1
        width += inner
        if free:
            return width, True
    return width, False


def loose(pattern: str) -> bool:
    """Whether a name could say so much of a line that the rest does not matter."""
    tree = _parser.parse(pattern, re.S)
    width, free = fixed(tree)
    if width >= NAME + BEYOND:
        return False
    return not pattern.endswith(r"\Z") or (free and fixed(tree, backwards=True)[0] < NAME)


def test_every_shape_that_asks_for_something_is_strict() -> None:
    assert [(rule.code, pattern) for rule, pattern in SHAPES if asks(rule) and loose(pattern)] == []


def test_what_a_loose_shape_is() -> None:
    shapes = {
        r"EDAC MC\d: UE[ -]": True,
        r"EDAC MC\d: \d UE (?:.+ on x \()?": True,
        r"XFS \(\w\): .*Shutting down filesystem": True,
        r"XFS \(\w\): .*Shutting down filesystem\Z": False,
        r"XFS \(\w\): .*down\Z": True,
        r"JBD2?: (?:I/O error|recovery failed)": True,
        r"NMI: IOCK error\s*\Z": False,
        r"nvme nvme\d: Removing after probe failure": False,
    }
    assert {pattern: loose(pattern) for pattern in shapes} == shapes


# --- by trial


def _made(tree: Any, most: int) -> Iterator[str]:
    """Texts that a shape begins with, by each of its ways, of `most` characters at least where it
    is so long.
    """
    ways = [list(islice(_part(op, value, most), 12)) for op, value in tree]
    for parts in islice(product(*ways), 256):
        yield "".join(parts)


def _part(op: Any, value: Any, most: int) -> Iterator[str]:
    if op is _op.LITERAL:
        yield chr(value)
    elif op in (_op.ANY, _op.NOT_LITERAL):
        yield "x"
    elif op is _op.IN:
        yield _one_of(value)
    elif op in (_op.MAX_REPEAT, _op.MIN_REPEAT):
        least, upmost, part = value
        for times in dict.fromkeys((least, min(least + 1, upmost), min(max(least, most), upmost))):
            yield from (
                (made * times for made in islice(_made(part, most), 12)) if times else iter(("",))
            )
    elif op is _op.SUBPATTERN:
        yield from _made(value[3], most)
    elif op is _op.BRANCH:
        for branch in value[1]:
            yield from islice(_made(branch, most), 12)
    else:
        yield ""


def _one_of(items: Any) -> str:
    op, value = items[0]
    if op is _op.NEGATE:
        return "x"
    if op is _op.CATEGORY:
        return {_op.CATEGORY_DIGIT: "1", _op.CATEGORY_SPACE: " "}.get(value, "a")
    return chr(value[0] if op is _op.RANGE else value)


@cache
def wholes() -> tuple[str, ...]:
    """Lines of all shapes: the samples, and what the expressions themselves allow."""
    samples = [sample for rule in catalogue().rules.values() for sample in rule.samples]
    made = [
        text
        for _, pattern in SHAPES
        for text in islice(_made(_parser.parse(pattern, re.S), NAME), 256)
    ]
    return tuple(dict.fromkeys((*CODES, *samples, *made)))


@cache
def names() -> tuple[tuple[str, str], ...]:
    """A name of 15 bytes at most that a line begins with, and the rest of the line."""
    return tuple(
        {
            text[:end]: (text[:end], text[end:]) for text in wholes() for end in range(5, NAME + 1)
        }.values()
    )


def interfaces() -> Iterator[tuple[str, str]]:
    """Names that two network devices may have: without blanks, colons and slashes."""
    for name, rest in names():
        if not re.search(r"[\s:/]", name):
            yield name, re.sub(r"[\s:/]", "", rest)[:NAME]


def seen_in(lines: Iterator[str]) -> set[tuple[str, str]]:
    known = recogniser()
    found = ((known.parse_record(line.encode()), line) for line in lines)
    return {
        (sighting.code, line)
        for sighting, line in found
        if sighting is not None and sighting.code not in HARMLESS
    }


def test_there_are_many_names() -> None:
    assert len(names()) > 2000
    assert {"EDAC MC2: 1 UE ", "EDAC MC1: UE pa", "NVRM: Xid (PCI:", "XFS (md127): Co"} <= {
        name for name, _ in names()
    }


def test_no_process_makes_a_fault() -> None:
    assert (
        seen_in(
            message.text.format(c=name, r=rest[:255])
            for message in OF_A_PROCESS
            for name, rest in names()
        )
        == set()
    )


def test_a_name_may_be_of_odd_bytes() -> None:
    """After a byte that the kernel takes for a log level, as /dev/kmsg escapes it, and as rsyslog
    renders it.
    """
    lines = []
    for head, rest in names():
        for name in (f"\n{head}"[:NAME], head.replace(":", "\\:")[:NAME], f"\x01{head}"[:NAME]):
            text = SEGFAULT.text.format(c=name, r=rest[:255]).encode()
            rendered = re.sub(rb"[\x00-\x1f\x7f-\xff]", lambda found: b"#%03o" % found[0][0], text)
            lines += [escape(text).decode(), rendered.decode()]
    assert seen_in(iter(lines)) == set()


def test_what_asks_for_something_needs_no_list_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of known messages is never whole: by its shape alone, no line that a name begins
    asks for anything.
    """
    monkeypatch.setattr(recognise, "_NAME_FIRST", re.compile(rb"(?!)"))
    seen = set[tuple[str, str]]()
    for message in OF_A_PROCESS:
        seen |= seen_in(message.text.format(c=name, r=rest[:255]) for name, rest in names())
    for message in OF_A_NETWORK_DEVICE:
        seen |= seen_in(message.text.format(c=name, d=other) for name, other in interfaces())
    assert {(code, line) for code, line in seen if asks(catalogue().find_rule(code))} == set()


def test_a_crash_is_what_it_is() -> None:
    known = recogniser()
    sighting = known.parse_record(SEGFAULT.text.format(c="EDAC MC0: 1 UE ", r="x").encode())
    assert sighting is not None
    assert sighting.code == "crash/segfault"


def test_no_network_device_makes_a_fault() -> None:
    assert (
        seen_in(
            message.text.format(c=name, d=other)
            for message in OF_A_NETWORK_DEVICE
            for name, other in interfaces()
        )
        == set()
    )


def test_no_packet_makes_a_fault() -> None:
    """The prefix of a rule has room for a whole line, an Xid's too."""
    prefixes = [
        prefix
        for whole in wholes()
        for prefix in (whole[:PREFIX], f"{whole[: PREFIX - 1]} ", whole[: PREFIX // 2])
    ]
    assert (
        seen_in(message.text.format(p=prefix) for message in OF_A_PACKET for prefix in prefixes)
        == set()
    )


def test_no_file_makes_a_fault() -> None:
    assert (
        seen_in(
            message.text.format(f=whole.replace("/", "")[:255], c="x")
            for message in OF_A_FILE
            for whole in wholes()
        )
        == set()
    )
