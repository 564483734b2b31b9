"""`vitald scan`: a saved log in, events by line and one verdict out."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.builders import LABELS, LINES, ROOT, labelled, reference

Json = dict[str, object]
BUS = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=x, GPU has fallen off the bus."


def scan(data: bytes, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output; anything on standard error fails the test."""
    done = subprocess.run([sys.executable, "-m", "agent", "scan", "-", *arguments], cwd=ROOT, input=data, capture_output=True, timeout=60)
    assert done.stderr == b""
    return done.returncode, done.stdout.decode()


def scan_json(data: bytes, *arguments: str) -> tuple[list[Json], Json]:
    code, out = scan(data, "--json", *arguments)
    objects = [json.loads(line) for line in out.splitlines()]
    assert {entry["type"] for entry in objects[:-1]} <= {"event", "untrusted"}
    assert objects[-1]["type"] == "verdict"
    assert code == {"healthy": 0, "degraded": 10, "unhealthy": 20}[objects[-1]["status"]]
    return objects[:-1], objects[-1]


def check_labels(entries: Sequence[Json]) -> None:
    """Every labelled line is an event with its labels at its number, in order, and nothing else is."""
    events, _ = scan_json("".join(f"{entry['line']}\n" for entry in entries).encode())
    wanted = [
        {"type": "event", "line": number, "raw": entry["line"], **{name: entry[name] for name in LABELS}}
        for number, entry in enumerate(entries, start=1)
        if entry["kind"] != "noise"
    ]
    assert [{name: event[name] for name in ("type", "line", "raw", *LABELS)} for event in events] == wanted


def test_the_corpus_as_one_log() -> None:
    check_labels(labelled(LINES))


def test_the_reference_as_one_log() -> None:
    check_labels(labelled(reference("kernel-lines.dev.jsonl")))


def verdict_of(*lines: str) -> Json:
    return scan_json("".join(f"{line}\n" for line in lines).encode())[1]


def test_stories_are_told_by_the_lines_own_clock() -> None:
    """The cleanup of a process goes with the loss of its GPU, and not with one of an hour before, nor of another boot."""
    after = "NVRM: Xid (PCI:0000:65:00): 31, pid=1896, name=train, Ch 00000010, intr 00000000. MMU Fault: x"
    counts = [
        len(verdict_of(f"[  100.000000] {BUS}", f"[{stamp}] {after}")["findings"])  # type: ignore[arg-type]
        for stamp in ("  101.000000", " 3700.000000", "   90.000000")
    ]
    assert counts == [1, 2, 2]
    assert len(verdict_of(f"4,1,100000000,-;{BUS}", f"4,2,3700000000,-;{after}")["findings"]) == 2  # type: ignore[arg-type]
    assert len(verdict_of(BUS, after)["findings"]) == 1  # type: ignore[arg-type]  # no clock: they stand together


def test_an_event_and_the_verdict_have_the_promised_keys() -> None:
    events, verdict = scan_json(f"[  1.0] usb 1-1: x\n[  2.0] {BUS}\n".encode())
    assert events == [
        {
            "type": "event",
            "line": 2,
            "kind": "xid",
            "code": 79,
            "pci": "0000:65:00.0",
            "pid": 1,
            "process": "x",
            "link": None,
            "fatal": None,
            "raw": f"[  2.0] {BUS}",
        }
    ]
    assert {name: verdict[name] for name in ("status", "rebootRequired", "replacementRequired", "action")} == {
        "status": "unhealthy",
        "rebootRequired": True,
        "replacementRequired": False,
        "action": "reboot_node",
    }
    findings = verdict["findings"]
    assert isinstance(findings, list)
    assert [(found["code"], found["component"], found["action"], found["count"]) for found in findings] == [
        ("xid/79", "gpu/0000:65:00.0", "reboot_node", 1)
    ]


@pytest.mark.parametrize("data", [b"", b"\n\n\n", b"usb 1-1: new device\n", b"\x00\xff\n"])
def test_a_quiet_log_is_healthy(data: bytes) -> None:
    events, verdict = scan_json(data)
    assert (events, verdict["status"], verdict["rebootRequired"], verdict["findings"]) == ([], "healthy", False, [])


def test_profile_policy_and_overrides_are_applied(tmp_path: Path) -> None:
    assert scan_json(BUS.encode(), "--profile", "hyperpod")[1]["replacementRequired"] is True
    config = tmp_path / "config.toml"
    config.write_text('[policy]\ndevice_reset = true\n[catalog.overrides."xid/79"]\naction = "reset_device"\n')
    verdict = scan_json(BUS.encode(), "--config", str(config))[1]
    assert (verdict["status"], verdict["rebootRequired"], verdict["action"]) == ("unhealthy", False, "reset_device")


def test_a_record_of_a_process_is_not_judged_unless_asked() -> None:
    record = f"12,7,8,-;{BUS}\n".encode()
    for arguments, wanted in (((), ("healthy", 0, 1)), (("--accept-userspace",), ("unhealthy", 1, 0))):
        (shown,), verdict = scan_json(record, *arguments)
        assert shown["type"] == ("event" if arguments else "untrusted")
        assert (verdict["status"], verdict["events"], verdict["untrusted"]) == wanted


def test_an_event_says_whether_it_was_believed() -> None:
    """`--json` shows what a process wrote beside what the kernel wrote: a reader must be able to tell them apart."""
    theirs, _ = scan_json(f"12,7,8,-;{BUS}\n".encode())
    ours, _ = scan_json(f"4,7,8,-;{BUS}\n".encode())
    assert [{**event, "raw": ""} for event in theirs] != [{**event, "raw": ""} for event in ours]


def test_a_line_of_a_mebibyte_is_one_line() -> None:
    events, _ = scan_json(b"x" * 2**20 + b"\n" + BUS.encode() + b"\n")
    assert [event["line"] for event in events] == [2]


def test_a_carriage_return_ends_no_line() -> None:
    events, _ = scan_json(f"x\r{BUS}\r\n{BUS}\r\n".encode())
    assert [event["line"] for event in events] == [2]


def test_for_people_it_says_what_to_do_and_drives_no_terminal() -> None:
    code, out = scan(b"NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=\x1b[31m\x07, GPU has fallen off the bus.\n")
    assert code == 20
    assert "reboot the node" in out
    assert all(char.isprintable() or char == "\n" for char in out)


def test_random_bytes_never_crash_it() -> None:
    chance = random.Random(7)  # the same bytes every time
    noise = b"".join(
        chance.choice([bytes([chance.randrange(256)]), b"\n", b"NVRM: Xid (PCI:", b"4,1,2,-;", b"[  1.0] "]) for _ in range(20_000)
    )
    scan_json(noise + b"\n")


def test_a_number_without_end_breaks_no_output() -> None:
    events, _ = scan_json(f"INFO: task a:1 blocked for more than {'9' * 5000} seconds.\n{BUS}\n".encode())
    assert events[-1]["line"] == 2


@pytest.mark.parametrize(("arguments", "code"), [(["/nonexistent"], 66), (["-", "--config", "/nonexistent"], 78)])
def test_what_cannot_be_read_is_said_in_one_line(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "agent", "scan", *arguments], cwd=ROOT, input=b"", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)
