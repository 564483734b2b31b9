"""The package on a booted machine, from its installation to its last trace. The tests go in this
order, on one machine.

Set `-k` aside: each test leaves the machine as the next one expects it, and the first ones install
what all need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import cast

import pytest

from tests.booted.machine import Machine
from tests.booted.package import version_of
from tests.booted.service import BELIEVING, SOCKET, UNITS, Json, Service, fresh_pci, xid
from tests.waiting import WAIT_S, until

MEMBER, STRANGER = "alice", "mallory"
ROOTS_OWN = (
    '[paths]\nstate = "/var/own/state"\nruntime = "/var/own/run"\n[metrics]\nlisten ='
    ' "127.0.0.1:9821"\n'
)
RECOVERING = """[recovery]
mode = "automatic"
after = "1s"
min_uptime = "off"
brake_delay = "off"
reboot = ["/bin/false"]
"""
BOOT_ID = "/etc/systemd/system/vitald.service.d/boot-id.conf"


def install(machine: Machine, file: str, *options: str) -> float:
    """As docs/operations.md says. Seconds that it took."""
    begun = time.monotonic()
    machine.run("apt-get", "install", "-y", *options, f"/root/{file}", timeout=120.0)
    return time.monotonic() - begun


def exposure(machine: Machine, unit: str) -> float:
    said = machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
    (number,) = re.findall(rf"Overall exposure level for {re.escape(unit)}: ([0-9.]+)", said)
    print("\n".join(line for line in said.splitlines() if line.startswith(("✗", "→"))))
    return float(number)


# --- installed


def test_installed_active_and_ready(machine: Machine, service: Service) -> None:
    seconds = install(machine, "new.deb")
    assert service.states() == ("active",) * len(UNITS)  # Type=notify: it has said that it is ready
    service.ready()
    assert service.get("/healthz")[0] == 200
    service.calm()  # of what tests have written to the kernel log, which is the host's too
    assert service.status["status"] == "healthy"
    assert machine.run("systemctl", "is-enabled", *UNITS[:2]).stdout.split() == [
        "enabled",
        "enabled",
    ]
    assert "vitald_" in machine.run("curl", "-sf", "http://127.0.0.1:9820/metrics").stdout
    assert machine.run("systemd-analyze", "verify", *UNITS, check=False).stderr == ""
    log = service.log()
    assert ("Traceback" in log, "Unknown key" in log) == (False, False)
    print(f"installed in {seconds:.1f} s")


@pytest.mark.parametrize(
    ("unit", "most"), [("vitald.service", 1.6), ("vitald-recover.service", 2.0)]
)
def test_how_exposed_it_is(machine: Machine, unit: str, most: float) -> None:
    assert exposure(machine, unit) <= most


def test_it_has_no_capability(machine: Machine, service: Service) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in machine.run("cat", f"/proc/{service.pid}/status").stdout.splitlines()
    )
    assert {
        int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    } == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == machine.run("id", "-u", "vitald").stdout.split() * 4


def observed(answer: Json) -> set[tuple[str, str]]:
    """What is read, of what."""
    found = set()
    for component in cast("list[Json]", answer["components"]):
        for sight in cast("list[Json]", component["observations"]):
            found |= {(str(component["name"]), name) for name in cast("Json", sight["readings"])}
    return found


def test_hardening_takes_nothing_but_what_the_unit_says(machine: Machine, service: Service) -> None:
    """Held against root's daemon on the same machine, whom nothing is forbidden."""
    machine.write("/etc/own.toml", ROOTS_OWN)
    asking = ("--json", "--socket", "/var/own/run/vitald.sock")
    machine.run(
        "systemd-run",
        "--quiet",
        "--unit=own",
        "--property=StandardInput=null",
        "vitald",
        "run",
        "--config",
        "/etc/own.toml",
    )

    def looked() -> bool:
        said = machine.run("vitald", "status", *asking, check=False).stdout
        return '"sources"' in said and '"starting"' not in said

    until(looked, "root's daemon")
    free = observed(cast("Json", json.loads(machine.run("vitald", "components", *asking).stdout)))
    machine.run("systemctl", "stop", "own")
    machine.run("rm", "-r", "/var/own", "/etc/own.toml")
    hardened = observed(service.get("/v1/components")[1])
    assert len(free) > 20
    missing = (
        free - hardened - {("node/clock", "clock_error_seconds")}
    )  # there where the clock is not kept
    assert missing == {("node/clock", "clock_offset_seconds")}
    assert service.status["status"] == "healthy"


# --- asked


def test_who_may_ask(machine: Machine, service: Service) -> None:
    machine.run("useradd", "--groups", "vitald", MEMBER)
    machine.run("useradd", STRANGER)
    pci = fresh_pci()
    finding = service.drill(pci, 79)
    path, body = f"/v1/findings/{finding['id']}/clear", '{"reason": "mine"}'

    assert [
        service.get("/v1/status", user=user)[0] for user in ("root", "vitald", MEMBER, STRANGER)
    ] == [200, 200, 200, 0]
    assert service.vitald("status", user=MEMBER, check=False).returncode == 20
    refused = service.vitald("status", user=STRANGER, check=False)
    assert (refused.returncode, "Traceback" in refused.stderr) == (30, False)

    assert [service.post(path, body, user=user) for user in (STRANGER, MEMBER)] == [0, 403]
    assert [one["id"] for one in service.findings(pci)] == [finding["id"]]
    assert service.post(path, body, user="root") == 200

    for path in (SOCKET, "/var/lib/vitald/ledger.db", "/run/vitald/x"):
        assert (
            machine.run("sh", "-c", f"echo >>{path}", user=MEMBER, check=False).returncode != 0
        ), path
    assert machine.run("ls", "/var/lib/vitald", user=STRANGER, check=False).returncode != 0


def test_flags_follow_a_fault(service: Service) -> None:
    pci = fresh_pci()
    service.drill(pci, 79)
    status = service.status
    assert (status["status"], status["rebootRequired"], status["replacementRequired"]) == (
        "unhealthy",
        True,
        False,
    )
    assert service.vitald("check", check=False).returncode == 20
    service.clear(pci)
    status = service.status
    assert (status["status"], status["rebootRequired"]) == ("healthy", False)


def test_reload(machine: Machine, service: Service) -> None:
    """The lines that a process writes are believed from now on. A file that is wrong fails the
    reload, is named wherever a person looks for the reason, and does not interrupt the service.
    """
    before = service.pid
    service.believe()
    service.configure("[kernel_log]\nuserspace = 'yes'\n")
    assert machine.run("systemctl", "reload", "vitald", check=False).returncode
    mistake = "/etc/vitald/config.toml:2: [kernel_log] userspace: must be one of "
    assert mistake in service.vitald("status", check=False).stdout
    until(lambda: mistake in machine.show("vitald", "StatusText"), "systemd's status line")
    errors = machine.run(
        *("journalctl", "-u", "vitald", "-b", "-p", "err", "--no-pager", "-o", "cat")
    ).stdout
    assert "reload_refused" in errors and f"\n{mistake}" in errors
    service.configure(BELIEVING)
    machine.run("systemctl", "reload", "vitald")
    assert "configuration" not in service.vitald("status", check=False).stdout
    assert (service.pid, service.states()) == (before, ("active",) * len(UNITS))


def test_jobs_that_begin_without_a_verdict_are_counted(machine: Machine, service: Service) -> None:
    """By root, while the daemon cannot answer; the daemon's user reads it, and only that."""
    machine.sh("rm -rf /var/lib/vitald-recover; systemd-tmpfiles --create vitald.conf")
    machine.run("systemctl", "kill", "--signal=STOP", "vitald")
    machine.run("env", "SLURM_JOB_ID=7", "/usr/share/vitald/slurm/prolog")
    machine.run("systemctl", "kill", "--signal=CONT", "vitald")
    counted = 'vitald_slurm_unknown_jobs_total{choice="allow"} 1.0'
    until(lambda: counted in machine.sh("curl -s http://127.0.0.1:9820/metrics"), "the count")
    reading = ("cat", "/var/lib/vitald-recover/slurm-unknown-allow")
    assert machine.run(*reading, user="vitald", check=False).returncode != 0


def test_the_journal_tells_the_story(machine: Machine, service: Service) -> None:
    """By priority, without the words of JSON; an error before the log begins included."""
    pci, other = fresh_pci(), fresh_pci()
    service.believe()

    def read(priority: str) -> list[str]:
        lines = machine.run(
            *("journalctl", "-u", "vitald", "-b", "-p", priority, "--no-pager", "-o", "cat")
        ).stdout.splitlines()
        return [line for line in lines if pci in line or other in line]

    service.write(xid(pci), xid(other, 13))
    until(lambda: len(read("warning")) == 2, "the lines")
    (unfit,) = read("err")
    assert f" opened: gpu/{pci}.0: " in unfit
    assert "(xid/79): reboot the node" in unfit and ": NVRM: Xid" in unfit
    service.clear(pci)
    service.clear(other)
    until(lambda: len(read("notice")) == 4, "their end")
    assert len(read("warning")) == 2
    assert [" cleared: " in line for line in read("notice")] == [False, False, True, True]
    machine.run("systemctl", "stop", *UNITS)
    service.configure("[kernel_log\n")
    machine.run("systemctl", "start", "vitald", check=False)
    errors = machine.run("journalctl", "-u", "vitald", "-b", "-p", "err", "-o", "cat").stdout
    assert "vitald: /etc/vitald/config.toml: " in errors
    service.configure(BELIEVING)
    machine.run("systemctl", "reset-failed", *UNITS, check=False)
    machine.run("systemctl", "start", *UNITS)
    service.ready()


# --- hurt


def test_killed(machine: Machine, service: Service) -> None:
    """Twice in the middle of a stream of faults: each is judged once, in the finding that was open
    before.
    """
    pci, lines, restarts = fresh_pci(), 600, service.restarts
    service.write(xid(pci, 79, 0))
    until(lambda: service.findings(pci), "the first")
    (before,) = service.findings(pci)
    for number in range(1, lines):
        service.write(xid(pci, 79, number))
        if number in (200, 400):
            machine.run("systemctl", "kill", "--signal=KILL", "vitald")
        time.sleep(0.002)
    service.ready()
    until(lambda: service.findings(pci)[0]["count"] == lines, f"{lines} lines")
    (after,) = service.findings(pci)
    assert (after["id"], after["since"]) == (before["id"], before["since"])
    events = service.events(pci)
    assert len(events) == len({str(event["raw"]) for event in events}) == lines
    assert service.restarts - restarts == 2
    assert service.states() == ("active",) * len(UNITS)
    service.clear(pci)


def test_killed_again_and_again(machine: Machine, service: Service) -> None:
    """How long a request waits meanwhile."""
    waited = []
    for _ in range(3):
        machine.run("systemctl", "kill", "--signal=KILL", "vitald")
        begun = time.monotonic()
        assert service.get("/v1/status")[0] == 200
        waited.append(time.monotonic() - begun)
    print(f"answered {', '.join(f'{one:.2f}' for one in waited)} s after a kill")
    assert max(waited) < 5.0
    service.ready()


def test_killed_during_a_diagnostic(machine: Machine, service: Service) -> None:
    """The unit ends what the run has started, and the next daemon records the run."""
    service.configure('[checks.slow]\nrun = ["sleep", "600"]\nevery = "off"\ndeadline = "1h"\n')
    machine.run("systemctl", "reload", "vitald")
    machine.run("vitald", "diag", "run", "--check", "slow", "--reason", "test", "--no-wait")
    until(lambda: machine.run("pgrep", "-f", "sleep 600", check=False).stdout, "its program")
    machine.run("kill", "-KILL", str(service.pid))
    until(
        lambda: not machine.run("pgrep", "-f", "sleep 600", check=False).stdout, "its program's end"
    )
    service.ready()
    until(
        lambda: "interrupted: vitald was killed" in service.vitald("diag", "show", "last").stdout,
        "its record",
    )
    service.configure(BELIEVING)
    machine.run("systemctl", "reload", "vitald")


LEAVING = """
[checks.leaving]
run = ["sh", "-c", "until grep -q diagnostic- /proc/self/cgroup; do sleep 0.01; done; (setsid sleep 601 &)"]
every = "off"
"""


def test_nothing_of_a_diagnostic_is_left(machine: Machine, service: Service) -> None:
    """A process that left its session: systemd has delegated the unit's control group."""
    service.configure(LEAVING)
    machine.run("systemctl", "reload", "vitald")
    machine.run("vitald", "diag", "run", "--check", "leaving", "--reason", "test")
    assert "leaving  PASS" in service.vitald("diag", "show", "last").stdout
    assert machine.run("pgrep", "-f", "sleep 601", check=False).stdout == ""
    made = "/sys/fs/cgroup/system.slice/vitald.service/diagnostic-*"
    assert machine.run("sh", "-c", f"ls -d {made}", check=False).stdout == ""
    service.configure(BELIEVING)
    machine.run("systemctl", "reload", "vitald")


def test_stuck(machine: Machine, service: Service) -> None:
    """A process that the kernel does not run feeds no watchdog. The unit's 60 s are made 3 here."""
    assert machine.show("vitald", "WatchdogUSec") == "1min"
    drop_in = service.drop_in("vitald.service", "[Service]\nWatchdogSec=3\n")
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    pci = fresh_pci()
    service.write(xid(pci))
    until(lambda: service.findings(pci), "the finding")
    (before,), pid, begun = service.findings(pci), service.pid, time.monotonic()
    machine.run("kill", "-STOP", str(pid))
    until(lambda: service.pid not in (0, pid), "another process")
    print(f"restarted {time.monotonic() - begun:.1f} s after it was stopped, with WatchdogSec=3")
    service.ready()
    assert "Watchdog timeout" in service.log()
    (after,) = service.findings(pci)
    assert (after["id"], after["count"]) == (before["id"], before["count"])
    service.undo(drop_in)
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    service.clear(pci)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_requests_wait(machine: Machine, service: Service, how: str) -> None:
    """A prolog asks all the time, and hears neither that there is no daemon nor that it knows
    nothing yet.
    """
    script = (
        "while [ -e /run/asking ]; do vitald check --timeout 10 >/tmp/said 2>&1; echo $? $(cat"
        " /tmp/said); done"
    )
    machine.run("touch", "/run/asking")
    asking = subprocess.Popen(machine.argv("sh", "-c", script), stdout=subprocess.PIPE, text=True)
    for _ in range(4):
        time.sleep(0.5)
        machine.run(
            "systemctl",
            *(("restart",) if how == "restart" else ("kill", "--signal=KILL")),
            "vitald",
        )
        service.ready()
    machine.run("rm", "/run/asking")
    said = asking.communicate(timeout=WAIT_S)[0].splitlines()
    print(f"{len(said)} asked")
    assert len(said) > 4, "one for each restart, and more"
    failed = [
        line for line in said if not line.startswith(("0 ", "20 unhealthy: gpu/"))
    ]  # others write to this kernel log, too
    if how == "kill":  # who was being answered just then hears of it
        failed = [
            line for line in failed if "Connection reset" not in line and "Broken pipe" not in line
        ]
    assert failed == []


def test_stopped(machine: Machine, service: Service) -> None:
    """It ends by itself. The next request starts it again, unless the socket is stopped as well."""
    machine.run("systemctl", "stop", "vitald")
    assert machine.show("vitald", "Result") == "success"  # systemd did not have to kill it
    time.sleep(1.0)  # nothing but a request starts it
    assert service.states() == ("inactive", "active", "inactive")
    assert service.get("/v1/status")[0] == 200
    service.ready()
    assert service.states() == ("active",) * len(UNITS)

    machine.run("systemctl", "stop", "vitald.socket")
    assert service.states() == ("inactive",) * len(UNITS)
    assert service.get("/v1/status", timeout=3.0)[0] == 0
    assert service.states() == ("inactive",) * len(UNITS)
    machine.run("systemctl", "start", "vitald")
    service.ready()


def test_root_decides_once_a_minute(machine: Machine, service: Service) -> None:
    """However often the daemon's user renames a request into place. The unit's minute is made 3 s
    here.
    """
    assert "/bin/sleep 60" in machine.show("vitald-recover", "ExecStartPre")
    drop_in = service.drop_in(
        "vitald-recover.service", "[Service]\nExecStartPre=\nExecStartPre=/bin/sleep 3\n"
    )
    machine.run("systemctl", "start", "vitald-recover.path")
    folder = "/run/vitald/recovery"
    renamed = f"mkdir -p {folder}; echo x >{folder}/new; mv {folder}/new {folder}/request.json"

    def decided() -> int:
        said = machine.run(
            "journalctl", "-u", "vitald-recover", "-b", "--no-pager", "-o", "cat"
        ).stdout
        return said.count("\nrefused to ")

    machine.run("sh", "-c", f"for i in $(seq 200); do {renamed}; sleep 0.05; done", user="vitald")
    assert 1 <= decided() <= 4, decided()
    assert (
        machine.run("systemctl", "is-active", "vitald-recover.path", check=False).stdout
        == "active\n"
    )
    until(
        lambda: machine.show("vitald-recover", "ActiveState") == "inactive",
        "the last one to end",
    )
    before = decided()
    machine.run("sh", "-c", renamed, user="vitald")
    until(lambda: decided() == before + 1, "one more decision")
    until(lambda: machine.show("vitald-recover", "ActiveState") == "inactive", "its end")
    machine.run("sh", "-c", renamed, user="vitald")
    until(lambda: machine.show("vitald-recover", "ActiveState") == "activating", "another start")
    before = decided()
    machine.run("systemctl", "stop", "vitald-recover")  # as a shutdown does
    assert decided() == before  # which does not wait for the minute to pass
    kept = machine.run(
        "stat",
        "--format=%U:%G %a",
        "/var/lib/vitald-recover",
        "/var/lib/vitald-recover/decisions.jsonl",
    ).stdout
    assert kept.splitlines() == ["root:vitald 750", "root:vitald 640"]
    assert (
        '"step": "refused"'
        in machine.run("cat", "/var/lib/vitald-recover/decisions.jsonl", user="vitald").stdout
    )
    machine.run("systemctl", "stop", "vitald-recover.path")
    machine.run("rm", "-r", folder)
    service.undo(drop_in)


def test_root_sees_who_uses_the_devices(machine: Machine, service: Service) -> None:
    """Of all users: the unit's rights suffice. The daemon itself is recognised by its unit."""
    script = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[1:];"
        "from vitald.cli.recovery.run import query_daemon;"
        "from vitald.recovery.inputs import read_config;"
        "print(query_daemon(read_config(Path('/etc/vitald/config.toml'))).state.pid)"
    )
    found = machine.sh(
        f'python3 -IS -c "{script}" /opt/vitald/lib/python3.11 /opt/vitald/lib/common'
    )
    assert int(found) == service.pid
    device = machine.root / "srv/dev/nvidia0"
    device.parent.mkdir()
    os.mknod(device, 0o020666, Path("/dev/null").stat().st_rdev)
    machine.run(
        *(
            "systemd-run",
            "--unit=work",
            "--uid=nobody",
            "-p",
            "StandardInput=file:/srv/dev/nvidia0",
        ),
        *("sleep", "600"),
    )
    pid = machine.show("work", "MainPID")
    drop_in = service.drop_in("vitald-recover.service", "[Service]\nExecStartPre=\n")
    service.configure(f"{BELIEVING}\n{RECOVERING}")
    machine.run("systemctl", "reload", "vitald")
    machine.run("systemctl", "start", "vitald-recover.path")
    pci = fresh_pci()
    service.write(xid(pci))

    def find_users() -> str:
        decided = json.loads(service.vitald("recovery", "status", "--json").stdout)["decisions"]
        return next((str(one["why"]) for one in decided if "devices" in one["checks"]), "")

    until(find_users, "a decision")
    assert f"sleep (pid {pid}) has nvidia0 open" in find_users()
    assert "could not be checked" not in find_users()
    machine.run("systemctl", "stop", "vitald-recover.path", "work")
    service.configure("")
    machine.run("systemctl", "reload", "vitald")
    service.clear(pci)
    shutil.rmtree(device.parent)
    service.undo(drop_in)


def test_a_wrong_configuration_is_no_end(machine: Machine, service: Service) -> None:
    """It does not start, requests are refused and do not hang, and once it is mended nobody has to
    do anything.
    """
    drop_in = service.drop_in(
        "vitald-retry.timer",
        "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=8s\nAccuracySec=100ms\n",
    )
    limit = service.drop_in("vitald.service", "[Unit]\nStartLimitIntervalSec=3\n")
    machine.run("systemctl", "restart", "vitald-retry.timer")
    service.configure("[metric]\n")
    assert machine.run("systemctl", "restart", "vitald", check=False).returncode != 0
    refused = service.vitald("check", "--timeout", "10", check=False)
    assert refused.returncode == 30
    until(lambda: service.states()[:2] == ("failed", "failed"), "the end of trying")
    assert "did you mean metrics?" in service.log()
    service.configure(BELIEVING)
    until(lambda: service.states() == ("active",) * len(UNITS), "the next try")
    service.undo(drop_in)
    service.undo(limit)
    service.ready()


def test_without_journald(machine: Machine, service: Service) -> None:
    machine.run(
        "systemctl",
        "stop",
        "systemd-journald.socket",
        "systemd-journald-dev-log.socket",
        "systemd-journald-audit.socket",
        "systemd-journald.service",
        check=False,
    )
    assert (
        machine.run("systemctl", "is-active", "systemd-journald", check=False).stdout.strip()
        == "inactive"
    )
    before = service.pid
    for _ in range(2):
        pci = fresh_pci()
        service.write(xid(pci))
        until(lambda: service.findings(pci), "the finding")
        service.clear(pci)
        machine.run("systemctl", "reload", "vitald")
    assert service.pid == before
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    machine.run("systemctl", "start", "systemd-journald.socket", "systemd-journald.service")
    machine.run("systemctl", "restart", "vitald")
    service.ready()


@pytest.fixture
def small_disk(machine: Machine, service: Service) -> object:
    """The ledger on a file system of its own."""
    machine.run("systemctl", "stop", "vitald.socket")
    machine.run(
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=4m,mode=750,uid=vitald,gid=vitald",
        "small",
        "/var/lib/vitald",
    )
    yield None
    machine.run("systemctl", "stop", "vitald.socket")
    machine.run("umount", "/var/lib/vitald")
    machine.run("systemctl", "start", "vitald")
    service.ready()


def ledger_failed(service: Service) -> bool:
    return any(one["code"] == "vitald/ledger_failed" for one in service.findings())


def test_a_full_disk(machine: Machine, service: Service, small_disk: object) -> None:
    """It judges on, says what is wrong, keeps what it could not write, and writes it once
    it can.
    """
    machine.run("systemctl", "start", "vitald")
    service.ready()
    machine.sh("cat /dev/zero >/var/lib/vitald/filler || true; df /var/lib/vitald", check=False)
    pcis = [fresh_pci() for _ in range(40)]
    service.write(*(xid(pci) for pci in pcis))
    until(lambda: service.findings(pcis[-1]), "the last finding")
    until(lambda: ledger_failed(service), "the word of it")
    assert service.status["rebootRequired"] is True
    machine.run("rm", "/var/lib/vitald/filler")
    until(lambda: not ledger_failed(service), "the ledger to be written again", seconds=120.0)
    machine.run("systemctl", "kill", "--signal=KILL", "vitald")
    service.ready()
    assert [len(service.findings(pci)) for pci in pcis] == [1] * len(pcis)


def test_a_disk_that_cannot_be_written(
    machine: Machine, service: Service, small_disk: object
) -> None:
    machine.run("mount", "-o", "remount,ro", "/var/lib/vitald")
    machine.run("systemctl", "start", "vitald")
    service.ready()
    pci = fresh_pci()
    service.write(xid(pci))
    until(lambda: service.findings(pci), "the finding")
    assert ledger_failed(service)
    assert service.status["rebootRequired"] is True


# --- started anew


def test_reboot(machine: Machine, service: Service) -> None:
    """What a reboot cures is cured, what it does not cure stays."""
    # These two mount a /proc of the service's own, which tells the host's boot id: a container's is
    # laid over the file of that name.
    machine.write(BOOT_ID, "[Service]\nProtectKernelTunables=no\nProtectControlGroups=no\n")
    machine.run("systemctl", "daemon-reload")
    service.configure("")
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    service.believe()
    lost, worn = (
        fresh_pci(),
        "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR nd-id=9 nc-id=0 action=TERMINATE_INSTANCE",
    )
    service.write(xid(lost, 79), worn)
    until(lambda: service.findings(lost) and worn_out(service), "the findings")
    (kept,) = worn_out(service)
    # The next boot of a container has the same ring before it, whose lines are not to be believed
    # then.
    service.configure("[kernel_log]\nuserspace = 'ignore'\n")
    boot = service.status["bootId"]
    begun = time.monotonic()
    machine.reboot()
    service.ready()
    print(f"rebooted and looked at again in {time.monotonic() - begun:.1f} s")
    status = service.status
    assert status["bootId"] != boot
    assert (status["rebootRequired"], status["replacementRequired"]) == (False, True), status[
        "reasons"
    ]
    assert service.findings(lost) == []
    (finding,) = worn_out(service)
    assert finding["id"] == kept["id"]
    assert [
        code for one in service.findings() if (code := str(one["code"])).startswith("vitald/")
    ] == []
    service.vitald("clear", str(kept["id"]), "--reason", "test")
    (machine.root / BOOT_ID.lstrip("/")).unlink()
    (machine.root / BOOT_ID.lstrip("/")).parent.rmdir()
    machine.run("systemctl", "daemon-reload")


def worn_out(service: Service) -> list[Json]:
    """What only a replacement ends."""
    return [one for one in service.findings() if one["code"] == "neuron/hbm_uncorrectable_error"]


def purge(machine: Machine) -> None:
    machine.run("dpkg", "--purge", "vitald")


def test_remove_and_purge(machine: Machine, service: Service) -> None:
    """A removed one leaves configuration and ledger, a purged one nothing: no process, file, unit
    or user.
    """
    mine = '# mine\n[slurm]\nrecord = "/var/lib/vitald-recover/our reasons"  # not the default\n'
    service.configure(mine)
    record = machine.root / "var/lib/vitald-recover/our reasons"
    record.parent.mkdir(exist_ok=True)
    record.write_text("vitald: node: a test\n")
    removed = machine.run("dpkg", "--remove", "vitald")
    assert "drained this node in Slurm for: vitald: node: a test\n" in removed.stderr
    assert machine.run("pgrep", "--full", "/opt/vitald", check=False).stdout == ""
    assert not (machine.root / "usr/bin/vitald").exists()
    assert (machine.root / "etc/vitald/config.toml").read_text() == mine
    assert machine.run("test", "-s", "/var/lib/vitald/ledger.db").returncode == 0
    purge(machine)
    assert (
        machine.sh(
            "find / -xdev -path '*vitald*'; find /run /tmp /var/tmp /dev -path '*vitald*'"
        ).splitlines()
        == []
    )
    assert (
        machine.run("systemctl", "list-units", "--all", "--no-legend", "vitald*").stdout.strip()
        == ""
    )
    for database in ("passwd", "group"):
        assert machine.run("getent", database, "vitald", check=False).returncode == 2
    assert machine.run("systemctl", "--failed", "--no-legend").stdout.strip() == ""


def test_upgrade(machine: Machine, service: Service, package: Path, old_package: Path) -> None:
    """From one commit to a later one of the same release, and back. Configuration, open findings
    and what was cleared are kept, requests wait meanwhile, and what runs is the package's version.
    """
    new, old = version_of(package), version_of(old_package)
    (machine.root / "root/old.deb").write_bytes(old_package.read_bytes())
    install(machine, "old.deb")
    service.ready()
    assert service.get("/healthz")[1]["version"] == old
    mine = "# mine\n[policy]\ndevice_reset = true\n"
    service.configure(mine)
    machine.run("systemctl", "restart", "vitald")
    service.ready()
    kept, cleared = fresh_pci(), fresh_pci()
    finding = service.drill(kept, 64)
    service.drill(cleared, 79)
    service.clear(cleared)
    events = service.events(cleared)

    asking = subprocess.Popen(
        machine.argv(
            "sh",
            "-c",
            "while [ ! -e /run/upgraded ]; do curl -s -o /dev/null -w '%{http_code}\n'"
            f" --max-time 20 --unix-socket {SOCKET} http://x/healthz; done",
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds = install(machine, "new.deb")
    machine.run("touch", "/run/upgraded")
    answers = asking.communicate(timeout=WAIT_S)[0].split()
    service.ready()
    print(f"upgraded in {seconds:.1f} s, {len(answers)} requests meanwhile")
    assert set(answers) == {"200"}
    assert service.get("/healthz")[1]["version"] == new
    assert service.vitald("version").stdout.startswith(f"vitald {new} ")
    assert f'version="{new}"' in machine.sh("curl -s http://127.0.0.1:9820/metrics")
    assert (machine.root / "etc/vitald/config.toml").read_text() == mine
    assert list((machine.root / "etc/vitald").iterdir()) == [
        machine.root / "etc/vitald/config.toml"
    ]
    (after,) = service.findings(kept)
    assert (after["id"], after["count"], service.findings(cleared)) == (finding["id"], 1, [])
    assert service.events(cleared) == events

    refused = machine.run("apt-get", "install", "-y", "/root/old.deb", check=False)
    assert refused.returncode == 100
    assert "--allow-downgrades" in refused.stderr
    assert service.get("/healthz")[1]["version"] == new
    install(machine, "old.deb", "--allow-downgrades")
    service.ready()
    assert service.get("/healthz")[1]["version"] == old
    (after,) = service.findings(kept)
    assert (after["id"], after["count"], service.findings(cleared)) == (finding["id"], 1, [])
    assert "Traceback" not in service.log()
    purge(machine)
