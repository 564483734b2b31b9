"""The BMC and transceivers, from files as `vitald sensors` writes them.

Lines of the BMC are of the forms in ipmitool's lib/ipmi_sdr.c and lib/ipmi_sel.c, with its names of
states and events; those of transceivers are of ethtool's sfpdiag.c, qsfp.c and cmis.c.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.looking import Looking, polled, told
from tests.whole_tree import Clock
from vitald.collectors.board.bmc_log import EventLog, find_reading, parse_entries
from vitald.collectors.board.collector import Board
from vitald.collectors.root_file import (
    MAX_BYTES,
    RELATIVE_PATH,
    RootFileError,
    read_clock,
    read_root_file,
)
from vitald.model import SourceState

SENSORS = """\
CPU1 Temp        | 01h | ok  |  3.1 | 45 degrees C
Fan1A            | 05h | ok  |  7.1 | 9240 RPM
Pwr Consumption  | 07h | ok  |  7.1 | 288 Watts
Status           | 08h | ok  | 10.1 | Presence detected
Status           | 09h | ok  | 10.2 | Presence detected
PSU3_STATUS      | 0Ah | ok  | 10.3 | Failure detected
P1-DIMM Temp     | 0Bh | ns  | 32.1 | No Reading
"""
CLEARED = (
    "   1 | 02/28/2018 | 06:25:18 | Event Logging Disabled SEL | Log area reset/cleared | Asserted"
)
AC_LOST = "   3 | 03/01/2018 | 19:24:21 | Power Supply PS1 Status | Power Supply AC lost | Asserted"
ECC = "   4 | 03/01/2018 | 19:24:25 | Memory Mmry ECC Sensor | Uncorrectable ECC | Asserted"
MODULE = """\
	Module temperature                        : 40.01 degrees C / 104.02 degrees F
	Module voltage                            : 3.4365 V
	Alarm/warning flags implemented           : Yes
	Laser tx bias current (Channel 1)         : 6.762 mA
	Laser tx bias current (Channel 2)         : 6.500 mA
	Transmit avg optical power (Channel 1)    : 0.5155 mW / -2.88 dBm
	Rcvr signal avg optical power(Channel 1)  : 0.5964 mW / -2.24 dBm
	Rcvr signal avg optical power(Channel 2)  : 0.0000 mW / -inf dBm
	Laser bias current high alarm   (Chan 1)  : Off
	Laser rx power low alarm    (Channel 2)   : {flag}
	Laser rx power low warning  (Channel 2)   : On
	Laser rx power low alarm threshold        : 0.0282 mW / -15.50 dBm
"""
CMIS_MODULE = """\
	LowPwrAllowRequestHW                      : On
	Module temperature                        : 50.00 degrees C / 122.00 degrees F
	Laser tx bias current (Channel 1)         : 6.762 mA
	Rcvr signal avg optical power (Channel 1) : 0.5964 mW / -2.24 dBm
	Module temperature high alarm             : Off
	Laser rx power low alarm    (Channel 2)   : On
	Laser rx power low warning  (Channel 2)   : On
	Laser rx power low alarm threshold        : 0.0282 mW / -15.50 dBm
"""


class Node:
    """What root wrote, and the daemon's collector."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / RELATIVE_PATH
        self.path.parent.mkdir(parents=True)
        self.content: dict[str, Any] = {"version": 1, "later": "is ignored"}

    def write(self, age_s: float = 0.0, **content: object) -> None:
        self.content |= content
        document = {"uptime": read_clock() - age_s, **self.content}
        self.path.write_text(json.dumps(document))
        self.path.chmod(0o640)

    def write_bmc(self, log: str = "", sensors: str = SENSORS) -> None:
        self.write(bmc_log={"output": log}, bmc_sensors={"output": sensors})

    def build(self) -> Board:
        return Board(self.root, self.root / "sys", 1800.0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_without_the_file_there_is_nothing_to_read(node: Node) -> None:
    with Looking(polled(node.build())) as looking:
        assert looking.look() == []
        assert looking.last.state is SourceState.ABSENT
        assert "vitald-sensors.timer" in looking.last.detail


def test_an_old_file_makes_the_node_unknown(node: Node) -> None:
    node.write_bmc()
    with Looking(polled(node.build())) as looking:
        looking.look()
        assert looking.last.state is SourceState.OK
        node.write(age_s=1865.0)
        looking.look()
        assert looking.last.state is SourceState.FAILED
        assert "31 minutes old" in looking.last.detail


def test_the_sensors_of_the_bmc(node: Node) -> None:
    node.write_bmc()
    with Looking(polled(node.build())) as looking:
        assert told(looking.look()) == set()
        values = looking.readings("node/bmc").values
    assert values["temperature_celsius"] == pytest.approx((math.nan, 45.0), nan_ok=True)
    assert values["fan_rpm"][5] == 9240.0  # type: ignore[index]
    assert values["power_watts"][7] == 288.0  # type: ignore[index]
    assert values["supplies"] == 2.0  # an empty slot is none, whatever else it reports
    assert values["supply_states"] == "Presence detected"
    assert values["sensors"] == 7.0


@pytest.mark.parametrize(
    ("before", "after", "code", "carried"),
    [
        (
            "10.2 | Presence detected",
            "10.2 | Presence detected, Failure detected",
            "board/supply_failed",
            "Status: Failure detected",
        ),
        (
            "10.2 | Presence detected",
            "10.2 | 0 Watts, Presence detected, Power Supply AC lost",
            "board/supply_input_lost",
            "Status: Power Supply AC lost",
        ),
        (
            "10.2 | Presence detected",
            "10.2 | Presence detected, AC out-of-range, but present",
            "board/supply_input_lost",
            "Status: AC out-of-range, but present",
        ),
        (
            "10.2 | Presence detected",
            "10.2 | Presence detected, Predictive failure",
            "board/supply_failing",
            "Status: Predictive failure",
        ),
        ("| ok  |  7.1 | 9240 RPM", "| lcr |  7.1 | 0 RPM", "board/fan_failed", "Fan1A (0 RPM)"),
        (
            "| ok  |  3.1 | 45 degrees C",
            "| ucr |  3.1 | 101 degrees C",
            "board/critical_sensor",
            "CPU1 Temp (101 degrees C)",
        ),
    ],
)
def test_a_condition_of_the_board_begins_and_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch, before: str, after: str, code: str, carried: str
) -> None:
    node.write_bmc()
    clock = Clock(monkeypatch)
    with Looking(polled(node.build())) as looking:
        looking.look()
        node.write_bmc(sensors=SENSORS.replace(before, after))
        begun = looking.look()
        clock.ahead += 1000.0
        begun += looking.look()
        assert told(begun) == {(code, "node/bmc")}
        assert carried in begun[0].fields.values()
        node.write_bmc(sensors="Get SDR failed")  # nothing is known, so it stays
        assert looking.look() == []
        node.write_bmc()
        over = looking.look()
        clock.ahead += 1000.0
        over += looking.look()
        assert [(event.code, event.fields["recovered"]) for event in over] == [(code, True)]


def test_an_entry_of_the_log_is_an_event_once(node: Node) -> None:
    node.write_bmc(f"{CLEARED}\n{AC_LOST}")
    with Looking(polled(node.build())) as looking:
        assert looking.look() == []  # what was there before may be years old
        node.write_bmc(f"{CLEARED}\n{AC_LOST}\n{ECC}")
        (event,) = looking.look()
        assert (event.code, event.component.name) == ("board/log_memory_error", "node/bmc")
        assert "Mmry ECC Sensor" in str(event.fields["log_memory_errors_entry"])
        assert looking.look() == []
        position = looking.position
    crash = ECC.replace("   4", "   5").replace("Memory Mmry ECC Sensor | Uncorrectable ECC", "{}")
    node.write_bmc(f"{CLEARED}\n{ECC}\n" + crash.format("Processor CPU1 CATERR | State Asserted"))
    with Looking(polled(node.build(), boot_id="boot-2"), position) as looking:
        assert told(looking.look()) == {("board/log_processor_error", "node/bmc")}
        assert looking.look() == []


@pytest.mark.parametrize("detail", ["", ": Node busy"])
def test_a_list_that_lacks_entries_is_no_answer(node: Node, detail: str) -> None:
    """What it lacks may be years old: with the next list it would be new."""
    node.write_bmc(f"{AC_LOST}\nGet SEL Entry 4 command failed{detail}")
    with Looking(polled(node.build())) as looking:
        assert looking.look() == []
        node.write_bmc(f"{AC_LOST}\n{ECC}")
        assert looking.look() == []
        node.write_bmc(f"{AC_LOST}\n{ECC}\n{ECC.replace('   4', '   5')}")
        assert told(looking.look()) == {("board/log_memory_error", "node/bmc")}


def test_how_ipmitool_writes_an_entry_does_not_make_it_new() -> None:
    log = EventLog({})
    log.add_entries(f"{AC_LOST}\n{ECC}")
    log = EventLog(json.loads(json.dumps(log.memory)))
    log.add_entries("")  # an answer that lacks entries
    other = ECC.replace("/2018 | 19:24:25", "/18 | 07:24:25 PM UTC")
    log.add_entries(other.replace("Mmry ECC Sensor", "#0x02"))
    assert set(log.memory["counts"].values()) == {0}
    log.add_entries(ECC.replace("03/01", "03/02"))  # the same number in a log that was cleared
    assert log.memory["counts"]["log_memory_errors"] == 1


@pytest.mark.parametrize(
    ("sensor", "event", "reading"),
    [
        ("Processor #0xeb", "IERR", "log_processor_errors"),
        ("Processor CPU0_Status", "Thermal Trip", "log_overheating"),
        ("Memory #0x02", "Uncorrectable ECC (UnCorrectable ECC |  DIMMD7)", "log_memory_errors"),
        ("Memory #0x02", "Correctable ECC", ""),
        ("Critical Interrupt PCIe", "Bus Fatal Error", "log_bus_errors"),
        ("Power Supply #0x3b", "Failure detected", "log_supply_failures"),
        ("Power Unit Pwr Unit Stat", "AC lost", "log_input_losses"),
        ("Fan FAN1", "Lower Critical going low ", "log_fan_failures"),
        ("Fan FAN1", "Lower Non-critical going low ", ""),
        ("Temperature Inlet", "Upper Critical going high", "log_overheating"),
        ("Processor CPU1 CATERR", "State Deasserted", ""),
    ],
)
def test_what_an_entry_means(sensor: str, event: str, reading: str) -> None:
    line = "  3a | 05/19/2026 | 14:29:55 | {} | {} | {} | Reading 43 < Threshold 0 degrees C"
    (entry,) = parse_entries(line.format(sensor, event, "Asserted"))
    assert find_reading(entry) == reading
    (entry,) = parse_entries(line.format(sensor, event, "Deasserted"))
    assert find_reading(entry) == ""


def test_oem_records_and_messages_are_no_entries() -> None:
    lines = (
        "SEL has no entries",
        "  12 | OEM record e0 | 00000000",
        "Get SEL Info failed",
        "|||||",
    )
    assert list(parse_entries("\n".join(lines))) == []
    (entry,) = parse_entries(
        "   1 |  Pre-Init  |0000000123| Power Supply #0x3b | Failure detected | Asserted"
    )
    assert find_reading(entry) == "log_supply_failures"


def test_a_bmc_that_does_not_answer_neither_opens_nor_closes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = SENSORS.replace(
        "10.2 | Presence detected", "10.2 | Presence detected, Failure detected"
    )
    node.write_bmc(AC_LOST, failed)
    clock = Clock(monkeypatch)
    with Looking(polled(node.build())) as looking:
        assert told(looking.look()) == {("board/supply_failed", "node/bmc")}
        silent = {"output": "", "trouble": "/usr/bin/ipmitool did not end within 240 s"}
        node.write(bmc_log=silent, bmc_sensors=silent)
        assert looking.look() == []
        assert looking.last.state is SourceState.OK
        clock.ahead += 1900.0
        (event,) = looking.look()
        assert event.code == "board/bmc_silent"
        assert "did not end within 240 s" in str(event.fields["silent_reason"])
        node.write_bmc(f"{AC_LOST}\n{ECC}")
        looking.look()
        assert ("board/log_memory_error", "node/bmc") in told(looking.events)


def test_modules_with_cmis_have_alarms(node: Node) -> None:
    node.write(transceivers={"eth0": {"output": CMIS_MODULE}})
    with Looking(polled(node.build())) as looking:
        looking.look()
        values = looking.readings("nic/transceiver-eth0").values
    assert (values["alarms"], values["warnings"]) == (1.0, 1.0)
    assert values["alarm_names"] == "Laser rx power low alarm (Channel 2)"
    assert values["received_power_watts"] == pytest.approx((0.5964e-3,))


def test_a_transceiver_raises_an_alarm(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = node.root / "sys/class/net/eth0/carrier"
    carrier.parent.mkdir(parents=True)
    carrier.write_text("1")
    cable = {"output": "\tIdentifier : 0x11 (QSFP28)\n", "trouble": ""}
    none = {"output": "", "trouble": "/usr/sbin/ethtool failed: exit 1: Operation not supported"}
    clock = Clock(monkeypatch)
    with Looking(polled(node.build())) as looking:
        for flag in ("Off", "On"):
            output = {"output": MODULE.format(flag=flag)}
            node.write(transceivers={"eth0": output, "eth1": cable, "eth2": none})
            begun = looking.look()
        clock.ahead += 1000.0
        begun += looking.look()
        assert told(begun) == {("board/transceiver_alarm", "nic/transceiver-eth0")}
        assert begun[0].fields["alarm_names"] == "Laser rx power low alarm (Channel 2)"
        values = looking.readings("nic/transceiver-eth0").values
        assert values["temperature_celsius"] == 40.01
        assert values["received_power_watts"] == pytest.approx((0.5964e-3, 0.0))
        assert values["bias_amperes"] == pytest.approx((6.762e-3, 6.5e-3))
        assert (values["alarms"], values["warnings"]) == (1.0, 1.0)
        assert "alarms" in looking.readings("nic/transceiver-eth1").missing
        names = {readings.component.name for readings in looking.last.readings}
        assert names == {"nic/transceiver-eth0", "nic/transceiver-eth1"}
        carrier.write_text("0")  # a dark fibre is the link's matter
        looking.look()
        clock.ahead += 1000.0
        (over,) = looking.look()
        assert over.fields["recovered"] is True


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "not a JSON object"),
        ('{"version": 2}', "version: expected 1"),
        ('{"version": 1}', "uptime"),
        ('{"version": 1, "uptime": true}', "uptime"),
        ('{"version": 1, "uptime": 1e300}', "uptime"),
        ('{"version": 1, "uptime": 1, "bmc_log": []}', "bmc_log: expected an object"),
        ('{"version": 1, "uptime": 1, "bmc_log": {"output": 1}}', "expected texts"),
        ('{"version": 1, "uptime": 1, "acs": {"../x": 1}}', "is no name"),
        ('{"version": 1, "uptime": 1, "acs": {"0000:00:01.0": 65536}}', "16 bits"),
        ('{"version": 1, "uptime": 1, "transceivers": {"a/b": {}}}', "is no name"),
        ('{"version": 1, "uptime": 1, "memory_modules": ["x"]}', "hexadecimal"),
        ("[" * 100_000, "sensors.json"),
        (" " * (MAX_BYTES + 1), "larger than"),
    ],
    ids=range(14),
)
def test_a_file_of_another_form_is_refused(node: Node, content: str, reason: str) -> None:
    node.path.write_text(content)
    with pytest.raises(RootFileError, match=reason) as caught:
        read_root_file(node.path)
    assert str(caught.value).startswith(str(node.path))
    with Looking(polled(node.build())) as looking:
        looking.look()
        assert looking.last.state is SourceState.FAILED


@pytest.mark.parametrize("case", ["link", "pipe", "mode", "owner"])
def test_a_file_that_others_can_have_written_is_refused(node: Node, case: str) -> None:
    node.write_bmc()
    real = node.path.rename(node.path.with_name("real.json"))
    if case == "link":
        node.path.symlink_to(real)
    elif case == "pipe":
        os.mkfifo(node.path)
    else:
        real.rename(node.path)
        if case == "mode":
            node.path.chmod(0o660)
        elif os.geteuid() == 0:
            os.chown(node.path, 65534, 65534)
        else:
            pytest.skip("only root can give a file away")
    with pytest.raises(RootFileError):
        read_root_file(node.path)
