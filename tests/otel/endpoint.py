"""An OTLP/HTTP endpoint that keeps what collectors send it, as JSON. Source: opentelemetry-proto,
docs/specification.md and opentelemetry/proto/*/v1 (names of the fields).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.monitoring import JsonReceiver

Json = dict[str, Any]


class Sample(NamedTuple):
    name: str
    value: float
    attributes: Json
    resource: Json


class LogRecord(NamedTuple):
    body: object
    severity: str
    attributes: Json
    resource: Json


class Endpoint(JsonReceiver):
    """Listens on a free port of loopback within its context."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self._requests: list[tuple[str, Json]] = []
        self._lock = threading.Lock()

    def _take(self, path: str, sent: Json) -> None:
        with self._lock:
            self._requests.append((path, sent))

    def list_samples(self, name: str) -> list[Sample]:
        """Of the gauges and sums of this name."""
        return [
            Sample(
                metric["name"],
                float(point.get("asDouble", point.get("asInt", "nan"))),
                read_attributes(point.get("attributes", [])),
                resource,
            )
            for resource, scope in self._list_scopes("metrics", "Metrics")
            for metric in scope["metrics"]
            if metric["name"] == name
            for point in (metric.get("gauge") or metric.get("sum") or {}).get("dataPoints", [])
        ]

    def list_log_records(self) -> list[LogRecord]:
        return [
            LogRecord(
                read_value(record.get("body", {})),
                str(record.get("severityText", "")),
                read_attributes(record.get("attributes", [])),
                resource,
            )
            for resource, scope in self._list_scopes("logs", "Logs")
            for record in scope["logRecords"]
        ]

    def _list_scopes(self, signal: str, of: str) -> Iterator[tuple[Json, Json]]:
        """The scopes that were sent, each with the attributes of its resource."""
        with self._lock:
            sent = [document for path, document in self._requests if path == f"/v1/{signal}"]
        for document in sent:
            for part in document[f"resource{of}"]:
                resource = read_attributes(part["resource"].get("attributes", []))
                yield from ((resource, scope) for scope in part[f"scope{of}"])


def read_attributes(pairs: list[Json]) -> Json:
    return {pair["key"]: read_value(pair["value"]) for pair in pairs}


def read_value(value: Json) -> Any:
    if "kvlistValue" in value:
        return read_attributes(value["kvlistValue"].get("values", []))
    return next(iter(value.values()), None)
