"""
A changed copy of a fact, cheaply.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def copy_with(one: T, **values: object) -> T:
    """`dataclasses.replace` at half its price, for what each line of a storm changes; of slotted
    dataclasses that check nothing.
    """
    made: T = object.__new__(type(one))
    for name in one.__slots__:  # type: ignore[attr-defined]
        object.__setattr__(made, name, values[name] if name in values else getattr(one, name))
    return made
