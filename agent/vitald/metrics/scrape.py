"""
The Prometheus endpoint: `/metrics`, in tiers, as text or OpenMetrics, compressed or not.

Source of how a scrape's headers are read: RFC 9110, 12.4.2 (weights), 12.5.1 (Accept), 12.5.3
(Accept-Encoding). prometheus_client's chooser reads no weights, and fails on a version that is no
number.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from aiohttp import hdrs, web
from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from vitald.http_server import library
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.metrics.exporter import NodeStateCollector
from vitald.metrics.exposition import ExpositionWriter, Format, WrittenFamily

_MAX_CLIENTS = 16
_GZIP = zlib.MAX_WBITS + 16  # zlib's way to request gzip's header
_FASTEST = 1  # 6, its default, takes four times as long to save another seventh of the bytes


class _Scrapes:
    """Answers scrapes of all tiers."""

    def __init__(self, collector: NodeStateCollector, connection_limit: ConnectionLimit) -> None:
        self._collector = collector
        self._connection_limit = connection_limit
        self._process = ProcessCollector(registry=None)
        self._writer = ExpositionWriter()

    async def answer_scrape(self, request: web.Request) -> web.Response:
        self._connection_limit.restart_timer(request.transport)
        try:
            tier = read_tier(request.query.items())
        except UnknownTier as error:
            return library.make_error(400, str(error), "without a query, /metrics has everything")
        written_as = choose_format(_join_header(request, hdrs.ACCEPT))
        body = self._writer.write_families(self._collect_tier(tier), written_as)
        headers = {
            hdrs.CONTENT_TYPE: written_as.value,
            hdrs.VARY: f"{hdrs.ACCEPT}, {hdrs.ACCEPT_ENCODING}",
        }
        if accepts_gzip(_join_header(request, hdrs.ACCEPT_ENCODING)):
            body = _compress(body)
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=body, headers=headers)

    def _collect_tier(self, tier: Tier) -> Iterator[Metric | WrittenFamily]:
        collect = {
            Tier.FULL: self._collector.collect_all,
            Tier.VERDICT: self._collector.collect_verdict,
            Tier.REST: self._collector.collect_rest,
        }
        yield from collect[tier]()
        if tier is not Tier.VERDICT:
            yield from self._process.collect()


def build_application(
    collector: NodeStateCollector, connection_limit: ConnectionLimit
) -> web.Application:
    """`/metrics`, and nothing else."""
    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", _Scrapes(collector, connection_limit).answer_scrape)
    app.on_response_prepare.append(library.sign_prepared)
    return app


def _compress(body: bytes) -> bytes:
    """On the event loop: half a millisecond for 160 KB."""
    compressor = zlib.compressobj(_FASTEST, wbits=_GZIP)
    return compressor.compress(body) + compressor.flush()


def _join_header(request: web.Request, name: str) -> str:
    """A header may come in several lines."""
    return ",".join(request.headers.getall(name, ()))


def make_connection_limit() -> ConnectionLimit:
    # The clients of a port cannot be distinguished, unlike those of the socket.
    return ConnectionLimit(_MAX_CLIENTS, newest_first=True)


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
