"""How tables of metrics become metric families: name, words, label, and the readings that they are
made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.model import Readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. `parts`: which readings it is made of, by the value of `label`; where there is no
    label, of one.

    `each` is the label that numbers the values of a reading that has one for each part, such as a
    link or a core, from `first` on. Values are multiplied by `scale`. A `word` is a reading in
    text: 1 for the one that holds, which is the value of `label`.
    """

    name: str
    text: str
    parts: Mapping[str, str]
    label: str = ""
    each: str = ""
    first: int = 0
    counter: bool = False
    word: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Who:
    """Whose readings these are: the values of the labels that tell it from others."""

    readings: Readings
    labels: Sequence[str]


def gauge(
    name: str, text: str, reading: str = "", *, each: str = "", first: int = 0, scale: float = 1.0
) -> Family:
    """Of one reading, which has the metric's name where no other is said."""
    return Family(
        name=name, text=text, parts={"": reading or name}, each=each, first=first, scale=scale
    )


def counter(name: str, text: str, reading: str = "", *, each: str = "", first: int = 0) -> Family:
    return Family(
        name=name, text=text, parts={"": reading or name}, each=each, first=first, counter=True
    )


def gauges(
    name: str, text: str, label: str, parts: Mapping[str, str], *, each: str = "", first: int = 0
) -> Family:
    """Of several readings, told apart by a label."""
    return Family(name=name, text=text, parts=parts, label=label, each=each, first=first)


def counters(
    name: str, text: str, label: str, parts: Mapping[str, str], *, each: str = "", first: int = 0
) -> Family:
    return Family(
        name=name, text=text, parts=parts, label=label, each=each, first=first, counter=True
    )


def state(name: str, text: str, reading: str = "") -> Family:
    """A word, such as what a driver calls the state of its device."""
    return Family(name=name, text=text, parts={"": reading or name}, label="state", word=True)


def read_by(families: Iterable[Family]) -> set[str]:
    """The readings that these families are made of."""
    return {reading for family in families for reading in family.parts.values()}


def made(
    prefix: str, families: Sequence[Family], labels: Sequence[str], whose: Sequence[Who]
) -> Iterator[Metric]:
    """The families of these readings. A value that is not observed has no sample: never a zero for
    what nobody knows.
    """
    for family in families:
        kind = CounterMetricFamily if family.counter else GaugeMetricFamily
        own = kind(
            f"{prefix}_{family.name}",
            family.text,
            labels=[*labels, *filter(None, (family.label, family.each))],
        )
        for who in whose:
            for part, reading in family.parts.items():
                value = who.readings.values.get(reading)
                named = [*who.labels, *([part] if family.label else [])]
                if family.word:
                    if isinstance(value, str):
                        own.add_metric([*who.labels, value], 1)
                elif family.each:
                    for number, one in enumerate(
                        value if isinstance(value, tuple) else (value,), family.first
                    ):
                        if isinstance(one, (int, float)) and not math.isnan(one):
                            own.add_metric([*named, str(number)], one * family.scale)
                elif isinstance(value, (int, float)):
                    own.add_metric(named, value * family.scale)
        yield own
