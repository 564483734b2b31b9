"""
What a reading is: name, unit, kind, labels and help.

Each collector lists its readings in its `readings.py`, one `ReadingTable` for each kind of
component and prefix of metrics. The metrics, the reference page and the check of the catalogue's
thresholds derive from these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from vitald.model.source import Readings
from vitald.model.words import ComponentKind

GetLabel = Callable[[Readings], str]

# The unit that the end of a reading's name says, as in metrics: base units, spelt out
_UNITS = (
    ("transfers_per_second", "transfers/s"),
    ("bytes_per_second", "bytes/s"),
    ("bits_per_second", "bits/s"),
    ("celsius", "°C"),
    ("seconds", "s"),
    ("bytes", "bytes"),
    ("ratio", "ratio"),
    ("watts", "W"),
    ("joules", "J"),
    ("hertz", "Hz"),
    ("rpm", "1/min"),
)
# What may follow the unit in a name
_QUALIFIERS = ("_max", "_expected")
COUNT, FLAG, TEXT, CODE = "count", "0 or 1", "text", "code"


class ReadingKind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    STATE = "state"  # a text; as a metric 1 for the value that holds
    TEXT = "text"  # no metric


class LinkMerge(Enum):
    """How the values of a GPU's links become one, where the links are not exported one by one."""

    SUM = "sum"
    LOWEST = "lowest"
    HIGHEST = "highest"
    OMIT = "omit"  # another metric gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingDefinition:
    """One reading of a component.

    `metric` is the name of the family that exports it, without the table's prefix; empty for what
    only thresholds, other readings or the API use. Of a family with several readings, `label`
    distinguishes them by `label_value`. A reading with a value for each part, such as a link,
    numbers them by the label `each`, from `first` on. Exported values are multiplied by `scale`.
    `links` says how the values of links become one.
    """

    name: str
    unit: str
    kind: ReadingKind
    help: str
    metric: str = ""
    label: str = ""
    label_value: str = ""
    each: str = ""
    first: int = 0
    scale: float = 1.0
    links: LinkMerge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTable:
    """The readings of one kind of component; of any, where `component` is PCI.

    `labels`: the labels of its metrics, and how their values follow from what was read.
    """

    component: ComponentKind
    prefix: str
    readings: tuple[ReadingDefinition, ...]
    labels: Mapping[str, GetLabel] = field(default_factory=dict)


def gauge(
    metric: str,
    help_: str,
    reading: str = "",
    *,
    unit: str = "",
    each: str = "",
    first: int = 0,
    scale: float = 1.0,
) -> ReadingDefinition:
    """An exported reading, which has the metric's name where no other is given."""
    name = reading or metric
    return ReadingDefinition(
        name=name,
        unit=unit or find_unit(name),
        kind=ReadingKind.GAUGE,
        help=help_,
        metric=metric,
        each=each,
        first=first,
        scale=scale,
    )


def flag(metric: str, help_: str, reading: str = "", *, each: str = "") -> ReadingDefinition:
    """A gauge that is 0 or 1."""
    return gauge(metric, help_, reading, unit=FLAG, each=each)


def counter(
    metric: str, help_: str, reading: str = "", *, each: str = "", first: int = 0
) -> ReadingDefinition:
    name = reading or metric
    return ReadingDefinition(
        name=name,
        unit=find_unit(name),
        kind=ReadingKind.COUNTER,
        help=help_,
        metric=metric,
        each=each,
        first=first,
    )


def state(metric: str, help_: str) -> ReadingDefinition:
    """A text of few values, such as the state that a driver reports of its device."""
    return ReadingDefinition(
        name=metric, unit=TEXT, kind=ReadingKind.STATE, help=help_, metric=metric, label="state"
    )


def gauges(
    metric: str,
    help_: str,
    label: str,
    parts: Mapping[str, str],
    *,
    unit: str = "",
    each: str = "",
) -> tuple[ReadingDefinition, ...]:
    """Several readings in one metric. `parts`: value of the label -> reading."""
    return _build_family(ReadingKind.GAUGE, metric, help_, label, parts, unit, each)


def counters(
    metric: str, help_: str, label: str, parts: Mapping[str, str], *, each: str = ""
) -> tuple[ReadingDefinition, ...]:
    return _build_family(ReadingKind.COUNTER, metric, help_, label, parts, "", each)


def _build_family(
    kind: ReadingKind,
    metric: str,
    help_: str,
    label: str,
    parts: Mapping[str, str],
    unit: str,
    each: str,
) -> tuple[ReadingDefinition, ...]:
    return tuple(
        ReadingDefinition(
            name=reading,
            unit=unit or find_unit(reading),
            kind=kind,
            help=help_,
            metric=metric,
            label=label,
            label_value=value,
            each=each,
        )
        for value, reading in parts.items()
    )


def unexported(name: str, help_: str, *, unit: str = "", each: str = "") -> ReadingDefinition:
    """A number without a metric: for thresholds, or the API."""
    return ReadingDefinition(
        name=name, unit=unit or find_unit(name), kind=ReadingKind.GAUGE, help=help_, each=each
    )


def text_reading(name: str, help_: str) -> ReadingDefinition:
    return ReadingDefinition(name=name, unit=TEXT, kind=ReadingKind.TEXT, help=help_)


def merge_links(how: LinkMerge, *readings: ReadingDefinition) -> tuple[ReadingDefinition, ...]:
    """Readings with a value for each link, and how these become one value."""
    return tuple(replace(reading, each="link", links=how) for reading in readings)


def find_unit(name: str) -> str:
    """The unit that a reading's name ends with; a count where it names none."""
    for qualifier in _QUALIFIERS:
        name = name.removesuffix(qualifier)
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), COUNT)


# Values of labels


def get_id(readings: Readings) -> str:
    """The component's id: its PCI address, or its name in its kind."""
    return readings.component.id


def get_serial(readings: Readings) -> str:
    return readings.identity if readings.identity != readings.component.name else ""


def get_pci_address(readings: Readings) -> str:
    return readings.component.id if ":" in readings.component.id else ""


def get_reading(name: str) -> GetLabel:
    """A label that is read with the numbers; empty, which is no label, where it was not read."""

    def get_value(readings: Readings) -> str:
        value = readings.labels.get(name, readings.values.get(name, ""))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return get_value
