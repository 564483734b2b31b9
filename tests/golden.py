"""
What must stay as it is while the code behind it changes: data written once, and what differs.

Each file of `tests/data/golden/` is a table by name. A complete form that is too large to be read
lies beside its table of digests, compressed, so that a difference can be told key by key.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from tests.harness import ROOT

FOLDER = ROOT / "tests" / "data" / "golden"
_SHOWN = 12  # differences that a failure tells
_NAMED = 6  # entries that it names
_WIDTH = 160  # characters of a value that it shows
_DIGITS = 16  # of a SHA-256 in hexadecimal


def canonical(value: object) -> str:
    """The one way to write a value as JSON: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: object) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:_DIGITS]


def differences(before: object, now: object, at: str = "") -> Iterator[str]:
    """Where two values differ, from the outside to the inside, with what was and what is there."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            place = f"{at} › {key}" if at else str(key)
            if key not in now:
                yield f"{place}: is gone; was {_cut(before[key])}"
            elif key not in before:
                yield f"{place}: is new: {_cut(now[key])}"
            else:
                yield from differences(before[key], now[key], place)
    elif isinstance(before, list) and isinstance(now, list):
        for number, (one, other) in enumerate(zip(before, now)):
            yield from differences(one, other, f"{at}[{number}]")
        if len(before) != len(now):
            yield f"{at}: had {len(before)} items, has {len(now)}"
    elif canonical(before) != canonical(now):
        yield f"{at}: was {_cut(before)}, is {_cut(now)}"


def _cut(value: object) -> str:
    text = canonical(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def write(name: str, table: Mapping[str, object]) -> None:
    """Write a table that can be read as it is, one line an entry."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [f"{canonical(key)}: {canonical(value)}" for key, value in sorted(table.items())]
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_large(name: str, table: Mapping[str, object], summary: Mapping[str, object]) -> None:
    """Write a summary with the digest of each entry, and the complete table compressed."""
    write(name, {key: [digest(value), summary[key]] for key, value in table.items()})
    with gzip.GzipFile(FOLDER / f"{name}.json.gz", "wb", mtime=0) as packed:
        packed.write(canonical(table).encode())


@cache
def read(name: str) -> dict[str, Any]:
    """The stored table: the complete one, where there is one."""
    packed = FOLDER / f"{name}.json.gz"
    if packed.exists():
        whole: dict[str, Any] = json.loads(gzip.decompress(packed.read_bytes()))
        return whole
    return read_summary(name)


def read_summary(name: str) -> dict[str, Any]:
    """What can be read of a table: of a large one the digest and a summary of each entry."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def hold(name: str, now: Mapping[str, object], how: str, *, may_grow: bool = False) -> None:
    """
    Compare with what is stored. Raises AssertionError that tells which entries differ, and where
    the first of them does.

    `how` is the command that writes the data anew. `may_grow`: entries that are not stored are no
    difference.
    """
    before = read(name)
    changed = [key for key in before if canonical(before[key]) != canonical(now.get(key))]
    changed += [] if may_grow else sorted({*now} - {*before})
    if not changed:
        return
    first = changed[0]
    was, is_now = ({first: one[first]} if first in one else {} for one in (before, now))
    told = differences(was, is_now)
    others = ", ".join([*changed[1:_NAMED], *(["…"] if len(changed) > _NAMED else [])])
    head = f"{name}: {len(changed)} of {len(before)} differ, first {first}"
    lines = [f"{head}; then {others}" if others else head]
    lines += [f"  {one}" for one in islice(told, _SHOWN)]
    raise AssertionError("\n".join([*lines, f"  where that is meant: {how}"]))


def parse(text: str | None) -> Any:
    """The value of a column that holds JSON; None stays None."""
    return None if text is None else json.loads(text)
