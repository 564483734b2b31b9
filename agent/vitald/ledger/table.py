"""
Tables whose rows are values of the data model.

A column is declared once: its name, which is the attribute of the value, and its `Codec`, by which
the value is stored, read back and checked. The SQL that creates, writes and reads a table derives
from its columns.

Owns     the types of columns, the validity of a row (its checksum is right, and each value has the
         expected type), and the statements of one table.
Refuses  which tables there are (`schema`), connections, and protection from manipulation: a process
         that may write the file can also write a right checksum.

SQLite has no checksums of its pages. The checksum of a row detects a flipped bit: its values become
one number, equal before they are stored and after they are read, in Python and in SQL.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar

from vitald.model.component import Component

T = TypeVar("T")

_NO_DATE = 62_135_596_800.0  # seconds to the year 1, and fewer than to the year 9999
# What reading a row raises if it is damaged or not the daemon's.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    OverflowError,
    zlib.error,
)


class RowDamaged(ValueError):
    """A row is not as it was written; the text says which."""


def _keep(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Codec:
    """How a value is stored. `read` raises one of `UNREADABLE` for what `write` did not make.

    `attribute`: the value's attribute, where it is not the name of the column.
    """

    type: str  # in SQL
    read: Callable[[Any], Any]
    write: Callable[[Any], object] = _keep
    attribute: str = ""

    def of(self, attribute: str) -> Codec:
        return replace(self, attribute=attribute)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise RowDamaged(f"no text: {value!r}")
    return value


def _read_name(value: object) -> str:
    if not _read_text(value):
        raise RowDamaged("an empty name")
    return str(value)


def _read_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RowDamaged(f"no number: {value!r}")
    return float(value)


def _read_time(value: object) -> float:
    """A time in seconds that has a date."""
    number = _read_number(value)
    if not abs(number) < _NO_DATE:
        raise RowDamaged(f"no time: {value!r}")
    return number


def _read_whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RowDamaged(f"no whole number: {value!r}")
    return value


def _read_count(value: object) -> int:
    if (number := _read_whole(value)) < 0:
        raise RowDamaged(f"a negative number: {value!r}")
    return number


def _read_id(value: object) -> int:
    if (number := _read_whole(value)) < 1:
        raise RowDamaged(f"no id: {value!r}")
    return number


def _read_flag(value: object) -> bool:
    if value not in (0, 1):
        raise RowDamaged(f"neither true nor false: {value!r}")
    return bool(value)


def _read_component(value: object) -> Component:
    made = Component.parse_name(_read_text(value))
    if made.name != value:
        raise RowDamaged(f"no component: {value!r}")
    return made


def _read_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowDamaged(f"no object: {type(value).__name__}")
    return value


TEXT = Codec("TEXT NOT NULL", _read_text)
NAME = Codec("TEXT NOT NULL", _read_name)  # not empty
NUMBER = Codec("REAL NOT NULL", _read_number)
TIME = Codec("REAL NOT NULL", _read_time)  # seconds since the epoch, or in a period
WHOLE = Codec("INTEGER NOT NULL", _read_whole)
COUNT = Codec("INTEGER NOT NULL", _read_count)
ID = Codec("INTEGER NOT NULL", _read_id)
FLAG = Codec("INTEGER NOT NULL", _read_flag)
COMPONENT = Codec("TEXT NOT NULL", _read_component, attrgetter("name"))
OBJECT = Codec("", _read_object)  # in JSON
ZIPPED = Codec(
    "BLOB",
    lambda value: "" if value is None else zlib.decompress(value).decode(),
    lambda text: zlib.compress(text.encode(errors="replace")) if text else None,
)


def member_of(kind: type[Enum]) -> Codec:
    return Codec("TEXT NOT NULL", kind, attrgetter("value"))


def optional(codec: Codec) -> Codec:
    """NULL for None."""
    return Codec(
        codec.type.removesuffix(" NOT NULL"),
        lambda value: None if value is None else codec.read(value),
        lambda value: None if value is None else codec.write(value),
    )


def list_of(codec: Codec, collect: Callable[[Iterable[Any]], Any] = tuple) -> Codec:
    """A list in JSON; what has no order is sorted."""

    def read(value: object) -> Any:
        if not isinstance(value, list):
            raise RowDamaged(f"no list: {value!r}")
        return collect(map(codec.read, value))

    def write(values: Iterable[Any]) -> list[object]:
        return [*map(codec.write, sorted(values) if collect is frozenset else values)]

    return Codec("", read, write)


def mapping_of(codec: Codec, key: Callable[[str], Any] = str) -> Codec:
    """An object in JSON with any keys."""
    return Codec(
        "",
        lambda value: {key(name): codec.read(item) for name, item in _read_object(value).items()},
        lambda value: {str(name): codec.write(item) for name, item in value.items()},
    )


def record(make: Callable[..., Any], **columns: Codec) -> Codec:
    """An object in JSON with these keys, made by `make` from their values."""

    def read(value: object) -> Any:
        if _read_object(value).keys() != columns.keys():
            raise RowDamaged(f"not the keys of {make}: {', '.join(_read_object(value))}")
        return make(**{name: codec.read(_read_object(value)[name]) for name, codec in items})

    def write(value: object) -> dict[str, object]:
        return {name: codec.write(getattr(value, name)) for name, codec in items}

    items = (*columns.items(),)
    return Codec("", read, write)


def json_of(codec: Codec) -> Codec:
    """Stored as JSON text."""
    return Codec(
        "TEXT NOT NULL",
        lambda value: codec.read(json.loads(_read_text(value))),
        lambda value: json.dumps(codec.write(value)),
    )


class Table(Generic[T]):
    """A table with one row for each value of a type, and the checksum of each row."""

    def __init__(
        self,
        name: str,
        make: Callable[..., T],
        columns: Mapping[str, Codec],
        *,
        replaces: bool = False,
        constraints: tuple[str, ...] = (),
        serial: str = "",
        unsummed: int = 0,
    ) -> None:
        """`replaces`: of two rows with one key the new one is kept, else the old one. `serial`:
        definition of the column `id`, if the values have none. `unsummed`: number of the last
        columns, which the checksum does not cover.
        """
        self.name = name
        self.columns = ", ".join((*columns, "sum"))
        self._make = make
        self._codecs = (*columns.items(),)
        self._get = attrgetter(*(codec.attribute or name for name, codec in columns.items()))
        self._writes = tuple(
            (index, codec.write)
            for index, codec in enumerate(columns.values())
            if codec.write is not _keep
        )
        self._summed = (*columns,)[: len(columns) - unsummed]
        definitions = (
            *((f"id {serial}",) if serial else ()),
            *(f"{column} {codec.type}" for column, codec in columns.items()),
            "sum INTEGER NOT NULL",
            *constraints,
        )
        values = ", ".join("?" * (len(columns) + 1))
        self.definition = f"CREATE TABLE {name} ({', '.join(definitions)})"
        # OR IGNORE would also leave out a row that has NULL, as SQLite stores a NaN.
        insert, kept = ("REPLACE", "") if replaces else ("INSERT", " ON CONFLICT DO NOTHING")
        self._insert = f"{insert} INTO {name} ({self.columns}) VALUES ({values}){kept}"
        self._delete = f"DELETE FROM {name} WHERE " + " AND ".join(f"{key} = ?" for key in columns)
        # With the SQL function of `register_function`
        self._sum = f"UPDATE {name} SET sum = checksum({', '.join(self._summed)})"

    def write(self, value: T) -> list[Any]:
        """The row of a value: its columns, and their checksum."""
        row = [*self._get(value)]
        for index, write in self._writes:
            row[index] = write(row[index])
        row.append(compute_checksum(*row[: len(self._summed)]))
        return row

    def read(self, row: sqlite3.Row) -> T:
        """The value of a row. Raises one of `UNREADABLE`."""
        if row["sum"] != compute_checksum(*[row[column] for column in self._summed]):
            raise RowDamaged(f"{self.name}: a row's checksum is wrong ({row[self._summed[0]]})")
        return self._make(**{column: codec.read(row[column]) for column, codec in self._codecs})

    def put(self, db: sqlite3.Connection, values: Iterable[T]) -> list[int]:
        """Store values. Returns their checksums."""
        rows = [*map(self.write, values)]
        if rows:
            db.executemany(self._insert, rows)
        return [row[-1] for row in rows]

    def select(self, where: str = "", *, also: str = "") -> str:
        """The statement that reads rows, with more columns if need be."""
        return f"SELECT {self.columns}{also} FROM {self.name} {where}"

    def delete(self, db: sqlite3.Connection, values: Iterable[T]) -> None:
        """Delete the rows that are equal to these values."""
        db.executemany(self._delete, (self.write(value)[:-1] for value in values))

    def update_sums(self, db: sqlite3.Connection) -> None:
        """After rows were changed by SQL."""
        db.execute(self._sum)


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
