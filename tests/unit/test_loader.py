"""From TOML to rules: every mistake is told, all at once, each with its file, entry and key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from vitald.catalog import Catalog, CatalogError, Clears, FaultClass, load_catalog
from vitald.catalog.escalation import EscalationPolicy, EscalationStep
from vitald.model.words import Action, ComponentKind, When

ESCALATION = (
    '[escalation.none]\nsteps = []\n[escalation.device]\nsteps = [{ of = "reset_device", within = "7d",'
    ' action = "reboot_node" }]\n'
)
GOOD = {
    "title": "t",
    "meaning": "m",
    "class": "hardware",
    "action": "inspect",
    "clears": ["reboot"],
    "escalation": "none",
    "source": "s",
}


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml_value(item)}' for key, item in value.items())} }}"
    return str(value)


def entry(name: str = "xid.1", without: str = "", **changes: object) -> str:
    """A good entry, with changes; keys of the language are written `class_`."""
    keys = {**GOOD, **{key.rstrip("_"): value for key, value in changes.items()}}
    return f"[{name}]\n" + "".join(
        f"{key} = {toml_value(value)}\n" for key, value in keys.items() if key != without
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "escalation.toml").write_text(ESCALATION)
    (tmp_path / "profiles").mkdir()
    return tmp_path


def read(
    folder: Path,
    text: str = "",
    overrides: Mapping[str, object] | None = None,
    profile: str = "nvidia",
) -> Catalog:
    (folder / "site.toml").write_text(text)
    return load_catalog(profile, overrides, folder)


def mistakes(
    folder: Path,
    text: str = "",
    overrides: Mapping[str, object] | None = None,
    profile: str = "nvidia",
) -> list[str]:
    with pytest.raises(CatalogError) as caught:
        read(folder, text, overrides, profile)
    assert str(caught.value) == "\n".join(caught.value.errors)
    return caught.value.errors


def test_every_key_arrives(folder: Path) -> None:
    text = entry(
        title="T",
        mnemonic="M",
        advice="A",
        action="reset_device",
        when="after_job",
        clears=["device_reset", "replaced", "recovers", "diagnostic:3", "quiet:24h"],
        escalation="device",
        cases=[
            {
                "where": {"a": [1, "x"], "b_not": True},
                "action": "none",
                "when": "now",
                "title": "C",
                "advice": "D",
            }
        ],
        also=[{"where": {"a": 2}, "at_least": "reboot_node"}],
        state=True,
        component="gpu",
        fatal=False,
        match=["abc {bdf} {device}"],
        starts=["abc"],
        contains="b",
        samples="abc",
    )
    catalog = read(folder, text)
    rule = catalog.find_rule("xid/1")
    assert (rule.code, rule.kind, rule.title, rule.mnemonic, rule.advice) == (
        "xid/1",
        "xid",
        "T",
        "M",
        "A",
    )
    assert (rule.fault_class, rule.action, rule.when, rule.escalation) == (
        FaultClass.HARDWARE,
        Action.RESET_DEVICE,
        When.AFTER_JOB,
        "device",
    )
    assert rule.clears == Clears(
        device_reset=True, replaced=True, recovers=True, diagnostic=3, quiet_s=86400.0
    )
    assert [
        (case.where, case.action, case.at_least, case.when, case.title, case.advice)
        for case in rule.cases
    ] == [
        ({"a": (1, "x"), "b_not": (True,)}, Action.NONE, None, When.NOW, "C", "D"),
        ({"a": (2,)}, None, Action.REBOOT_NODE, None, None, None),
    ]
    assert (rule.state, rule.component, rule.fatal, rule.starts, rule.contains, rule.samples) == (
        True,
        ComponentKind.GPU,
        False,
        ("abc",),
        ("b",),
        ("abc",),
    )
    assert rule.match[0].startswith("abc (?P<pci>")
    assert "{" not in rule.match[0].replace("{4,8}", "").replace("{2}", "").replace("{1,64}", "")
    assert catalog.escalation_policies == {
        "none": EscalationPolicy("none", ()),
        "device": EscalationPolicy(
            "device",
            (
                EscalationStep(
                    of=Action.RESET_DEVICE, within_s=7 * 86400.0, action=Action.REBOOT_NODE
                ),
            ),
        ),
    }


MISTAKES = [
    (entry(without="title"), "title", "missing"),
    (entry(title=""), "title", "expected a string"),
    (entry(title=5), "title", "expected a string, found 5"),
    (entry(without="meaning"), "meaning", "missing"),
    (entry(without="class"), "class", "missing"),
    (entry(without="action"), "action", "missing"),
    (entry(without="escalation"), "escalation", "missing"),
    (entry(without="source"), "source", "missing"),
    (entry(without="clears"), "clears", "a finding must have a way out"),
    (entry(clears=[]), "clears", "a finding must have a way out"),
    (entry(acton="none"), "acton", "unknown key, did you mean action?"),
    (entry(zzz=1), "zzz", "unknown key"),
    (entry(action="rebot_node"), "action", "did you mean reboot_node?"),
    (entry(action=5), "action", "must be one of none, observe"),
    (entry(action=["none"]), "action", "must be one of"),
    (entry(class_="hardwear"), "class", "did you mean hardware?"),
    (entry(when="later"), "when", "must be one of maintenance, after_job, now, not 'later'"),
    (entry(component="gpus"), "component", "did you mean gpu?"),
    (
        entry(escalation="devise"),
        "escalation",
        "no escalation policy 'devise', did you mean device?",
    ),
    (entry(clears=["rebooot"]), "clears", "must be one of reboot, device_reset, recovers"),
    (entry(clears=["reboot:1"]), "clears", "not 'reboot:1'"),
    (entry(clears=["quiet:1x"]), "clears", "'1x' is not a duration"),
    (entry(clears=["quiet"]), "clears", "is not a duration"),
    (entry(clears=["diagnostic:5"]), "clears", "'5' is not a DCGM run level"),
    (entry(clears=["diagnostic:x"]), "clears", "x"),
    (entry(clears=["reboot", ""]), "clears", "must be one of reboot, device_reset"),
    (entry(state="yes"), "state", "expected true or false"),
    (entry(fatal=1), "fatal", "expected true or false"),
    (entry(match=["abc("]), "match", "not a regular expression"),
    (entry(match=["{bdf} {bdf}"]), "match", "redefinition of group name"),
    (entry(match=5), "match", "expected a list of strings"),
    (entry(samples=[1]), "samples", "expected a list of strings"),
    (entry(cases=5), "cases", "expected a list of tables"),
    (entry(cases=[5]), "cases #1", "expected { where"),
    (entry(cases=[{"action": "none"}]), "cases #1", "expected { where"),
    (entry(cases=[{"where": 5, "action": "none"}]), "cases #1", "expected { where"),
    (entry(cases=[{"where": {"a": 1}}]), "cases #1", "needs either action or at_least"),
    (
        entry(cases=[{"where": {"a": 1}, "action": "none", "at_least": "none"}]),
        "cases #1",
        "needs either action or at_least",
    ),
    (
        entry(cases=[{"where": {"a": 1}, "action": "nine"}]),
        "cases #1 action",
        "did you mean none?",
    ),
    (
        entry(also=[{"where": {"a": 1}, "at_least": "replace"}]),
        "also #1 at_least",
        "did you mean replace_node?",
    ),
    (
        entry(cases=[{"where": {"a": 1}, "action": "none", "when": "soon"}]),
        "cases #1 when",
        "must be one of maintenance, after_job, now",
    ),
    (
        entry(cases=[{"where": {"a": 1}, "action": "none", "titel": "x"}]),
        "cases #1 titel",
        "unknown key, did you mean title?",
    ),
    (
        entry(cases=[{"where": {"a": []}, "action": "none"}]),
        "cases #1 where.a",
        "expected a string, a number",
    ),
    (
        entry(cases=[{"where": {"a": [[1]]}, "action": "none"}]),
        "cases #1 where.a",
        "expected a string, a number",
    ),
    (
        entry(cases=[{"where": {"a": 1.5}, "action": "none"}]),
        "cases #1 where.a",
        "expected a string, a number",
    ),
    (entry(match=["abc{99999999999}"]), "match", ""),
    (entry(match=["abc" + "(" * 5000 + ")" * 5000]), "match", ""),
    (entry(match=[".*abc"]), "match", ""),  # no fixed beginning
]


def test_a_mistake_names_file_entry_and_key(folder: Path) -> None:
    wrong = []
    for text, key, what in MISTAKES:
        errors = mistakes(folder, text)
        (error, *more) = errors
        if more or not error.startswith(f"site.toml: [xid.1] {key}: ") or what not in error:
            wrong.append((key, what, errors))
    assert wrong == []


def test_the_words_of_a_case_are_texts(folder: Path) -> None:
    for key in ("title", "advice"):
        mistakes(folder, entry(cases=[{"where": {"a": 1}, "action": "none", key: 5}]))


def test_all_mistakes_are_told_at_once(folder: Path) -> None:
    (folder / "other.toml").write_text(entry("sxid.2", action="nine", clears=["x", "quiet:y"]))
    errors = mistakes(
        folder,
        entry("xid.1", without="title", bogus=1) + entry("xid.2", match="("),
        {"xid/3": {"title": 7}},
    )
    told = [
        (error.partition(" [")[0], error.partition("] ")[2].partition(":")[0]) for error in errors
    ]
    assert told == [
        ("other.toml:", "action"),
        ("other.toml:", "clears"),
        ("other.toml:", "clears"),
        ("site.toml:", "bogus"),
        ("site.toml:", "title"),
        ("site.toml:", "match"),
        *(
            ("[catalog.overrides]:", key)
            for key in ("title", "meaning", "class", "action", "clears", "escalation", "source")
        ),
    ]


def test_a_list_of_other_things_is_no_list_of_texts(folder: Path) -> None:
    assert "site.toml: [xid.1] clears: expected a list of strings, found [1]" in mistakes(
        folder, entry(clears=[1])
    )


def test_an_entry_may_stand_once(folder: Path) -> None:
    (folder / "other.toml").write_text(entry())
    assert mistakes(folder, entry()) == ["site.toml: [xid.1]: stands in other.toml too"]


def test_what_is_no_table_is_told(folder: Path) -> None:
    assert mistakes(folder, "xid = 5\n") == ["site.toml: xid: expected tables such as [xid.79]"]
    assert mistakes(folder, "[xid]\n1 = 5\n") == ["site.toml: [xid.1]: expected a table"]


def test_a_file_that_is_no_toml_is_named(folder: Path) -> None:
    for text in ("[xid", "a = ", "\x00", "[a]\n[a]\n"):
        (error,) = mistakes(folder, text)
        assert "site.toml: not valid TOML" in error


def test_a_file_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "bytes.toml").write_bytes(b"a = '\xff'\n")
    (error,) = mistakes(folder)
    assert error.endswith("bytes.toml: not UTF-8 text at byte 5")


def test_a_bad_escalation_policy_is_told(folder: Path) -> None:
    within = 'of = "reset_device", within = "7d"'
    reboot = 'action = "reboot_node"'
    steps = {
        f'steps = [{{ of = "reset_device", within = "7x", {reboot} }}]': "'7x' is not a duration",
        f'steps = [{{ {within}, action = "rebot" }}]': "rebot",
        f"steps = [{{ {within} }}]": "action",
        f'steps = [{{ within = "7d", {reboot} }}]': "one of of,",
        f"steps = [{{ {within}, processes = 1, {reboot} }}]": "one of of,",
        f'steps = [{{ {within}, remedies = "x", {reboot} }}]': "",
        f'steps = [{{ {within}, {reboot}, whem = "after_job" }}]': "whem: unknown key, did you mean",
        f"steps = [{{ {within}, {reboot} }}]\nstep = []": "step: unknown key, did you mean steps?",
        "steps = [5]": "",
        "": "",
    }
    wrong = []
    for text, what in steps.items():
        (folder / "escalation.toml").write_text(f"{ESCALATION}[escalation.bad]\n{text}\n")
        errors = mistakes(folder, entry())
        (error, *more) = errors
        if more or not error.startswith("escalation.toml: [escalation.bad]: ") or what not in error:
            wrong.append((text, errors))
    assert wrong == []


def test_an_escalation_policy_without_end_is_told(folder: Path) -> None:
    (folder / "escalation.toml").write_text(
        f'{ESCALATION}[escalation.bad]\nsteps = [{{ of = "reset_device", remedies = inf, within = "7d",'
        ' action = "reboot_node" }]\n'
    )
    mistakes(folder, entry())


_RULE = (
    '[correlation.ours]\ntitle = "t"\nreach = "device"\nwithin = "1s"\nearly = "1s"\nsource = "s"\n'
    'causes = ["xid/1"]\n'
)
_COOCCURRENCE = '[[correlation.ours.cooccurrences]]\ncode = "xid/1"\nbeside = []\nreason = "r"\n'


@pytest.mark.parametrize(
    ("file", "text", "place", "key"),
    [
        ("correlation", f"{_RULE}suppresed = []\n", " [correlation.ours]:", "suppresed"),
        ("correlation", f"{_RULE}{_COOCCURRENCE}whem = 1\n", " [correlation.ours]:", "whem"),
        (
            "correlation",
            f'{_RULE}[alias."a:b"]\ncode = "xid/1"\nwhen = {{}}\n',
            " [alias]:",
            "when",
        ),
        ("correlation", f"{_RULE}[correlations.ours]\n", "", "correlations"),
        ("escalation", f"{ESCALATION}[escalations.ours]\nsteps = []\n", "", "escalations"),
        ("lemon", "[lemon]\nsuspects = 1\n", " [lemon]:", "suspects"),
        ("instances", "[instances.ours]\ngpus = 1\n[instance.mine]\n", "", "instances"),
    ],
)
def test_an_unknown_key_is_never_passed_over(
    folder: Path, file: str, text: str, place: str, key: str
) -> None:
    """It would leave a consequence with a finding of its own, or a reset for after the job due now."""
    (folder / f"{file}.toml").write_text(text)
    (error,) = mistakes(folder, entry())
    assert error.startswith(f"{file}.toml:{place} {key}: unknown key")


# --- profiles and overrides


def test_a_profile_changes_keys_and_keeps_the_rest(folder: Path) -> None:
    (folder / "profiles" / "site.toml").write_text(
        '[xid.1]\naction = "replace_node"\nclears = ["replaced"]\n'
    )
    text = entry(title="kept", cases=[{"where": {"a": 1}, "action": "none"}])
    changed = read(folder, text, profile="site").find_rule("xid/1")
    assert (changed.title, changed.action, changed.clears, len(changed.cases)) == (
        "kept",
        Action.REPLACE_NODE,
        Clears(replaced=True),
        1,
    )
    assert read(folder, text).find_rule("xid/1").action is Action.INSPECT


def test_a_mistake_in_a_profile_names_it(folder: Path) -> None:
    (folder / "profiles" / "site.toml").write_text(
        '[xid.1]\naction = "nine"\n[xid.7]\naction = "none"\n'
    )
    errors = mistakes(folder, entry(), profile="site")
    assert errors[0].startswith("profiles/site.toml: [xid.1] action: must be one of none, ")
    assert {error.split(":")[1].split("]")[0] for error in errors} == {" [xid.1", " [xid.7"}


@pytest.mark.parametrize(
    "shape", [{"xid/1": {"action": "reboot_node"}}, {"xid": {"1": {"action": "reboot_node"}}}]
)
def test_an_override_in_either_form_changes_one_key(folder: Path, shape: dict[str, object]) -> None:
    rule = read(folder, entry(title="kept"), shape).find_rule("xid/1")
    assert (rule.action, rule.title, rule.origin) == (
        Action.REBOOT_NODE,
        "kept",
        "[catalog.overrides]",
    )


def test_an_override_lies_over_the_profile(folder: Path) -> None:
    (folder / "profiles" / "site.toml").write_text('[xid.1]\naction = "replace_node"\n')
    assert (
        read(folder, entry(), {"xid/1": {"action": "observe"}}, "site").find_rule("xid/1").action
        is Action.OBSERVE
    )


def test_an_override_may_add_an_entry_and_a_kind(folder: Path) -> None:
    catalog = read(
        folder, entry(), {"xid/777": GOOD, "site": {"fan": {**GOOD, "match": "fan \\d+ failed"}}}
    )
    assert catalog.find_rule("xid/777").is_known
    assert catalog.find_rule("site/fan").match == ("fan \\d+ failed",)
    assert catalog.list_kinds() == {"xid", "site"}


def test_a_new_entry_must_be_whole(folder: Path) -> None:
    errors = mistakes(folder, entry(), {"xid/777": {"action": "inspect"}})
    assert [error.partition("] ")[2].split(":")[0] for error in errors] == [
        "title",
        "meaning",
        "class",
        "clears",
        "escalation",
        "source",
    ]


def test_entries_inherit_cases_and_component_of_their_default(folder: Path) -> None:
    default = entry(
        "xid.default",
        cases=[{"where": {"a": 1}, "action": "reset_device"}],
        component="gpu",
        title="{code}!",
        also=[{"where": {"b": 1}, "at_least": "reboot_node"}],
    )
    catalog = read(folder, default + entry("xid.1") + entry("xid.2", cases=[]) + entry("sxid.1"))
    assert catalog.find_rule("xid/1").component is ComponentKind.GPU
    assert catalog.find_rule("xid/1").apply_to({"a": 1}).action is Action.RESET_DEVICE
    assert catalog.find_rule("xid/2").apply_to({"a": 1}).action is Action.INSPECT
    assert catalog.find_rule("xid/2").apply_to({"a": 1, "b": 1}).action is Action.REBOOT_NODE
    assert (catalog.find_rule("sxid/1").component, catalog.find_rule("sxid/1").cases) == (
        ComponentKind.NODE,
        (),
    )
    assert "xid/default" not in catalog.rules
    assert catalog.find_rule("xid/3").title == "3!"
