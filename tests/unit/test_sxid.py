"""The NVSwitch SXid line and its follow-up records (kernel-log-formats.md 11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import ruling
from vitald.collectors.kernel_log import sxid
from vitald.collectors.kernel_log.parsed_line import ParsedLine
from vitald.model import Action

WHERE = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0):"


def parsed(text: str) -> ParsedLine:
    sighting = sxid.parse_sxid(text)
    assert sighting is not None, text
    return sighting


@pytest.mark.parametrize(
    ("body", "fatal", "link", "message"),
    [
        ("Fatal, Link 30 LTSSM Fault Up", True, 30, "LTSSM Fault Up"),
        ("Fatal, Link 30 LTSSM Fault Up (First)", True, 30, "LTSSM Fault Up (First)"),
        (
            "Non-fatal, Link 32 egress non-posted PRIV error (First)",
            False,
            32,
            "egress non-posted PRIV error (First)",
        ),
        ("Correctable, Link 04 RX Short Error Rate", False, 4, "RX Short Error Rate"),
        (
            "Fatal, unhandled interrupt in service_handler(2210)",
            True,
            None,
            "unhandled interrupt in service_handler(2210)",
        ),
        (
            "Non-fatal, something, instance=0, chiplet=0",
            False,
            None,
            "something, instance=0, chiplet=0",
        ),
        (
            "NVSWITCH Temperature 94C | TSENSE WARN Threshold 93C",
            None,
            None,
            "NVSWITCH Temperature 94C | TSENSE WARN Threshold 93C",
        ),
        (
            "SOE firmware (0x1 0x2",
            None,
            None,
            "SOE firmware (0x1 0x2",
        ),  # a parenthesis that is never closed
        ("Fatality, Link 3", None, None, "Fatality, Link 3"),
        ("Fatal, Linkage 3", True, None, "Linkage 3"),
        ("x Fatal, Link 30 y", None, None, "x Fatal, Link 30 y"),
        ("", None, None, ""),
    ],
)
def test_the_first_record(body: str, fatal: bool | None, link: int | None, message: str) -> None:
    found = parsed(f"{WHERE} 20034, {body}")
    assert (found.code, found.number, found.pci) == ("sxid/20034", 20034, "0000:c1:00.0")
    assert (found.fatal, found.link, found.fields["message"], found.continues) == (
        fatal,
        link,
        message,
        False,
    )


@pytest.mark.parametrize(("printed", "number"), [("12028", 12028), ("00012", 12), ("1", 1)])
def test_codes_are_zero_padded(printed: str, number: int) -> None:
    found = parsed(f"{WHERE} {printed}, Fatal, Link 1 x")
    assert (found.code, found.number) == (f"sxid/{number}", number)


@pytest.mark.parametrize(
    ("printed", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000001:c1:00.7", "0001:c1:00.7"),
        ("0000:c1:00", "0000:c1:00.0"),
    ],
)
def test_addresses_are_normalised(printed: str, address: str) -> None:
    assert (
        parsed(f"nvidia-nvswitch3: SXid (PCI:{printed}): 12028, Non-fatal, Link 32 x").pci
        == address
    )


def test_the_switch_instance_is_a_field_and_no_identity() -> None:
    found = parsed("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 x")
    assert found.fields["switch"] == 3


@pytest.mark.parametrize(
    ("body", "severity"),
    [
        ("Severity 1 Engine instance 30 Sub-engine instance 00", 1),
        ("Severity 0 Engine instance 38 Sub-engine instance 00", 0),
        ("Data {0x00000001, 0x00000001}", None),
        ("Data {0x00000001, 0x0000", None),
    ],
)
def test_follow_up_records(body: str, severity: int | None) -> None:
    """The engine instance is not a link, and the severity number is not a printed word."""
    found = parsed(f"{WHERE} 20034, {body}")
    assert (found.continues, found.fields.get("severity"), found.link, found.fatal) == (
        True,
        severity,
        None,
        None,
    )


@pytest.mark.parametrize(
    "body",
    [
        "Severity high",
        "Fatal, Data {0x1}",
        "Fatal, Severity 1 Engine instance 3 Sub-engine instance 0",
        "Database {x}",
        "SOE Data {0x1}",
        "a Severity 1 Engine instance 3 Sub-engine instance 0",
    ],
)
def test_look_alikes_of_follow_ups_are_events_of_their_own(body: str) -> None:
    assert not parsed(f"{WHERE} 20034, {body}").continues


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvswitch0: open (major=510)",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): Fatal, Link 3",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 123456, Fatal, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0) 20034, Fatal, x",
        "nvidia-nvswitch0: SXid (0000:c1:00.0): 20034, Fatal, x",
        "nvidia-nvswitch: SXid (PCI:0000:c1:00.0): 20034, Fatal, x",
        "nvidia-nvswitch0: sxid (PCI:0000:c1:00.0): 20034, Fatal, x",
        " nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, x",
        "x\nnvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, x",
        (
            "NVRM: Xid (PCI:0000:c1:00): 79, nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034,"
            " Fatal, x"
        ),
    ],
)
def test_what_is_no_sxid(line: str) -> None:
    assert sxid.parse_sxid(line) is None


@pytest.mark.parametrize(
    ("line", "action", "hyperpod"),
    [
        (f"{WHERE} 99999, Non-fatal, Link 3 x", Action.INSPECT, Action.INSPECT),
        (f"{WHERE} 99999, something", Action.INSPECT, Action.INSPECT),
        (f"{WHERE} 99999, Fatal, Link 3 x", Action.RESET_DEVICE, Action.REPLACE_NODE),
        (
            f"{WHERE} 99999, Severity 1 Engine instance 3 Sub-engine instance 00",
            Action.RESET_DEVICE,
            Action.RESET_DEVICE,
        ),
        (
            f"{WHERE} 99999, Severity 0 Engine instance 3 Sub-engine instance 00",
            Action.INSPECT,
            Action.INSPECT,
        ),
        (
            f"{WHERE} 10003, Fatal, unhandled interrupt in x(1)",
            Action.RESET_DEVICE,
            Action.REPLACE_NODE,
        ),
    ],
)
def test_the_printed_severity_raises_the_action(
    line: str, action: Action, hyperpod: Action
) -> None:
    assert (ruling(line).action, ruling(line, "hyperpod").action) == (action, hyperpod)


@given(
    code=st.integers(0, 99999),
    bus=st.integers(0, 255),
    function=st.integers(0, 7),
    severity=st.sampled_from(["Fatal", "Non-fatal", "Correctable", None]),
    link=st.one_of(st.none(), st.integers(0, 143)),
    text=st.text(st.characters(min_codepoint=0x20), max_size=40),
)
def test_round_trip(
    code: int, bus: int, function: int, severity: str | None, link: int | None, text: str
) -> None:
    body = (
        (f"{severity}, " if severity else "")
        + (f"Link {link:02d} " if link is not None else "")
        + f"text {text}"
    )
    found = parsed(f"nvidia-nvswitch5: SXid (PCI:0000:{bus:02x}:00.{function}): {code:05d}, {body}")
    assert (found.number, found.pci, found.link) == (code, f"0000:{bus:02x}:00.{function}", link)
    assert found.fatal == (None if severity is None else severity == "Fatal")
    assert found.fields["message"] == f"text {text}".strip()
