"""Rules and dashboards in the chart and in the manifests are those of packaging/prometheus and
packaging/grafana.
"""

from __future__ import annotations

import pytest

from tests.harness import ROOT
from tests.monitoring_files import HOW, write_files


@pytest.mark.parametrize(
    ("name", "text"),
    [(str(path.relative_to(ROOT)), text) for path, text in write_files()],
)
def test_each_is_the_shipped_file(name: str, text: str) -> None:
    assert (ROOT / name).read_text("utf-8") == text, HOW
