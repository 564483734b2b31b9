"""The Xid line: header, owner, and which text is the message (kernel-log-formats.md 5 and 2.3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.builders import seen
from vitald.collectors.kernel_log import xid
from vitald.collectors.kernel_log.record import ParsedLine

BUS = "GPU has fallen off the bus."


def parsed(text: str) -> ParsedLine:
    sighting = xid.parse_xid(text)
    assert sighting is not None, text
    return sighting


# What stands behind "NVRM: Xid " -> code, address, pid, process and message.
GENERATIONS = {
    # every generation, oldest first
    "(0001:00): 8, Channel 00000000": (8, "0000:01:00.0", None, None, "Channel 00000000"),
    "(0000:03:00): 14, Channel 00000001": (14, "0000:03:00.0", None, None, "Channel 00000001"),
    "(PCI:0000:03:00): 31, Ch 0000000b": (31, "0000:03:00.0", None, None, "Ch 0000000b"),
    "(PCI:0000:3b:00): 43, pid=1896, Ch 0010": (43, "0000:3b:00.0", 1896, None, "Ch 0010"),
    f"(PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, {BUS}": (
        *(79, "0000:18:00.0", None, None),
        BUS,
    ),
    f"(PCI:0000:18:00): 79, pid=<unknown>, name='<unknown>', {BUS}": (
        *(79, "0000:18:00.0", None, None),
        BUS,
    ),
    f"(PCI:0000:18:00): 79, pid='4021', name=x, {BUS}": (79, "0000:18:00.0", 4021, "x", BUS),
    f"(PCI:0000:9b:00): 79, pid=4021, name=a b, {BUS}": (79, "0000:9b:00.0", 4021, "a b", BUS),
    # addresses: wide domains, capitals, a function
    "(PCI:10000:01:00): 63, Row Remapper: x": (63, "10000:01:00.0", None, None, "Row Remapper: x"),
    "(PCI:00000000:9B:00.0): 43, Ch 0010": (43, "0000:9b:00.0", None, None, "Ch 0010"),
    "(PCI:0019:01:00.3): 43, Ch 0010": (43, "0019:01:00.3", None, None, "Ch 0010"),
    # a code, and nothing more, or one that nobody knows
    "(PCI:0000:9b:00): 43": (43, "0000:9b:00.0", None, None, ""),
    "(PCI:0000:9b:00): 43,": (43, "0000:9b:00.0", None, None, ""),
    "(PCI:0000:9b:00): 9999, no such": (9999, "0000:9b:00.0", None, None, "no such"),
    "(PCI:0000:9b:00): 0, x": (0, "0000:9b:00.0", None, None, "x"),
    # the record's own newline, and a missing blank
    "(PCI:0000:9b:00): 43, pid=7, name=a, Ch 0010\n": (43, "0000:9b:00.0", 7, "a", "Ch 0010"),
    "(PCI:0000:9b:00): 43,pid=7, name=a, Ch 0010": (43, "0000:9b:00.0", 7, "a", "Ch 0010"),
}


def test_every_generation() -> None:
    found = {text: parsed(f"NVRM: Xid {text}") for text in GENERATIONS}
    assert {
        text: (one.number, one.pci, one.pid, one.process, one.fields["message"])
        for text, one in found.items()
    } == GENERATIONS
    codes = {text: f"xid/{wanted[0]}" for text, wanted in GENERATIONS.items()}
    assert {text: one.code for text, one in found.items()} == codes
    assert {text: seen(f"NVRM: Xid {text}").code for text in GENERATIONS} == codes


def test_mig_instances_are_read_and_the_gpu_is_charged() -> None:
    instances = {
        "": {},
        " GPU-I:05": {"gpu_instance": 5},
        " GPU-I:05 GPU-CI:00": {"gpu_instance": 5, "compute_instance": 0},
        " GPU-I:0013": {"gpu_instance": 13},
    }
    for where, wanted in instances.items():
        found = parsed(f"NVRM: Xid (PCI:0000:01:00{where}): 43, pid=7240, name=infer, Ch 00000010")
        assert {
            name: value for name, value in found.fields.items() if name.endswith("instance")
        } == wanted
        assert (found.pci, found.process) == ("0000:01:00.0", "infer")


def test_what_is_no_xid() -> None:
    lines = [
        f"NVRM: Xid (PCI:0000:65:00): {BUS}",  # no code
        f"NVRM: Xid (PCI:0000:65:00): 79x, {BUS}",
        f"NVRM: Xid (PCI:0000:65:00): 79 {BUS}",
        f"NVRM: Xid (PCI:0000:65:00): 12345, {BUS}",
        f"NVRM: Xid (PCI:0000:65:00): -79, {BUS}",
        f"NVRM: Xid (PCI:0000:65:00) 79, {BUS}",
        f"NVRM: Xid (PCI:000:65:00): 79, {BUS}",
        f"NVRM: Xid (PCI:123456789:65:00): 79, {BUS}",
        f"NVRM: Xid (PCI:0000:6g:00): 79, {BUS}",
        f"NVRM: Xid (PCI:0000:65:00.8): 79, {BUS}",
        f"NVRM: Xid (PCI:0000:65:00 GPU-CI:x): 79, {BUS}",
        f"NVRM: Xid (): 79, {BUS}",
        f"NVRM: xid (PCI:0000:65:00): 79, {BUS}",
        f" NVRM: Xid (PCI:0000:65:00): 79, {BUS}",
        f"a\nNVRM: Xid (PCI:0000:65:00): 79, {BUS}",
        f"NVRM: GPU at PCI:0000:65:00: Xid (PCI:0000:65:00): 79, {BUS}",
        # 2.3: a segfault report of a process that calls itself so
        f"NVRM: Xid (PCI:[29118]: segfault at 0 ip 000055d0c0ffee12 error 6 in x): 79, {BUS}[55+1000]",
    ]
    assert [line for line in lines if xid.parse_xid(line) is not None] == []


NAMES = [
    "train, step 2",
    ", ",
    "a, b, c, d",
    "pid=1, name=x",
    "GPU has fallen off the bus.",
    "x, GPU has fallen off the bus.",
    "x, Ch 00000099",
    "x, RST: Yes, D-RST: Yes",
    "x, Contained: SM. RST: Yes, D-RST: Yes",
    "x, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "NVRM: Xid (PCI:0000:01:00): 48, x",
    "x): 79, y",
    "a\nNVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
    "\ufffd\x00\x1b[31m",
    "'quoted'",
    "a=b,c",
    "caused by previous Xid 31",
]
MESSAGES = {
    79: BUS,
    43: "Ch 00000018",
    45: "channel 0x00000018 caused by previous Xid 31",
    31: (
        "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @"
        " 0x7f2c_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_READ"
    ),
    13: "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    69: (
        "Class Error: ChId 0005, Class 0000a097, Offset 00000000, Data 00000000, ErrorCode 00000004"
    ),
    109: "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
    48: (
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at"
        " physAddr 0x1f2e40000 partition 16, subpartition 3."
    ),
    63: "Row Remapper: New row (0x0000000012c4ea00) marked for remapping, reset gpu to activate.",
    64: "Row Remapper Error: (0x00000001d07b2300) - All reserved rows for bank are remapped",
    74: "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    94: "Contained: FB DED (0x5, 0x0). physAddr: 0x1f2e40000 RST: No, D-RST: Yes",
    119: (
        "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103"
        " (GSP_RM_ALLOC) (0x2081 0x4)."
    ),
    140: (
        "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0,"
        " MMU:0, PCIE:0"
    ),
    143: "Error status 0x1 while polling for FSP boot complete, 0x0, 0x0, 0x0, 0x0",
    145: "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000004 0x00000000 0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}


def test_the_name_ends_at_the_last_known_message() -> None:
    """Commas and look-alikes in a name move neither the message nor what is decoded from it."""
    wrong = []
    for code, message in MESSAGES.items():
        head = f"NVRM: Xid (PCI:0000:07:00): {code}, pid=812, name="
        plain = parsed(f"{head}x, {message}")
        for name in NAMES:
            found = parsed(f"{head}{name}, {message}")
            if found != replace(plain, process=name):
                wrong.append(found)
    assert wrong == []


@given(name=st.text(max_size=99), code=st.sampled_from(sorted(MESSAGES)))
def test_any_name_is_kept_whole(name: str, code: int) -> None:
    assume(not name.lstrip("'").startswith("<"))  # the driver's placeholder; see below
    found = parsed(f"NVRM: Xid (PCI:0000:07:00): {code}, pid=812, name={name}, {MESSAGES[code]}")
    assert (found.process, found.fields["message"]) == (name, MESSAGES[code])


def test_a_name_in_angle_brackets_hides_no_message() -> None:
    """A process may call itself so; the driver's own word must still be read."""
    for code in (74, 94, 145, 154):
        head = f"NVRM: Xid (PCI:0000:07:00): {code}, pid=812, name="
        found = parsed(f"{head}<a>, x, {MESSAGES[code]}")
        assert found.fields == parsed(f"{head}x, {MESSAGES[code]}").fields, code


def test_a_name_with_a_comma_before_the_worded_nvlink_form() -> None:
    message = "RLW_RXPIPE, fatal, cross-contain=0, injected=0, Link 13 (0x0409a0c2 0x00000004)"
    found = parsed(f"NVRM: Xid (PCI:0000:07:00): 145, pid=812, name=train, step 2, {message}")
    assert (found.process, found.link) == ("train, step 2", 13)


def test_an_unknown_message_begins_at_the_first_comma() -> None:
    found = parsed(
        "NVRM: Xid (PCI:0000:07:00): 170, pid=812, name=train, words that no table knows, RST: Yes"
    )
    assert (found.process, found.fields["message"]) == (
        "train",
        "words that no table knows, RST: Yes",
    )


def test_a_line_cut_behind_the_name() -> None:
    for rest in ("", ",", ", "):
        found = parsed(f"NVRM: Xid (PCI:0000:07:00): 43, pid=812, name=train{rest}")
        assert (found.pid, found.process, found.fields["message"]) == (812, "train", "")


def test_a_cut_line_gives_no_action_words() -> None:
    """The beginning of a genuine message says nothing about its end."""
    found = parsed(
        "NVRM: Xid (PCI:0000:1b:00): 95, pid=7115, name=train, Uncontained: LTC TAG (0x2, 0x1)."
        " RST: Yes, D-RST:"
    )
    assert "rst" not in found.fields


@given(
    domain=st.integers(0, 0xFFFFFFFF),
    bus=st.integers(0, 255),
    device=st.integers(0, 31),
    code=st.integers(0, 9999),
    pid=st.integers(0, 2**31),
    upper=st.booleans(),
)
def test_header_round_trip(
    domain: int, bus: int, device: int, code: int, pid: int, upper: bool
) -> None:
    """What the driver prints comes back, the address as sysfs writes it."""
    address = f"{domain:04x}:{bus:02x}:{device:02x}"
    found = parsed(
        f"NVRM: Xid (PCI:{address.upper() if upper else address}): {code}, pid={pid}, name=a b, Ch"
        " 00000010"
    )
    assert (found.pci, found.number, found.pid, found.process) == (f"{address}.0", code, pid, "a b")
