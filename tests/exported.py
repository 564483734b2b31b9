"""What a scrape exports, as a scraper reads it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from vitald.metrics.exposition import ExpositionWriter, Format, WrittenFamily

_PARSERS = {Format.TEXT: parse_text, Format.OPENMETRICS: parse_openmetrics}


def read_exported(
    families: Iterable[Metric | WrittenFamily], written_as: Format = Format.TEXT
) -> list[Metric]:
    """The families that a page has."""
    page = ExpositionWriter().write_families(families, written_as).decode()
    return list(_PARSERS[written_as](page))
