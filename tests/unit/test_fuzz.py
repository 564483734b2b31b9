"""Hostile and broken input: nothing raises but what says so, and nothing is an event that does not
begin like one.
"""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import LINES, interpreter, labelled, recogniser
from vitald.collectors.kernel_log import lines
from vitald.collectors.kernel_log.interpret import escape_unprintable
from vitald.collectors.kernel_log.lines import strip_prefix
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord, unescape

CORPUS = [str(one["line"]).encode() for one in labelled(LINES)]
FAULTS = [str(one["line"]).encode() for one in labelled(LINES) if one["kind"] != "noise"]

# How a fault line may begin, written down independently of the catalogue.
_BDF = rb"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
HEADS = re.compile(
    rb"NVRM: (?:Xid \(|GPU |The NVIDIA GPU |\(PCI ID|system has |fallen off|installed in this"
    rb" |RmInit|rm_init)|nvidia-nvswitch\d+: SXid \(PCI:|nvidia[-_]uvm: |nvidia: probe of "
    rb"|[A-Za-z0-9_][\w\-]* "
    + _BDF
    + rb"|mlx[45]_\w+: |NETDEV WATCHDOG: |infiniband (?:rdmap|efa_)|block \S+: no available|nvme"
    rb"|EXT[234]-fs|BTRFS|XFS \(|FAT-fs|JBD2?: |Aborting journal|(?:blk_update_request:"
    rb" |print_req_error: |end_request: )?(?:critical \w|I/O error, dev)"
    rb"|Buffer I/O error on|lost page write|md/|nfs: server "
    rb"|(?:mce: |\{\d+\})?\[Hardware Error\]: |(?:mce: )?CPU ?\d+: |mce: (?:Memory"
    rb" error|Uncorrected hardware)|MCE: Killing |Machine check events logged|Memory failure: 0x"
    rb"|Kernel panic - not syncing: |NMI: |NMI watchdog: |watchdog: |BUG: soft lockup|Watchdog"
    rb" detected|rcu: INFO: |INFO: (?:rcu_|task )|task |Uhhuh\. NMI|EDAC "
    rb"|Memory cgroup out of memory|Out of [Mm]emory|Kill(?:ed)? process |oom-kill:|oom_reaper:"
    rb" |.{1,256} invoked oom-killer: gfp_mask=0x"
    rb"|thermal|[\w\- ]{1,32}: [Cc]ritical temp|[Cc]ritical temp|(?:[\d\[][^A-SU-Y]{0,48}"
    rb" )?(?:neuron\w*: ?)?NEURON_HW_ERR=|neuron:|nd\d|DMA completion timeout",
    re.S,
)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A published line, with a few bytes cut, doubled, changed or put in, or a piece of another
    line.
    """
    line = draw(st.sampled_from(CORPUS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(line)))
        end = min(len(line), start + draw(st.integers(0, 12)))
        other = draw(st.sampled_from(FAULTS))
        piece = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from(
                    [
                        b"",
                        line[start:end] * 2,
                        other,
                        other[start:],
                        b"\n",
                        rb"\x0a",
                        b", ",
                        b"[29120]: ",
                        b"\xff",
                        b"\x00",
                        b"9" * 30,
                        b"kernel: ",
                    ]
                ),
            )
        )
        line = line[:start] + piece + line[end:]
    return line


RANDOM = st.one_of(
    st.binary(max_size=200),
    st.builds(
        bytes.__add__,
        st.sampled_from([b"NVRM: Xid (PCI:", b"nvidia-nvswitch", b"4,1,2,-;", b"<4>", b"[ 1.0] "]),
        st.binary(max_size=100),
    ),
)


@given(st.one_of(RANDOM, mutations()))
def test_a_record_is_read_or_torn(data: bytes) -> None:
    try:
        record = KernelRecord.parse(data)
    except TornRecord:
        return
    assert b"\n" not in record.text
    assert 0 <= record.level <= 7
    assert data.split(b";", 1)[1].startswith(record.text)
    unescape(record.text)


@given(st.one_of(RANDOM, mutations()))
def test_what_is_stripped_is_the_end_of_the_line(data: bytes) -> None:
    line = strip_prefix(data)
    if line is None:
        return
    if b"\n" not in data:
        assert data.rstrip(b"\r\n").endswith(line.message)
    assert line.facility is None or 0 <= line.facility <= 1250


@given(st.one_of(RANDOM, mutations()))
@example(b"[29118]: segfault at 0")
def test_nothing_is_an_event_that_does_not_begin_like_one(data: bytes) -> None:
    for text in {data, line.message if (line := strip_prefix(data)) is not None else b""}:
        sighting = recogniser().parse_record(text)
        assert sighting is None or HEADS.match(unescape(text).encode()), (sighting, text)


@given(st.one_of(RANDOM, mutations()))
def test_an_event_can_be_made_of_whatever_is_recognised(data: bytes) -> None:
    known = interpreter()
    line = strip_prefix(data)
    sighting = known.parse_record(line.message) if line is not None else None
    if line is None or sighting is None:
        return
    made = known.make_event(
        sighting, line.message, line.facility, identity="i", time=0.0, boot_id="b", usec=None
    )
    assert made.code != "vitald/not_read", "the recogniser raised"
    assert made.raw == escape_unprintable(line.message)
    assert made.code.startswith(f"{made.kind}/")
    assert known.catalog.find_rule(made.code).apply_to(made.fields).title
    if sighting.pci is not None:
        assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", sighting.pci)


def test_the_heads_are_those_of_the_corpus() -> None:
    """The list above is not so wide that it lets everything through, nor so narrow that it fails by
    itself.
    """
    messages = [
        (bool(one["kind"] != "noise"), line.message)
        for one in labelled(LINES)
        if (line := strip_prefix(str(one["line"]).encode())) is not None
    ]
    assert all(HEADS.match(message) for fault, message in messages if fault)
    assert sum(not HEADS.match(message) for fault, message in messages if not fault) > 60


@pytest.mark.parametrize(
    "head",
    [
        b"EDAC MC0: 1 CE ",
        b"oom-kill:constraint=CONSTRAINT_A,",
        b"NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=",
        b"Out of memory: Killed process 1 (",
        b"",
    ],
)
def test_a_line_is_parsed_in_linear_time(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a line of 1 MiB an expression that backtracks runs into the test's timeout."""
    monkeypatch.setattr(lines, "_MAX_LINE_BYTES", sys.maxsize)
    known = recogniser()
    for piece in (b"x on ", b",task=,pid=1", b", Ch 00000010", b")", b"\\x0a", b"a: "):
        text = head + piece * ((1 << 20) // len(piece))
        line = strip_prefix(text)
        known.parse_record(text if line is None else line.message)
