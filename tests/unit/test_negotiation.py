"""What a scraper asks for in its query and headers, well-formed or not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.metrics.exposition import Format
from vitald.metrics.scrape import Tier, UnknownTier, accepts_gzip, choose_format, read_tier

# As Prometheus 2.42 and 3 send it (scrape/scrape.go)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "accept",
    [
        PROMETHEUS_2,
        PROMETHEUS_3,
        "application/openmetrics-text",
        'application/openmetrics-text; version="1.0.0"; charset=utf-8',
        "Application/OpenMetrics-Text;Q=0.2, text/plain;q=0.1",
        "text/html, application/openmetrics-text",
    ],
)
def test_openmetrics_where_it_is_asked_for(accept: str) -> None:
    assert choose_format(accept) is Format.OPENMETRICS


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "text/plain, application/openmetrics-text;q=0.9",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;version=x.y",
        "application/openmetrics-text;q=nan",
        "application/openmetrics-text;q=",
        "application/openmetrics-text;q=7",
        "application/openmetrics-text;q=-1",
        "application/openmetrics-textual",
        "image/png",
        ";;q==;,,,=;",
    ],
)
def test_text_otherwise(accept: str) -> None:
    assert choose_format(accept) is Format.TEXT


@pytest.mark.parametrize(
    ("accept_encoding", "accepted"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br", True),
        ("br;q=1, gzip;q=0.2", True),
        ("gzip;q=0.5, identity;q=0.5", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("deflate", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("gzip; q = 0", False),
        ("*;q=0", False),
        ("identity, gzip;q=0.5", False),
        ("gzip;q=abc", False),
        ("gzipped", False),
    ],
)
def test_gzip(accept_encoding: str, accepted: bool) -> None:
    assert accepts_gzip(accept_encoding) is accepted


@given(st.text())
def test_no_header_is_too_strange(header: str) -> None:
    assert choose_format(header) in Format
    assert accepts_gzip(header) in (True, False)


def test_tiers() -> None:
    assert read_tier([]) is Tier.FULL
    assert read_tier([("collect[]", "verdict")]) is Tier.VERDICT
    assert read_tier([("collect[]", "verdict")] * 2) is Tier.VERDICT
    assert read_tier([("exclude[]", "verdict")]) is Tier.REST


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ([("collect[]", "gpus<script>")], "unknown value of collect[]: only verdict is known"),
        ([("collect[]", "")], "unknown value of collect[]: only verdict is known"),
        (
            [("collect[]", "verdict"), ("collect[]", "all")],
            "unknown value of collect[]: only verdict is known",
        ),
        ([("exclude[]", "gpus")], "unknown value of exclude[]: only verdict is known"),
        (
            [("collect[]", "verdict"), ("exclude[]", "verdict")],
            "collect[] and exclude[] together leave nothing",
        ),
        ([("collect", "verdict")], "unknown parameter: only collect[] and exclude[] are known"),
        (
            [("collect[]", "verdict"), ("name[]", "up")],
            "unknown parameter: only collect[] and exclude[] are known",
        ),
    ],
)
def test_what_there_is_not_is_refused(query: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UnknownTier, match=f"^{re.escape(said)}$"):
        read_tier(query)
