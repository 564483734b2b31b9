"""Profiles of conditions: the words of other agents, when they are written, and when they are
refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import catalogue
from tests.unit.test_publish_kubernetes import BARE, HEALTHY, SILENT, UNHEALTHY, XID79
from tests.waiting import until_async
from vitald.catalog import PROFILES, Rule
from vitald.model.reasons import make_reason
from vitald.model.words import Action, ComponentKind, Status
from vitald.publish.kubernetes.desired import MAX_ANNOTATION_BYTES, DesiredNode, combine
from vitald.publish.kubernetes.node_object import (
    NameKind,
    NodeCondition,
    NodeName,
    NodeObject,
    parse_node,
)
from vitald.publish.kubernetes.profiles import foreign_words
from vitald.publish.kubernetes.profiles.conditions import build_foreign_conditions
from vitald.publish.kubernetes.profiles.foreign_words import read_words
from vitald.publish.kubernetes.profiles.hyperpod import (
    FAULT_DETAILS,
    FAULT_REASONS,
    FAULT_TYPES,
    HEALTH_STATUS,
    build_labels,
    make_label_value,
)
from vitald.publish.kubernetes.reconcile import build_patch
from vitald.publish.kubernetes.sets import (
    FORMER,
    build_configured_node,
    describe_refusals,
    find_refusal,
)
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.sink import PartlyWritten, SinkRunner
from vitald.publish.state_store import StateStore
from vitald.publish.summary import FindingSummary, NodeSummary, PublishedState

REPAIRS = {Action.RESET_DEVICE, Action.REBOOT_NODE, Action.REPLACE_NODE}
# aws/eks-node-monitoring-agent, commit 51af549, pkg/reasons/reasons.go, by condition.
EKS_WORDS = {
    "AcceleratedHardwareReady": r"DCGMDiagnosticFailure|DCGMError|DCGMHealthCode\d+"
    r"|FabricManagerNotRunning|Neuron(DMA|HBMUncorrectable|NCUncorrectable|SRAMUncorrectable)Error"
    r"|NvidiaDeviceCountMismatch|NvidiaDoubleBitError|NvidiaFabricError|NvidiaNVLinkError"
    r"|NvidiaXID\d+Error",
    "KernelReady": r"ForkFailedOutOfPIDs|KernelBug|SoftLockup|AppBlocked|AppCrash",
    "NetworkingReady": r"EFAErrorMetric|InterfaceNotRunning|InterfaceNotUp",
    "StorageReady": r"BlockDeviceIOError|IODelays",
}
EKS_WELL = {  # cmd/eks-node-monitoring-agent/main.go
    "AcceleratedHardwareReady": "NvidiaGPUIsReady",
    "KernelReady": "KernelIsReady",
    "NetworkingReady": "NetworkingIsReady",
    "StorageReady": "DiskIsReady",
}
# kubernetes/node-problem-detector, commit 6632ca6, config/kernel-monitor.json, readonly-monitor.json
NPD_WORDS = {
    "KernelDeadlock": "KernelHasNoDeadlock|DockerHung|TaskHung",
    "ReadonlyFilesystem": "FilesystemIsNotReadOnly|FilesystemIsReadOnly",
}
HYPERPOD_TYPES = {"NvidiaErrorReboot", "NvidiaErrorTerminate", "NeuronHealth"}
LABEL = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def find(code: str, component: str = "gpu/0000:65:00.0", **changes: object) -> FindingSummary:
    finding = replace(XID79, code=code, component=component, reason=make_reason(code))
    return replace(finding, **changes)  # type: ignore[arg-type]


def with_findings(*findings: FindingSummary) -> NodeSummary:
    return replace(UNHEALTHY, findings=findings, open_findings=len(findings))


def say(profile: str, state: PublishedState, node: NodeObject = BARE) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    conditions = build_foreign_conditions(read_words(profile), state, node)
    return {each.type: (each.status.value, each.reason) for each in conditions}


def list_repairs() -> Iterator[tuple[str, ComponentKind, Action]]:
    """Each code that may ask for a repair, with each kind of component and action."""
    for profile in PROFILES:
        catalog = catalogue(profile)
        for rule in catalog.rules.values():
            steps = catalog.escalation_policies[rule.escalation].steps
            for action in REPAIRS & {*_list_actions(rule), *(step.action for step in steps)}:
                yield rule.code, rule.component, action


def _list_actions(rule: Rule) -> set[Action]:
    cases = [action for case in rule.cases for action in (case.action, case.at_least)]
    return {rule.action, *(action for action in cases if action is not None)}


CODES = sorted(set(list_repairs()), key=str)


# --- words


def test_every_repair_of_the_catalogue_has_words_of_eks() -> None:
    assert len(CODES) > 300
    for code, kind, action in CODES:
        finding = find(code, kind.value, action=action)
        word = read_words("eks").find_word(finding)
        assert word is not None, code
        assert re.fullmatch(EKS_WORDS[word.type], word.spell(finding)), (code, word)


def test_a_code_that_no_table_names_has_the_word_of_its_component() -> None:
    for kind in ComponentKind:
        finding = find("sites_own/fault", kind.value)
        word = read_words("eks").find_word(finding)
        assert word is not None, kind
        assert re.fullmatch(EKS_WORDS[word.type], word.spell(finding)), kind
        assert read_words("npd").find_word(finding) is None, kind
        labels, _ = build_labels(read_words("hyperpod"), with_findings(finding))
        assert labels[FAULT_REASONS] == "SitesOwnFault", kind


def test_what_belongs_to_another_condition_is_not_taken_for_it() -> None:
    words = read_words("eks")
    types = {
        code: word.type
        for code, kind, _ in CODES
        if (word := words.find_word(find(code, kind.value))) is not None
    }
    expected = {
        "xid/79": "AcceleratedHardwareReady",
        "neuron/lost": "AcceleratedHardwareReady",
        "expect/gpus": "AcceleratedHardwareReady",
        "mce/fatal": "KernelReady",
        "lockup/soft": "KernelReady",
        "efa/not_answering": "NetworkingReady",
        "expect/efa": "NetworkingReady",
        "nvme/lost": "StorageReady",
        "expect/nvme": "StorageReady",
        "fs/remounted_readonly": "StorageReady",
    }
    assert {code: types[code] for code in expected} == expected
    assert words.find_word(find("pci/dead", "nic/mlx5_0")).type == "NetworkingReady"  # type: ignore[union-attr]


def test_words_of_node_problem_detector() -> None:
    words = read_words("npd")
    for code, kind, action in CODES:
        finding = find(code, kind.value, action=action)
        word = words.find_word(finding)
        assert word is None or re.fullmatch(NPD_WORDS[word.type], word.spell(finding))
    for condition in words.conditions:
        assert re.fullmatch(NPD_WORDS[condition.type], condition.find_well_word(()))


def test_fault_types_of_hyperpod() -> None:
    accelerators = {ComponentKind.GPU, ComponentKind.NVSWITCH, ComponentKind.NEURON}
    for code, kind, action in CODES:
        labels, _ = build_labels(
            read_words("hyperpod"), with_findings(find(code, kind.value, action=action))
        )
        replaced = action is Action.REPLACE_NODE
        assert labels[HEALTH_STATUS] == (
            "UnschedulablePendingReplacement" if replaced else "UnschedulablePendingReboot"
        )
        assert labels[FAULT_TYPES] in HYPERPOD_TYPES or kind not in accelerators, code
        assert LABEL.fullmatch(labels[FAULT_REASONS] or ""), code


def test_a_mistake_in_a_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_words, "_FOLDER", tmp_path)
    mistakes = {
        "[[word]]\ntype = 'T'\ncodes = ['x/1']": "word 1: expected a string, found None",
        "[[word]]\nword = 'W'\nkodes = []": "word 1: unknown key kodes",
        "[[word]]\nword = 'W'\ncodes = 'x/1'": "word 1: expected a list of strings",
        "[[word]]\nword = 'W'\ncodes = ['a', 'a']": "a: two words for it",
        "[[word]]\nword = 'W'\ncomponents = ['gpus']": "word 1: .*gpu",
        "word = 5": "expected a list of tables",
        "[conditions.T]\nproblem = 'No'": "conditions.T: .*True",
        "[conditions.T]\nproblem = 'True'": "conditions.T: well: expected a table",
    }
    for text, named in mistakes.items():
        (tmp_path / "broken.toml").write_text(text)
        read_words.cache_clear()
        with pytest.raises(ValueError, match=rf"broken\.toml: {named}"):
            read_words("broken")


# --- when they are written


def test_eks() -> None:
    well = {type_: ("True", word) for type_, word in EKS_WELL.items()}
    assert say("eks", HEALTHY) == well
    hurt = {**well, "AcceleratedHardwareReady": ("False", "NvidiaXID79Error")}
    assert say("eks", UNHEALTHY) == hurt
    both = with_findings(XID79, find("nvme/lost", "disk/nvme1n1"))
    assert say("eks", both) == {**hurt, "StorageReady": ("False", "BlockDeviceIOError")}
    neuron = replace(HEALTHY, accelerators=("neuron",))
    assert say("eks", neuron)["AcceleratedHardwareReady"][1] == "NeuronAcceleratedHardwareIsReady"


@pytest.mark.parametrize(("due", "simulated"), [(False, False), (True, True)])
def test_only_a_real_fault_whose_repair_is_due_counts(due: bool, simulated: bool) -> None:
    state = with_findings(
        find("xid/79", due=due, simulated=simulated),
        find("fs/readonly", "disk/sda", due=due, simulated=simulated),
    )
    assert {status for status, _ in say("eks", state).values()} == {"True"}
    assert {status for status, _ in say("npd", state).values()} == {"False"}
    labels, annotations = build_labels(read_words("hyperpod"), state)
    assert labels == {HEALTH_STATUS: "Unschedulable", FAULT_TYPES: None, FAULT_REASONS: None}
    assert annotations == {FAULT_DETAILS: None}


@pytest.mark.parametrize("is_complete", [True, False])
def test_what_a_person_holds_is_no_problem(is_complete: bool) -> None:
    """And no order; one that was given is withdrawn, also while vitald cannot observe all."""
    state = replace(with_findings(XID79, find("fs/readonly", "disk/sda")), is_complete=is_complete)
    held = replace(BARE, annotations={"vitald.io/hold": "ticket 4711"})
    configured = build_configured_node(configure("own", "eks", "npd", "hyperpod"), state, held)
    conditions = {each.type: each for each in combine(configured.parts.values()).conditions}
    for type_ in ("AcceleratedHardwareReady", "StorageReady"):
        assert (conditions[type_].status.value, conditions[type_].reason) == ("True", "Held")
    assert conditions["ReadonlyFilesystem"].status.value == "False"
    assert "ticket 4711" in conditions["ReadonlyFilesystem"].message
    hyperpod = configured.parts["hyperpod"]
    assert hyperpod.labels == {
        HEALTH_STATUS: "Unschedulable",
        FAULT_TYPES: None,
        FAULT_REASONS: None,
    }
    assert hyperpod.annotations == {FAULT_DETAILS: None}


def test_npd() -> None:
    assert say("npd", UNHEALTHY) == {
        "KernelDeadlock": ("False", "KernelHasNoDeadlock"),
        "ReadonlyFilesystem": ("False", "FilesystemIsNotReadOnly"),
    }
    state = with_findings(find("fs/readonly", "disk/sda"), find("lockup/soft", "node"))
    assert say("npd", state) == {
        "KernelDeadlock": ("True", "TaskHung"),
        "ReadonlyFilesystem": ("True", "FilesystemIsReadOnly"),
    }


def test_without_an_answer_nothing_is_known() -> None:
    """What is due stays due. An order is neither given nor withdrawn."""
    blind = replace(HEALTHY, status=Status.UNKNOWN, is_complete=False)
    assert set(say("eks", blind).values()) == {("Unknown", "SourceNotRead")}
    assert set(say("npd", blind).values()) == {("Unknown", "SourceNotRead")}
    hurt = say("eks", replace(UNHEALTHY, is_complete=False))
    assert hurt["AcceleratedHardwareReady"] == ("False", "NvidiaXID79Error")
    assert hurt["StorageReady"] == ("Unknown", "SourceNotRead")
    assert set(say("eks", SILENT).values()) == {("Unknown", "DaemonSilent")}
    for state in (blind, SILENT, replace(HEALTHY, is_complete=False)):
        assert build_labels(read_words("hyperpod"), state) == ({}, {})


def test_accelerated_hardware_is_written_where_there_is_some() -> None:
    type_ = "AcceleratedHardwareReady"
    bare = replace(HEALTHY, accelerators=())
    assert type_ not in say("eks", bare)
    assert type_ not in say("eks", SILENT)
    written = replace(BARE, conditions={type_: NodeCondition(type=type_, status="True")})
    assert say("eks", bare, written)[type_][0] == "True"
    assert say("eks", SILENT, written)[type_][0] == "Unknown"
    assert say("eks", replace(UNHEALTHY, accelerators=()))[type_][0] == "False"


def test_what_waited_for_the_job_counts_from_now() -> None:
    (condition, *_) = build_foreign_conditions(
        read_words("eks"), with_findings(find("xid/79", when="after_job")), BARE
    )
    assert condition.changed_at == 0.0


def test_hyperpod() -> None:
    words = read_words("hyperpod")
    labels, annotations = build_labels(words, UNHEALTHY)
    assert labels == {
        HEALTH_STATUS: "UnschedulablePendingReboot",
        FAULT_TYPES: "NvidiaErrorReboot",
        FAULT_REASONS: "XidHardwareFailure",
    }
    assert json.loads(annotations[FAULT_DETAILS] or "") == [
        {
            "timestamp": "2025-10-09T08:53:15Z",
            "type": "NvidiaErrorReboot",
            "reason": "XidHardwareFailure",
            "message": "gpu/0000:65:00.0: xid/79",
        }
    ]
    dma = find("neuron/dma_error", "neuron/0", action=Action.REPLACE_NODE)
    labels, annotations = build_labels(words, with_findings(XID79, dma))
    assert labels == {
        HEALTH_STATUS: "UnschedulablePendingReplacement",
        FAULT_TYPES: "NeuronHealth",
        FAULT_REASONS: "NeuronHasError_DMA_ERROR",
    }
    assert len(json.loads(annotations[FAULT_DETAILS] or "")) == 2
    assert build_labels(words, HEALTHY)[0][HEALTH_STATUS] == "Schedulable"
    adapter = with_findings(find("ib/device_fault", "nic/mlx5_0"))
    assert build_labels(words, adapter)[0][FAULT_TYPES] is None


@given(st.lists(st.text(max_size=300), min_size=1, max_size=100))
def test_the_fault_details_fit_and_are_json(names: list[str]) -> None:
    state = with_findings(*[find("xid/79", f"gpu/{name}") for name in names])
    text = build_labels(read_words("hyperpod"), state)[1][FAULT_DETAILS] or ""
    assert len(text) <= MAX_ANNOTATION_BYTES
    assert json.loads(text)


@given(st.text(max_size=200))
@example("a" * 62 + "." + "b" * 9)
def test_label_values_follow_the_grammar(text: str) -> None:
    value = make_label_value(text)
    assert not value or LABEL.fullmatch(value)


@given(st.text(max_size=100), st.text(max_size=100))
def test_labels_follow_the_grammar_whatever_the_code(code: str, reason: str) -> None:
    finding = replace(XID79, code=code, reason=reason)
    labels = build_labels(read_words("hyperpod"), with_findings(finding))[0]
    assert all(value is None or LABEL.fullmatch(value) for value in labels.values())
    assert re.fullmatch(r"\w*", say("eks", with_findings(finding))["AcceleratedHardwareReady"][1])


# --- refusals


def managed_by(manager: str, *types: str, labels: tuple[str, ...] = ()) -> NodeObject:
    """A node whose conditions and labels are another's."""
    entry = {
        "manager": manager,
        "fieldsV1": {
            "f:metadata": {"f:labels": {f"f:{label}": {} for label in labels}},
            "f:status": {"f:conditions": {f'k:{{"type":"{type_}"}}': {} for type_ in types}},
        },
    }
    return parse_node(
        {
            "metadata": {
                "name": "n",
                "uid": "u",
                "resourceVersion": "1",
                "managedFields": [entry],
                "labels": dict.fromkeys(labels, "x"),
            },
            "status": {"conditions": [{"type": type_, "status": "True"} for type_ in types]},
        }
    )


def configure(*sets: str) -> KubernetesSettings:
    """These sets of conditions, and no labels and annotation."""
    return KubernetesSettings(conditions=sets, labels=False, annotation=False)


def test_what_another_manages_is_refused() -> None:
    details = NodeName(NameKind.ANNOTATION, FAULT_DETAILS)
    annotated = replace(BARE, managers={details: frozenset({"hma"})})
    hyperpod = replace(BARE, labels={"sagemaker.amazonaws.com/compute-type": "hyperpod"})
    cases = [
        ("eks", managed_by("nma", "KernelReady"), "condition KernelReady is managed by nma"),
        ("npd", managed_by("npd", "KernelDeadlock"), "condition KernelDeadlock is managed by npd"),
        ("hyperpod", managed_by("hma", labels=(HEALTH_STATUS,)), f"{HEALTH_STATUS} is managed by"),
        ("hyperpod", managed_by("hma", labels=(FAULT_TYPES,)), f"{FAULT_TYPES} is managed by hma"),
        ("hyperpod", annotated, f"annotation {FAULT_DETAILS} is managed by hma"),
        ("eks", hyperpod, "sagemaker.amazonaws.com/compute-type=hyperpod"),
    ]
    for profile, node, named in cases:
        configured = build_configured_node(configure(profile), UNHEALTHY, node)
        assert not configured.parts
        why = describe_refusals(configured.refusals)
        assert why.startswith(f'"{profile}" not written: ') and named in why
        assert f'or take "{profile}" out of [kubernetes] conditions' in why


def test_what_is_ours_or_of_another_profile_is_not_refused() -> None:
    nodes = [
        ("own", managed_by("other", "example.com/Healthy")),
        ("own", managed_by("vitald", "vitald.io/Healthy")),
        ("eks", managed_by("vitald", "KernelReady")),
        ("eks", managed_by("npd", "KernelDeadlock")),
        ("hyperpod", managed_by("kubelet", labels=(HEALTH_STATUS,))),
        ("hyperpod", managed_by("vitald", labels=(HEALTH_STATUS,))),
    ]
    assert [find_refusal(name, configure(name), node) for name, node in nodes] == [None] * len(
        nodes
    )


def test_what_was_written_of_a_profile_goes_with_it() -> None:
    """Neither what another manages, nor what is still configured."""
    ours = managed_by("vitald", "KernelReady", "vitald.io/Healthy", labels=(HEALTH_STATUS,))
    theirs = managed_by("nma", "StorageReady")
    node = replace(
        ours,
        conditions={**ours.conditions, **theirs.conditions},
        managers={**ours.managers, **theirs.managers},
    )
    for profiles in (("npd",), ("eks",)):  # no longer configured, and refused
        desired = build_configured_node(configure(*profiles), HEALTHY, node).parts[FORMER]
        assert desired.removed == ("KernelReady", "vitald.io/Healthy")
        assert desired.labels == {HEALTH_STATUS: None}
        patch = json.dumps(build_patch(desired, {}, node, 0.0, 300.0))
        assert '{"type": "KernelReady", "$patch": "delete"}' in patch
        assert "StorageReady" not in patch
    kept = replace(node, managers=ours.managers)
    configured = build_configured_node(configure("eks"), HEALTHY, kept)
    assert configured.parts[FORMER].removed == ("vitald.io/Healthy",)


class Refusing:
    """A sink that writes all but one profile, as long as it is told why."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.why = '"eks" not written: nma'
        self.written: list[PublishedState] = []

    async def write_state(self, state: PublishedState) -> bool:
        self.written.append(state)
        if self.why:
            raise PartlyWritten(self.why, refused=("eks",), did_write=False)
        return True

    def get_recheck_s(self, state: PublishedState) -> float:
        del state
        return 0.01


def test_a_refusal_is_told_of_and_holds_nothing_up(tmp_path: Path) -> None:
    """The sink is down with the reason; worse news is written all the same, and at once."""

    async def scenario() -> None:
        sink = Refusing()
        runner = SinkRunner(sink, StateStore(tmp_path))
        task = asyncio.ensure_future(runner.run())
        try:
            never = runner.describe_delay(600.0)
            assert never == "kubernetes: nothing has been written yet"
            runner.offer_state(HEALTHY)
            await until_async(lambda: runner.health.error == sink.why)
            assert runner.describe_delay(600.0) == ""
            assert runner.describe_delay(-1.0) == f"kubernetes: {sink.why}"
            assert (runner.health.is_up, runner.health.refused) == (False, ("eks",))
            assert runner.health.writes == 0
            assert runner.health.last_success > 0
            assert (runner.health.waiting, runner.health.failures) == (0, 0)
            runner.offer_state(UNHEALTHY)
            await until_async(lambda: sink.written[-1] == UNHEALTHY)
            sink.why = ""
            await until_async(lambda: runner.health.is_up)
            assert (runner.health.error, runner.health.refused) == ("", ())
        finally:
            task.cancel()

    asyncio.run(scenario())


def test_nothing_to_say_is_no_patch() -> None:
    assert build_patch(DesiredNode(conditions=()), {}, BARE, 0.0, 300.0) is None
