"""`vitald tell` and `vitald tee`, against a server written from the contract."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.job_server import JobServer, load_client
from tests.pace import patient
from vitald.catalog.output_lines import OutputLine, OutputSearch, read_output_lines
from vitald.cli import UsageError, job_connection, tee, tell
from vitald.model.job_page import MAX_HOLD_S, MAX_PACKETS_PER_S, OBSERVER, ErrorKind

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
LINES = tee.load_output_lines()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    with JobServer(tmp_path / "j") as running:
        yield running


def start(server: JobServer | None, *words: str) -> subprocess.Popen[bytes]:
    named = {name for names in job_connection.ENVIRONMENT.values() for name in names}
    environment = {name: value for name, value in os.environ.items() if name not in named}
    environment["VITALD_JOB_SOCKET"] = str(server.path) if server is not None else "/nonexistent/j"
    return subprocess.Popen(
        [sys.executable, "-m", "vitald", *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# Contract


def test_the_command_and_the_client_read_the_same_environment() -> None:
    client = load_client()
    assert client.ENVIRONMENT == job_connection.ENVIRONMENT
    assert str(job_connection.SYSTEM_SOCKET) == client.SOCKET
    assert job_connection.MAX_JOB == client.MAX_JOB
    assert tell.HOLD_S == MAX_HOLD_S
    environment = {"RANK": "3", "SLURM_JOB_ID": "9", "WORLD_SIZE": "\u00b2"}
    expected = dict(client.read_identity(environment))
    del expected["attempt"]
    assert job_connection.read_identity(environment) == expected


# tell


@pytest.mark.parametrize(
    ("words", "packet"),
    [
        ("step=5210 loss=2.31", {"kind": "step", "step": 5210, "loss": 2.31}),
        ("step=1 loss=nan busy=0.5", {"kind": "step", "step": 1, "busy": 0.5, "finite": False}),
        ("phase=checkpoint limit=30m", {"kind": "phase", "phase": "checkpoint", "limit_s": 1800}),
        ("phase=end", {"kind": "phase", "phase": "end", "limit_s": 0}),
        (
            "checkpoint=end step=5200 bytes=7e10 seconds=12.4 tier=local",
            {
                "kind": "checkpoint",
                "state": "end",
                "step": 5200,
                "bytes": 7e10,
                "seconds": 12.4,
                "tier": "local",
            },
        ),
        ("error=oom text=no-memory", {"kind": "error", "what": "oom", "text": "no-memory"}),
    ],
)
def test_what_is_told(server: JobServer, words: str, packet: dict[str, object]) -> None:
    process = start(server, "tell", *words.split(), "rank=3", "job=mine")
    rank = server.accept()
    is_error = packet["kind"] == "error"
    role = {"role": OBSERVER} if is_error else {"hold_s": MAX_HOLD_S}
    assert rank.hello == {"v": 1, "kind": "hello", "rank": 3, "job": "mine", **role}
    assert rank.receive_all() == [{"v": 1, **packet}]
    assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_without_a_daemon_nothing_fails() -> None:
    process = start(None, "tell", "step=1")
    out, err = process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert err == b"vitald: not reported: /nonexistent/j: there is no such socket\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("stepp=1", "did you mean step"),
        ("step", "expected KEY=VALUE"),
        ("loss=1", "expected one of error=, checkpoint=, phase=, step="),
        ("step=-1", "step=-1: expected a whole number"),
        ("step=1.5", "expected a whole number"),
        ("step=\u00b2", "expected a whole number"),
        ("step=1 step=2", "step=: given twice"),
        ("step=1 limit=3", "limit= does not go with step="),
        ("step=1 loss=low", "expected a number"),
        ("phase=lunch", "one of init, train, eval, checkpoint, wait, end"),
        ("phase=eval limit=2d", "up to 24h"),
        ("phase=eval limit=nan", "up to 24h"),
        ("error=disk", "one of nccl, cuda, nan, oom, neuron, other"),
        ("checkpoint=end tier=tape", "one of memory, local, global"),
        ("checkpoint=end bytes=inf", "expected a number"),
    ],
)
def test_words_that_are_refused(words: str, message: str) -> None:
    import argparse

    with pytest.raises(UsageError) as refused:
        tell.run(argparse.Namespace(words=words.split()))
    assert message in str(refused.value)


# tee


@pytest.mark.parametrize("server_is_there", [True, False])
def test_output_passes_through_unchanged(server: JobServer, server_is_there: bool) -> None:
    output = os.urandom(300_000) + b"\xff\x00no newline at the end"
    process = start(server if server_is_there else None, "tee")
    out, err = process.communicate(output, timeout=patient(30))
    assert out == output and err == b"" and process.returncode == 0


def test_output_is_not_held_back() -> None:
    process = start(None, "tee")
    assert process.stdin is not None and process.stdout is not None
    for piece in (b"a", b"progress 1 %\r", b"x\n"):
        process.stdin.write(piece)
        process.stdin.flush()
        assert os.read(process.stdout.fileno(), 100) == piece
    process.stdin.close()
    assert process.wait() == 0


def test_an_error_is_reported_once_a_minute(server: JobServer) -> None:
    process = start(server, "tee")
    process.communicate(f"step 1\n{ECC}\n{ECC}\nstep 2\n{ECC}".encode())
    rank = server.accept()
    assert rank.hello["role"] == OBSERVER
    text = f"CUDA: uncorrectable ECC error: {ECC}"
    assert rank.receive_all() == [{"v": 1, "kind": "error", "what": "cuda", "text": text}]


def test_the_last_words_are_reported_with_the_end(server: JobServer) -> None:
    """Several shapes at once: the first at once, the others at the end of the output."""
    shapes = [line.samples[0] for line in LINES if line.samples]
    process = start(server, "tee")
    process.communicate("\n".join(shapes).encode())
    received = server.accept().receive_all()
    assert len(received) == len(shapes) <= 2 * MAX_PACKETS_PER_S  # the burst that is accepted


def test_the_reader_is_gone() -> None:
    process = start(None, "tee")
    assert process.stdin is not None and process.stdout is not None
    process.stdout.close()
    process.stdin.write(b"x\n")
    process.stdin.close()
    assert process.wait(patient(20)) == 141


def test_an_interrupt_does_not_cost_the_last_words() -> None:
    process = start(None, "tee")
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"a")
    process.stdin.flush()
    assert os.read(process.stdout.fileno(), 10) == b"a"
    process.send_signal(signal.SIGINT)
    process.stdin.write(b"KeyboardInterrupt")
    process.stdin.close()
    assert process.stdout.read() == b"KeyboardInterrupt"
    assert process.wait() == 0


def test_a_daemon_that_hangs_delays_nothing(server: JobServer) -> None:
    """Nobody accepts the connection, nor reads from it."""
    process = start(server, "tee")
    began = time.monotonic()
    out, _ = process.communicate(f"{ECC}\n".encode() * 10_000, timeout=patient(30))
    assert len(out) == 10_000 * (len(ECC) + 1)
    assert time.monotonic() - began < patient(20)


# The table


def find_all(text: bytes, pieces: list[int], lines: list[OutputLine] | None = None) -> list[str]:
    search = OutputSearch(LINES if lines is None else lines)
    found = []
    for size in pieces:
        piece, text = text[:size], text[size:]
        found += [line.name for line, _ in search.find_lines(piece)]
    found += [line.name for line, _ in search.find_lines(text)]
    return found + [line.name for line, _ in search.find_last_line()]


def test_the_table_is_sound() -> None:
    assert len(LINES) >= 25
    assert {line.what for line in LINES} == set(ErrorKind)
    assert all(line.source for line in LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_samples_are_found_as_the_entry_that_has_them(line: OutputLine) -> None:
    for sample in line.samples:
        assert find_all(sample.encode() + b"\n", []) == [line.name]
        assert find_all(f"\x1b[31m{sample}\x1b[0m\r".encode(), []) == [line.name]


@pytest.mark.parametrize(
    "line", [line for line in LINES if line.pattern is not None], ids=lambda line: line.name
)
def test_no_pattern_searches_without_bound(line: OutputLine) -> None:
    """`.*` after a word that a line repeats takes the square of its length: `vitald tee` would hold
    up the job.
    """
    assert line.pattern is not None
    assert re.search(rb"(?<!\\)[.][*+]", line.pattern.pattern) is None


@given(st.lists(st.integers(0, 40)))
def test_a_line_is_found_wherever_the_stream_is_cut(pieces: list[int]) -> None:
    text = f"step 1\n{ECC}\nloss: 2.0\r{LINES[0].samples[0]}".encode()
    assert find_all(text, pieces) == ["cuda_ecc", "nccl_watchdog"]


@given(st.binary(max_size=3000))
def test_any_bytes_can_be_searched(text: bytes) -> None:
    find_all(text, [100, 100, 100])


def test_a_line_without_end_needs_little_memory() -> None:
    search = OutputSearch(LINES)
    for _ in range(1000):
        assert list(search.find_lines(b"x" * 1000)) == []
        assert len(search._rest) <= 9192


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[rank 0] Work WorkNCCL(SeqNum=1) timed out in blocking wait.", "nccl_blocking_wait"),
        (
            "RuntimeError: Unexpected result nan (message='found NaN in local forward loss"
            " calculation')",
            "nan_megatron",
        ),
        ("RuntimeError: (message='found Inf in local grad norm for bucket #3 in", "nan_megatron"),
        (" lm loss: INF | grad norm: 0.4 | number of nan iterations:   0 |", "nan_megatron_log"),
        (" grad norm: 0.412 | number of nan iterations:  12 |", "nan_megatron_log"),
    ],
)
def test_other_wordings_of_an_error_are_found(line: str, name: str) -> None:
    assert find_all(line.encode() + b"\n", []) == [name]


@pytest.mark.parametrize(
    "line",
    [
        "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.2.0.4<0>",
        " iteration 10/100 | lm loss: 2.310000E+00 | loss scale: 1.0 | grad norm: 0.412 |"
        " number of nan iterations:   0 |",
        "{'loss': 2.31, 'grad_norm': 0.4, 'learning_rate': 2.0e-05, 'epoch': 0.27}",
        "CUDA is available: NVIDIA H100 80GB HBM3, finance, nan_to_num, ECC enabled",
        "NRT_SUCCESS",
    ],
)
def test_ordinary_output_is_no_error(line: str) -> None:
    assert find_all(line.encode() + b"\n", []) == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"title": ""}, "title"),
        ({"what": "disk"}, "'disk'"),
        ({"contains": ""}, "contains"),
        ({"match": "("}, "unterminated"),
        ({"samples": ["x"]}, "a sample does not match"),
        ({"colour": 1}, "colour: unknown key"),
        ({"source": None}, "source"),
    ],
)
def test_mistakes_in_the_table(entry: dict[str, object], message: str) -> None:
    sound = {"title": "t", "what": "cuda", "contains": "abc", "source": "s", "samples": ["abc"]}
    errors: list[str] = []
    assert read_output_lines({"line": {"a": {**sound, **entry}}}, errors) == []
    assert errors[0].startswith("application_lines.toml: [line.a] ") and message in errors[0]


def test_tee_names_the_input_that_cannot_be_read(tmp_path: Path) -> None:
    unreadable = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vitald", "tee"],
            stdin=unreadable,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        os.close(unreadable)
    assert done.returncode == 74
    assert done.stderr == "vitald: standard input cannot be read: Bad file descriptor\n"
