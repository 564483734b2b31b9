"""An OTLP/HTTP endpoint that keeps what collectors send it, as JSON. Source: opentelemetry-proto,
docs/specification.md and opentelemetry/proto/*/v1 (names of the fields).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, NamedTuple

from tests.loopback import LoopbackServer

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


class Endpoint(LoopbackServer):
    """Listens on a free port of loopback within its context."""

    def __init__(self) -> None:
        self._answers: list[tuple[str, Json]] = []
        self._lock = threading.Lock()
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            protocol_version: ClassVar[str] = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                take(self.path, json.loads(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        super().__init__(Handler)

    def _take(self, path: str, sent: Json) -> None:
        with self._lock:
            self._answers.append((path, sent))

    def list_samples(self, name: str) -> list[Sample]:
        """Of the gauges and sums of this name."""
        return [
            Sample(
                metric["name"],
                float(point.get("asDouble", point.get("asInt", "nan"))),
                read_attributes(point.get("attributes", [])),
                resource,
            )
            for resource, scope in self._list_scopes(
                "/v1/metrics", "resourceMetrics", "scopeMetrics"
            )
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
            for resource, scope in self._list_scopes("/v1/logs", "resourceLogs", "scopeLogs")
            for record in scope["logRecords"]
        ]

    def _list_scopes(self, path: str, outer: str, inner: str) -> Iterator[tuple[Json, Json]]:
        """The scopes that were sent, each with the attributes of its resource."""
        with self._lock:
            sent = [answer for sent_to, answer in self._answers if sent_to == path]
        for answer in sent:
            for part in answer[outer]:
                resource = read_attributes(part["resource"].get("attributes", []))
                yield from ((resource, scope) for scope in part[inner])


def read_attributes(pairs: list[Json]) -> Json:
    return {pair["key"]: read_value(pair["value"]) for pair in pairs}


def read_value(value: Json) -> Any:
    if "kvlistValue" in value:
        return read_attributes(value["kvlistValue"].get("values", []))
    return next(iter(value.values()), None)
