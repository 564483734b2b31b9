"""Every entry of the catalogue keeps the rules about what may cost a node, and the table is true."""

from __future__ import annotations

import pytest

from tests import every_entry, remedies_page
from tests.every_entry import Story
from vitald.catalog import PROFILES
from vitald.model.words import Action

# Confirmed with a third code only: it and this witness are suppressed by one cause
BY_A_CAUSE = {"efa/error": {"network"}}


@pytest.mark.parametrize("story", every_entry.SINGLE, ids=lambda story: story.__name__)
@pytest.mark.parametrize("profile", PROFILES)
def test_no_story_breaks_a_rule(profile: str, story: Story) -> None:
    outcome = every_entry.run_story(profile, story)
    assert outcome.stories > 500
    assert outcome.mistakes == []


@pytest.mark.parametrize("change", every_entry.CHANGES)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_changed_configuration_breaks_no_rule(profile: str, change: str) -> None:
    assert every_entry.run_change(profile, change).mistakes == []


@pytest.mark.parametrize("profile", PROFILES)
def test_no_witness_confirms_more_than_it_requires(profile: str) -> None:
    assert every_entry.run_witnesses(profile).mistakes == []


def test_the_table_says_what_is_required_at_most() -> None:
    catalog = every_entry.load(PROFILES[0])
    reached: dict[str, Action] = {}
    for story in every_entry.SINGLE:
        for code, action in every_entry.run_story(PROFILES[0], story).strongest.items():
            reached[code] = Action.find_strongest((reached.get(code, action), action))
    rules = remedies_page.list_rules(catalog)
    assert {"ib/port_failed", "ib/only_port_down"} <= {
        rule.code for rule in rules if every_entry.is_port(rule)
    }
    assert reached == {
        rule.code: most
        for rule in rules
        if (most := every_entry.find_most(catalog, rule.code)) is not Action.NONE
    }


def test_the_table_says_who_may_confirm() -> None:
    catalog = every_entry.load(PROFILES[0])
    confirmed = every_entry.run_witnesses(PROFILES[0]).confirmed_by
    for code in confirmed:
        rule = catalog.find_rule(code)
        by_nvml = {"nvml"} if rule.kind == "xid" else set()  # NVML reports Xids itself
        listed = set(catalog.find_witnesses(code, rule.component))
        assert listed == confirmed[code] | by_nvml | BY_A_CAUSE.get(code, set()), code
