"""docs/reference/metrics.md has the metrics of the golden data. See tests/metrics_page.py."""

from __future__ import annotations

from tests import golden, metrics_page
from tests.unit.builders import ROOT


def test_the_page_has_the_names_types_and_labels_that_are_exported() -> None:
    written = metrics_page.PAGE.read_text("utf-8")
    assert written == metrics_page.page(metrics_page.help_texts_written()), metrics_page.HOW


def test_every_family_is_on_the_page_once() -> None:
    exported = {key.partition(" ")[2] for key in golden.read("metrics") if " vitald_" in key}
    assert exported <= {*metrics_page.help_texts_written()}


def test_texts_of_what_no_node_exports_are_those_of_the_code() -> None:
    code = "".join(path.read_text("utf-8") for path in ROOT.glob("agent/vitald/**/*.py"))
    missing = [text for *_, text in metrics_page._NOT_SIMULATED.values() if text not in code]
    assert not missing
