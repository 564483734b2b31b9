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


@pytest.mark.parametrize(
    ("prio", "facility", "level"),
    [
        (b"0", 0, 0),
        (b"6", 0, 6),
        (b"7", 0, 7),
        (b"8", 1, 0),
        (b"12", 1, 4),
        (b"11", 1, 3),
        (b"30", 3, 6),
        (b"2047", 255, 7),
    ],
)
def test_priority_is_facility_times_eight_plus_level(
    prio: bytes, facility: int, level: int
) -> None:
    record = KernelRecord.parse(prio + b",1,2,-;x\n")
    assert (record.facility, record.level) == (facility, level)
    assert record.from_kernel is (facility == 0)


@pytest.mark.parametrize("flags", [b"-", b"c", b"+"])
@pytest.mark.parametrize(
    "more", [b"", b",caller=T1234", b",caller=C3", b",caller=T1,some_future_field=a=b"]
)
def test_further_fields_are_skipped(flags: bytes, more: bytes) -> None:
    record = KernelRecord.parse(b"6,7,8," + flags + more + b";the text\n")
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


@pytest.mark.parametrize(
    "torn",
    [
        *(
            b"",
            b"\n",
            b"6",
            b"6,1",
            b"6,1,2",
            b"6,1,2,",
            b"6,1,2,-",
            b"6,1,2,-\nx;y",
            b"6,1,2;x",
            b",1,2,-;x",
            b"6,,2,-;x",
            b"6,1,,-;x",
        ),
        *(
            b"-1,1,2,-;x",
            b"6,-1,2,-;x",
            b" 6,1,2,-;x",
            b"a,1,2,-;x",
            b"99999,1,2,-;x",
            b" SUBSYSTEM=pci\n",
        ),
        b"NVRM: Xid (PCI:0000:9b:00): 79",
    ],
)
def test_what_is_no_record_is_refused(torn: bytes) -> None:
    with pytest.raises(TornRecord):
        KernelRecord.parse(torn)


@pytest.mark.parametrize("cut", range(PLAIN.index(b";") + 1))
def test_a_record_cut_before_its_text_is_torn(cut: int) -> None:
    with pytest.raises(TornRecord):
        KernelRecord.parse(PLAIN[:cut])


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"a\x0ab", "a\nb"),
        (rb"a\x09b\x1bc", "a\tb\x1bc"),
        (rb"a\x5cx41", r"a\x41"),  # an escaped backslash does not begin another escape
        (rb"caf\xc3\xa9", "café"),
        (rb"\xC3\xA9", "é"),
        (rb"\xf0\x9f\x92\xa5", "\N{COLLISION SYMBOL}"),
        (rb"\xff\xfe", "\ufffd\ufffd"),
        (rb"\xc3", "\ufffd"),
        (rb"\x7f", "\x7f"),
        (rb"\x", r"\x"),
        (rb"\x4", r"\x4"),
        (rb"\xzz", r"\xzz"),
        (rb"\n", r"\n"),
        (b"plain", "plain"),
        (b"\xc3\xa9", "é"),  # a text file may hold the bytes themselves
    ],
)
def test_unescape(escaped: bytes, text: str) -> None:
    assert unescape(escaped) == text


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
