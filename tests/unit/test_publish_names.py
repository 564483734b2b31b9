"""Which names on a node are vitald's to write and to remove."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests import admission_policy
from tests.unit.builders import catalogue
from vitald.catalog import PROFILES
from vitald.model.reasons import FixedReason, find_reason, make_reason
from vitald.publish.kubernetes.desired import combine
from vitald.publish.kubernetes.node_object import MANAGER, NameKind, NodeName, NodeObject
from vitald.publish.kubernetes.profiles.foreign_words import read_words
from vitald.publish.kubernetes.sets import (
    CONDITION_PROFILES,
    HYPERPOD,
    build_configured_node,
    describe_refusals,
    find_written_names,
    list_own_names,
    list_profile_names,
)
from vitald.publish.kubernetes.settings import CONDITION_SETS, KubernetesSettings
from vitald.publish.summary import DaemonSilent

PREFIX = "example.com"
OWN = sorted(list_own_names(PREFIX), key=NodeName.describe)
OF_PROFILES = sorted(
    frozenset[NodeName]().union(*map(list_profile_names, (*CONDITION_PROFILES, HYPERPOD))),
    key=NodeName.describe,
)
# A customer's, recovery's, and those of an earlier prefix.
OTHERS = [
    NodeName(kind, name)
    for kind in NameKind
    for name in ("example.com/pool", "example.com/recovery", "old.example/status", "Ready")
]
MANAGERS = st.frozensets(st.sampled_from((MANAGER, "kubectl-label", "kubelet")))
RECORDS = st.dictionaries(st.sampled_from([*OWN, *OF_PROFILES, *OTHERS]), MANAGERS)


def make_node(managers: Mapping[NodeName, frozenset[str]]) -> NodeObject:
    return NodeObject(name="node1", uid="u", resource_version="1", managers=managers)


@given(RECORDS)
def test_what_is_removed_is_what_the_record_says_was_written(
    managers: dict[NodeName, frozenset[str]],
) -> None:
    removed = find_written_names(make_node(managers), PREFIX)
    for name, its in managers.items():
        is_only_ours = its == {MANAGER}
        is_ours_among_others = name in OWN and MANAGER in its
        assert (name in removed) == (is_only_ours or is_ours_among_others), name
    assert removed <= managers.keys()


@given(
    RECORDS,
    st.lists(st.sampled_from(CONDITION_SETS), unique=True, min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_a_write_changes_what_is_configured_or_was_written_by_vitald_alone(
    managers: dict[NodeName, frozenset[str]], sets: list[str], labels: bool, annotation: bool
) -> None:
    settings = KubernetesSettings(
        prefix=PREFIX, conditions=tuple(sets), labels=labels, annotation=annotation
    )
    node = make_node(managers)
    silent = DaemonSilent(since=0.0, detail="")
    desired = combine(build_configured_node(settings, silent, node).parts.values())
    written = {
        *(NodeName(NameKind.CONDITION, each.type) for each in desired.conditions),
        *name_all(NameKind.LABEL, [key for key, word in desired.labels.items() if word]),
    }
    removed = {
        *name_all(NameKind.CONDITION, desired.removed),
        *name_all(NameKind.LABEL, [key for key, word in desired.labels.items() if not word]),
        *name_all(NameKind.ANNOTATION, desired.annotations),  # while the daemon is silent
    }
    assert not written & removed
    assert written <= {*OWN, *OF_PROFILES}
    assert removed <= node.list_sole_names()


def name_all(kind: NameKind, names: Collection[str]) -> set[NodeName]:
    return {NodeName(kind, name) for name in names}


def test_a_name_that_others_had_first_is_not_overwritten() -> None:
    """A customer's own label happens to be called as vitald's with this prefix."""
    settings = KubernetesSettings(prefix=PREFIX)
    silent = DaemonSilent(since=0.0, detail="")
    label, condition = (NodeName(kind, f"{PREFIX}/{name}") for kind, name in (
        (NameKind.LABEL, "status"), (NameKind.CONDITION, "Healthy")
    ))  # fmt: skip
    theirs = {label: frozenset({"kubectl-label"})}
    refused = build_configured_node(settings, silent, make_node(theirs))
    assert describe_refusals(refused.refusals) == (
        '"own" not written: label example.com/status is managed by kubectl-label: remove that'
        " agent and its label, or choose another [kubernetes] prefix"
    )
    assert not refused.parts
    # It is repaired once vitald has written to the node; a kubelet's label only precedes it.
    for managers in (
        {**theirs, condition: frozenset({MANAGER})},
        {label: frozenset({"kubelet"})},
        {},
    ):
        written = build_configured_node(settings, silent, make_node(managers))
        assert not written.refusals
        assert written.parts["labels"].labels[label.name] == "unknown"
    again = build_configured_node(settings, silent, make_node(theirs), [condition.name])
    assert not again.refusals


def test_the_policies_say_what_the_code_writes() -> None:
    manifest = admission_policy.MANIFEST.read_text("utf-8")
    assert manifest == admission_policy.write_manifest(manifest), admission_policy.HOW
    template = admission_policy.TEMPLATE.read_text("utf-8")
    assert template == admission_policy.write_template(manifest), admission_policy.HOW


def test_the_policy_takes_every_reason() -> None:
    """Of the catalogue, of no code, and in the words of other agents."""
    manifest = admission_policy.MANIFEST.read_text("utf-8")
    (pattern,) = re.findall(r"c\.reason\.matches\('\^(.*)\$'\)", manifest)
    reasons = {each.value for each in FixedReason}
    for profile in PROFILES:
        for code in catalogue(profile).rules:
            reasons |= {make_reason(code), find_reason(code, (), ())}
    longest = max(reasons, key=len)
    reasons |= {
        word.word.format(number="149", reason=longest)
        for profile in CONDITION_PROFILES
        for words in read_words(profile).by_key.values()
        for word in words
    }
    assert len(reasons) > 500
    assert [reason for reason in reasons if not re.fullmatch(pattern, reason)] == []
