"""The client that jobs import, against a server written from the contract."""

from __future__ import annotations

import ast
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.job_server import CLIENT, JobServer, RankConnection, load_client
from tests.pace import patient
from vitald.model import job_page

client = load_client()
LAUNCHERS = {name for names in client.ENVIRONMENT.values() for name in names}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHERS, *client.RESTARTS, "VITALD_JOB_SOCKET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    with JobServer(tmp_path / "j") as running:
        yield running


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Nothing of a test's own process is to say goodbye at its exit.
    monkeypatch.setattr(client.Job, "_register", lambda _: None)
    made = client.Job()
    yield made
    made._close()


def started(job: Any, server: JobServer, **options: Any) -> RankConnection:
    """After the welcome: the page is there."""
    job.start(path=str(server.path), **options)
    rank = server.accept()
    rank.welcome()
    wait_until(lambda: job.save_advised or job._page is not None)
    return rank


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + patient(20)
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


# Contract


def test_the_client_has_the_daemons_constants() -> None:
    assert client.VERSION == job_page.VERSION
    assert client.PAGE.format == job_page.PAGE_FORMAT
    assert client.PAGE.size == job_page.PAGE_BYTES
    assert client.PAGE_FILE_BYTES == job_page.PAGE_FILE_BYTES
    assert list(client.PHASES) == [phase.word for phase in job_page.Phase]
    assert client.NOT_FINITE == job_page.PageFlag.NOT_FINITE
    assert client.HOLD_FLAGS_S == job_page.HOLD_FLAGS_S
    assert client.MAX_PACKET_BYTES == job_page.MAX_PACKET_BYTES
    assert client.MAX_TEXT == job_page.MAX_ERROR_TEXT
    assert client._MAX_PACKETS_PER_S <= job_page.MAX_PACKETS_PER_S
    whats = {what.value for what in job_page.ErrorKind}
    assert {what for what, _ in client.EXCEPTIONS} < whats


def test_the_client_imports_only_the_standard_library() -> None:
    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(CLIENT.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= sys.stdlib_module_names | {"__future__"}
    assert "threading" not in names


# Identity


@pytest.mark.parametrize(
    ("environment", "identity"),
    [
        pytest.param({}, {"job": "", "rank": 0, "attempt": 0}, id="nothing"),
        pytest.param(
            {
                "RANK": "9",
                "LOCAL_RANK": "1",
                "WORLD_SIZE": "16",
                "TORCHELASTIC_RUN_ID": "run7",
                "TORCHELASTIC_RESTART_COUNT": "2",
            },
            {"job": "run7", "rank": 9, "local_rank": 1, "world": 16, "attempt": 2},
            id="torchrun",
        ),
        pytest.param(
            {
                "SLURM_JOB_ID": "1234",
                "SLURM_PROCID": "3",
                "SLURM_LOCALID": "3",
                "SLURM_NTASKS": "8",
                "SLURM_RESTART_COUNT": "1",
            },
            {"job": "1234", "rank": 3, "local_rank": 3, "world": 8, "attempt": 1},
            id="srun",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "1234", "SLURM_PROCID": "0", "RANK": "5", "TORCHELASTIC_RUN_ID": "x"},
            {"job": "1234", "rank": 5, "attempt": 0},
            id="torchrun below srun",
        ),
        pytest.param(
            {"VITALD_JOB_ID": "jobset-a", "JOB_COMPLETION_INDEX": "4"},
            {"job": "jobset-a", "rank": 4, "attempt": 0},
            id="a Kubernetes Job",
        ),
        pytest.param(
            {"RANK": "two", "WORLD_SIZE": "-1", "LOCAL_RANK": "\u00b2", "SLURM_JOB_ID": "x" * 300},
            {"job": "x" * 64, "rank": 0, "attempt": 0},
            id="nonsense",
        ),
    ],
)
def test_identity(environment: dict[str, str], identity: dict[str, object]) -> None:
    assert client.read_identity(environment) == identity


def test_hello(job: Any, server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("VITALD_JOB_SOCKET", str(server.path))
    job.start(world=8, job="mine", step_limit=600)
    identity = {"job": "mine", "rank": 3, "world": 8, "attempt": 0}
    assert server.accept().hello == {"v": 1, "kind": "hello", **identity, "step_limit_s": 600}


# The page


def test_a_step_is_on_the_page(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    assert rank.read_page()["seq"] == 0
    job.step(7, loss=2.5)
    first = rank.read_page()
    assert (first["step"], first["loss"], first["flags"]) == (7, 2.5, 0)
    assert first["phase"] == job_page.Phase.TRAIN
    assert all(math.isnan(first[key]) for key in ("seconds", "busy", "grad_norm"))
    assert abs(first["monotonic"] - time.monotonic()) < patient(5)
    time.sleep(0.02)
    job.mark_collective()
    marked = time.monotonic()
    time.sleep(0.02)
    job.mark_collective()  # the second of a step does not count
    job.step(8, loss=2.25, grad_norm=1)
    second = rank.read_page()
    assert (second["seq"], second["step"], second["grad_norm"]) == (first["seq"] + 1, 8, 1)
    assert second["seconds"] == pytest.approx(second["monotonic"] - first["monotonic"])
    assert 0.02 <= second["busy"] <= marked - first["monotonic"] + 0.001
    job.step(9, seconds=1.5, busy=0.5)
    third = rank.read_page()
    assert (third["seconds"], third["busy"]) == (1.5, 0.5)
    assert third["loss"] == 2.25 and math.isnan(third["grad_norm"])  # the last loss counts
    assert job.counts["errors"] == 0


@pytest.mark.parametrize("what", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_stays_until_it_has_been_read(
    job: Any, server: JobServer, monkeypatch: pytest.MonkeyPatch, what: str, value: float
) -> None:
    rank = started(job, server)
    job.step(1, loss=1.0)
    job.step(2, **{what: value})
    assert rank.read_page()["flags"] == 1
    job.step(3, loss=1.0)
    assert rank.read_page()["flags"] == 1
    monkeypatch.setattr(job, "_hold_until", 0.0)
    job.step(4, loss=1.0)
    assert rank.read_page()["flags"] == 0


def test_a_tensor_is_not_read(job: Any, server: JobServer) -> None:
    """Reading one waits for the GPU."""

    class Tensor:
        def __float__(self) -> float:
            raise AssertionError("read")

    rank = started(job, server)
    job.step(1, loss=Tensor(), grad_norm=Tensor())
    assert rank.read_page()["step"] == 1
    assert math.isnan(rank.read_page()["loss"])


def test_a_page_that_could_shrink_is_refused(job: Any, server: JobServer) -> None:
    """Writing beyond its end would kill the job."""
    job.start(path=str(server.path))
    server.accept(seals=0).welcome()
    wait_until(lambda: job.step(1) or job.counts["errors"])
    assert job._page is None


# Messages


def test_a_phase_and_the_one_before(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    job.step(1)
    with job.phase("eval", limit=600):
        page = rank.read_page()
        assert (page["phase"], page["phase_limit"], page["step"]) == (2, 600, 1)
    assert (rank.read_page()["phase"], rank.read_page()["phase_limit"]) == (1, 0)
    job.end()
    assert rank.receive_all() == [
        {"v": 1, "kind": "phase", "phase": phase, "limit_s": limit}
        for phase, limit in (("eval", 600), ("train", 0), ("end", 0))
    ]
    assert rank.read_page()["phase"] == job_page.Phase.END


def test_a_step_does_not_include_another_phase(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    job.step(1)
    with job.phase("eval"):
        time.sleep(0.2)
    job.step(2)
    assert rank.read_page()["seconds"] < 0.2


def test_a_checkpoint(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    job.step(1)
    with job.checkpoint(20, tier="local", limit=60) as saved:
        page = rank.read_page()
        assert (page["phase"], page["phase_limit"]) == (job_page.Phase.CHECKPOINT, 60)
        saved.bytes = 4096
    with (
        pytest.raises(OSError, match="disk full"),
        job.checkpoint(21, tier="memory", blocking=False),
    ):
        assert rank.read_page()["phase"] == job_page.Phase.TRAIN
        raise OSError("disk full")
    job.end()
    told = [packet for packet in rank.receive_all() if packet["kind"] == "checkpoint"]
    assert [packet.pop("seconds", None) is None for packet in told] == [True, False, True, False]
    common = {"v": 1, "kind": "checkpoint"}
    assert told == [
        {**common, "step": 20, "tier": "local", "state": "begin"},
        {**common, "step": 20, "tier": "local", "state": "end", "bytes": 4096},
        {**common, "step": 21, "tier": "memory", "state": "begin"},
        {**common, "step": 21, "tier": "memory", "state": "failed"},
    ]


@pytest.mark.parametrize(
    "text",
    ["plain", "\0" * 600, "\u4e2d" * 600, "\ud800", "\U0001f4a5" * 600],
    ids=["plain", "control", "three bytes", "surrogate", "four bytes"],
)
def test_an_error_fits_a_packet(job: Any, server: JobServer, text: str) -> None:
    rank = started(job, server)
    job.report_error("oom", text)
    packet = rank.receive()  # which asserts its size
    assert packet is not None and packet["what"] == "oom"
    assert len(packet["text"]) <= job_page.MAX_ERROR_TEXT
    assert packet["text"][:5] == text[:5] or not text.isprintable()


def test_what_exceeds_the_daemons_rate_is_dropped(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    for _ in range(200):
        job.report_error("other", "x")
    assert job.counts["dropped"] > 150
    job.end()
    assert len(rank.receive_all()) < 50


def test_a_daemon_that_does_not_read_blocks_nothing(job: Any, server: JobServer) -> None:
    started(job, server)
    job._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    began = time.monotonic()
    for _ in range(100):
        job._tokens = 10.0
        job.report_error("other", "x" * 500)
    assert job.counts["dropped"] > 50
    assert time.monotonic() - began < patient(5)


# Advice


def test_advice(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    assert not job.save_advised and job.advice is None
    rank.send(kind="advice", advice="save", why="gpu/0: row remap", by=None, finding=12)
    wait_until(lambda: job.save_advised)
    assert job.advice["why"] == "gpu/0: row remap"
    rank.send(kind="advice", advice="none")
    wait_until(lambda: not job.save_advised)


def test_advice_is_followed_by_one_checkpoint(job: Any, server: JobServer) -> None:
    """`save_advised` ends with a complete checkpoint that began after the advice, and returns with
    the next advice; the same advice of a restarted daemon is followed already.
    """
    rank = started(job, server)
    advice = {"kind": "advice", "advice": "save", "why": "gpu/0: row remap", "finding": 12}
    with job.checkpoint(1):
        rank.send(**advice)
        wait_until(lambda: job.save_advised)
    assert job.save_advised  # it may have begun too early
    with suppress(OSError), job.checkpoint(2):
        raise OSError("disk full")
    with job.checkpoint(2, tier="memory"):
        pass
    assert job.save_advised
    with job.checkpoint(3):
        pass
    assert not job.save_advised and job.advice["finding"] == 12
    rank.send(**{**advice, "finding": 13})
    wait_until(lambda: job.save_advised)
    rank.send(**advice)
    wait_until(lambda: not job.save_advised)
    rank.send(kind="advice", advice="none")
    wait_until(lambda: job.advice is None)
    rank.send(**advice)
    wait_until(lambda: job.save_advised)


def test_a_checkpoint_reads_advice_that_has_arrived(job: Any, server: JobServer) -> None:
    """So that ranks of a node that save together have all followed it."""
    rank = started(job, server)
    job._due = math.inf
    rank.send(kind="advice", advice="save", why="gpu/0: row remap")
    assert not job.save_advised
    with job.checkpoint(1):
        assert job.save_advised
    assert job.advice is not None and not job.save_advised


@pytest.mark.parametrize(
    "packet",
    [b"[]", b"{", b"\xff\xff", b"null", b'{"kind":"advice"}', b'{"kind":7}', b" " * 9000],
    ids=["list", "cut", "binary", "null", "no advice", "number", "long"],
)
def test_garbage_from_the_socket(job: Any, server: JobServer, packet: bytes) -> None:
    rank = started(job, server)
    rank.socket.send(packet)
    rank.send(kind="advice", advice="save")
    wait_until(lambda: job.save_advised)
    job.step(5)
    assert rank.read_page()["step"] == 5


def test_unasked_descriptors_are_closed(job: Any, server: JobServer) -> None:
    rank = started(job, server)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with open(os.devnull) as opened:
        for _ in range(8):
            socket.send_fds(rank.socket, [b"{}"], [opened.fileno()] * 3)
    rank.send(kind="advice", advice="save")
    wait_until(lambda: job.save_advised)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Without a daemon, and after one


def test_nothing_without_a_daemon(job: Any, tmp_path: Path) -> None:
    job.start(path=str(tmp_path / "absent"))
    with job.phase("eval"), job.checkpoint(1) as saved:
        saved.bytes = 1
        job.step(1, loss=math.nan)
        job.mark_collective()
    job.report_error("oom", "x")
    assert not job.save_advised
    job.end()
    assert job.counts == {"sent": 0, "dropped": 0, "connected": 0, "errors": 0}


def test_it_can_be_switched_off(
    job: Any, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALD_JOB_SOCKET", "")
    monkeypatch.setattr(client, "SOCKET", str(server.path))
    job.start()
    job.step(1)
    assert not server.has_client()


def test_a_job_that_was_not_started_does_nothing() -> None:
    idle = client.Job()
    idle.step(1, loss=1.0)
    with idle.phase("eval"), idle.checkpoint(1):
        pass
    idle.end()
    assert idle.counts == {"sent": 0, "dropped": 0, "connected": 0, "errors": 0}


@pytest.mark.parametrize(
    "call",
    [
        lambda job: job.step(-1),
        lambda job: job.step("x"),
        lambda job: job.step(1, loss=10**400),
        lambda job: job.step(1, seconds="long"),
        lambda job: job.phase("lunch").__enter__(),
        lambda job: job.phase("eval", limit="long").__enter__(),
        lambda job: job.checkpoint("x").__enter__(),
        lambda job: job.report_error("oom", object()),
        lambda job: job.report_error(object(), "x"),
        lambda job: job.start(path="\0", step_limit=object()),
        lambda job: job.start(path="x" * 200),
    ],
)
def test_wrong_arguments_raise_nothing(
    job: Any, server: JobServer, call: Callable[[Any], object]
) -> None:
    started(job, server)
    call(job)


def test_a_restarted_daemon_is_found_again(tmp_path: Path, job: Any) -> None:
    with JobServer(tmp_path / "j") as server:
        started(job, server)
        job.step(5, loss=1.5)
    wait_until(lambda: job.step(6, loss=1.25) or job._socket is None)
    with JobServer(tmp_path / "j") as server:
        job.step(7)
        assert not server.has_client()  # not before 30 s have passed
        job._next_attempt = job._due = time.monotonic()
        job.step(8)
        rank = server.accept()
        assert rank.receive() == {"v": 1, "kind": "phase", "phase": "train", "limit_s": 0}
        rank.welcome()
        wait_until(lambda: job.step(9, loss=1.125) or rank.read_page()["step"] == 9)
        assert rank.read_page()["seq"] >= 1
    assert job.counts["connected"] == 2
    assert job.counts["errors"] == 0


def test_attempts_to_connect_are_30_seconds_apart(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    monkeypatch.setattr(client, "_monotonic", lambda: clock)
    attempts = []
    connect = client.Job._connect

    def count(self: Any, now: float) -> None:
        attempts.append(now)
        connect(self, now)

    monkeypatch.setattr(client.Job, "_connect", count)
    job.start(path=str(tmp_path / "absent"))
    for _ in range(10_000):
        clock += 0.01
        job.step(1)
    assert attempts == pytest.approx([1000, 1030, 1060, 1090], abs=0.1)


# As processes: the end of one, on every Python that is found

PYTHONS = {
    path.parent.parent.name: path
    for path in sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin/python")
    )
    if (3, 8) <= tuple(int(part) for part in path.parent.parent.name.split(".")[:2]) <= (3, 13)
} or {"this": Path(sys.executable)}
HEAD = "import os, sys, time\nfrom vitald_job import job\njob.start(rank=1)\n"
TRAIN = (
    "for step in range({steps}):\n    job.step(step, loss=1.0 / (step + 1))\n    time.sleep(0.01)\n"
)


@pytest.fixture
def launch(server: JobServer) -> Iterator[Callable[..., tuple[Any, RankConnection]]]:
    running: list[subprocess.Popen[str]] = []

    def start(program: str, python: Path | str = sys.executable) -> tuple[Any, RankConnection]:
        environment = {
            "VITALD_JOB_SOCKET": str(server.path),
            "PYTHONPATH": str(CLIENT.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.environ["PATH"],
        }
        process = subprocess.Popen(
            [str(python), "-W", "error", "-c", HEAD + program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        rank = server.accept()
        rank.welcome()
        return process, rank

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_a_process_from_its_first_step_to_its_end(launch: Callable[..., Any], python: Path) -> None:
    checkpoint = "with job.checkpoint(19) as saved: saved.bytes = 7\n"
    process, rank = launch(TRAIN.format(steps=20) + checkpoint + "print(job.counts)", python)
    received = rank.receive_all()
    out, err = process.communicate(timeout=patient(20))
    assert (process.returncode, err) == (0, "")
    assert "'errors': 0" in out
    assert rank.read_page()["step"] == 19
    assert received[-1] == {"v": 1, "kind": "phase", "phase": "end", "limit_s": 0}
    assert [packet["state"] for packet in received if packet["kind"] == "checkpoint"] == [
        *("begin", "end")
    ]


def test_the_last_step_outlives_a_kill(launch: Callable[..., Any]) -> None:
    program = "import itertools\nfor step in itertools.count():\n    job.step(step)\n"
    process, rank = launch(program + "    print(step, flush=True)\n")
    wait_until(lambda: rank.read_page()["seq"])
    lines = [process.stdout.readline() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    assert rank.receive_all() == []  # the end of the connection, without a goodbye
    lines += process.stdout.read().splitlines(keepends=True)
    last = max(int(line) for line in lines if line.endswith("\n"))
    assert last <= rank.read_page()["step"] <= last + 2  # the last line may be cut


def test_an_exception_is_no_goodbye(launch: Callable[..., Any]) -> None:
    crash = "raise RuntimeError('CUDA error: uncorrectable ECC error encountered')\n"
    _, rank = launch(TRAIN.format(steps=5) + crash)
    text = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert rank.receive_all() == [{"v": 1, "kind": "error", "what": "cuda", "text": text}]
    assert rank.read_page()["phase"] == job_page.Phase.TRAIN


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp", "nccl"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda"),
        ("RuntimeError: nrt_execute status=1202", "neuron"),
        ("KeyError: 'x'", "other"),
    ],
)
def test_exceptions_by_their_words(text: str, what: str) -> None:
    assert client.classify_exception(text) == what


def test_a_fork_lets_go_of_the_connection(launch: Callable[..., Any]) -> None:
    """A worker that lives longer does not hold its rank's connection open, nor write its page."""
    fork = (
        "child = os.fork()\n"
        "if not child:\n"
        "    job.step(999)\n    print('child', job.save_advised, flush=True)\n"
        "    time.sleep(600)\n    os._exit(0)\n"
        "print(child, flush=True)\n"
    )
    process, rank = launch(TRAIN.format(steps=10) + fork + "time.sleep(600)\n")
    lines = sorted(process.stdout.readline().split()[0] for _ in range(2))
    child = int(lines[0])
    try:
        assert lines[1] == "child"
        assert rank.read_page()["step"] == 9
        process.kill()
        assert rank.receive_all() == []
        os.kill(child, 0)  # still there
    finally:
        os.kill(child, signal.SIGKILL)
