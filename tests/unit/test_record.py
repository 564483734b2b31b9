"""The grammar of a /dev/kmsg record (kernel-log-formats.md 1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.collectors.kernel_log.record import KernelRecord, TornRecord, unescape

PLAIN = (
    b"4,1227,517250000,c;NVRM: Xid (PCI:0000:9b:00): 79, pid=4021, name=python3, GPU has fallen off"
    b" the bus.\n"
)


def escape(text: bytes) -> bytes:
    """As the kernel does it: below 0x20, from 0x7f up, and the backslash."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x5C else b"\\x%02x" % byte
        for byte in text
    )


def test_every_part_is_read() -> None:
    record = KernelRecord.parse(PLAIN)
    assert (record.facility, record.level, record.seq, record.usec) == (0, 4, 1227, 517250000)
    assert (
        record.text
        == b"NVRM: Xid (PCI:0000:9b:00): 79, pid=4021, name=python3, GPU has fallen off the bus."
    )


def test_priority_is_facility_times_eight_plus_level() -> None:
    for prio, facility, level in ((0, 0, 0), (7, 0, 7), (8, 1, 0), (30, 3, 6), (2047, 255, 7)):
        record = KernelRecord.parse(b"%d,1,2,-;x\n" % prio)
        assert (record.facility, record.level) == (facility, level)
        assert record.from_kernel is (facility == 0)


@pytest.mark.parametrize(
    "head", [b"-", b"c", b"+,caller=T1234", b"-,caller=T1,some_future_field=a=b"]
)
def test_further_fields_are_skipped(head: bytes) -> None:
    record = KernelRecord.parse(b"6,7,8," + head + b";the text\n")
    assert (record.seq, record.usec, record.text) == (7, 8, b"the text")


def test_only_the_first_semicolon_divides() -> None:
    assert KernelRecord.parse(b"6,1,2,-;a;b,c;d\n").text == b"a;b,c;d"


def test_dictionary_lines_are_no_part_of_the_text() -> None:
    record = KernelRecord.parse(
        b"6,1201,5140900,-;pci 0000:3b:00.0: BAR 1\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    )
    assert record.text == b"pci 0000:3b:00.0: BAR 1"


def test_an_empty_text_is_a_record() -> None:
    assert KernelRecord.parse(b"6,1,2,-;\n").text == b""


def test_numbers_are_as_wide_as_the_kernels() -> None:
    record = KernelRecord.parse(b"6,18446744073709551615,18446744073709551615,-;x\n")
    assert record.seq == record.usec == 2**64 - 1


def is_torn(data: bytes) -> bool:
    try:
        KernelRecord.parse(data)
    except TornRecord:
        return True
    return False


def test_what_is_no_record_is_refused() -> None:
    torn = [
        *(b"\n", b"6,1,2,-\nx;y", b"6,1,2;x", b",1,2,-;x", b"6,,2,-;x", b"6,1,,-;x"),
        *(b"-1,1,2,-;x", b"6,-1,2,-;x", b" 6,1,2,-;x", b"a,1,2,-;x", b"99999,1,2,-;x"),
        *(b" SUBSYSTEM=pci\n", b"NVRM: Xid (PCI:0000:9b:00): 79"),
        *(PLAIN[:cut] for cut in range(PLAIN.index(b";") + 1)),
    ]
    assert [data for data in torn if not is_torn(data)] == []


def test_unescape() -> None:
    texts = {
        rb"a\x0ab": "a\nb",
        rb"a\x09b\x1bc": "a\tb\x1bc",
        rb"a\x5cx41": r"a\x41",  # an escaped backslash does not begin another escape
        rb"\xC3\xA9": "é",
        rb"\xf0\x9f\x92\xa5": "\N{COLLISION SYMBOL}",
        rb"\xff\xfe": "\ufffd\ufffd",
        rb"\xc3": "\ufffd",
        rb"\x": r"\x",
        rb"\x4": r"\x4",
        rb"\xzz": r"\xzz",
        rb"\n": r"\n",
        b"\xc3\xa9": "é",  # a text file may hold the bytes themselves
    }
    assert {escaped: unescape(escaped) for escaped in texts} == texts


def test_a_decoded_newline_does_not_end_the_record() -> None:
    record = KernelRecord.parse(rb"6,5121,912399999,-;a\x0aNVRM: Xid[29120]: segfault at 0" + b"\n")
    assert unescape(record.text) == "a\nNVRM: Xid[29120]: segfault at 0"


@given(st.text())
def test_any_text_survives_the_kernels_escapes(text: str) -> None:
    assert unescape(escape(text.encode())) == text


FIELD = st.from_regex(r"[a-z_]{1,10}=[A-Za-z0-9:+]{0,10}", fullmatch=True)


@given(
    prio=st.integers(0, 2047),
    seq=st.integers(0, 2**64 - 1),
    usec=st.integers(0, 2**64 - 1),
    flag=st.sampled_from(["-", "c", "+"]),
    more=st.lists(FIELD, max_size=3),
    text=st.text(max_size=80),
    dictionary=st.lists(FIELD, max_size=3),
)
def test_round_trip(
    prio: int, seq: int, usec: int, flag: str, more: list[str], text: str, dictionary: list[str]
) -> None:
    """What is written as the kernel writes it is read back, whole."""
    head = ",".join([f"{prio},{seq},{usec},{flag}", *more]).encode()
    data = (
        head
        + b";"
        + escape(text.encode())
        + b"\n"
        + b"".join(b" " + line.upper().encode() + b"\n" for line in dictionary)
    )
    record = KernelRecord.parse(data)
    assert (record.facility * 8 + record.level, record.seq, record.usec, unescape(record.text)) == (
        prio,
        seq,
        usec,
        text,
    )
