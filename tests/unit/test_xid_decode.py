"""What an Xid's message says, and the action that the catalogue draws from it
(kernel-log-formats.md 6 and 9).
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.unit.builders import catalogue, ruling, seen
from vitald.model.words import Action, When

WHERE = "NVRM: Xid (PCI:0019:01:00):"
NONE, INSPECT = Action.NONE, Action.INSPECT
RESTART, RESET, REBOOT, REPLACE = (
    Action.RESTART_WORKLOAD,
    Action.RESET_DEVICE,
    Action.REBOOT_NODE,
    Action.REPLACE_NODE,
)


# --- Xid 154 (section 9)

RECOVERY = {
    0: ("None", NONE, When.NOW),
    1: ("GPU Reset Required", RESET, When.NOW),
    2: ("Node Reboot Required", REBOOT, When.NOW),
    3: ("Drain P2P", INSPECT, When.NOW),
    4: ("Drain and Reset", RESET, When.AFTER_JOB),
    5: ("Recover IMEX Domain", INSPECT, When.NOW),
    6: ("Unknown", INSPECT, When.NOW),
}


def test_154_is_decided_by_its_new_number() -> None:
    for old, new in product(RECOVERY, RECOVERY):
        line = (
            f"{WHERE} 154, pid=4021, name=a, b, GPU recovery action changed from 0x{old:x}"
            f" ({RECOVERY[old][0]}) to 0x{new:x} ({RECOVERY[new][0]})"
        )
        found, said = seen(line), ruling(line)
        assert (found.fields["recovery_from"], found.fields["recovery"]) == (old, new)
        assert (said.action, said.when) == RECOVERY[new][1:]


def test_154_cut_short_asks_for_a_person() -> None:
    line = f"{WHERE} 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reb"
    assert "recovery" not in seen(line).fields
    assert ruling(line).action is INSPECT


def test_154_value_text_is_only_a_cross_check() -> None:
    assert (
        ruling(f"{WHERE} 154, GPU recovery action changed from 0x0 (None) to 0x2 (Unknown)").action
        is REBOOT
    )


# --- Xid 94 and 95: the words outrank the code (section 6.3)


@pytest.mark.parametrize(
    ("code", "rst", "drst", "action", "when"),
    [
        (94, "No", "No", RESTART, When.NOW),
        (94, "Yes", "No", RESET, When.NOW),
        (94, "No", "Yes", RESET, When.AFTER_JOB),
        (94, "Yes", "Yes", RESET, When.NOW),
        (95, "Yes", "No", RESET, When.NOW),
        (95, "No", "Yes", RESET, When.AFTER_JOB),
        (95, "No", "No", RESTART, When.NOW),
    ],
)
def test_containment_words(code: int, rst: str, drst: str, action: Action, when: When) -> None:
    word = "Contained" if code == 94 else "Uncontained"
    for location, address in product(
        ("", " (0x9)", " (0x2, 0x1)", " (1, 0, 2)"),
        ("", "physAddr: 0x1f2e40000 ", "physAddr: 0x1f2e40000. "),
    ):
        line = (
            f"{WHERE} {code}, pid=881, name=x, {word}: CE User Channel{location}. {address}RST:"
            f" {rst}, D-RST: {drst}"
        )
        fields, said = seen(line).fields, ruling(line)
        assert (fields["contained"], fields["unit"], fields["rst"], fields["drst"]) == (
            code == 94,
            "CE User Channel",
            rst == "Yes",
            drst == "Yes",
        ), line
        assert (said.action, said.when) == (action, when), line


@pytest.mark.parametrize(
    ("line", "action"),
    [
        (f"{WHERE} 94, GSP-RISCV instance 0 fatal error (mask: 0x1)", RESTART),
        (f"{WHERE} 95, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-R", RESET),
        (
            f"{WHERE} 94, Contained: SM. RST: Yes, D-RST: Yes, and more",
            RESTART,
        ),  # not the line's end: it may be a name's
        (
            f"{WHERE} 31, Contained: SM. RST: Yes, D-RST: No",
            RESTART,
        ),  # another code's words are no words
    ],
)
def test_without_the_words_the_code_decides(line: str, action: Action) -> None:
    assert "rst" not in seen(line).fields
    assert ruling(line).action is action


# --- 63, 64, 45


@pytest.mark.parametrize(
    ("text", "when", "title"),
    [
        (
            "63, Row Remapper: New row (0x12c4ea00) marked for remapping, reset gpu to activate.",
            *(When.MAINTENANCE, "row"),
        ),
        (
            (
                "63, Dynamic Page Retirement: New page retired, reload the driver to activate."
                " (0x0000)"
            ),
            *(When.MAINTENANCE, "page"),
        ),
        (
            "64, Row Remapper Error: (0xd07b2300) - All reserved rows for bank are remapped",
            *(When.NOW, "spare"),
        ),
        (
            "64, Dynamic Page Retirement: Fatal error, unable to retire page (0x12a4f3)",
            *(When.NOW, "page"),
        ),
    ],
)
def test_row_remapping_and_page_retirement(text: str, when: When, title: str) -> None:
    said = ruling(f"{WHERE} {text}")
    assert (said.action, said.when, title in said.title.lower()) == (RESET, when, True)


def test_45_names_its_cause_and_asks_for_nothing() -> None:
    line = "pid=44121, name=python3, Ch 00000018 caused by previous Xid 31"
    assert seen(f"{WHERE} 45, {line}").fields["caused_by"] == 31
    assert ruling(f"{WHERE} 45, {line}").action is NONE
    assert "caused_by" not in seen(f"{WHERE} 43, {line}").fields


def test_fatal_is_only_what_the_line_says() -> None:
    fatal = {
        "a fatal error": True,
        "Fatal, x": True,
        "non-fatal thing": False,
        "Nonfatal thing": False,
        "Ch 00000010": None,
        "prefatality": None,
    }
    assert {message: seen(f"{WHERE} 170, {message}").fatal for message in fatal} == fatal


def test_an_unknown_code_asks_for_a_person_and_keeps_its_number() -> None:
    said = ruling(f"{WHERE} 999, something new")
    assert said.action is INSPECT
    assert "999" in said.title
    assert not catalogue().find_rule("xid/999").is_known


def test_why_a_row_could_not_be_remapped() -> None:
    for message, flag, value in (
        ("Row Remapper Error: (0xabcdef) - Row Remapping table is full", "exhausted", True),
        ("DRAM Retirement failed due to no spare for retirement at 0x1234", "exhausted", True),
        ("DRAM Retirement failed due to internal error at 0x1234", "exhausted", False),
        ("DRAM Retirement failed due to pending bank remap at 0x1234", "already_pending", True),
        (
            "Row Remapper Error: (0xabcdef) - Attempting to remap a reserved row",
            "already_pending",
            False,
        ),
    ):
        assert seen(f"{WHERE} 64, {message}").fields[flag] is value, message


def test_a_name_does_not_say_that_a_row_waits_already() -> None:
    name = "a, DRAM Retirement failed due to pending row remap at 0x1"
    line = (
        f"NVRM: Xid (PCI:0000:9b:00): 64, pid=7, name={name}, Row Remapper Error: (0x1) - Row"
        " Remapping table is full"
    )
    sighting = seen(line)
    assert (sighting.process, sighting.fields["already_pending"], sighting.fields["exhausted"]) == (
        name,
        False,
        True,
    )
