"""
A checksum for each row, so that a flipped bit in a code or a time is noticed: SQLite keeps none of
its pages.

Owns     how a row's values become one number, the same before they are stored and after they were
         read, and the functions of that in SQL.
Refuses  knowing tables and columns; and protecting from anybody: who may write the file may also
         write a right checksum.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable

UNSUMMED = -1  # stands for the checksum in what is read of a ledger from before there were any


def compute_checksum(*values: object) -> int:
    """Of a row's values, in the order of its columns. SQLite gives a number back as what the column
    holds: 1 and 1.0 are the same here.
    """
    return zlib.crc32(
        "\x1f".join(
            [value if type(value) is str else _format_value(value) for value in values]
        ).encode()
    )


def _format_value(value: object) -> str:
    if isinstance(value, (int, float)):
        return repr(float(value) + 0.0)  # -0.0 comes back as 0.0
    return "\x00" if value is None else str(value)


def combine_sums(sums: Iterable[int]) -> int:
    """One number for a set of rows: whichever of them is missing, or is an older one, it is
    another.
    """
    made = 0
    for one in sums:
        made ^= one
    return made


class _Digest:
    """`combine_sums` as SQLite's aggregates are."""

    def __init__(self) -> None:
        self._made = 0

    def step(self, one: int) -> None:
        self._made = combine_sums((self._made, one))

    def finalize(self) -> int:
        return self._made


def register_functions(db: sqlite3.Connection) -> None:
    """Have SQL know `compute_checksum(...)` and `combine_sums(...)`."""
    db.create_function("checksum", -1, compute_checksum, deterministic=True)
    db.create_aggregate("digest", 1, _Digest)
