"""
Metric families as text, for Prometheus: the text format and OpenMetrics 1.0.

prometheus_client's writer sorts, checks and escapes the labels of each sample at each scrape, four
fifths of the time that a scrape took. Labels rarely change, so here a sample's name and labels are
written once, and again only when they are new; its value is written at each scrape.

Values of labels may come from logs, sysfs or programs: whatever these write, a value is one
printable line of limited length, and two different texts stay different.

Sources: prometheus.io, "Exposition formats"; the OpenMetrics 1.0 specification. The samples are
those of prometheus_client, without timestamps and exemplars, which no metric of vitald has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from vitald.text import escape_unprintable

MAX_CHARACTERS = 128  # of a label's value
_DIGITS = 8  # of the hash that ends a value which was changed
_CREATED = "_created"
_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
# Series that a family may remember beyond twice those that it has: they are few, or come and go.
_SPARE = 64

# What stands before a value, by the sample's name, the names of its labels, and their values.
_Prefixes = dict[tuple[str, ...], str]


class Format(Enum):
    """How metrics are written. The values are content types."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class WrittenFamily:
    """A family with the lines of its samples, which are the same in both formats."""

    name: str
    documentation: str
    type: str
    lines: str


class ExpositionWriter:
    """Writes families, and remembers the labels of the series that it wrote last."""

    def __init__(self) -> None:
        self._prefixes: dict[str, _Prefixes] = {}
        self._heads: dict[tuple[str, str, Format], str] = {}

    def write_families(
        self, families: Iterable[Metric | WrittenFamily], written_as: Format
    ) -> bytes:
        """The page of one scrape, in UTF-8."""
        lines: list[str] = []
        for family in families:
            lines.append(self._find_head(family, written_as))
            if isinstance(family, WrittenFamily):
                lines.append(family.lines)
                continue
            samples = family.samples
            if written_as is Format.TEXT and family.type == "counter":
                created = family.name + _CREATED
                samples = [sample for sample in samples if sample.name != created]
            lines.extend(self._write_samples(family.name, samples))
        if written_as is Format.OPENMETRICS:
            lines.append("# EOF\n")
        return "".join(lines).encode()

    def _find_head(self, family: Metric | WrittenFamily, written_as: Format) -> str:
        key = family.name, family.documentation, written_as
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = _write_head(family, written_as)
        return head

    def _write_samples(self, family: str, samples: Sequence[Sample]) -> Iterator[str]:
        remembered = self._prefixes.setdefault(family, {})
        if len(remembered) > 2 * len(samples) + _SPARE:
            remembered.clear()  # most of what it holds is gone
        for sample in samples:
            labels, value = sample.labels, sample.value
            series = (sample.name, *labels, *labels.values())
            prefix = remembered.get(series)
            if prefix is None:
                prefix = remembered[series] = f"{sample.name}{write_labels(labels)} "
            yield f"{prefix}{format_number(value)}\n"


def clean_label(text: str) -> str:
    """The text, if it is one printable line of MAX_CHARACTERS. Else what is not printable is
    escaped, and what is too long is cut; it then ends with `~` and a hash, to stay distinct.
    """
    if len(text) <= MAX_CHARACTERS and text.isprintable():
        return text
    shown = escape_unprintable(text[:MAX_CHARACTERS])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{shown[: MAX_CHARACTERS - _DIGITS - 1]}~{digest}"


def format_number(value: float) -> str:
    """What Prometheus reads as the same number."""
    return repr(float(value)) if math.isfinite(value) else _NOT_FINITE[str(float(value))]


def _write_head(family: Metric | WrittenFamily, written_as: Format) -> str:
    """HELP and TYPE. A counter's name has its suffix in the text format only."""
    name, kind = family.name, family.type
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    if written_as is Format.OPENMETRICS:
        escaped = text.replace('"', r"\"")
        return f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n"
    if kind == "counter":
        name += "_total"
    elif kind == "info":
        name, kind = f"{name}_info", "gauge"
    elif kind == "unknown":
        kind = "untyped"
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def write_labels(labels: Mapping[str, str]) -> str:
    """As they follow a sample's name, braces included; empty where there are none."""
    if not labels:
        return ""
    written = ",".join(f'{label}="{_escape(value)}"' for label, value in sorted(labels.items()))
    return f"{{{written}}}"


def _escape(value: str) -> str:
    return clean_label(value).replace("\\", r"\\").replace('"', r"\"")
