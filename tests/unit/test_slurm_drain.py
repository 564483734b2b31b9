"""Which nodes are taken out of Slurm's service, and with what words."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.slurm_made import record_scontrol, show_node, verdict
from tests.waiting import WAIT_S
from vitald.slurm import scontrol
from vitald.slurm.drain import choose_hyperpod_action, drain_node, resume_node
from vitald.slurm.owner import Owner, find_owner, format_reason, record_reasons
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import SlurmSettings

DRAINED = frozenset({"IDLE", "DRAIN"})


@pytest.fixture
def settings(tmp_path: Path) -> SlurmSettings:
    return SlurmSettings(record=tmp_path / "new folder" / "reason")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is asked of scontrol, instead of asking it."""
    return record_scontrol(monkeypatch)


def withdrawn(said: list[list[str]], known: SlurmNode, settings: SlurmSettings) -> list[list[str]]:
    drain_node(settings, verdict(), "gpu01", known, 1.0)
    assert all(words[:2] == ["update", "nodename=gpu01"] for words in said)
    return [words[2:] for words in said]


def test_what_is_left_alone(said: list[list[str]], settings: SlurmSettings) -> None:
    ours = format_reason(settings, verdict())
    record_reasons(settings, ours)
    nodes = [
        SlurmNode(DRAINED, "ticket 4711"),
        SlurmNode(frozenset({"MIXED", "REBOOT_REQUESTED"}), "kernel update"),
        SlurmNode(frozenset({"IDLE"}), "Action:Replace"),
        SlurmNode(DRAINED, ours),  # drained for it already
    ]
    assert [known for known in nodes if withdrawn(said, known, settings)] == []


def test_a_node_in_service_is_drained(said: list[list[str]], settings: SlurmSettings) -> None:
    for state, reason in (("IDLE", ""), ("MIXED", "an old reason")):
        said.clear()
        assert withdrawn(said, SlurmNode(frozenset({state}), reason), settings) == [
            ["state=drain", "reason=vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"]
        ]


def test_a_reason_that_slurm_did_not_take_leaves_the_former_one_ours(
    monkeypatch: pytest.MonkeyPatch, settings: SlurmSettings
) -> None:
    ours = format_reason(settings, verdict())
    record_scontrol(monkeypatch)
    drain_node(settings, verdict(), "gpu01", SlurmNode(frozenset({"IDLE"}), ""), 1.0)
    record_scontrol(monkeypatch, problem="slurmctld does not answer")
    worse = verdict(reason="gpu/0000:9b:00.0: worse (xid/64): replace the node")
    drain_node(settings, worse, "gpu01", SlurmNode(DRAINED, ours), 1.0)
    assert find_owner(settings, SlurmNode(DRAINED, ours)).owner is Owner.VITALD


def test_the_record_is_on_the_disk_after_the_drain(
    monkeypatch: pytest.MonkeyPatch, settings: SlurmSettings
) -> None:
    """It survives a crash, and a slow disk delays no drain."""
    order: list[str] = []
    fsync = os.fsync

    def note_sync(fd: int) -> None:
        order.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    def run(arguments: list[str], _: float) -> tuple[str, str]:
        order.append(arguments[2])
        return "", ""

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(scontrol, "run_scontrol", run)
    drain_node(settings, verdict(), "gpu01", SlurmNode(frozenset({"IDLE"}), ""), WAIT_S)
    assert order == ["state=drain", str(settings.record), str(settings.record.parent)]
    assert settings.record.read_text() == f"{format_reason(settings, verdict())}\n"


def test_a_node_that_is_ordered_to_reboot_meanwhile_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch, settings: SlurmSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """`state=resume` would cancel the reboot."""
    ours = format_reason(settings, verdict())
    record_reasons(settings, ours)
    for flag, resumed in (("REBOOT_REQUESTED", False), ("IDLE", True)):
        now = SlurmNode(DRAINED | {flag}, ours)
        asked = record_scontrol(monkeypatch, show_node(now))
        assert resume_node(settings, "gpu01", "healthy", WAIT_S) is resumed
        changes = [["update", "nodename=gpu01", "state=resume"]] if resumed else []
        assert asked == [["show", "node", "gpu01"], *changes]
        assert settings.record.exists() is not resumed
    assert (
        "not resumed: it is DRAIN+IDLE+REBOOT_REQUESTED, for: vitald: " in capsys.readouterr().err
    )


def test_our_own_reason_is_kept_up_to_date(said: list[list[str]], settings: SlurmSettings) -> None:
    record_reasons(settings, "vitald: something milder")
    assert withdrawn(said, SlurmNode(DRAINED, "vitald: something milder"), settings) == [
        ["reason=vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"]
    ]


def test_hyperpod(said: list[list[str]], settings: SlurmSettings) -> None:
    """In one call: nobody comes between."""
    words = ["comment=vitald: gpu/0000:65:00.0: broken (xid/79): reboot the node"]
    idle = frozenset({"IDLE"})
    for known, comment in (
        (SlurmNode(idle, ""), True),
        (SlurmNode(DRAINED, "vitald: drained by the prolog", "vitald: older"), True),
        (SlurmNode(idle, "", "rack 7, ask Bob"), False),  # somebody's comment stays
    ):
        record_reasons(settings, known.reason)
        said.clear()
        assert withdrawn(said, known, replace(settings, hyperpod=True)) == [
            ["state=fail", "reason=Action:Reboot", *(words if comment else [])]
        ], known


def test_the_brake_is_asked_before_hyperpod_gets_a_node(
    monkeypatch: pytest.MonkeyPatch, settings: SlurmSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the node was drained: those that ask at the same moment count it."""
    settings, idle = replace(settings, hyperpod=True), frozenset({"IDLE"})
    ours = format_reason(settings, verdict())
    drained = ["state=drain", f"reason={ours}"]
    then = SlurmNode(DRAINED, ours)

    def hand_over(known: SlurmNode, refusal: str, then: SlurmNode = then) -> list[list[str]]:
        """The changes of a node that is `then` once the brake has answered."""
        record_reasons(settings, known.reason)
        asked = record_scontrol(monkeypatch, show_node(then))
        before = []

        def ask() -> str:
            before.append([words[2:] for words in asked])
            return refusal

        drain_node(settings, verdict(), "gpu01", known, WAIT_S, ask)
        changed = {"": [drained], ours: []}
        assert before == [changed.get(known.reason, [drained[1:]])]
        return [words[2:] for words in asked if words[0] == "update"]

    assert hand_over(SlurmNode(idle, ""), "20 other nodes") == [drained]
    assert "gpu01: not handed to HyperPod, only drained: 20 other nodes" in capsys.readouterr().err
    held = SlurmNode(DRAINED, ours)
    assert hand_over(held, "20 other nodes") == []
    assert [words[:2] for words in hand_over(held, "")] == [["state=fail", "reason=Action:Reboot"]]
    milder = SlurmNode(DRAINED, "vitald: something milder")
    assert hand_over(milder, "20 other nodes") == [drained[1:]], "the reason is kept up to date"
    [first, last] = hand_over(SlurmNode(idle, ""), "")
    assert (first, last[:2]) == (drained, ["state=fail", "reason=Action:Reboot"])
    ordered = SlurmNode(DRAINED | {"REBOOT_REQUESTED"}, ours)
    assert hand_over(SlurmNode(idle, ""), "", ordered) == [drained]
    assert "left alone: it is DRAIN+IDLE+REBOOT_REQUESTED" in capsys.readouterr().err


def test_a_node_that_is_not_drained_is_not_handed_to_hyperpod(
    monkeypatch: pytest.MonkeyPatch, settings: SlurmSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others that ask at the same moment would not see it."""
    asked: list[list[str]] = []

    def run(arguments: list[str], _: float) -> tuple[str, str]:
        asked.append(arguments)
        return "", "Unable to contact slurm controller"

    monkeypatch.setattr(scontrol, "run_scontrol", run)
    idle = SlurmNode(frozenset({"IDLE"}), "")
    drain_node(replace(settings, hyperpod=True), verdict(), "gpu01", idle, WAIT_S, lambda: "")
    assert [words[2] for words in asked] == ["state=drain"]
    assert "not drained: Unable to contact" in capsys.readouterr().err


def test_hyperpod_without_a_comment_where_slurm_takes_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str], seconds: float) -> tuple[str, str]:
        assert 0.0 < seconds <= WAIT_S
        asked.append(arguments[2:])
        return "", "no such word" if any(word.startswith("comment=") for word in arguments) else ""

    monkeypatch.setattr(scontrol, "run_scontrol", run)
    drain_node(
        SlurmSettings(hyperpod=True), verdict(), "gpu01", SlurmNode(frozenset({"IDLE"}), ""), WAIT_S
    )
    assert [words[:2] for words in asked] == [["state=fail", "reason=Action:Reboot"]] * 2
    printed = capsys.readouterr().err
    assert "no such word" in printed and "not drained" not in printed


def test_what_hyperpod_is_to_do() -> None:
    def found(simulated: bool, action: str = "reboot_node", confirmed: bool = True) -> object:
        return {"simulated": simulated, "confirmed": confirmed, "action": action}

    drill: dict[str, object] = {"simulated": True}
    cases: list[tuple[dict[str, object], str]] = [
        ({}, "Action:Reboot"),
        ({"replacementConfirmed": True}, "Action:Replace"),
        ({"rebootConfirmed": False, "replacementConfirmed": True}, "Action:Replace"),
        ({"rebootConfirmed": False}, ""),  # required, and unconfirmed: the node is only drained
        ({"replacementRequired": True, "rebootConfirmed": False}, ""),
        ({**drill, "findings": [found(True)]}, ""),
        ({**drill, "findings": []}, ""),
        ({**drill, "findings": [found(False)]}, ""),  # all that is read is simulated
        (
            {
                **drill,
                "replacementConfirmed": True,
                "findings": [found(True, "replace_node"), found(False)],
            },
            "Action:Reboot",
        ),
        ({**drill, "findings": [found(True), found(False, confirmed=False)]}, ""),
    ]
    done = [(flags, choose_hyperpod_action(verdict(**flags))) for flags, _ in cases]
    assert done == cases


@given(st.text(), st.text(min_size=1, max_size=40))
def test_a_reason_is_one_short_line(reason: str, prefix: str) -> None:
    made = format_reason(SlurmSettings(reason="vitald"), verdict(reason=reason))
    assert made.startswith("vitald:") and len(made) <= 200 and made.isascii() and made.isprintable()
    assert not made.startswith("Action:") and not made.endswith('"'), (
        "scontrol would not keep it as it is"
    )


@pytest.mark.parametrize("hyperpod", [False, True])
@pytest.mark.parametrize("problem", ["", "slurmctld does not answer"])
def test_whether_slurm_gives_the_node_no_more_work(
    settings: SlurmSettings, monkeypatch: pytest.MonkeyPatch, problem: str, hyperpod: bool
) -> None:
    """By whomever it was drained."""
    monkeypatch.setattr(scontrol, "update_node", lambda *_: problem)
    known = replace(settings, hyperpod=hyperpod)

    def drain(states: frozenset[str], reason: str = "") -> bool:
        return drain_node(known, verdict(), "gpu01", SlurmNode(states, reason), WAIT_S)

    assert drain(DRAINED, "ticket 4711")
    assert not drain(frozenset({"MIXED", "REBOOT_REQUESTED"}), "kernel update")
    assert drain(frozenset({"IDLE"})) is not bool(problem)
    assert drain(DRAINED, "vitald: another finding")
