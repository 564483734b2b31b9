"""docs/reference/metrics.md has what running daemons export. See tests/metrics_page.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import metrics_page
from tests.conftest import require
from tests.unit.builders import ROOT


@pytest.mark.core
def test_the_page_has_the_names_types_labels_and_texts_that_are_exported(tmp_path: Path) -> None:
    found = shutil.which("cc") or shutil.which("gcc")
    require(found, "a C compiler (apt-get install gcc libc6-dev)")
    with metrics_page.run_nodes(tmp_path) as nodes:
        metrics_page.wait_for_page(nodes)


def test_texts_of_what_no_node_exports_are_those_of_the_code() -> None:
    code = "".join(path.read_text("utf-8") for path in ROOT.glob("agent/vitald/**/*.py"))
    assert not [text for *_, text in metrics_page.NOT_SIMULATED.values() if text not in code]
