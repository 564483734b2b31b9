"""How a rule rules on an event: cases, their strength, and what then clears the finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vitald.catalog import Case, Clears, FaultClass, Rule
from vitald.catalog.catalog import Catalog
from vitald.catalog.correlation import CorrelationRules
from vitald.catalog.escalation import LemonScoring
from vitald.model.words import Action, When

OWN = Clears(quiet_s=60.0)


def rule(*cases: Case, action: Action = Action.OBSERVE, when: When = When.NOW) -> Rule:
    return Rule(
        code="xid/1",
        kind="xid",
        title="own title",
        meaning="m",
        advice="own advice",
        fault_class=FaultClass.HARDWARE,
        action=action,
        when=when,
        clears=OWN,
        escalation="none",
        source="s",
        cases=cases,
    )


def case(action: Action | None = None, **changes: object) -> Case:
    return Case(**{"where": {"a": (1,)}, "action": action, **changes})  # type: ignore[arg-type]


def test_without_a_case_the_table_decides() -> None:
    said = rule(case(Action.REBOOT_NODE)).apply_to({"a": 2})
    assert (said.action, said.when, said.title, said.advice, said.clears) == (
        Action.OBSERVE,
        When.NOW,
        "own title",
        "own advice",
        OWN,
    )


def test_the_strongest_case_wins_whatever_the_order() -> None:
    weak, strong = (
        case(Action.RESET_DEVICE, title="weak"),
        case(Action.REPLACE_NODE, title="strong"),
    )
    for cases in ((weak, strong), (strong, weak)):
        said = rule(*cases).apply_to({"a": 1})
        assert (said.action, said.title) == (Action.REPLACE_NODE, "strong")


def test_a_case_may_ask_for_a_number_above_a_limit() -> None:
    lasting = case(Action.INSPECT, where={"a_above": (119,)})
    taken = [120, 226906]
    values = [119, *taken, "226906", True, None, [900]]
    assert [value for value in values if lasting.matches({"a": value})] == taken  # type: ignore[dict-item]
    assert not lasting.matches({})


def test_a_case_may_ask_for_less_than_the_table() -> None:
    assert (
        rule(case(Action.NONE), action=Action.REBOOT_NODE).apply_to({"a": 1}).action is Action.NONE
    )


def test_of_equal_cases_the_first_gives_the_words() -> None:
    said = rule(
        case(Action.RESET_DEVICE, title="first"), case(Action.RESET_DEVICE, title="second")
    ).apply_to({"a": 1})
    assert said.title == "first"


def test_of_equal_actions_the_one_due_now_is_stronger() -> None:
    later, now = (
        case(Action.RESET_DEVICE, when=When.AFTER_JOB),
        case(Action.RESET_DEVICE, when=When.NOW),
    )
    for cases in ((later, now), (now, later)):
        assert rule(*cases).apply_to({"a": 1}).when is When.NOW


def test_a_case_without_words_keeps_the_tables() -> None:
    said = rule(case(Action.RESET_DEVICE), when=When.AFTER_JOB).apply_to({"a": 1})
    assert (said.title, said.advice, said.when) == ("own title", "own advice", When.AFTER_JOB)


def test_at_least_raises_and_never_lowers() -> None:
    raising = case(at_least=Action.RESET_DEVICE, title="raised")
    assert rule(raising).apply_to({"a": 1}).action is Action.RESET_DEVICE
    kept = rule(raising, action=Action.REPLACE_NODE).apply_to({"a": 1})
    assert (kept.action, kept.title, kept.clears) == (Action.REPLACE_NODE, "own title", OWN)


def test_at_least_comes_after_the_replacing_cases() -> None:
    raising, lowering = case(at_least=Action.RESET_DEVICE), case(Action.NONE)
    for cases in ((raising, lowering), (lowering, raising)):
        assert (
            rule(*cases, action=Action.REBOOT_NODE).apply_to({"a": 1}).action is Action.RESET_DEVICE
        )


def test_of_several_at_least_the_strongest_stands() -> None:
    cases = [case(at_least=Action.REPLACE_NODE), case(at_least=Action.RESET_DEVICE)]
    assert rule(*cases).apply_to({"a": 1}).action is Action.REPLACE_NODE
    assert rule(*reversed(cases)).apply_to({"a": 1}).action is Action.REPLACE_NODE


HOLDS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"a": (1,)}, {"a": 1}, True),
    ({"a": (1,)}, {"a": 2}, False),
    ({"a": (1,)}, {}, False),
    ({"a": (1,)}, {"a": None}, False),
    ({"a": (1, 2)}, {"a": 2}, True),
    ({"a": (1,), "b": ("x",)}, {"a": 1, "b": "x"}, True),
    ({"a": (1,), "b": ("x",)}, {"a": 1}, False),
    ({"a": ("1",)}, {"a": 1}, False),
    # a flag is not a number
    ({"a": (True,)}, {"a": True}, True),
    ({"a": (True,)}, {"a": 1}, False),
    ({"a": (1,)}, {"a": True}, False),
    ({"a": (0,)}, {"a": False}, False),
    ({"a": (False,)}, {"a": None}, False),
    # a list holds when one of its values does
    ({"a": (4,)}, {"a": [1, 4]}, True),
    ({"a": (4,)}, {"a": [1, 2]}, False),
    ({"a": (4,)}, {"a": []}, False),
    # NAME_not: some value that is none of those listed
    ({"a_not": (1, 2)}, {"a": 3}, True),
    ({"a_not": (1, 2)}, {"a": 1}, False),
    ({"a_not": (1, 2)}, {"a": [1, 2]}, False),
    ({"a_not": (1, 2)}, {"a": [1, 3]}, True),
    ({"a_not": (1, 2)}, {"a": []}, False),
    ({"a_not": (1, 2)}, {}, False),
    ({"a_not": (1,)}, {"a": True}, True),
    ({}, {}, True),
]


def test_when_a_case_holds() -> None:
    wrong = [
        (where, fields)
        for where, fields, holds in HOLDS
        if Case(where=where).matches(fields) is not holds
    ]
    assert wrong == []


def test_the_way_out_follows_the_action() -> None:
    ways = {
        Action.REBOOT_NODE: Clears(reboot=True),
        Action.REPLACE_NODE: Clears(replaced=True),
        Action.RESET_DEVICE: Clears(device_reset=True, reboot=True),
        Action.RESTART_WORKLOAD: Clears(quiet_s=3600.0, reboot=True),
    }
    for said in ("action", "at_least"):
        assert {
            action: rule(case(**{said: action})).apply_to({"a": 1}).clears  # type: ignore[arg-type]
            for action in ways
        } == ways
    # the action of the table: its own way out
    assert rule(case(Action.OBSERVE)).apply_to({"a": 1}).clears == OWN


def test_a_case_that_says_the_tables_action_keeps_the_tables_way_out() -> None:
    assert (
        rule(case(Action.REBOOT_NODE), action=Action.REBOOT_NODE).apply_to({"a": 1}).clears == OWN
    )


def test_a_case_that_asks_for_a_person_has_a_way_out() -> None:
    silent = Rule(
        code="site/x",
        kind="site",
        title="t",
        meaning="m",
        fault_class=FaultClass.INFORMATIONAL,
        action=Action.NONE,
        clears=Clears(),
        escalation="none",
        source="s",
        cases=(case(Action.INSPECT),),
    )
    assert silent.apply_to({"a": 1}).clears.list_phrases()


ACTIONS = st.sampled_from(list(Action))
CASES = st.lists(
    st.builds(
        lambda action, floor, value: Case(
            where={"a": (value,)},
            action=None if floor else action,
            at_least=action if floor else None,
        ),
        ACTIONS,
        st.booleans(),
        st.integers(1, 3),
    ),
    max_size=6,
)


@given(cases=CASES, own=ACTIONS, value=st.integers(1, 3))
def test_ruling_depends_on_no_order(cases: list[Case], own: Action, value: int) -> None:
    """The action is the strongest replacing case's, or the table's own, raised to the highest floor
    that holds.
    """
    matching = [one for one in cases if one.where["a"] == (value,)]
    base = max(
        (one.action for one in matching if one.action), key=lambda action: action.rank, default=own
    )
    floors = [one.at_least for one in matching if one.at_least]
    expected = Action.find_strongest([base, *floors])
    for order in (cases, cases[::-1]):
        assert rule(*order, action=own).apply_to({"a": value}).action is expected


def test_what_clears_is_said_in_words() -> None:
    assert Clears().list_phrases() == []
    assert Clears(quiet_s=86400.0).list_phrases() == ["24 h without another"]
    both = Clears(quiet_s=1800.0, reboot=True)
    assert both.list_phrases() == ["a reboot", "30 min without another"]
    many = Clears(device_reset=True, replaced=True, recovers=True, diagnostic=3)
    repairs = ["a device reset", "replacement", "its own recovery", "a passed level 3 diagnostic"]
    assert many.list_phrases() == repairs


def test_an_unlisted_code_gets_its_kinds_default_with_its_number() -> None:
    default = replace(rule(), title="Xid {code}, new", code="xid/default")
    catalog = Catalog(
        {"xid/1": rule()},
        {"xid": default},
        escalation_policies={},
        correlation=CorrelationRules(),
        lemon=LemonScoring(),
        instances={},
        profile="nvidia",
    )
    assert catalog.find_rule("xid/1").title == "own title"
    assert (
        catalog.find_rule("xid/9").title,
        catalog.find_rule("xid/9").code,
        catalog.find_rule("xid/9").kind,
    ) == ("Xid 9, new", "xid/9", "xid")
    assert (catalog.find_rule("odd/9").title, catalog.find_rule("odd/9").action) == (
        "9: not in the catalogue",
        Action.INSPECT,
    )
    assert catalog.list_kinds() == {"xid"}
