"""
What a scrape requests: which tier of the metrics, in which format, compressed or not.

Source: RFC 9110, 12.4.2 (weights), 12.5.1 (Accept), 12.5.3 (Accept-Encoding). prometheus_client's
chooser reads no weights, and fails on a version that is no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from vitald.metrics.exposition import Format

_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSION = "1.0.0"
_TEXT = ("text/plain", "text/*", "*/*")


class Tier(Enum):
    """Which families: all, those of the verdict, or all others."""

    FULL = "full"
    VERDICT = "verdict"
    REST = "rest"


# The first is called so by Prometheus' exporters. The value is that of the verdict tier.
_PARAMETERS = {"collect[]": Tier.VERDICT, "exclude[]": Tier.REST}


class UnknownTier(ValueError):
    """The query names no tier. `str()` repeats no word of the query."""


@dataclass(frozen=True, slots=True)
class _Accepted:
    """One entry of a header. `weight`: from 0, not acceptable, to 1."""

    name: str
    version: str
    weight: float


def read_tier(query: Iterable[tuple[str, str]]) -> Tier:
    """The tier that the parameters of a request name. Raises UnknownTier."""
    tier = Tier.FULL
    for name, value in query:
        if name not in _PARAMETERS:
            raise UnknownTier(f"unknown parameter: only {' and '.join(_PARAMETERS)} are known")
        if value != Tier.VERDICT.value:
            raise UnknownTier(f"unknown value of {name}: only {Tier.VERDICT.value} is known")
        if tier not in (Tier.FULL, _PARAMETERS[name]):
            raise UnknownTier(f"{' and '.join(_PARAMETERS)} together leave nothing")
        tier = _PARAMETERS[name]
    return tier


def choose_format(accept: str) -> Format:
    """OpenMetrics if the header names it and does not prefer text; text otherwise."""
    openmetrics = text = 0.0
    for accepted in _list_accepted(accept):
        if accepted.name == _OPENMETRICS and accepted.version in ("", _OPENMETRICS_VERSION):
            openmetrics = max(openmetrics, accepted.weight)
        elif accepted.name in _TEXT:
            text = max(text, accepted.weight)
    return Format.OPENMETRICS if 0.0 < openmetrics >= text else Format.TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client takes gzip, and likes it no less than an uncompressed page."""
    weights: Mapping[str, float] = {
        accepted.name: accepted.weight for accepted in _list_accepted(accept_encoding)
    }
    gzip = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return 0.0 < gzip >= weights.get("identity", 0.0)


def _list_accepted(header: str) -> Iterator[_Accepted]:
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        values = {
            key.strip().lower(): value.strip().strip('"')
            for key, _, value in (parameter.partition("=") for parameter in parameters)
        }
        if name:
            yield _Accepted(
                name.lower(), values.get("version", ""), _parse_weight(values.get("q", "1"))
            )


def _parse_weight(text: str) -> float:
    """Zero for what is no weight: the client then gets what every client understands."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
