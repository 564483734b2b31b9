"""`vitald scan`: a saved log in, events by line and one verdict out."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builders import LABELS, LINES, ROOT, labelled
from tests.waiting import WAIT_S
from vitald.cli import run_command

pytestmark = pytest.mark.usefixtures("catalog_loaded_once")

Json = dict[str, Any]
BUS = "NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=x, GPU has fallen off the bus."


def scan(data: bytes, *arguments: str) -> tuple[int, str]:
    """Exit code and standard output; anything on standard error fails the test."""
    out, errors = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            code = run_command(["scan", "-", *arguments])
    finally:
        sys.stdin = before
    assert errors.getvalue() == ""
    assert isinstance(code, int)
    return code, out.getvalue()


def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """The command as a shell starts it."""
    command = [sys.executable, "-m", "vitald", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=WAIT_S, **more)


def scan_json(data: bytes, *arguments: str) -> tuple[list[Json], Json]:
    code, out = scan(data, "--json", *arguments)
    objects = [json.loads(line) for line in out.splitlines()]
    assert {entry["type"] for entry in objects[:-1]} <= {"event", "untrusted"}
    assert objects[-1]["type"] == "verdict"
    assert (
        code
        == {"healthy": 0, "degraded": 10, "unhealthy": 20, "unknown": 30}[objects[-1]["status"]]
    )
    return objects[:-1], objects[-1]


def check_labels(entries: Sequence[Json]) -> None:
    """Every labelled line is an event with its labels at its number, in order, and nothing
    else is.
    """
    events, _ = scan_json("".join(f"{entry['line']}\n" for entry in entries).encode())
    wanted = [
        {
            "type": "event",
            "line": number,
            "raw": entry["line"],
            **{name: entry[name] for name in LABELS},
        }
        for number, entry in enumerate(entries, start=1)
        if entry["kind"] != "noise"
    ]
    assert [
        {name: event[name] for name in ("type", "line", "raw", *LABELS)} for event in events
    ] == wanted


def test_the_corpus_as_one_log() -> None:
    check_labels(labelled(LINES))


def verdict_of(*lines: str) -> Json:
    return scan_json("".join(f"{line}\n" for line in lines).encode())[1]


def test_stories_are_told_by_the_lines_own_clock() -> None:
    """The cleanup of a process goes with the loss of its GPU, and not with one of an hour before,
    nor of another boot.
    """
    after = (
        "NVRM: Xid (PCI:0000:65:00): 31, pid=1896, name=train, Ch 00000010, intr 00000000. MMU"
        " Fault: x"
    )
    counts = [
        len(verdict_of(f"[  100.000000] {BUS}", f"[{stamp}] {after}")["findings"])
        for stamp in ("  101.000000", " 3700.000000", "   90.000000")
    ]
    assert counts == [1, 2, 2]
    assert len(verdict_of(f"4,1,100000000,-;{BUS}", f"4,2,3700000000,-;{after}")["findings"]) == 2
    assert len(verdict_of(BUS, after)["findings"]) == 1  # no clock: they stand together


def test_an_event_and_the_verdict_have_the_promised_keys() -> None:
    events, verdict = scan_json(f"[  1.0] usb 1-1: x\n[  2.0] {BUS}\n".encode())
    assert events == [
        {
            "type": "event",
            "line": 2,
            "time": None,
            "simulated": False,
            "kind": "xid",
            "code": 79,
            "pci": "0000:65:00.0",
            "pid": 1,
            "process": "x",
            "link": None,
            "fatal": None,
            "facility": None,
            "raw": f"[  2.0] {BUS}",
        }
    ]
    assert {
        name: verdict[name]
        for name in ("status", "rebootRequired", "replacementRequired", "action")
    } == {
        "status": "unhealthy",
        "rebootRequired": True,
        "replacementRequired": False,
        "action": "reboot_node",
    }
    findings = verdict["findings"]
    assert isinstance(findings, list)
    assert [
        (found["code"], found["component"], found["action"], found["count"]) for found in findings
    ] == [("xid/79", "gpu/0000:65:00.0", "reboot_node", 1)]


QUIET = "[    1.0] usb 1-1: new device\n"


def test_a_quiet_log_is_healthy() -> None:
    logs = (
        *(QUIET, "Feb 23 16:24:18 node7 kernel: usb 1-1: x\n"),
        *("6,1,2,-;usb 1-1: x\n", f"word\n{QUIET}"),
    )
    for data in logs:
        events, verdict = scan_json(data.encode())
        assert events == verdict["findings"] == verdict["reasons"] == [], data
        assert (verdict["status"], verdict["rebootRequired"], verdict["problem"]) == (
            *("healthy", False),
            None,
        ), data


NO_LOG = {
    "empty": b"",
    "empty lines": b"\n\n\n",
    "bare words": b"usb 1-1: new device\n",
    "binary": b"\x7fELF\x00\xff\n\x00\x01[1\n",
    "passwd": b"root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n",
    "another program's": b"Feb 23 16:24:18 node7 sshd[1]: Accepted publickey\n",
    "application": b"2026-08-11 00:36:05,551 ERROR worker: failed\n",
    "json of an application": b'{"level":"info","msg":"started"}\n',
    "random": bytes(random.Random(3).randrange(256) for _ in range(5000)),
}


def test_what_is_no_kernel_log_is_unknown() -> None:
    for name, data in NO_LOG.items():
        events, verdict = scan_json(data)
        assert (events, verdict["status"]) == ([], "unknown"), name
        assert verdict["reasons"] == [verdict["problem"]] != [None], name
        code, out = scan(data)
        assert (code, "UNKNOWN" in out) == (30, True), name


def test_profile_policy_and_overrides_are_applied(tmp_path: Path) -> None:
    assert scan_json(BUS.encode(), "--profile", "hyperpod")[1]["replacementRequired"] is True
    config = tmp_path / "config.toml"
    config.write_text(
        '[policy]\ndevice_reset = true\n[catalog.overrides."xid/79"]\naction = "reset_device"\n'
    )
    verdict = scan_json(BUS.encode(), "--config", str(config))[1]
    assert (verdict["status"], verdict["rebootRequired"], verdict["action"]) == (
        "unhealthy",
        False,
        "reset_device",
    )


@pytest.mark.parametrize(
    ("arguments", "wanted", "mark"),
    [
        ((), ("unhealthy", 1, 0), "written by a process"),
        (("--userspace", "ignore"), ("healthy", 0, 1), "UNTRUSTED"),
        (("--userspace", "confirmed"), ("unhealthy", 1, 0), ""),
        (("--accept-userspace",), ("unhealthy", 1, 0), ""),
    ],
)
def test_a_record_of_a_process_is_judged_as_the_daemon_would(
    arguments: tuple[str, ...], wanted: tuple[str, int, int], mark: str
) -> None:
    record = f"12,7,8,-;{BUS}\n".encode()
    (shown,), verdict = scan_json(record, *arguments)
    assert shown["type"] == ("untrusted" if mark == "UNTRUSTED" else "event")
    assert (verdict["status"], verdict["events"], verdict["untrusted"]) == wanted
    printed = scan(record, *arguments)[1]
    assert mark in printed if mark else "written by" not in printed


def test_an_event_says_whether_it_was_believed() -> None:
    """`--json` shows what a process wrote beside what the kernel wrote: a reader must be able to
    tell them apart.
    """
    theirs, _ = scan_json(f"12,7,8,-;{BUS}\n".encode())
    ours, _ = scan_json(f"4,7,8,-;{BUS}\n".encode())
    assert [{**event, "raw": ""} for event in theirs] != [{**event, "raw": ""} for event in ours]


def test_a_line_of_a_mebibyte_is_one_line() -> None:
    events, _ = scan_json(b"x" * 2**20 + b"\n" + BUS.encode() + b"\n")
    assert [event["line"] for event in events] == [2]


def test_a_carriage_return_ends_no_line() -> None:
    events, _ = scan_json(f"x\r{BUS}\r\n{BUS}\r\n".encode())
    assert [event["line"] for event in events] == [2]


def test_it_is_the_same_as_a_process() -> None:
    data = f"[  1.0] {BUS}\n".encode()
    done = run("scan", "-", "--json", input=data)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (*scan(data, "--json"), b"")


def test_for_people_it_says_what_to_do_and_drives_no_terminal() -> None:
    code, out = scan(
        b"NVRM: Xid (PCI:0000:65:00): 79, pid=1, name=\x1b[31m\x07, GPU has fallen off the bus.\n"
    )
    assert code == 20
    assert "reboot the node" in out
    assert all(char.isprintable() or char == "\n" for char in out)


def test_random_bytes_never_crash_it() -> None:
    chance = random.Random(7)  # the same bytes every time
    noise = b"".join(
        chance.choice(
            [bytes([chance.randrange(256)]), b"\n", b"NVRM: Xid (PCI:", b"4,1,2,-;", b"[  1.0] "]
        )
        for _ in range(20_000)
    )
    scan_json(noise + b"\n")


def test_a_number_without_end_breaks_no_output() -> None:
    events, _ = scan_json(
        f"INFO: task a:1 blocked for more than {'9' * 5000} seconds.\n{BUS}\n".encode()
    )
    assert events[-1]["line"] == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["/nonexistent"], 66),
        (["-", "--config", "/nonexistent"], 78),
        (["/dev/zero"], 66),  # a device is no saved log
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(arguments: list[str], code: int) -> None:
    done = run("scan", *arguments, input=b"")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)


# --- what a log comes wrapped in

STAMPED = f"[  517.250000] {BUS}"
JOURNAL = {
    "_TRANSPORT": "kernel",
    "SYSLOG_FACILITY": "0",
    "SYSLOG_IDENTIFIER": "kernel",
    "__REALTIME_TIMESTAMP": "1740327858250000",
}
READ = {
    "journal json": json.dumps({**JOURNAL, "MESSAGE": BUS}) + "\n",
    "journal json, bytes": json.dumps({**JOURNAL, "MESSAGE": list(BUS.encode())}) + "\n",
    "journal json, message only": (
        json.dumps({"__REALTIME_TIMESTAMP": "1740327858250000", "MESSAGE": BUS}) + "\n"
    ),
    "RFC 5424": f"<4>1 2025-02-23T16:24:18.250000+00:00 node7 kernel - - - {BUS}\n",
    "RFC 5424 with data": (
        '<4>1 2025-02-23T16:24:18.25Z node7 kernel - - [meta sequenceId="1"][x y="]"] [ '
        f" 517.250000] {BUS}\n".replace('"]"', '"\\]"')
    ),
    "RFC 5424 by TCP": f"123 <4>1 2025-02-23T16:24:18.250000+00:00 node7 kernel - - - {BUS}\n",
    "RFC 3164": f"<4>Feb 23 16:24:18 node7 kernel: {BUS}\n",
}


def test_every_form_hides_no_fault() -> None:
    found = {}
    for name, text in READ.items():
        events, verdict = scan_json(text.encode())
        found[name] = (
            [(event["kind"], event["code"], event["pci"]) for event in events],
            *(verdict["status"], verdict["rebootRequired"], verdict["problem"]),
        )
    wanted = ([("xid", 79, "0000:65:00.0")], "unhealthy", True, None)
    assert {name: result for name, result in found.items() if result != wanted} == {}


def test_a_quiet_log_is_healthy_in_every_form() -> None:
    """Where a line without a fault has no stamp, nothing shows that it is the kernel's."""
    wrong = []
    for name, text in READ.items():
        quiet = text.replace(BUS, "usb 1-1: x").replace(str(list(BUS.encode())), '"usb"')
        status = scan_json(quiet.encode())[1]["status"]
        if status != ("unknown" if "only" in name else "healthy"):
            wrong.append((name, status))
    assert wrong == []


def packed(form: str) -> bytes:
    data = f"{QUIET * 1000}{STAMPED}\n".encode()
    if form == "gzip":
        return gzip.compress(data)
    zstd = shutil.which("zstd")
    if zstd is None:
        pytest.skip("no program zstd")
    return subprocess.run([zstd, "-cq"], input=data, capture_output=True, check=True).stdout


PACKED = ("gzip", "zstd")


def scan_file(path: Path, data: bytes) -> tuple[int, str]:
    path.write_bytes(data)
    done = run("scan", str(path))
    assert done.stderr == b""
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize("form", PACKED)
def test_a_compressed_file_is_read(form: str, tmp_path: Path) -> None:
    for count in (1, 2):
        code, out = scan_file(tmp_path / "log", packed(form) * count)
        assert (code, out.count("xid/79"), "UNHEALTHY" in out) == (20, count + 1, True)


def test_gzip_is_read_from_standard_input_too() -> None:
    assert scan_json(packed("gzip"))[1]["status"] == "unhealthy"


@pytest.mark.parametrize("form", PACKED)
def test_a_damaged_file_is_unknown(form: str, tmp_path: Path) -> None:
    whole = packed(form)
    for data in (whole[:-6], whole[: len(whole) // 2], whole + b"no archive"):
        code, out = scan_file(tmp_path / "log", data)
        assert code == 20 if "79, pid" in out else 30
        assert "what follows was not read" in out


def test_without_the_program_zstd_the_next_step_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00")
    done = run("scan", str(path), env={**os.environ, "PATH": "/nowhere"})
    assert (done.returncode, b"apt-get install zstd" in done.stdout) == (30, True)


# --- forms that are not read: the command that is named makes them readable

EXPORT = "".join(f"{name}={value}\n" for name, value in JOURNAL.items())
DMESG = '{\n   "dmesg": [\n      {"pri": 4, "time": 517.25, "msg": "%s"}\n   ]\n}\n'
CRI = "2025-02-23T16:24:18.250000000Z stderr F"
STATED = f"{QUIET.rstrip()}\n{STAMPED}\n"
NOT_READ = {
    "xz": (lzma.compress(STATED.encode()), "xzcat FILE"),
    "bzip2": (bz2.compress(STATED.encode()), "bzcat FILE"),
    "UTF-16": (STATED.encode("utf-16"), "iconv -f UTF-16 -t UTF-8 FILE"),
    "UTF-16 without a mark": (STATED.encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8 FILE"),
    "UTF-16, big end first": (STATED.encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8 FILE"),
    "journal export": (
        f"__CURSOR=s=1;i=2\n{EXPORT}MESSAGE={BUS}\n\n".encode(),
        "journalctl -k -o json",
    ),
    "dmesg --json": ((DMESG % BUS).encode(), "dmesg -T"),
    "dmesg --color": (
        f"\x1b[32m[  517.250000] \x1b[0m\x1b[33mNVRM: \x1b[0m{BUS[6:]}\n".encode(),
        "dmesg --color=never",
    ),
    "Docker": (
        (json.dumps({"log": f"{STAMPED}\n", "stream": "stdout", "time": "x"}) + "\n").encode(),
        "jq -rj .log FILE",
    ),
    "CRI": (f"{CRI} {STAMPED}\n".encode(), "cut -d ' ' -f 4- FILE"),
    "pdsh": (f"node7: {STAMPED}\nnode8: {QUIET}".encode(), "sed -n 's/^HOST: //p' FILE"),
    "grep -n": (f"12:{STAMPED}\n".encode(), "cut -d : -f 2- FILE"),
    "cat -n": (f"     1\t{STAMPED}\n".encode(), "cut -f 2- FILE"),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_not_read_is_unknown_and_the_command_that_is_named_works(
    name: str, tmp_path: Path
) -> None:
    data, command = NOT_READ[name]
    events, verdict = scan_json(data)
    assert (events, verdict["status"]) == ([], "unknown")
    assert f"{command} | vitald scan -" in verdict["problem"]
    if not command.endswith("FILE") or shutil.which(command.split()[0]) is None:
        return  # it is to be run on the node, or cannot be run here
    path = tmp_path / "log"
    path.write_bytes(data)
    shell = command.replace("FILE", str(path)).replace("HOST", "node7")
    converted = subprocess.run(shell, shell=True, capture_output=True, check=True).stdout
    assert scan_json(converted)[1]["status"] == "unhealthy"


def test_a_localised_log_is_unknown() -> None:
    _, verdict = scan_json(f"[So Mär  2 16:24:18 2025] {BUS}\n".encode())
    assert (verdict["status"], "in English" in verdict["problem"]) == ("unknown", True)


# --- records over several lines

LOST = (
    "NVRM: The NVIDIA GPU 0000:65:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize("head", ["[   13.868252] ", "Feb 23 16:24:18 node7 kernel: "])
def test_indented_lines_go_on_with_their_record(head: str) -> None:
    text = f"{head}{LOST[0]}\n{'':30}{LOST[1]}\n{'':30}{LOST[2]}\n{head}usb 1-1: x\n"
    events, verdict = scan_json(text.encode())
    assert [(event["line"], event["kind"], event["pci"]) for event in events] == [
        (1, "gpu_lost", "0000:65:00.0")
    ]
    assert verdict["status"] == "unhealthy"


def test_an_indented_line_of_another_program_is_that_programs() -> None:
    text = f"Feb 23 16:24:18 node7 app[1]: Traceback\n{'':30}{BUS}\n{QUIET}"
    events, verdict = scan_json(text.encode())
    assert (events, verdict["status"]) == ([], "healthy")


def test_what_follows_a_recognised_line_takes_nothing_from_it() -> None:
    events, _ = scan_json(f"{STAMPED}\n    at some.place\n".encode())
    assert [event["line"] for event in events] == [1]


# --- what could not be read


def test_a_line_that_has_a_faults_words_and_was_not_read_is_shown() -> None:
    text = f"{QUIET}something odd [ {BUS}\n"
    events, verdict = scan_json(text.encode())
    assert (events, verdict["status"], verdict["unread"]) == ([], "unknown", 1)
    assert verdict["unreadLines"] == [{"line": 2, "raw": text.splitlines()[1]}]
    code, out = scan(text.encode())
    assert code == 30
    assert BUS in out
    assert "could not be read" in out


LOSSES = {
    "[ 7001.100] ** 3712 printk messages dropped **": 3712,
    "Sep 04 10:00:00 n systemd-journald[512]: Missed 1204 kernel messages": 1204,
    "Sep 04 10:00:00 n systemd-journald[512]: /dev/kmsg buffer overrun, some messages lost.": 0,
    (
        "Sep 04 10:00:00 n rsyslogd: imjournal: 74083 messages lost due to rate-limiting (20000"
        " allowed within 600 seconds)"
    ): 74083,
    "Jun 28 10:32:17 n rsyslogd-2177: imjournal: 236 messages lost due to rate-limiting": 236,
    "[ 7001.100] nvidia_uvm: 14 callbacks suppressed": 14,
    "6,12,7,-;x\n6,15,8,-;x": 2,
    json.dumps(
        {
            **JOURNAL,
            "_TRANSPORT": "driver",
            "SYSLOG_IDENTIFIER": "systemd-journald",
            "MESSAGE": "Missed 7 kernel messages",
        }
    ): 7,
}


def test_a_log_that_lost_records_is_not_healthy() -> None:
    quiet = "[    1.000000] usb 1-1: x\n"
    found = {}
    for text in LOSSES:
        before = "" if text.startswith("{") else quiet
        verdict = scan_json(f"{before}{text}\n".encode())[1]
        found[text] = verdict["lost"], verdict["status"]
    assert found == {text: (count, "unknown") for text, count in LOSSES.items()}


def test_a_loss_does_not_hide_what_was_found() -> None:
    lost = "[ 7001.100] ** 3712 printk messages dropped **\n"
    for line in (
        STAMPED,
        "[  600.0] EDAC MC0: 1 CE x on DIMM0 (channel:0 page:0x0 offset:0x0 grain:8)",
    ):
        alone, both = (scan_json(text.encode())[1] for text in (f"{line}\n", f"{line}\n{lost}"))
        assert (alone["status"], both["lost"]) == (both["status"], 3712)


def test_what_the_kernel_leaves_out_of_processes_and_packets_is_no_loss() -> None:
    text = (
        "[    1.000000] net_ratelimit: 12 callbacks suppressed\n"
        "[    2.000000] show_signal_msg: 33 callbacks suppressed\n"
        "Sep 04 10:00:00 n app[512]: Missed 1204 kernel messages\n"
        "6,12,7,-;x\n6,13,8,-;x\n6,1,7,-;next boot\n"
    )
    verdict = scan_json(text.encode())[1]
    assert (verdict["lost"], verdict["status"]) == (0, "healthy")


def test_what_a_program_wrote_is_not_counted_as_unread() -> None:
    for line in (
        f"Feb 23 16:24:18 node7 app[1]: {BUS}",
        f"[  101.200110] usb 1-1: Product: {BUS}",
        "12,7,8,-;NVRM: Xid (what",
        (
            "[  912.3] NVRM: Xid (PCI:[29118]: segfault at 0 ip 000055d0c0ffee12 sp"
            " 00007ffd3b1c9a40 error 6 in x): 79, y.[1+1]"
        ),
    ):
        assert scan_json(f"{QUIET}{line}\n".encode())[1]["status"] == "healthy", line


def test_a_program_that_calls_itself_kernel_is_not_believed() -> None:
    entry = {**JOURNAL, "_TRANSPORT": "syslog", "MESSAGE": BUS}
    events, verdict = scan_json((json.dumps(entry) + "\n").encode())
    assert (events, verdict["status"]) == ([], "unknown")
    quoted = {"msg": "seen", "details": {"MESSAGE": BUS, "log": BUS}}
    assert scan_json((json.dumps(quoted) + "\n").encode())[1]["status"] == "unknown"


HOSTS = [f"Feb 23 16:24:18 node{number} kernel: {STAMPED}\n" for number in (7, 8)]
SEVERAL_LOGS = f"*** /var/log/kern.log\n{STAMPED}\njournalctl -b -1:\n{STAMPED}\n"


@pytest.mark.parametrize("text", ["".join(HOSTS), SEVERAL_LOGS])
def test_what_is_not_one_log_is_not_judged(text: str, tmp_path: Path) -> None:
    events, verdict = scan_json(text.encode())
    assert (len(events), verdict["status"], verdict["findings"]) == (2, "unknown", [])
    assert "scan" in verdict["problem"]
    path = tmp_path / "log"
    path.write_text(text)
    assert run("replay", str(path)).returncode == 30
    assert scan_json(HOSTS[0].encode())[1]["status"] == "unhealthy"


# --- when

DATED = {
    "[Sun Feb 23 16:24:18 2025] ": "2025-02-23T16:24:18.000Z",
    "2025-02-23T16:24:18,250000+01:00 ": "2025-02-23T15:24:18.250Z",
    "2025-02-23T16:24:18.250Z node7 kernel: ": "2025-02-23T16:24:18.250Z",
    "Sun 2025-02-23 16:24:18 UTC node7 kernel: ": "2025-02-23T16:24:18.000Z",
    "<4>1 2025-02-23T16:24:18.250000-08:00 node7 kernel - - - ": "2025-02-24T00:24:18.250Z",
    "[  517.250000] ": None,
    "": None,
}


def test_findings_are_dated_by_the_logs_own_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    found = {}
    for prefix in DATED:
        (event,), verdict = scan_json(f"{prefix}{BUS}\n".encode())
        (finding,) = verdict["findings"]
        found[prefix] = (event["time"], finding["since"], finding["last"])
        assert "0 s ago" not in scan(f"{prefix}{BUS}\n".encode())[1]
    assert found == {prefix: (wanted,) * 3 for prefix, wanted in DATED.items()}


def test_a_stamp_without_a_year_is_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    log = tmp_path / "kern.log"
    log.write_text(f"Dec 30 23:00:00 node7 kernel: {BUS}\nJan  2 01:00:00 node7 kernel: {BUS}\n")
    os.utime(log, (1735783200, 1735783200))  # 2025-01-02
    done = run("scan", str(log), "--json")
    (finding,) = json.loads(done.stdout.splitlines()[-1])["findings"]
    assert (finding["since"], finding["last"]) == (
        "2024-12-30T23:00:00.000Z",
        "2025-01-02T01:00:00.000Z",
    )
    assert (finding["firstLine"], finding["lastLine"]) == (1, 2)


def test_without_a_date_lines_are_dated_by_the_kernels_clock() -> None:
    assert "517.250000 s after the start (line 1)" in scan(f"{STAMPED}\n".encode())[1]


# --- drills and flags

DRILL = "NVRM: Xid (PCI:0000:65:00): 79, pid=5, name=vitald-drill, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 38 vitald drill 71"


def test_a_drill_is_told_as_one() -> None:
    for drill in (f"[  1.0] {DRILL}", f"12,7,8,-;{DRILL}", f"<12>{DRILL}", f"[  1.0] {SWITCH}"):
        (event,), said = scan_json(f"{QUIET}{drill}\n".encode())
        (finding,) = said["findings"]
        assert event["simulated"] and finding["simulated"] and said["simulated"], drill
        assert (said["status"], said["rebootRequired"], said["drills"]) == ("healthy", False, 1)
        assert "SIMULATED" in scan(f"{QUIET}{drill}\n".encode())[1]


def test_a_process_that_has_a_drills_name_hides_no_fault_of_the_kernels() -> None:
    """Where the form keeps the facility: a drill's lines are a process's."""
    assert scan_json(f"4,7,8,-;{DRILL}\n".encode())[1]["status"] == "unhealthy"
    both = scan_json(f"[  1.0] {DRILL}\n[  2.0] {BUS}\n".encode())[1]
    assert [finding["simulated"] for finding in both["findings"]] == [False, True]
    assert (both["status"], both["rebootRequired"], both["simulated"]) == ("unhealthy", True, True)


def test_the_flags_are_in_the_summary() -> None:
    assert "UNHEALTHY  reboot required" in scan(f"{STAMPED}\n".encode())[1]
    reset = scan(
        b"[    1.0] NVRM: Xid (PCI:0000:9b:00): 95, pid=7, name=train, Uncontained: L1D (0,0). RST:"
        b" No, D-RST: Yes\n"
    )[1]
    assert (
        "reboot required (for a device reset: [policy] device_reset is false)" in reset
        and "do     reset the device" in reset
    )
    assert "replacement required" in scan(f"{STAMPED}\n".encode(), "--profile", "hyperpod")[1]
    assert "required" not in scan(QUIET.encode())[1]


def test_a_replay_of_what_is_no_log_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", b"\x7fELF\x00\xff\n"):
        path.write_bytes(data)
        assert run("replay", str(path)).returncode == 30, data


def test_a_replay_reads_what_scan_reads(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(f"{STAMPED}\n".encode()))
    done = run("replay", str(path), "--json")
    assert (done.returncode, json.loads(done.stdout)["events"]) == (0, 1)


HOSTILE = {
    "brace": b"{",
    "name": b'{"a":',
    "dmesg": b'{"dmesg": [',
    "deep array": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "open strings": b'{"a":"\n' * 20_000,
    "open objects": b'{"a":{\n' * 20_000,
    "braces": b"{" * 50_000,
}


def test_hostile_json_ends() -> None:
    for name, head in HOSTILE.items():
        status = scan_json(head + b"\n" + f"{STAMPED}\n".encode())[1]["status"]
        assert status in ("unhealthy", "unknown"), name
    scan_json(
        b'{"MESSAGE":1}\n{"MESSAGE":[300]}\n{"log":"\\ud800"}\n{"msg":"x","pri":"y","time":{}}\n'
    )


def test_what_may_be_the_rest_of_a_record_asks_for_a_look_at_most() -> None:
    """`dmesg -S` after somebody gave a mount option with a newline in it."""
    ue = (
        "EDAC MC0: 1 UE memory scrubbing error on D (channel:0 slot:1 page:0x8a1 offset:0x0"
        " grain:32)"
    )
    lines = ("tmpfs: Unknown parameter 'foo", ue, "bar'")
    events, verdict = scan_json("".join(f"[26218.429856] {line}\n" for line in lines).encode())
    assert [(event["type"], event["kind"]) for event in events] == [("event", "edac")]
    assert (verdict["status"], verdict["action"]) == ("degraded", "inspect")
    _, alone = scan_json(f"[26218.429856] {ue}\n".encode())
    assert alone["rebootRequired"]


def test_lines_about_a_pci_function_stand_on_the_device_that_it_is() -> None:
    """By the driver that they name, or by what another line of the log says of the address, before
    or after them.
    """
    fatal = (
        "AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    )
    log = f"""\
[  100.0] pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0
[  100.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.
[  200.0] nvidia 0000:5d:00.0: {fatal}
[  300.0] pcieport 0000:7a:00.0: {fatal}
"""
    _, verdict = scan_json(log.encode())
    found = {(each["code"], each["component"]): each["incident"] for each in verdict["findings"]}
    assert found.keys() == {
        ("aer/fatal", "gpu/0000:3b:00.0"),
        ("xid/79", "gpu/0000:3b:00.0"),
        ("aer/fatal", "gpu/0000:5d:00.0"),
        ("aer/fatal", "pci/0000:7a:00.0"),
    }
    of_first = {found["aer/fatal", "gpu/0000:3b:00.0"], found["xid/79", "gpu/0000:3b:00.0"]}
    assert len(of_first) == 1
