"""What `vitald report --flight` makes of a folder: dumps as PyTorch's source describes them, made
here, and files that are hostile.

tests/data/flight has real ones.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import PYTHON, ROOT
from tests.pace import patient
from vitald.cli.report import flight, plain_pickle
from vitald.cli.report.flight import read_flight
from vitald.cli.report.flight_text import describe_flight
from vitald.cli.report.plain_pickle import NotPlain, read_plain_pickle

Json = dict[str, Any]


def make_dump(enqueued: int, completed: int, **changes: object) -> Json:
    """With the keys of FlightRecorderDetail.hpp (dump_dict, getCollectiveTrace, getPgStatus)."""
    entries = [
        {
            "record_id": number - 1,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_795_000_000_000_000_000 + number,
            "input_sizes": [[1024, 1024]],
            "state": "completed" if number <= completed else "started",
            "retired": number <= completed,
            "timeout_ms": 600_000,
            "is_p2p": False,
            "frames": [{"name": "train", "filename": "/home/alice/train.py", "line": 7}],
        }
        for number in range(1, enqueued + 1)
    ]
    status = {
        "last_enqueued_collective": enqueued,
        "last_started_collective": enqueued,
        "last_completed_collective": completed,
    }
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": status},
        "entries": entries,
        **changes,
    }


def write_dump(folder: Path, rank: int, enqueued: int, completed: int, protocol: int = 2) -> None:
    dump = pickle.dumps(make_dump(enqueued, completed), protocol)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(dump)


def describe(folder: Path) -> list[str]:
    return list(describe_flight(read_flight(folder)))


def test_a_rank_that_did_not_come(tmp_path: Path) -> None:
    for rank in range(8):
        write_dump(tmp_path, rank, enqueued=5 if rank == 3 else 6, completed=5)
    assert describe(tmp_path) == [
        "process group 0 (default_pg): rank 3: enqueued 5, completed 5",
        "process group 0 (default_pg): the others (7): enqueued 6, completed 5",
        "process group 0 (default_pg): rank 3 has not enqueued collective 6 (nccl:all_reduce),"
        " others have",
    ]


def test_real_files() -> None:
    """Of two processes of PyTorch 2.15: tests/data/flight/README.md."""
    evidence = read_flight(ROOT / "tests/data/flight")
    assert [dump.version for dump in evidence.dumps] == ["2.10", "2.10"]
    assert list(describe_flight(evidence))[:4] == [
        "process group 0 (default_pg): rank 1: enqueued 5, completed 4",
        "process group 0 (default_pg): rank 0: enqueued 6, completed 5",
        "process group 0 (default_pg): rank 1 has not enqueued collective 6 (gloo:all_reduce),"
        " others have",
        "attempt_0/0/error.json at 2026-11-23T19:16:57.000Z: RuntimeError: CUDA error:"
        " uncorrectable ECC error encountered",
    ]
    assert [file for file, _ in evidence.problems] == ["README.md"]


def test_ranks_that_are_all_at_one_place(tmp_path: Path) -> None:
    for rank in range(4):
        write_dump(tmp_path, rank, 6, 5)
    assert describe(tmp_path) == [
        "process group 0 (default_pg): all 4 dumps: enqueued 6, completed 5"
    ]


def test_two_that_differ_are_both_named(tmp_path: Path) -> None:
    write_dump(tmp_path, 0, 6, 5)
    write_dump(tmp_path, 1, 5, 5)
    assert describe(tmp_path)[:2] == [
        "process group 0 (default_pg): rank 1: enqueued 5, completed 5",
        "process group 0 (default_pg): rank 0: enqueued 6, completed 5",
    ]


def test_many_ranks_are_named_by_ranges(tmp_path: Path) -> None:
    for rank in range(12):
        write_dump(tmp_path, rank, 5 if rank in (0, 1, 2, 7) else 6, 5)
    assert describe(tmp_path)[0].endswith("ranks 0-2, 7: enqueued 5, completed 5")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_each_protocol_of_plain_values(protocol: int) -> None:
    value = make_dump(3, 2, more=[None, True, -1, 2**40, 1.5, "é", (), (1,), {}, [[]]])
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(VALUES, st.sampled_from([2, 4]))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        read_plain_pickle(b"\x80\x02" + data)
    except NotPlain:
        pass


def test_torn_and_damaged_files() -> None:
    whole = pickle.dumps(make_dump(20, 19), 2)
    noise = random.Random(5)
    for size in range(0, len(whole), 37):
        with pytest.raises(NotPlain):
            read_plain_pickle(whole[:size])
        damaged = bytearray(whole)
        damaged[size] = noise.randrange(256)
        try:
            read_plain_pickle(bytes(damaged))
        except NotPlain:
            pass


class Hostile:
    """What a plain unpickler would execute."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_of_a_file_is_executed(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "executed"
    folder = tmp_path / "f"
    folder.mkdir()
    hostile = pickle.dumps(make_dump(1, 1, entries=[Hostile(marker)]), protocol)
    (folder / "rank_0").write_bytes(hostile)
    evidence = read_flight(folder)
    assert not evidence.dumps and len(evidence.problems) == 1
    assert "opcode" in evidence.problems[0][1]
    assert not marker.exists()
    pickle.loads(hostile)  # the test can fail
    assert marker.exists()


def nested(levels: int) -> bytes:
    """Each a pair of the one before, twice: 2**levels when somebody walks through it."""
    return b"\x80\x02)" + b"q\x00h\x00\x86" * levels


BOMBS = {
    "a memo of 4 G": b"\x80\x02Nr\xff\xff\xff\xff0.",
    "a text of 4 GiB": b"\x80\x02X\xff\xff\xff\xffabc.",
    "a number in decimal": b"\x80\x02I" + b"9" * 1_000_000 + b"\n.",
    "a long number": b"\x80\x02\x8b\x00\x00\x10\x00" + b"\x01" * 0x100000 + b".",
    "empty dictionaries": b"\x80\x02(" + b"}" * 16_000_000 + b"l.",
    "a key that takes for ever to hash": b"\x80\x02}" + nested(60)[2:] + b"Ns.",
    "keys with one hash": b"\x80\x02}("
    + b"".join(b"\x8a\x10" + (n * (2**61 - 1)).to_bytes(16, "little") + b"N" for n in range(99_999))
    + b"u.",
    "deep lists": b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b".",
    "pairs of pairs": nested(60) + b".",
    "frames of 2**64": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "a persistent id": b"\x80\x02Pos\nsystem\n.",
    "an extension": b"\x80\x02\x82\x01.",
}


def test_one_text_in_many_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte that would be 118 MB of JSON, in many files."""
    nest = [["x" * 512] * 16] * 16
    entry = dict.fromkeys(("pg_id", "state", "profiling_name", "input_sizes"), nest)
    dump = {"pg_status": {}, "entries": [entry] * 64}
    for rank in range(8):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump, 2))
    evidence = read_flight(tmp_path)
    whole = [each.entries for each in evidence.dumps]
    assert len(json.dumps(whole)) < 8 * 1024 * 1024
    monkeypatch.setattr(flight, "MAX_KEPT_BYTES", len(json.dumps(whole)) // 2)
    evidence = read_flight(tmp_path)
    assert sum(bool(each.entries) for each in evidence.dumps) == 4
    assert [file for file, _ in evidence.problems] == [f"rank_{rank}" for rank in range(4, 8)]


def test_names_of_groups_that_are_not_there(tmp_path: Path) -> None:
    entries = [{"pg_id": n, "process_group": ("0", "x" * 512)} for n in range(1000)]
    dump = {"pg_status": {}, "entries": entries}
    (tmp_path / "rank_0").write_bytes(pickle.dumps(dump, 2))
    assert read_flight(tmp_path).dumps[0].names == {}


@pytest.mark.parametrize("name", list(BOMBS))
def test_bombs(name: str, tmp_path: Path) -> None:
    """In a process of its own, within 512 MiB of address space and a few seconds."""
    (tmp_path / "rank_0").write_bytes(BOMBS[name])
    code = (
        "import sys; from pathlib import Path; from vitald.cli.report.flight import read_flight;"
        "from vitald.cli.report.flight_text import describe_flight;"
        "print('\\n'.join(describe_flight(read_flight(Path(sys.argv[1])))))"
    )
    done = subprocess.run(
        [PYTHON, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(30.0),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("not read: rank_0: ") and len(done.stdout) < 500


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    (folder / "inner").mkdir(parents=True)
    write_dump(tmp_path, 0, 6, 5)
    os.mkfifo(folder / "pipe_1")
    (folder / "link_2").symlink_to(tmp_path / "nccl_trace_rank_0")
    (folder / "gone_3").symlink_to("/nonexistent")
    (folder / "device_4").symlink_to("/dev/zero")
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    (folder / "empty_5").touch()
    (folder / "text_6").write_text("not a pickle")
    (folder / "other_7").write_bytes(pickle.dumps({"a": 1}))
    big = folder / "big_8"
    big.touch()
    os.truncate(big, flight.MAX_FILE_BYTES + 1)
    write_dump(folder / "inner", 9, 6, 5)
    evidence = read_flight(folder)
    assert [dump.file for dump in evidence.dumps] == ["inner/nccl_trace_rank_9"]
    reasons = dict(evidence.problems)
    for name in ("pipe_1", "link_2", "gone_3", "device_4"):
        assert reasons[name].startswith("no regular file"), name
    assert reasons["big_8"] == "larger than 16 MiB" and reasons["empty_5"] == "empty"
    assert reasons["text_6"].startswith("opcode ")
    assert reasons["other_7"].startswith("no dump of a flight recorder")
    with pytest.raises(OSError, match="symbolic link"):
        read_flight(folder / "linked")
    with pytest.raises(OSError):
        read_flight(tmp_path / "nonexistent")


def test_limits_of_number_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path
    for _ in range(12):
        deep = deep / "d"
        deep.mkdir()
    write_dump(deep, 1, 6, 5)
    assert not read_flight(tmp_path).dumps
    monkeypatch.setattr(flight, "MAX_FILES", 3)
    for rank in range(5):
        write_dump(tmp_path, rank, 6, 5)
    evidence = read_flight(tmp_path)
    assert len(evidence.dumps) == 3
    assert evidence.problems == [("all further files", "not read: the limit is 3 files")]
    monkeypatch.setattr(plain_pickle, "MAX_VALUES", 10)
    assert not read_flight(tmp_path).dumps


def test_values_of_wrong_types(tmp_path: Path) -> None:
    """What is no dump is named; what is wrong in one is left out."""
    odd: list[object] = [1, None, "x", [], {}, {"0": 1}, {"0": {"last_enqueued_collective": "6"}}]
    for number, status in enumerate(odd):
        dump = make_dump(2, 1, pg_status=status, entries=[1, {"pg_id": [], "process_group": 7}])
        (tmp_path / f"rank_{number}").write_bytes(pickle.dumps(dump, 2))
    for number, entries in enumerate(["x", 7, {}, [[], {}], None]):
        dump = make_dump(2, 1, entries=entries, version=[1])
        (tmp_path / f"rank_1{number}").write_bytes(pickle.dumps(dump, 2))
    list(describe_flight(read_flight(tmp_path)))


def write_error(folder: Path, rank: int, content: object) -> None:
    (folder / str(rank)).mkdir(parents=True)
    (folder / str(rank) / "error.json").write_text(json.dumps(content))


def test_errors_of_torchelastic(tmp_path: Path) -> None:
    """Of the shape that torch/distributed/elastic/multiprocessing/errors writes."""
    said = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    extra = {"py_callstack": "Traceback\n  train.py", "timestamp": "1795321137"}
    write_error(tmp_path, 0, {"message": {"message": said, "extraInfo": extra}})
    write_error(tmp_path, 1, {"message": "killed by\na signal"})
    write_error(tmp_path, 2, {"message": 7})
    write_error(tmp_path, 3, [])
    lines = describe(tmp_path)
    assert lines[0] == f"0/error.json at 2026-11-22T04:18:57.000Z: {said}"
    assert lines[1] == "1/error.json: killed by a signal"
    assert [line.partition(":")[0] for line in lines[2:]] == ["not read", "not read"]
    (tmp_path / "0/error.json").write_text("[" * 100_000)
    assert describe(tmp_path)[-1].startswith("not read") or len(describe(tmp_path)) == 4


def test_in_the_archive(tmp_path: Path) -> None:
    """Through the command: a section of the summary, and files of text without a pickle."""
    folder = tmp_path / "f"
    folder.mkdir()
    for rank in range(4):
        write_dump(folder, rank, 5 if rank == 3 else 6, 5)
    write_error(folder, 3, {"message": "password=hunter2-secret\x1b[31m"})
    (folder / "torn_4").write_bytes(pickle.dumps(make_dump(3, 2), 2)[:100])
    archive = tmp_path / "report.tar.gz"
    done = subprocess.run(
        [*(PYTHON, "-m", "vitald", "report", "--flight", str(folder)),
         *("--output", str(archive), "--socket", "/nonexistent", "--no-logs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(60.0),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "without flight/ torn_4: it is torn" in done.stdout
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        members = {
            member.name.partition("/")[2]: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
        }
    summary = members["summary.txt"].decode()
    assert "rank 3: enqueued 5, completed 5" in summary
    assert "hunter2" not in summary and "\x1b" not in summary
    dumps = json.loads(members["flight/dumps.json"])
    assert [dump["rank"] for dump in dumps] == [0, 1, 2, 3]
    assert dumps[0]["entries"][-1]["profiling_name"] == "nccl:all_reduce"
    assert b"hunter2" not in members["flight/errors.json"]
    assert "flight/" in members["README.txt"].decode()


def test_it_needs_an_archive() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vitald", "report", "--html", "x.html", "--flight", "/tmp"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "--flight is for an archive" in done.stderr
