"""
Checksums of rows, which detect a flipped bit: SQLite has no checksums of its pages.

Owns     how the values of a row become one number, equal before they are stored and after they are
         read, and the functions for that in SQL.
Refuses  tables and columns; and protection from manipulation: a process that may write the file can
         also write a right checksum.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable


def compute_checksum(*values: object) -> int:
    """Checksum of a row's values, in the order of its columns. 1 and 1.0 are equal here, because
    SQLite returns a number in the type of its column.
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
    """One number for a set of rows, which differs if any of them is missing or an older one."""
    made = 0
    for number in sums:
        made ^= number
    return made


def register_function(db: sqlite3.Connection) -> None:
    """Register `compute_checksum` as the SQL function `checksum`."""
    db.create_function("checksum", -1, compute_checksum, deterministic=True)
