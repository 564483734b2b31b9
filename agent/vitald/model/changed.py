"""
A faster `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

T = TypeVar("T")
_Slots = tuple[tuple[str, ...], Callable[[object], tuple[object, ...]]]
_known: dict[type, _Slots] = {}
_set = object.__setattr__


def copy_with(fact: T, **values: object) -> T:
    """A copy with some fields changed, in a third of the time of `dataclasses.replace`.

    For slotted dataclasses without __post_init__ and with several fields, in code that runs for
    every log line.
    """
    class_ = type(fact)
    made: T = object.__new__(class_)
    names, read_all = _known.get(class_) or _describe_slots(class_)
    for name, value in zip(names, read_all(fact)):
        _set(made, name, value)
    for name, value in values.items():
        _set(made, name, value)
    return made


def _describe_slots(class_: type) -> _Slots:
    names = tuple(class_.__slots__)  # type: ignore[attr-defined]
    _known[class_] = names, attrgetter(*names)
    return _known[class_]
