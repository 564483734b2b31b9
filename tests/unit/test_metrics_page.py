"""docs/reference/metrics.md has the metrics of the golden data. See tests/metrics_page.py."""

from __future__ import annotations

from tests import golden, metrics_page
from tests.unit.builders import ROOT
from vitald.metrics.labels import FORMER_LABELS, find_families, find_former_label


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


def list_labels() -> list[tuple[str, str]]:
    """Each family and label that is exported."""
    return [
        (name, label)
        for name, family in metrics_page.list_families().items()
        for label in (*family.labels, *metrics_page.list_known_labels(name))
    ]


def test_a_label_means_the_same_in_every_family() -> None:
    """One that is used elsewhere than its meaning allows needs another name."""
    strangers = [
        f"{name}: {label}"
        for name, label in list_labels()
        if not (find_former_label(name, label) or name.startswith(find_families(label)))
    ]
    assert strangers == []


def test_former_labels_are_beside_those_that_replace_them() -> None:
    exported = set(list_labels())
    former = [(name, find_former_label(name, label)) for name, label in exported]
    missing = [(name, one) for name, one in former if one and (name, one.now) not in exported]
    assert missing == []
    assert {one for _, one in former} - {None} >= {
        one for one in FORMER_LABELS if one.families != ("vitald_hwmon_",)
    }
