"""What jobs send: packets and pages, whatever is in them."""

from __future__ import annotations

import fcntl
import json
import math
import os
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.jobsocket.packets import (
    MAX_SECONDS,
    CheckpointReport,
    ErrorReport,
    Hello,
    PhaseReport,
    Progress,
    WrongPacket,
    parse_packet,
)
from vitald.jobsocket.page import RankPage, parse_page
from vitald.model import job_page
from vitald.model.job_page import CheckpointState, CheckpointTier, ErrorKind, Phase

LAYOUT = struct.Struct(job_page.PAGE_FORMAT)
KINDS = ("hello", "step", "phase", "checkpoint", "error")
WORDS = ("train", "end", "begin", "failed", "global", "cuda", "1234", "\x1b")
JSON = st.one_of(
    st.sampled_from([None, True, False, [], {}, *WORDS]),
    st.integers(-1, 2**64),
    st.floats(),
    st.text(max_size=5),
)
NAMES = (
    *("v", "rank", "local_rank", "world", "job", "attempt", "step_limit_s", "step", "seconds"),
    *("busy", "loss", "finite", "phase", "limit_s", "state", "bytes", "tier", "what", "text"),
)


def packet(**content: Any) -> bytes:
    return json.dumps(content).encode()


def page(first: int = 2, last: int = 2, **fields: Any) -> bytes:
    values = {
        "step": 5210,
        "monotonic": 1.0,
        "seconds": 1.93,
        "busy": 1.71,
        "loss": 2.31,
        "norm": 0.5,
        "phase": 1,
        "flags": 0,
        "limit": 0.0,
        **fields,
    }
    return LAYOUT.pack(first, *values.values(), last)


def test_the_packets_of_the_specification() -> None:
    assert parse_packet(
        b'{"v":1,"kind":"hello","rank":3,"local_rank":3,"world":1024,"job":"1234","attempt":0,'
        b'"step_limit_s":0}'
    ) == Hello(rank=3, local_rank=3, world=1024, job="1234", attempt=0, step_limit_s=0.0)
    assert parse_packet(
        b'{"kind":"step","step":5210,"seconds":1.93,"busy":1.71,"loss":2.31,"finite":true}'
    ) == Progress(step=5210, seconds=1.93, busy=1.71, loss=2.31)
    assert parse_packet(b'{"kind":"phase","phase":"checkpoint","limit_s":1800}') == PhaseReport(
        phase=Phase.CHECKPOINT, limit_s=1800.0
    )
    assert parse_packet(
        b'{"kind":"checkpoint","state":"end","step":5200,"bytes":70866960384,"seconds":12.4,'
        b'"tier":"local"}'
    ) == CheckpointReport(
        state=CheckpointState.END,
        step=5200,
        bytes=70866960384,
        seconds=12.4,
        tier=CheckpointTier.LOCAL,
    )
    assert parse_packet(
        b'{"kind":"error","what":"cuda","text":"an illegal memory access","local_rank":3}'
    ) == ErrorReport(what=ErrorKind.CUDA, text="an illegal memory access")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 2000,
        b"[]",
        b"{}",
        b'{"kind":"welcome"}',
        b'{"kind":["step"]}',
        packet(kind="hello"),
        packet(kind="hello", rank=-1),
        packet(kind="hello", rank=True),
        packet(kind="hello", rank=0, v=2),
        packet(kind="hello", rank=0, job=7),
        packet(kind="step", step="1"),
        packet(kind="step", step=2**53),
        packet(kind="phase", phase="dreaming"),
        packet(kind="checkpoint", state="begin", step=1, tier="tape"),
        packet(kind="checkpoint", state="end", step=1, bytes=-1),
        packet(kind="error", what="cuda", text=["x"]),
        packet(kind="error", what="cuda", text="x" * 2048),
    ],
)
def test_a_wrong_packet_is_refused(data: bytes) -> None:
    with pytest.raises(WrongPacket):
        parse_packet(data)


def test_absurd_numbers_count_as_not_reported() -> None:
    for seconds in (math.nan, math.inf, -1.0, 1e300, True, "1"):
        assert parse_packet(packet(kind="step", step=1, seconds=seconds)) == Progress(step=1)
    assert parse_packet(packet(kind="step", step=1, loss=math.nan)) == Progress(
        step=1, is_finite=False
    )
    assert parse_packet(packet(kind="phase", phase="eval", limit_s=1e9)) == PhaseReport(
        phase=Phase.EVAL, limit_s=MAX_SECONDS
    )


def test_text_of_a_job_has_one_printable_line() -> None:
    hello = parse_packet(packet(kind="hello", rank=0, job="a\n\x1b[31m" + "b" * 100))
    assert isinstance(hello, Hello) and hello.job.isprintable() and len(hello.job) == 64
    error = parse_packet(packet(kind="error", what="?", text="a\nb\x00"))
    assert error == ErrorReport(what=ErrorKind.OTHER, text="a?b?")


@given(st.binary(max_size=2100))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    try:
        parse_packet(data)
    except WrongPacket:
        pass


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6))
def test_no_values_break_the_parser(kind: str, content: dict[str, Any]) -> None:
    """What is taken is bounded."""
    try:
        found = parse_packet(json.dumps({**content, "kind": kind}).encode())
    except WrongPacket:
        return
    if isinstance(found, Progress):
        assert 0 <= found.step < 2**53
        assert all(
            value is None or 0.0 <= value <= MAX_SECONDS for value in (found.seconds, found.busy)
        )
        assert found.loss is None or math.isfinite(found.loss)
    if isinstance(found, PhaseReport):
        assert 0.0 <= found.limit_s <= MAX_SECONDS


def test_a_page() -> None:
    reading = parse_page(page(phase=3, limit=60.0, flags=1))
    assert reading is not None
    assert reading.progress == Progress(
        step=5210, seconds=1.93, busy=1.71, loss=2.31, is_finite=False
    )
    assert reading.phase == PhaseReport(phase=Phase.CHECKPOINT, limit_s=60.0)


def test_a_page_that_is_being_written_or_never_was() -> None:
    assert parse_page(page(2, 3)) is None
    assert parse_page(bytes(job_page.PAGE_BYTES)) is None
    assert parse_page(b"") is None


def test_absurd_values_of_a_page_count_as_not_reported() -> None:
    reading = parse_page(page(seconds=math.nan, busy=-1.0, loss=math.inf, phase=77, limit=math.nan))
    assert reading is not None
    assert reading.progress == Progress(step=5210)
    assert reading.phase == PhaseReport(phase=Phase.TRAIN)
    assert parse_page(page(step=2**63)) is None


@given(st.binary(min_size=job_page.PAGE_BYTES, max_size=job_page.PAGE_BYTES))
def test_no_page_breaks_the_reader(data: bytes) -> None:
    equal = data[:-8] + data[:8]  # with equal sequence numbers
    for each in (data, equal):
        reading = parse_page(each)
        if reading is not None:
            assert reading.progress.seconds is None or reading.progress.seconds >= 0.0
            assert 0.0 <= reading.phase.limit_s <= MAX_SECONDS


def test_a_job_can_neither_shrink_nor_grow_its_page() -> None:
    made = RankPage()
    try:
        assert made.read() is None
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(made.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(made.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        os.pwrite(made.fd, page(), 0)
        reading = made.read()
        assert reading is not None and reading.progress.step == 5210
    finally:
        made.close()
