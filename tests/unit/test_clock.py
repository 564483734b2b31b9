"""The times of a saved log's lines: windows, quiet ends and boots are the log's, whatever forms its
stamps have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.unit.test_scan import BUS, JOURNAL, Json, scan_json
from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.lines import strip_prefix
from vitald.scan.saved_clock import LogClock

pytestmark = pytest.mark.usefixtures("catalog_loaded_once")

HOUR, DAY = 3600.0, 86400.0
START = 1_740_000_000.0  # 2025-02-19T21:20:00Z
LATEST = START + 365 * DAY


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def told(*lines: str) -> list[tuple[str, float]]:
    clock = LogClock()
    found = []
    for text in lines:
        line = strip_prefix(text.encode())
        assert line is not None
        found.append(clock.place_line(line, parse_date(text.encode(), LATEST)))
    return found


def test_lines_are_told_by_their_own_clock() -> None:
    assert told("[  10.0] a", "[  12.5] b", "4,1,13000000,-;c") == [
        ("log-1", 10.0),
        ("log-1", 12.5),
        ("log-1", 13.0),
    ]


def test_between_lines_without_a_clock_no_time_passes() -> None:
    assert told("a", "kernel: b", "c") == [("log-1", 0.0)] * 3
    assert told("[  10.0] a", "b", "[  10.5] c") == [
        ("log-1", 10.0),
        ("log-1", 10.0),
        ("log-1", 10.5),
    ]


def test_a_clock_that_begins_anew_is_another_boot() -> None:
    """Records of two processors may change places by less than a second; that is none."""
    places = [("log-1", 500.0), ("log-1", 500.0), ("log-2", 501.0), ("log-2", 506.0)]
    assert told("[ 500.0] a", "[ 499.9] b", "[   0.0] c", "[   5.0] d") == places


def stamped(at: float, usec: float | None, text: str, host: str = "node7") -> str:
    """A line of rsyslog's, with the kernel's stamp where printk.time is on."""
    date = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
    return f"{date} {host} kernel: {'' if usec is None else f'[{usec:12.6f}] '}{text}"


def xid(number: int, pid: int, pci: str = "0000:65:00", words: str = "Ch 00000010") -> str:
    return f"NVRM: Xid (PCI:{pci}): {number}, pid={pid}, name=train, {words}"


def test_a_wall_clock_that_is_set_moves_nothing() -> None:
    """Firmware that keeps local time, or none: the clock is right once the network is up."""
    for wrong in (START + 8 * HOUR, START - 11 * HOUR, 5.0):
        places = [
            place
            for _, place in told(
                stamped(wrong, 5.0, "a"),
                stamped(START + 60, 65.0, "b"),
                stamped(START + 70, 75.0, "c"),
            )
        ]
        assert [place - places[0] for place in places] == [0.0, 60.0, 70.0]


# The line of a text, at these seconds after the boot by the wall clock and by the kernel's.
Form = Callable[[float, float, str], str]
FORMS: dict[str, Form] = {
    "with the kernel's stamp": lambda at, usec, text: stamped(START + at, usec, text),
    "dates alone": lambda at, usec, text: stamped(START + at, None, text),
    "the kernel's stamp alone": lambda at, usec, text: f"[{usec:12.6f}] {text}",
    "dmesg -T": lambda at, usec, text: (
        datetime.fromtimestamp(START + at, timezone.utc).strftime("[%a %b %d %H:%M:%S %Y] ") + text
    ),
    "journalctl -o json": lambda at, usec, text: json.dumps(
        {
            **JOURNAL,
            "MESSAGE": text,
            "__REALTIME_TIMESTAMP": str(int((START + at) * 1e6)),
            "_SOURCE_MONOTONIC_TIMESTAMP": str(int(usec * 1e6)),
            "_BOOT_ID": "a" * 32,
            "_HOSTNAME": "node7",
        }
    ),
}


def verdicts(*lines: tuple[float, str]) -> dict[str, Json]:
    """Of lines at these seconds after the boot, in every form."""
    return {
        name: scan_json("\n".join(form(at, at, text) for at, text in lines).encode())[1]
        for name, form in FORMS.items()
    }


def codes(verdict: Json, what: str = "findings") -> list[str]:
    return [str(one["code"]) for one in verdict[what]]


def test_what_silence_ends_has_ended_by_the_last_line() -> None:
    """Until then an application's fault stands."""
    said = verdicts((100.0, xid(31, 5)), (100.0 + 2 * DAY, "usb 1-1: x"))
    assert {
        name: (
            *(one["status"], codes(one), one["asOf"]["line"]),
            *((end["code"], end["count"], end["lastLine"]) for end in one["ended"]),
        )
        for name, one in said.items()
    } == dict.fromkeys(FORMS, ("healthy", [], 2, ("xid/31", 1, 1)))
    said = verdicts((100.0, xid(31, 5)), (400.0, "usb 1-1: x"))
    assert {
        name: (one["status"], codes(one), codes(one, "ended")) for name, one in said.items()
    } == dict.fromkeys(FORMS, ("degraded", ["xid/31"], []))


def test_silence_ends_no_fault_of_a_device() -> None:
    said = verdicts((100.0, BUS), (100.0 + 90 * DAY, "usb 1-1: x"))
    assert {
        name: (one["status"], one["rebootRequired"], codes(one)) for name, one in said.items()
    } == dict.fromkeys(FORMS, ("unhealthy", True, ["xid/79"]))


def test_three_in_a_day_are_three_in_a_day() -> None:
    """Xid 94 of three processes: within 24 h the device is reset, over three days each is an
    application's.
    """
    lines = [xid(94, pid, words="Contained: SM (0x1). RST: No, D-RST: No") for pid in (1, 2, 3)]
    for apart, action in ((HOUR, "reset_device"), (1.1 * DAY, "restart_workload")):
        said = verdicts(*((100.0 + number * apart, line) for number, line in enumerate(lines)))
        assert {name: one["findings"][0]["action"] for name, one in said.items()} == dict.fromkeys(
            FORMS, action
        )


def test_follow_ups_go_with_their_cause_by_the_logs_times() -> None:
    for at, wanted in ((101.0, ["xid/79"]), (3700.0, ["xid/79", "xid/31"])):
        said = verdicts((100.0, BUS), (at, xid(31, 5)))
        assert {name: codes(one) for name, one in said.items()} == dict.fromkeys(FORMS, wanted)


DATED = {
    name: FORMS[name] for name in ("with the kernel's stamp", "dates alone", "journalctl -o json")
}
BANNER = "Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115) #45-Ubuntu SMP"


def boots(name: str, *parts: tuple[float, list[tuple[float, str]]]) -> list[str]:
    """Lines of several boots, each a time and its lines by the kernel's clock."""
    lines = []
    for number, (began, own) in enumerate(parts):
        for at, text in [(0.0, BANNER), *own]:
            line = DATED[name](began + at, at, text)
            lines.append(line.replace("a" * 32, f"{number:032x}"))
    return lines


@pytest.mark.parametrize("name", DATED)
def test_a_boot_in_the_log_ends_what_a_boot_ends(name: str) -> None:
    lines = boots(name, (0.0, [(5000.0, BUS)]), (6000.0, [(10.0, "usb 1-1: x")]))
    said = scan_json("\n".join(lines).encode())[1]
    assert (said["status"], codes(said), codes(said, "ended")) == ("healthy", [], ["xid/79"])
    assert "rebooted" in said["ended"][0]["ended"]
    assert said["asOf"]["time"] == "2025-02-19T23:00:10.000Z"


@pytest.mark.parametrize("name", DATED)
def test_a_fault_that_comes_back_after_its_reboot_climbs(name: str) -> None:
    first, second = (
        boots(name, (at, [(5000.0, BUS), (5001.0, "usb 1-1: x")])) for at in (0.0, 7000.0)
    )
    second = [line.replace(f"{0:032x}", f"{1:032x}") for line in second]
    verdict = scan_json("\n".join(first + second).encode())[1]
    assert (verdict["replacementRequired"], codes(verdict), codes(verdict, "ended")) == (
        True,
        ["xid/79"],
        ["xid/79"],
    )
    assert verdict["findings"][0]["since"] == "2025-02-20T00:40:00.000Z"


@pytest.mark.parametrize("name", DATED)
def test_files_that_are_put_together_newest_first_are_not_judged(name: str) -> None:
    """As `zcat -f kern.log*` does."""
    first, second = (
        boots(name, (at, [(5000.0, BUS), (5001.0, "usb 1-1: x")])) for at in (0.0, 2 * DAY)
    )
    verdict = scan_json("\n".join(second + first).encode())[1]
    assert (verdict["status"], verdict["findings"]) == ("unknown", [])
    assert "the oldest first" in verdict["problem"]
    assert scan_json("\n".join(first + second).encode())[1]["problem"] is None


@pytest.mark.parametrize("words", ["-- Boot 0123456789abcdef0123456789abcdef --", "-- Reboot --"])
@pytest.mark.parametrize(
    "form", [FORMS["dates alone"], lambda at, usec, text: f"[{usec:12.6f}] node7 kernel: {text}"]
)
def test_a_boot_that_journalctl_tells_of(form: Form, words: str) -> None:
    """Its first lines may be gone."""
    lines = [
        form(5000.0, 5000.0, BUS),
        words,
        form(9000.0, 600.0, "usb 1-1: x"),
        form(9100.0, 700.0, "usb 1-1: y"),
    ]
    said = scan_json("\n".join(lines).encode())[1]
    assert (said["status"], codes(said, "ended")) == ("healthy", ["xid/79"])
    quoted = [
        form(5000.0, 5000.0, BUS),
        form(9000.0, 9000.0, words),
        form(9100.0, 9100.0, "usb 1-1: y"),
    ]
    assert scan_json("\n".join(quoted).encode())[1]["status"] == "unhealthy"


def test_what_no_date_tells_of_ends_nothing() -> None:
    """Two logs of two nodes may have been put together: their stamps do not say."""
    lines = [
        f"[    0.000000] {BANNER}",
        f"[ 5000.000000] {BUS}",
        f"[    0.000000] {BANNER}",
        "[   10.000000] usb 1-1: x",
    ]
    said = scan_json("\n".join(lines).encode())[1]
    assert (said["status"], codes(said)) == ("unhealthy", ["xid/79"])


def test_a_host_that_does_not_know_its_name_yet_is_the_same() -> None:
    lines = [
        stamped(START, 0.0, BANNER, "localhost"),
        stamped(START + 5, 5.0, BUS, "localhost"),
        stamped(START + 9, 9.0, "x", "node7"),
    ]
    said = scan_json("\n".join(lines).encode())[1]
    assert (said["status"], said["hosts"]) == ("unhealthy", ["node7"])


def test_a_clock_that_was_set_is_no_boot() -> None:
    """Nothing shows that the node was started anew."""
    lines = [
        stamped(START + 8 * HOUR, 5.0, BUS),
        stamped(START + 60, 65.0, "x"),
        stamped(START + 70, 75.0, xid(31, 5)),
    ]
    said = scan_json("\n".join(lines).encode())[1]
    assert (said["status"], codes(said, "ended")) == ("unhealthy", [])
    lines = [
        stamped(0.0, 5.0, BUS),
        stamped(START, 65.0, xid(31, 5)),
        stamped(START + 10, 75.0, "x"),
    ]
    said = scan_json("\n".join(lines).encode())[1]
    assert (said["status"], codes(said, "ended")) == ("unhealthy", [])


@pytest.mark.parametrize("name", DATED)
def test_lines_that_go_back_by_hours_end_nothing(name: str) -> None:
    """Rotated files with the newest first, of the same boot or of two; or `journalctl --reverse`."""
    form = DATED[name]
    newer = [form(8 * HOUR, 8 * HOUR, BUS), form(9 * HOUR, 9 * HOUR, "usb 1-1: x")]
    older = [form(at, at, "usb 1-1: y") for at in (HOUR, 2 * HOUR)]
    of_boot_before = [line.replace("a" * 32, "b" * 32) for line in [form(0.0, 0.0, BANNER), *older]]
    for lines in (
        newer + older,
        newer + of_boot_before,
        [*reversed(newer), *reversed(of_boot_before)],
    ):
        verdict = scan_json("\n".join(lines).encode())[1]
        assert (verdict["status"], codes(verdict, "ended")) == ("unhealthy", [])


def test_a_boot_without_a_clock_goes_back_to_no_older_file() -> None:
    lines = [
        stamped(START, 0.0, BANNER),
        stamped(START + 500, 500.0, BUS),
        stamped(5.0, 0.0, BANNER),
        stamped(START + 900, 60.0, "x"),
    ]
    verdict = scan_json("\n".join(lines).encode())[1]
    assert (verdict["problem"], codes(verdict, "ended")) == (None, ["xid/79"])


def test_without_a_clock_nothing_ends() -> None:
    said = scan_json("\n".join([xid(31, 5), *["kernel: usb 1-1: x"] * 5000]).encode())[1]
    assert codes(said) == ["xid/31"]


def test_a_replay_and_a_scan_agree(tmp_path: Path) -> None:
    from tests.unit.test_replay import summary_of

    for name in DATED:
        lines = boots(
            name,
            (0.0, [(5000.0, BUS), (5001.0, xid(31, 5))]),
            (7000.0, [(20.0, BUS), (9000.0, "usb 1-1: x")]),
        )
        path = tmp_path / "log"
        path.write_text("\n".join(lines))
        summary = summary_of(path)
        assert summary["inForce"] == ["xid/79 on gpu/0000:65:00.0: replace_node, seen once"]
        said = scan_json("\n".join(lines).encode())[1]
        assert [(one["code"], one["action"], one["count"]) for one in said["findings"]] == [
            ("xid/79", "replace_node", 1)
        ]
        assert summary["events"] == said["events"] == 3
