"""Xid 74 and 144 to 150: what the words say, bit by bit, and the action drawn from them
(kernel-log-formats.md 7 and 8).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import ruling, seen
from vitald.model.words import Action

WHERE = "NVRM: Xid (PCI:0019:01:00):"
NONE, OBSERVE, INSPECT, RESTART, RESET = (
    Action.NONE,
    Action.OBSERVE,
    Action.INSPECT,
    Action.RESTART_WORKLOAD,
    Action.RESET_DEVICE,
)


def nvlink5(
    code: int, unit: str, status: int, info: int = 0, severity: str = "Nonfatal", link: str = "02"
) -> str:
    return (
        f"{WHERE} {code}, {unit} {severity} XC0 i0 Link {link} (0x{info:08x} 0x{status:08x}"
        " 0x00000000 0x00000000)"
    )


# --- NVLink 5, codes 144 to 150 (section 7)


@pytest.mark.parametrize(
    ("text", "fields", "link", "fatal"),
    [
        (
            "149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)",
            {
                "unit": "NETIR_LINK_EVT",
                "subcode": 4,
                "status": 0,
                "status_bits": [],
                "cross_containment": False,
                "injected": False,
            },
            *(8, True),
        ),
        (
            "149, NETIR_LINK_EVT Fatal XC0 i1 Link 08 (0x016415c6 0x00000000 0x00000000)",
            {"unit": "NETIR_LINK_EVT", "subcode": 22, "injected": True},
            *(8, True),
        ),
        (  # drivers after 595: nvlink_events.c
            "150, MSE degraded  Fatal   XC0 i0 Link -1 (0x00000001 0x00000000 0x00000000)",
            {"unit": "MSE degraded", "status": 0, "injected": False},
            *(-1, True),
        ),
        (
            "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000004 0x00000000)",
            {"unit": "RLW_RXPIPE", "subcode": 0, "status": 4, "status_bits": [4], "promote": False},
            *(13, False),
        ),
        (
            "146, pid=5, name=t, TLW_RX_PIPE0 Fatal XC1 i0 Link 02 (0x00000000 0x80000005)",
            {"unit": "TLW_RX_PIPE0", "cross_containment": True, "status_bits": [1, 4, 0x80000000]},
            *(2, True),
        ),
        (
            "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 04 (0x00086226, 0x00000001)",
            {"unit": "NETIR_BER_EVENT", "words": [0x86226, 1]},
            *(4, False),
        ),
        (
            "145, RLW_RXPIPE, fatal, cross-contain=1, injected=0, Link 03 (0x0 0x1)",
            {"unit": "RLW_RXPIPE", "cross_containment": True},
            *(3, True),
        ),
        # cut behind the link
        ("146, TLW_CTRL Fatal XC0 i0 Link 02", {"unit": "TLW_CTRL"}, 2, True),
    ],
)
def test_nvlink5_is_decoded(text: str, fields: dict[str, object], link: int, fatal: bool) -> None:
    found = seen(f"{WHERE} {text}")
    assert {name: found.fields[name] for name in fields} == fields
    assert (found.link, found.fatal) == (link, fatal)


def test_a_line_cut_in_its_words_is_not_decoded() -> None:
    found = seen(f"{WHERE} 145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x0409a0c2 0x0000")
    assert not {"status", "subcode", "promote"} & set(found.fields)
    assert (found.link, found.fatal, found.fields["unit"]) == (
        13,
        True,
        "RLW_RXPIPE",
    )  # what stands before the cut still counts


def test_a_line_cut_short_keeps_that_it_is_about_no_link() -> None:
    assert (
        seen(f"{WHERE} 149, NETIR Nonfatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000").link
        == -1
    )


# Unit and status -> action, as in the table of section 7.2. An `inspect` stands where the table has
# no row and the line is no Fatal.
STATUS_TABLE = [
    (
        *(144, "SAW_MVB"),
        dict.fromkeys((1, 8, 0x80000000), OBSERVE)
        | dict.fromkeys((2, 0x10), RESET)
        | {4: NONE, 0x20: NONE, 0x40: INSPECT},
    ),
    (
        *(145, "RLW_REMAP"),
        dict.fromkeys((1, 2, 4, 0x20), RESTART)
        | dict.fromkeys((0x40, 0x80), RESET)
        | dict.fromkeys((0x100, 0x200), NONE),
    ),
    (145, "RLW_RSPCOL", {1: NONE, 2: RESET, 4: INSPECT, 0x80000000: OBSERVE}),
    (145, "RLW_RXPIPE", {1: NONE, 2: NONE, 4: NONE, 8: NONE, 0x10: INSPECT}),
    (145, "RLW_SRC_TRACK", {1: RESET, 0x10: RESET, 0x20: RESET, 2: NONE, 4: RESTART, 8: RESTART}),
    (145, "RLW_TAGSTATE", {1: NONE, 0x10000: NONE, 2: RESET, 0x20000: RESET, 0x100000: RESET}),
    (146, "TLW_CTRL", {1: NONE, 2: OBSERVE, 4: RESET}),
    (146, "TLW_RX_PIPE1", {1: NONE, 2: OBSERVE, 4: RESET}),
    (146, "TLW_TX", {1: NONE, 2: OBSERVE, 4: RESET}),
    (147, "TREX", {1: NONE, 2: INSPECT}),
    (148, "NVLPW_CTRL", {1: INSPECT, 0x80000000: OBSERVE}),
    (149, "NETIR_INT", {0: RESET, 1: RESET, 0x80000000: OBSERVE}),
    (149, "NETIR_BER_EVENT", {0: OBSERVE, 1: OBSERVE, 2: OBSERVE, 3: OBSERVE}),
    (149, "NETIR_MFDE_EVENT", {1: RESET, 4: RESET, 5: RESET, 7: RESET, 3: NONE, 2: INSPECT}),
    (150, "MSE_WATCHDOG", {0: RESET, 0xFFFFFFFF: RESET, 0x80000000: OBSERVE}),
]


def test_unit_and_status_give_the_action() -> None:
    said = [
        (code, unit, {status: ruling(nvlink5(code, unit, status)).action for status in rows})
        for code, unit, rows in STATUS_TABLE
    ]
    assert said == STATUS_TABLE


LINK_DOWN = {
    RESET: [0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 42, 43],
    NONE: [38, 40],
    INSPECT: [3, 20, 41, 63],
}


@pytest.mark.parametrize("unit", ["NETIR_LINK_EVT", "NETIR_LINK_DOWN"])
def test_link_down_goes_by_its_subcode_alone(unit: str) -> None:
    wanted = {
        (code, status): action
        for action, codes in LINK_DOWN.items()
        for code in codes
        for status in (0, 0xFFFFFFFF)
    }
    assert {
        (code, status): ruling(nvlink5(149, unit, status, info=code << 20)).action
        for code, status in wanted
    } == wanted


def test_of_several_bits_the_strongest_counts() -> None:
    wanted = {0x3: RESET, 0xC: OBSERVE, 0x24: NONE, 0x80000010: RESET, 0x44: NONE}
    assert {status: ruling(nvlink5(144, "SAW_MVB", status)).action for status in wanted} == wanted


@pytest.mark.parametrize("info", [1 << 10 | 6 << 5 | 2, 1 << 7 | 6], ids=["V1", "V2"])
def test_a_promoted_receive_error_asks_for_a_reset_in_both_layouts(info: int) -> None:
    """V1 (before R575) has the unit in bits 9:5 and the promote bit at 10; V2 the unit in 6:0 and
    the bit at 7. Bit 8 of the status stays without action.
    """
    wanted = {1: RESET, 2: RESET, 4: RESET, 8: NONE}
    assert {
        status: ruling(nvlink5(145, "RLW_RXPIPE", status, info=info)).action for status in wanted
    } == wanted


def test_the_other_layouts_promote_bit_means_nothing() -> None:
    for info in (6 << 5 | 2, 6, 1 << 7 | 6 << 5 | 2, 1 << 10 | 6):
        assert ruling(nvlink5(145, "RLW_RXPIPE", 1, info=info)).action is NONE, info


def test_a_fatal_event_without_a_row_asks_for_a_reset() -> None:
    for code, unit in (
        (144, "SAW_MVB"),
        (145, "RLW_CTRL"),
        (145, "RLW_RXPIPE"),
        (146, "TLW_CTRL"),
        (147, "TREX"),
        (148, "NVLPW"),
    ):
        assert ruling(nvlink5(code, unit, 0x4000, severity="Fatal")).action is RESET, unit
        assert ruling(nvlink5(code, unit, 0, severity="Fatal")).action is RESET, unit
        assert ruling(nvlink5(code, unit, 0x4000)).action is INSPECT, unit


@given(
    subcode=st.integers(0, 63),
    low=st.integers(0, 2**20 - 1),
    high=st.integers(0, 63),
    status=st.integers(0, 2**32 - 1),
    link=st.integers(-1, 99),
    code=st.integers(144, 150),
)
def test_nvlink5_words_round_trip(
    subcode: int, low: int, high: int, status: int, link: int, code: int
) -> None:
    """The sub-code is bits 25:20 whatever stands beside it; the link is the printed one."""
    found = seen(
        nvlink5(
            code, "TLW_RX_PIPE0", status, info=high << 26 | subcode << 20 | low, link=f"{link:02d}"
        )
    )
    assert (found.fields["subcode"], found.fields["status"], found.link) == (subcode, status, link)
    bits = found.fields["status_bits"]
    assert isinstance(bits, list)
    assert sum(bits) == status
    assert all(bit & (bit - 1) == 0 for bit in bits)


# --- Xid 74 (section 8)


def registers(r1: int = 0, r2: int = 0, r3: int = 0, r4: int = 0, r5: int = 0, r6: int = 0) -> str:
    words = ", ".join(f"0x{word:x}" for word in (r1, r2, r3, r4, r5, r6, 0))
    return f"{WHERE} 74, pid=1, name=a, b, NVLink: fatal error detected on link 14({words})"


def test_74_names_link_and_every_set_bit() -> None:
    found = seen(registers(r1=1 << 0 | 1 << 31, r2=1, r3=0x10000, r4=1 << 18, r5=0))
    assert (found.link, found.fatal, found.pci) == (14, True, "0019:01:00.0")
    assert found.fields["regs"] == [0x80000001, 1, 0x10000, 0x40000, 0, 0, 0]
    assert {name: found.fields.get(f"{name}_bits") for name in ("r1", "r2", "r3", "r4", "r5")} == {
        "r1": [0, 31],
        "r2": None,
        "r3": [16],
        "r4": [18],
        "r5": [],
    }


def test_74_every_bit_by_itself() -> None:
    wrong = [
        (register, bit)
        for register, bits, action in (
            ("r1", [0, 1, 20, 23, 30], OBSERVE),
            ("r1", [4, 5, 8, 9, 12, 16, 17, 24, 28, 21, 22, 27, 29], RESET),
            ("r1", [2, 31], RESET),  # no published meaning
            ("r3", [0, 1, 2, 6, 13, 16, 19, 17, 18, 7], RESET),
            ("r4", [16, 17], OBSERVE),
            ("r4", [18, 0], RESET),
            ("r5", [18, 19, 21, 22, 24, 25, 27, 28, 0], RESET),
            ("r5", [20, 23, 26, 29], OBSERVE),
            ("r2", [5], RESET),  # carries no meaning: the code's own action
        )
        for bit in bits
        if ruling(registers(**{register: 1 << bit})).action is not action
    ]
    assert wrong == []


def test_74_a_mild_bit_hides_no_strong_one() -> None:
    assert ruling(registers(r1=1 << 0 | 1 << 20, r5=1 << 20 | 1 << 28)).action is RESET
    assert ruling(registers(r1=1 << 0 | 1 << 20, r5=1 << 20)).action is OBSERVE


def test_74_about_another_device_stays_with_its_own() -> None:
    found = seen(f"{WHERE} 74, NVLink: Failed to train link 3 to remote PCI:0000:05:00")
    assert (found.link, found.pci, found.fatal) == (3, "0019:01:00.0", None)
    assert (
        ruling(f"{WHERE} 74, NVLink: failed to train link 3 to remote PCI:0000:05:00").action
        is RESET
    )


def test_links_of_other_codes() -> None:
    links = {
        f"{WHERE} 136, NVLink: Link training failed for link 5(0x0, 0x0)": 5,
        # a mask is no link
        f"{WHERE} 136, NVLink: Link training failed for links 0x3f(0x0, 0x0)\n": None,
        f"{WHERE} 31, Ch 00000010, link 4": None,  # not a code that is about links
    }
    assert {line: seen(line).link for line in links} == links
