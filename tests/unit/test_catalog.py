"""The shipped catalogue: that it is whole, and that what it says holds together under every
profile.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.unit.builders import catalogue, ruling
from vitald.catalog import PROFILES, Case, CatalogError, Clears, FaultClass, Rule, load_catalog
from vitald.catalog.loader import FOLDER
from vitald.model.event import SITE_CHECK
from vitald.model.words import Action, When

WHERE = "NVRM: Xid (PCI:0000:65:00):"


def with_defaults(profile: str) -> list[Rule]:
    catalog = catalogue(profile)
    return [
        *catalog.rules.values(),
        *(catalog.find_rule(f"{kind}/no such code") for kind in sorted(catalog.list_kinds())),
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_rule_says_what_it_must(profile: str) -> None:
    kinds = Counter(rule.kind for rule in catalogue(profile).rules.values())
    assert kinds["xid"] >= 170 and kinds["sxid"] >= 390 and kinds["dcgm"] > 130
    for rule in with_defaults(profile):
        assert rule.title and rule.meaning and rule.source, rule.code
        assert rule.escalation in catalogue(profile).escalation_policies, rule.code
        assert len(rule.title) <= 60, rule.code
        assert rule.code.startswith(f"{rule.kind}/")


def rulings(rule: Rule) -> list[tuple[Action, Clears]]:
    """What the rule can say: its own word, and that of each case by itself."""
    alone = [replace(rule, cases=(always(case),)) for case in rule.cases]
    said = [rule.apply_to({}), *(one.apply_to({"": True}) for one in alone)]
    return [(one.action, one.clears) for one in said]


def always(case: Case) -> Case:
    return Case(
        where={"": (True,)},
        action=case.action,
        at_least=case.at_least,
        when=case.when,
        title=case.title,
        advice=case.advice,
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_every_finding_has_a_way_out(profile: str) -> None:
    stuck = [
        rule.code
        for rule in with_defaults(profile)
        for action, clears in rulings(rule)
        if action is not Action.NONE and not clears.list_phrases()
    ]
    assert stuck == []


@pytest.mark.parametrize("profile", PROFILES)
def test_time_alone_ends_nothing_that_makes_a_node_unfit(profile: str) -> None:
    """What asks for a reset or more stands until a remedy is seen; what asks for a replacement
    survives a reboot.
    """
    wrong = [
        rule.code
        for rule in with_defaults(profile)
        for action, clears in rulings(rule)
        if (action.makes_unfit and clears.quiet_s is not None)
        or (action is Action.REPLACE_NODE and clears.reboot)
        or (action is Action.REBOOT_NODE and not clears.reboot)
    ]
    assert wrong == []


@pytest.mark.parametrize("profile", PROFILES)
def test_an_unlisted_code_of_a_kind_is_unknown_and_asks_for_something(profile: str) -> None:
    catalog = catalogue(profile)
    of_context = {rule.kind for rule in catalog.rules.values() if rule.context} - {"vitald"}
    # A check of the site is known by its kind's default, and has no other entry.
    for kind in catalog.list_kinds() - of_context - {"diagnostic", SITE_CHECK}:
        rule = catalog.find_rule(f"{kind}/no-such-code")
        assert (rule.code, rule.kind, rule.is_known) == (f"{kind}/no-such-code", kind, False)
        assert "no-such-code" in rule.title
        assert rule.action is not Action.NONE, kind


def test_a_kind_that_nobody_knows_is_not_dropped() -> None:
    rule = catalogue().find_rule("nosuchkind/7")
    assert (rule.code, rule.kind, rule.is_known, rule.action) == (
        "nosuchkind/7",
        "nosuchkind",
        False,
        Action.INSPECT,
    )
    assert "7" in rule.title


@pytest.mark.parametrize(
    ("line", "nvidia", "hyperpod"),
    [
        (f"{WHERE} 79, GPU has fallen off the bus.", Action.REBOOT_NODE, Action.REPLACE_NODE),
        (f"{WHERE} 31, Ch 00000010", Action.RESTART_WORKLOAD, Action.RESTART_WORKLOAD),
        (f"{WHERE} 13, Graphics Exception: x", Action.RESTART_WORKLOAD, Action.RESTART_WORKLOAD),
        (f"{WHERE} 45, Ch 00000010", Action.NONE, Action.NONE),
        (f"{WHERE} 48, An uncorrectable double bit error", Action.RESET_DEVICE, Action.REBOOT_NODE),
        (f"{WHERE} 63, Row Remapper: x", Action.RESET_DEVICE, Action.REBOOT_NODE),
        (f"{WHERE} 64, Row Remapper Error: x", Action.RESET_DEVICE, Action.REPLACE_NODE),
        (f"{WHERE} 74, NVLink: x", Action.RESET_DEVICE, Action.REPLACE_NODE),
        (
            f"{WHERE} 94, Contained: SM. RST: No, D-RST: No",
            Action.RESTART_WORKLOAD,
            Action.RESTART_WORKLOAD,
        ),
        (
            f"{WHERE} 94, Contained: SM. RST: Yes, D-RST: No",
            Action.RESET_DEVICE,
            Action.RESET_DEVICE,
        ),
        (
            f"{WHERE} 95, Uncontained: SM. RST: No, D-RST: No",
            Action.RESTART_WORKLOAD,
            Action.REBOOT_NODE,
        ),
        (f"{WHERE} 119, Timeout after 6s", Action.RESET_DEVICE, Action.REBOOT_NODE),
        (
            f"{WHERE} 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            Action.RESET_DEVICE,
            Action.RESET_DEVICE,
        ),
        (f"{WHERE} 999, x", Action.INSPECT, Action.REBOOT_NODE),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            Action.RESET_DEVICE,
            Action.REPLACE_NODE,
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10001, Non-fatal, x",
            Action.OBSERVE,
            Action.OBSERVE,
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10001, Fatal, x",
            Action.RESET_DEVICE,
            Action.REPLACE_NODE,
        ),
    ],
)
def test_what_the_profiles_ask_for(line: str, nvidia: Action, hyperpod: Action) -> None:
    assert (ruling(line).action, ruling(line, "hyperpod").action) == (nvidia, hyperpod)


def test_hyperpod_replaces_for_every_sxid_printed_fatal_but_of_the_driver() -> None:
    catalog = catalogue("hyperpod")
    codes = [code for code in catalog.rules if code.startswith("sxid/")] + ["sxid/1"]
    rules = [catalog.find_rule(code) for code in codes]
    softer = [
        rule for rule in rules if rule.apply_to({"fatal": True}).action is not Action.REPLACE_NODE
    ]
    assert {rule.fault_class for rule in softer} == {FaultClass.DRIVER}
    assert {rule.apply_to({"fatal": True}).action for rule in softer} == {Action.REBOOT_NODE}


def test_hyperpod_never_asks_for_less() -> None:
    """Its own remedies are stronger than NVIDIA's or the same, except where it names another."""
    nvidia, hyperpod = catalogue(), catalogue("hyperpod")
    weaker = [
        code
        for code, rule in nvidia.rules.items()
        if hyperpod.find_rule(code).action.rank < rule.action.rank
    ]
    assert weaker == []


def test_what_waits_for_the_job_says_so() -> None:
    assert catalogue().find_rule("xid/63").when is When.MAINTENANCE
    assert catalogue().find_rule("nvml/page_retirement_pending").when is When.AFTER_JOB
    assert catalogue().find_rule("xid/79").when is When.NOW


def test_texts_are_plain() -> None:
    """No control characters, no line breaks, no double blanks."""
    for path in FOLDER.rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"[^\n\x20-\x7e\u00a0-\uffff]", text), path
        for value in re.findall(r'^(?:title|meaning|advice) *= "(.*)"$', text, re.M):
            assert "  " not in value
            assert value == value.strip()


def test_a_profile_that_does_not_exist_is_told() -> None:
    with pytest.raises(CatalogError, match=r"no profile 'hyperpdo', did you mean hyperpod\?"):
        load_catalog("hyperpdo")


def test_what_an_xid_stopped_requires_what_that_xid_requires() -> None:
    """Xid 45 names its cause; the catalogue lists the causes by what their own entries require."""
    rules = catalogue().rules
    stopped, wrong = rules["xid/45"], {}
    for number in range(1, 200):
        cause = rules.get(f"xid/{number}")
        if cause is None or number == 45:
            continue
        wanted = Action.NONE
        if cause.action in (Action.RESET_DEVICE, Action.REBOOT_NODE) and cause.when is When.NOW:
            wanted = cause.action
        if cause.action is Action.INSPECT and cause.fault_class in (
            FaultClass.HARDWARE,
            FaultClass.FABRIC,
        ):
            wanted = Action.INSPECT
        if (got := stopped.apply_to({"caused_by": number}).action) is not wanted:
            wrong[number] = got, wanted
    assert wrong == {}
