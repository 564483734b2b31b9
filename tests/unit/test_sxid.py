"""The NVSwitch SXid line and its follow-up records (kernel-log-formats.md 11)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import ruling
from vitald.collectors.kernel_log import recognise
from vitald.collectors.kernel_log.record import ParsedLine
from vitald.model.words import Action

WHERE = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0):"


def parsed(text: str) -> ParsedLine:
    sighting = recognise.parse_sxid(text)
    assert sighting is not None, text
    return sighting


# What stands behind the code -> whether it is fatal, the link and the message.
FIRST = {
    "Fatal, Link 30 LTSSM Fault Up (First)": (True, 30, "LTSSM Fault Up (First)"),
    "Non-fatal, Link 32 egress error": (False, 32, "egress error"),
    "Correctable, Link 04 RX Short Error Rate": (False, 4, "RX Short Error Rate"),
    "Fatal, unhandled interrupt in x(2210)": (True, None, "unhandled interrupt in x(2210)"),
    "Non-fatal, something, instance=0": (False, None, "something, instance=0"),
    "Temperature 94C | TSENSE WARN 93C": (None, None, "Temperature 94C | TSENSE WARN 93C"),
    "SOE firmware (0x1 0x2": (None, None, "SOE firmware (0x1 0x2"),  # never closed
    "Fatality, Link 3": (None, None, "Fatality, Link 3"),
    "Fatal, Linkage 3": (True, None, "Linkage 3"),
    "x Fatal, Link 30 y": (None, None, "x Fatal, Link 30 y"),
    "": (None, None, ""),
}


def test_the_first_record() -> None:
    found = {body: parsed(f"{WHERE} 20034, {body}") for body in FIRST}
    assert {
        body: (one.fatal, one.link, one.fields["message"]) for body, one in found.items()
    } == FIRST
    assert {(one.code, one.number, one.pci, one.continues) for one in found.values()} == {
        ("sxid/20034", 20034, "0000:c1:00.0", False)
    }


def test_codes_are_zero_padded() -> None:
    found = parsed(f"{WHERE} 00012, Fatal, Link 1 x")
    assert (found.code, found.number) == ("sxid/12", 12)


def test_addresses_are_normalised() -> None:
    addresses = {
        "0000:C1:00.0": "0000:c1:00.0",
        "00000001:c1:00.7": "0001:c1:00.7",
        "0000:c1:00": "0000:c1:00.0",
    }
    assert {
        printed: parsed(f"nvidia-nvswitch3: SXid (PCI:{printed}): 12028, Non-fatal, x").pci
        for printed in addresses
    } == addresses


def test_the_switch_instance_is_a_field_and_no_identity() -> None:
    found = parsed("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 x")
    assert found.fields["switch"] == 3


def test_follow_up_records() -> None:
    """The engine instance is not a link, and the severity number is not a printed word."""
    severities = {
        "Severity 1 Engine instance 30 Sub-engine instance 00": 1,
        "Severity 0 Engine instance 38 Sub-engine instance 00": 0,
        "Data {0x00000001, 0x00000001}": None,
        "Data {0x00000001, 0x0000": None,
    }
    found = {body: parsed(f"{WHERE} 20034, {body}") for body in severities}
    assert {body: one.fields.get("severity") for body, one in found.items()} == severities
    assert {(one.continues, one.link, one.fatal) for one in found.values()} == {(True, None, None)}


def test_look_alikes_of_follow_ups_are_events_of_their_own() -> None:
    bodies = [
        "Severity high",
        "Fatal, Data {0x1}",
        "Fatal, Severity 1 Engine instance 3 Sub-engine instance 0",
        "Database {x}",
        "SOE Data {0x1}",
        "a Severity 1 Engine instance 3 Sub-engine instance 0",
    ]
    assert [body for body in bodies if parsed(f"{WHERE} 20034, {body}").continues] == []


def test_what_is_no_sxid() -> None:
    lines = [
        "nvidia-nvswitch0: open (major=510)",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): Fatal, Link 3",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 123456, Fatal, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0) 20034, Fatal, x",
        "nvidia-nvswitch0: SXid (0000:c1:00.0): 20034, Fatal, x",
        "nvidia-nvswitch: SXid (PCI:0000:c1:00.0): 20034, Fatal, x",
        "nvidia-nvswitch0: sxid (PCI:0000:c1:00.0): 20034, Fatal, x",
        f" {WHERE} 20034, Fatal, x",
        f"x\n{WHERE} 20034, Fatal, x",
        f"NVRM: Xid (PCI:0000:c1:00): 79, {WHERE} 20034, Fatal, x",
    ]
    assert [line for line in lines if recognise.parse_sxid(line) is not None] == []


def test_the_printed_severity_raises_the_action() -> None:
    inspect, reset, replace = Action.INSPECT, Action.RESET_DEVICE, Action.REPLACE_NODE
    wanted = {
        "99999, Non-fatal, Link 3 x": (inspect, inspect),
        "99999, something": (inspect, inspect),
        "99999, Fatal, Link 3 x": (reset, replace),
        "99999, Severity 1 Engine instance 3 Sub-engine instance 00": (reset, reset),
        "99999, Severity 0 Engine instance 3 Sub-engine instance 00": (inspect, inspect),
        # a fault of the driver replaces nothing
        "10003, Fatal, unhandled interrupt in x(1)": (reset, Action.REBOOT_NODE),
    }
    assert {
        text: tuple(ruling(f"{WHERE} {text}", profile).action for profile in ("nvidia", "hyperpod"))
        for text in wanted
    } == wanted


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
