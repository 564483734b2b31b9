"""Policies: what entries of one file have in common, and every mistake in naming or writing one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_loader import ESCALATION, GOOD, mistakes, read, toml_value
from vitald.catalog import CatalogError, Clears, load_catalog
from vitald.model.words import Action

SHARED = {key: value for key, value in GOOD.items() if key not in ("title", "meaning")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "escalation.toml").write_text(ESCALATION)
    (tmp_path / "profiles").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def folder_of_fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("catalogue")
    (made / "escalation.toml").write_text(ESCALATION)
    return made


def table(name: str, /, **keys: object) -> str:
    """A table of TOML; keys of the language are written `class_`."""
    lines = [f"{key.rstrip('_')} = {toml_value(value)}\n" for key, value in keys.items()]
    return f"[{name}]\n" + "".join(lines)


def policy(name: str = "shared", /, **changes: object) -> str:
    return table(f"policies.{name}", **{**SHARED, **changes})


def user(name: str = "xid.1", /, **keys: object) -> str:
    """An entry with a policy."""
    return table(name, **{"policy": "shared", "title": "t", "meaning": "m", **keys})


def test_an_entry_with_a_policy_is_the_entry_with_its_keys(folder: Path) -> None:
    spelt = read(folder, table("xid.1", **GOOD)).rules
    assert read(folder, policy() + user()).rules == spelt
    assert read(folder, user() + policy()).rules == spelt, "in either order"


def test_an_entrys_own_keys_win(folder: Path) -> None:
    text = policy(action="reset_device", clears=["device_reset", "reboot"], advice="A")
    text += user() + user("xid.2", action="inspect", clears=["diagnostic:3"])
    rules = read(folder, text).rules
    assert (rules["xid/1"].action, rules["xid/1"].clears) == (
        Action.RESET_DEVICE,
        Clears(device_reset=True, reboot=True),
    )
    assert (rules["xid/2"].action, rules["xid/2"].clears) == (Action.INSPECT, Clears(diagnostic=3))
    assert (rules["xid/1"].advice, rules["xid/2"].advice) == ("A", "A")


def test_lists_and_tables_of_the_two_are_not_merged(folder: Path) -> None:
    of_policy = {"where": {"a": 1}, "action": "reset_device"}
    of_entry = {"where": {"b": 1}, "action": "none"}
    text = policy(cases=[of_policy]) + user() + user("xid.2", cases=[of_entry])
    rules = read(folder, text + user("xid.3", cases=[])).rules
    assert [case.where for case in rules["xid/1"].cases] == [{"a": (1,)}]
    assert [case.where for case in rules["xid/2"].cases] == [{"b": (1,)}]
    assert rules["xid/3"].cases == ()


def test_a_policys_keys_win_over_those_inherited_from_the_kind(folder: Path) -> None:
    default = {**GOOD, "title": "{code}", "cases": [{"where": {"a": 1}, "action": "reset_device"}]}
    text = table("xid.default", **default) + policy() + policy("own", cases=[])
    rules = read(folder, text + user() + user("xid.2", policy="own")).rules
    assert (len(rules["xid/1"].cases), len(rules["xid/2"].cases)) == (1, 0)


def test_a_profile_and_overrides_lie_over_what_a_policy_gave(folder: Path) -> None:
    (folder / "profiles" / "site.toml").write_text('[xid.1]\naction = "observe"\n')
    text = policy(action="reset_device") + user()
    assert read(folder, text, profile="site").find_rule("xid/1").action is Action.OBSERVE
    rule = read(folder, text, {"xid/1": {"action": "reboot_node"}}, "site").find_rule("xid/1")
    assert (rule.action, rule.clears, rule.title) == (Action.REBOOT_NODE, Clears(reboot=True), "t")


@pytest.mark.parametrize("form", ["xid/2", "xid"])
def test_overrides_have_policies_of_their_own(folder: Path, form: str) -> None:
    entry = {"policy": "ours", "title": "t", "meaning": "m"}
    overrides = {
        "policies": {"ours": {**SHARED, "action": "replace_node", "clears": ["replaced"]}},
        form: entry if "/" in form else {"2": entry},
    }
    assert read(folder, "", overrides).find_rule("xid/2").action is Action.REPLACE_NODE


def test_a_folder_that_is_laid_over_the_catalogue_has_policies_of_its_own(folder: Path) -> None:
    extra = folder / "extra"
    extra.mkdir()
    (extra / "site.toml").write_text(policy(action="reboot_node") + user())
    (folder / "site.toml").write_text(policy() + user())
    assert load_catalog(folder=folder, extra=extra).find_rule("xid/1").action is Action.REBOOT_NODE
    (extra / "site.toml").write_text(user())
    with pytest.raises(CatalogError) as caught:
        load_catalog(folder=folder, extra=extra)
    file = extra / "site.toml"
    assert caught.value.errors == [f"{file}: [xid.1] policy: no policy 'shared' in {file}"]


MISTAKES = {
    policy() + user() + user("xid.2", policy="sharde"): (
        "[xid.2] policy: no policy 'sharde' in site.toml, did you mean shared?"
    ),
    user(): "[xid.1] policy: no policy 'shared' in site.toml",
    user(policy=5): "[xid.1] policy: expected a string, found 5",
    policy() + table("xid.1", **GOOD): "[policies.shared]: ",
    policy(acton="none") + user(): "[policies.shared] acton: unknown key, did you mean action?",
    policy() + user(acton="none"): "[xid.1] acton: unknown key, did you mean action?",
    policy() + user() + table("xid.2", polcy="shared", **GOOD): (
        "[xid.2] polcy: unknown key, did you mean policy?"
    ),
    policy(title="x") + user(): "[policies.shared] title: belongs in each entry",
    policy(match="x") + user(): "[policies.shared] match: belongs in each entry",
    policy() + policy("b", policy="shared") + user() + user("xid.2", policy="b"): (
        "[policies.b] policy: belongs in each entry"
    ),
    policy(clears=[], action="inspect") + user(): "[policies.shared] clears: missing",
    policy(clears=["x:y"]) + user() + user("xid.2"): ("[policies.shared] clears: must be one of"),
    "policies = 5\n": "[policies]: expected tables",
    "[policies]\nshared = 5\n" + user(): "[policies.shared]: expected a table",
}


def test_a_mistake_is_told_once_with_its_place(folder: Path) -> None:
    found = {text: mistakes(folder, text) for text in MISTAKES}
    assert {
        text: told
        for text, told in found.items()
        if len(told) != 1 or not told[0].startswith(f"site.toml: {MISTAKES[text]}")
    } == {}


def test_what_an_entry_still_lacks_is_missing_there(folder: Path) -> None:
    text = table("policies.shared", action="inspect", clears=["reboot"]) + user()
    lacking = [f"site.toml: [xid.1] {key}: missing" for key in ("class", "escalation", "source")]
    assert mistakes(folder, text) == lacking


def test_a_wrong_policy_hides_no_mistake_of_its_entries(folder: Path) -> None:
    told = mistakes(folder, policy(action="nine") + user(title=5) + user("xid.2", class_="x"))
    assert [error.partition(":")[2].partition(":")[0] for error in told] == [
        " [policies.shared] action",
        " [xid.1] title",
        " [xid.2] class",
    ]


OTHER: dict[str, object] = {
    "class": "driver",
    "action": "observe",
    "clears": ["quiet:1h"],
    "escalation": "device",
    "source": "o",
}
PLACE = st.sampled_from(["policy", "entry", "both"])
PLACES = st.fixed_dictionaries(dict.fromkeys(SHARED, PLACE))


@given(places=PLACES)
def test_where_a_key_stands_does_not_matter(folder_of_fuzz: Path, places: dict[str, str]) -> None:
    """Each key in the policy, in the entry, or in both, where the policy's value has no effect."""
    values = {key: (OTHER if place == "both" else SHARED)[key] for key, place in places.items()}
    shared = {key: value for key, value in values.items() if places[key] != "entry"}
    own = {key: value for key, value in SHARED.items() if places[key] != "policy"}
    expanded = read(folder_of_fuzz, table("policies.shared", **shared) + user(**own))
    assert expanded.rules == read(folder_of_fuzz, table("xid.1", **GOOD)).rules
