"""Rendered logs: one known prefix comes off, another program's lines stay that program's
(kernel-log-formats.md 1.4).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import read_line, recogniser
from vitald.collectors.kernel_log.lines import ContinuationDetector, Line, strip_prefix

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4021, name=python3, GPU has fallen off the bus."

# Every row of the table, and the further forms that the comments of lines.py name.
PREFIXES = {
    "bare": "",
    "dmesg": "[  517.250000] ",
    "dmesg, early": "[    0.000000] ",
    "dmesg, long up": "[17179779.444000] ",
    "dmesg with task": "[  517.250000][ T4021] ",
    "dmesg with cpu": "[  517.250000][    C3] ",
    "dmesg -T": "[Sun Feb 23 16:24:18 2025] ",
    "dmesg -T, one-digit day": "[Sun Feb  2 16:24:18 2025] ",
    "dmesg --time-format iso": "2025-02-23T16:24:18,250000+00:00 ",
    "dmesg -x": "kern  :warn  : [  517.250000] ",
    "dmesg -x, short": "kern:err: [  517.250000] ",
    "dmesg -x -T": "kern  :warn  : [Sun Feb 23 16:24:18 2025] ",
    "dmesg -x iso": "kern  :warn  : 2025-02-23T16:24:18,250000+00:00 ",
    "dmesg -r": "<4>[  517.250000] ",
    "kmsg injection": "<4>",
    "rsyslog": "Feb 23 16:24:18 node7 kernel: [  517.250000] ",
    "rsyslog, no bracket": "Feb 23 16:24:18 node7 kernel: ",
    "rsyslog, one-digit day": "Feb  3 16:24:18 node7 kernel: ",
    "rsyslog, no blank": "Feb 23 16:24:18 node7 kernel:[  517.250000] ",
    "RFC 3339": "2025-02-23T16:24:18.250000+00:00 node7 kernel: ",
    "RFC 3339, zulu": "2025-02-23T16:24:18.250Z node7.example.org kernel: ",
    "RFC 3339 and bracket": "2025-02-23T16:24:18.250000-08:00 ip-10-0-0-1 kernel: [  517.250000] ",
    "journalctl -k": "Feb 23 16:24:18 node7 kernel: ",
    "journalctl short-iso": "2025-02-23T16:24:18+0000 node7 kernel: ",
    "journalctl short-precise": "Feb 23 16:24:18.250000 node7 kernel: ",
    "journalctl short-iso-precise": "2025-02-23T16:24:18.250000+0000 node7 kernel: ",
    "journalctl short-monotonic": "[  517.250000] node7 kernel: ",
    "journalctl short-full": "Sun 2025-02-23 16:24:18 UTC node7 kernel: ",
    "RFC 5424": "2025-02-23T16:24:18.250000+00:00 node7 kernel - - - ",
    "tag only": "kernel: ",
    "tag and stamp": "kernel: [  517.250000] ",
}


def stripped(text: str | bytes) -> Line:
    line = strip_prefix(text if isinstance(text, bytes) else text.encode())
    assert line is not None, text
    return line


STAMPED = {
    **dict.fromkeys(
        [
            "dmesg",
            "dmesg with task",
            "dmesg with cpu",
            "dmesg -x",
            "dmesg -x, short",
            "dmesg -r",
            "rsyslog",
            "rsyslog, no blank",
            "RFC 3339 and bracket",
            "journalctl short-monotonic",
            "tag and stamp",
        ],
        517_250_000,
    ),
    "dmesg, early": 0,
    "dmesg, long up": 17_179_779_444_000,
}


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_every_rendered_form_gives_the_message_and_the_kernels_stamp(end: str) -> None:
    """Where a form has one: a delta to the line before, or a wall clock's time, is none."""
    found = {name: stripped(f"{prefix}{XID}{end}") for name, prefix in PREFIXES.items()}
    assert {
        name: (line.message, line.usec, bool(line.facility)) for name, line in found.items()
    } == {name: (XID.encode(), STAMPED.get(name), False) for name in PREFIXES}


def test_a_stamp_of_another_length() -> None:
    stamps = {"1.5": 1_500_000, "1.123456789": 1_123_456, "9" * 5000 + ".0": None}
    assert {stamp: stripped(f"[{stamp}] {XID}").usec for stamp in stamps} == stamps


def test_a_raw_record_has_its_stamp() -> None:
    assert stripped(f"3,812,5123456,-;{XID}").usec == 5_123_456


def test_the_prefix_takes_nothing_of_the_message() -> None:
    messages = [
        "usb 1-1: new high-speed USB device",
        "neuron:probe: DMA eng1 init failed",
        "[drm] Initialized",
        "",
        "12 apples",
        "node7: x",
        "12:00 noon",
    ]
    prefixes = ["dmesg", "rsyslog, no bracket", "RFC 3339"]
    lines = {
        (name, message): f"{PREFIXES[name]}{message}" for name in prefixes for message in messages
    }
    assert {
        which: line for which, line in lines.items() if stripped(line) != Line(which[1].encode())
    } == {}


def test_a_bare_message_stays_whole() -> None:
    messages = ["pci 0000:3b:00.0: BAR 1", "loop: module loaded", "x", "<6", "[]", "[ x ]"]
    messages += ["kernel panic", "neuron:probe: DMA eng1 init failed"]
    assert [text for text in messages if stripped(text) != Line(text.encode())] == []


def test_the_facility_is_what_the_form_keeps() -> None:
    """Only facility 0 is the kernel's; a form without one says None, never 0."""
    facilities = {
        f"4,1227,517250000,c;{XID}": 0,
        f"6,1227,517250000,-,caller=T1;{XID}": 0,
        f"12,1227,517250000,-;{XID}": 1,
        f"30,1227,517250000,-;{XID}": 3,
        f"<4>[  517.250000] {XID}": 0,
        f"<12>[  517.250000] {XID}": 1,
        f"<30>{XID}": 3,
        f"kern  :warn  : [  517.250000] {XID}": 0,
        f"user  :warn  : [  517.250000] {XID}": 1,
        f"daemon:info  : [  517.250000] {XID}": 1,
        f"[  517.250000] {XID}": None,
        f"Feb 23 16:24:18 node7 kernel: {XID}": None,
        XID: None,
    }
    assert {line: strip_prefix(line.encode()) for line in facilities} == {
        line: Line(XID.encode(), facility) for line, facility in facilities.items()
    }


def test_a_raw_record_keeps_its_escapes() -> None:
    assert strip_prefix(rb"4,1,2,-;a\x0ab") == Line(rb"a\x0ab", 0)


def test_a_raw_record_is_one_line_whatever_it_quotes() -> None:
    """The text of a raw record has no second prefix to take off."""
    assert strip_prefix(f"4,1,2,-;[  517.250000] {XID}".encode()) == Line(
        f"[  517.250000] {XID}".encode(), 0
    )


def test_another_programs_line_is_not_the_kernels() -> None:
    dates = [
        "Feb 23 16:24:18 node7 ",
        "2025-02-23T16:24:18.250000+00:00 node7 ",
        "Feb 23 16:24:18.250000 node7 ",
    ]
    tags = [
        "systemd[1]:",
        "sshd:",
        "nvidia-persistenced:",
        "kernel-doctor[7]:",
        "mykernel:",
        "Kernel:",
    ]
    quotes = [XID, f"kernel: {XID}", f"[  517.250000] {XID}", f"node7 kernel: {XID}"]
    lines = [f"{date}{tag} {quote}" for date in dates for tag in tags for quote in quotes]
    assert [line for line in lines if strip_prefix(line.encode()) is not None] == []


def test_a_quoted_xid_is_no_xid() -> None:
    lines = [
        f"python3[4021]: {XID}",
        f"[  517.250000] systemd[1]: {XID}",
        f"[  517.250000] a {XID}",
        f"Feb 23 16:24:18 node7 kernel: python3[4021]: {XID}",
        f"Feb 23 16:24:18 node7 kernel: audit: comm={XID}",
        f"root@node7:~# echo {XID} > /dev/kmsg",
        f"+ {XID}",
        f'"{XID}"',
        f"4,1,2,-;[  517.250000] {XID}",
        f"4,1,2,-;Feb 23 16:24:18 node7 kernel: {XID}",
        f"12,1,2,-;{XID}",
        f"<12>[  517.250000] {XID}",
        f"user  :warn  : [  517.250000] {XID}",
    ]
    assert [line for line in lines if read_line(recogniser(), line.encode()) is not None] == []


def test_bytes_that_are_no_text_come_through() -> None:
    """A process name may hold any byte: nothing is lost, replaced or raised."""
    message = b"NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=\xff\xfe\x00\xc3, Ch 00000010"
    found = {name: stripped(prefix.encode() + message) for name, prefix in PREFIXES.items()}
    assert {name: line for name, line in found.items() if line.message != message} == {}


@given(
    st.sampled_from(sorted(PREFIXES.values())),
    st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=60),
)
def test_what_follows_a_kernel_head_is_kept(prefix: str, rest: str) -> None:
    message = f"NVRM: {rest}".encode()
    assert stripped(prefix.encode() + message).message == message


# --- a newline inside a record. As dmesg -S of util-linux 2.38 printed it on Linux 6.18, after an
# ordinary user's `unshare -Urm mount -t tmpfs -o $'foo\nEDAC ...\nbar' none /mnt`; the stamps are
# the record's.

UE = "EDAC MC0: 1 UE memory scrubbing error on D (channel:0 slot:1 page:0x8a1 offset:0x0 grain:32)"
SPLIT = (
    "[26218.429856] tmpfs: Unknown parameter 'foo",
    f"[26218.429856] {UE}",
    "[26218.429856] bar'",
)


def doubts(*lines: str) -> list[bool]:
    detector = ContinuationDetector()
    found = [strip_prefix(line.encode()) for line in lines]
    return [bool(detector.find_doubt(line)) for line in found if line is not None]


def test_the_rest_of_a_record_is_doubted() -> None:
    for prefix in ("", "<3>", "kern  :err   : ", "Nov 22 18:29:35 node7 kernel: "):
        assert doubts(*(f"{prefix}{line}" for line in SPLIT)) == [False, True, True], prefix


def test_the_next_record_is_not() -> None:
    assert doubts(SPLIT[0], f"[26218.429857] {UE}", f"[26218.429857] {UE}") == [False, False, False]


def test_records_of_hardware_may_come_within_one_microsecond() -> None:
    for head in (
        "NVRM: GPU Board Serial Number: 1652923033635",
        "mce: [Hardware Error]: Machine check events logged",
    ):
        lines = [f"[  517.250000] {text}" for text in (head, UE, UE)]
        assert doubts(*lines) == [False, False, False], head


def test_another_level_or_caller_is_another_record() -> None:
    lines = {
        "level": (f"<6>[  517.250000] {SPLIT[0][15:]}", f"<3>[  517.250000] {UE}"),
        "name of the level": (
            "kern  :info  : [  517.250000] x",
            f"kern  :err   : [  517.250000] {UE}",
        ),
        "caller": ("[  517.250000][ T4021] x", f"[  517.250000][    C3] {UE}"),
        "caller in syslog": (
            "Nov 22 18:29:35 n kernel: [  517.250000][ T4021] x",
            f"Nov 22 18:29:35 n kernel: [  517.250000][    C3] {UE}",
        ),
    }
    assert [name for name, pair in lines.items() if doubts(*pair) != [False, False]] == []
    assert doubts("<6>[  517.250000] x", f"<6>[  517.250000] {UE}") == [False, True]
    assert doubts("[  517.250000][ T1] x", f"[  517.250000][ T1] {UE}") == [False, True]


def test_journalctl_writes_a_record_as_one_line() -> None:
    assert doubts("[  517.250000] n kernel: x", f"[  517.250000] n kernel: {UE}") == [False, False]


def test_a_name_that_sounds_of_hardware_vouches_for_nothing() -> None:
    crash = "NVRM: x[123]: segfault at 0 ip 000055d0c0ffee12 sp 00007ffd3b1c9a40 error 6 in foo"
    assert doubts(f"[  517.250000] {crash}", f"[  517.250000] {UE}") == [False, True]


def test_what_has_no_stamp_of_its_own_or_a_record_to_itself_is_not_doubted() -> None:
    for prefix in ("3,881,7120551002,-;", "[    0.000000] ", "", "[Sun Nov 22 18:29:35 2026] "):
        assert doubts(f"{prefix}{UE}", f"{prefix}{UE}") == [False, False], prefix
