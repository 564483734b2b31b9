"""Which entries may reboot or replace a node: the table, and what the loader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import remedies_page
from vitald.catalog import CatalogError, load_catalog
from vitald.catalog.loader import FOLDER
from vitald.model.words import Action

REPLACE = Action.REPLACE_NODE
_ENTRY = {
    "title": "Site",
    "meaning": "A code of the site's own.",
    "class": "hardware",
    "action": "inspect",
    "clears": ["reboot"],
    "escalation": "none",
    "source": "the site",
}


def test_the_table_is_what_is_generated() -> None:
    text = remedies_page.PAGE.read_text("utf-8")
    assert text == remedies_page.write(text, remedies_page.table(load_catalog()))


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"class": "driver", "action": "replace_node"}, "never asks for replace_node"),
        (
            {
                "class": "application",
                "cases": [{"where": {"again": True}, "action": "replace_node"}],
            },
            "cases #1: a fault of class application never asks for replace_node",
        ),
        (
            {
                "class": "informational",
                "cases": [{"where": {"again": True}, "at_least": "replace_node"}],
            },
            "cases #1: a fault of class informational never asks for replace_node",
        ),
        (
            {"cases": [{"where": {"a": 1}, "action": "reboot_node", "escalation": "devise"}]},
            "cases #1 escalation: no escalation policy 'devise', did you mean device",
        ),
    ],
)
def test_an_entry_that_breaks_a_rule_is_refused(keys: dict[str, object], mistake: str) -> None:
    with pytest.raises(CatalogError) as refused:
        load_catalog(overrides={"site/1": {**_ENTRY, **keys}})
    (error,) = refused.value.errors
    assert mistake in error


def test_an_escalation_policy_replaces_only_after_a_remedy_that_failed(tmp_path: Path) -> None:
    policies = (FOLDER / "escalation.toml").read_text("utf-8")
    policies += (
        '[escalation.mine]\nsteps = [{ processes = 3, within = "24h", action = "replace_node" }]\n'
    )
    (tmp_path / "escalation.toml").write_text(policies)
    with pytest.raises(
        CatalogError, match=r"escalation\.mine\]: a step to replace_node needs `of`"
    ):
        load_catalog(extra=tmp_path)


def test_co_occurrence_replaces_nothing_for_a_fault_of_the_driver(tmp_path: Path) -> None:
    correlation = (FOLDER / "correlation.toml").read_text("utf-8")
    correlation += """
[correlation.mine]
title = "Mine"
reach = "device"
within = "60s"
early = "10s"
causes = ["xid/119"]
source = "the site"
  [[correlation.mine.cooccurrences]]
  code = "xid/119"
  beside = ["xid/62"]
  action = "replace_node"
  reason = "the site says so"
"""
    (tmp_path / "correlation.toml").write_text(correlation)
    with pytest.raises(
        CatalogError, match=r"correlation\.mine\] cooccurrences: xid/119: .* class driver"
    ):
        load_catalog(extra=tmp_path)


def test_none_means_none_whatever_a_case_requires() -> None:
    cases = [
        {"where": {"a": 1}, "action": "reboot_node"},
        {"where": {"a": 2}, "action": "reboot_node", "escalation": "device"},
    ]
    catalog = load_catalog(overrides={"site/1": {**_ENTRY, "cases": cases}})
    rule = catalog.find_rule("site/1")
    assert catalog.find_policy(rule, {"a": 1}).steps == ()
    steps = catalog.find_policy(rule, {"a": 2}).steps
    assert [step.action for step in steps] == [Action.REBOOT_NODE, REPLACE]
