"""Processes stuck in the kernel, the clock, services; and the real parts of this machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.looking import Looking, polled, told
from tests.trees import Tree
from tests.unit.test_host import KINDS, Clock, clock, host, tree
from vitald.collectors.host import units
from vitald.collectors.host.clock import Timex, adjtimex
from vitald.collectors.host.collector import Host
from vitald.collectors.host.settings import HostSettings
from vitald.collectors.host.units import Unanswered
from vitald.model.source import SourceState
from vitald.topology.fstab import Fstab

__all__ = ["clock", "tree"]  # fixtures

IOCTL = (
    "[<0>] os_acquire_mutex+0x35/0x40 [nvidia]\n[<0>] nvidia_ioctl+0x1f/0x30 [nvidia]\n[<0>]"
    " __x64_sys_ioctl+0x8b/0xc0"
)
BUSY = "12.00 11.00 9.00 3/800 11206"


def process(
    tree: Tree,
    pid: int,
    name: str = "python3",
    *,
    state: str = "D",
    stack: str = "",
    wchan: str = "0",
    switches: int = 7,
    kernel: bool = False,
) -> None:
    flags = 0x00200040 if kernel else 0x00400040
    tree.write(
        f"proc/{pid}/stat", f"{pid} ({name}) {state} 1 1 1 0 -1 {flags} {'0 ' * 12} 1234 0 0"
    )
    tree.write(
        f"proc/{pid}/status",
        f"Name:\t{name}\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0",
    )
    tree.write(f"proc/{pid}/wchan", wchan)
    if stack:
        tree.write(f"proc/{pid}/stack", stack)


# --- processes


STUCK = [
    (IOCTL, "0", "driver", "nvidia_ioctl"),
    ("", "uvm_va_space_mm_register", "driver", "uvm_va_space_mm_register"),
    (
        "[<0>] schedule_timeout+0x1/0x2\n[<0>] ncdev_ioctl+0x1/0x2 [neuron]",
        *("0", "driver", "ncdev_ioctl"),
    ),
    (
        "[<0>] cmd_exec+0x1/0x2 [mlx5_core]\n[<0>] mlx5_cmd_exec+0x1/0x2 [mlx5_core]",
        *("0", "driver", "mlx5_cmd_exec"),
    ),
    ("[<0>] efa_com_cmd_exec+0x1/0x2 [efa]", "0", "driver", "efa_com_cmd_exec"),
    (
        "[<0>] blk_execute_rq+0x1/0x2\n[<0>] nvme_submit_user_cmd+0x1/0x2 [nvme_core]",
        *("0", "driver", "nvme_submit_user_cmd"),
    ),
    ("[<0>] rpc_wait_bit_killable+0x1/0x2 [sunrpc]", "0", "server", "rpc_wait_bit_killable"),
    ("", "nfs4_wait_clnt_recover", "server", "nfs4_wait_clnt_recover"),
    ("[<0>] ptlrpc_set_wait+0x1/0x2 [ptlrpc]", "0", "server", "ptlrpc_set_wait"),
    (
        "[<0>] io_schedule+0x1/0x2\n[<0>] folio_wait_bit_common+0x1/0x2",
        *("0", "elsewhere", "io_schedule"),
    ),
    ("", "0", "elsewhere", "only root may see"),
]


def test_a_process_stuck_for_five_minutes(tree: Tree, clock: Clock) -> None:
    codes = {
        "driver": "host/stuck_in_driver",
        "server": "host/stuck_on_server",
        "elsewhere": "host/stuck_elsewhere",
    }
    tree.write("proc/loadavg", BUSY)
    wrong = []
    for pid, (stack, wchan, kind, where) in enumerate(STUCK, 4021):
        process(tree, pid, stack=stack, wchan=wchan)
        with Looking(polled(host(tree), *KINDS)) as looking:
            early = looking.look()
            for _ in range(5):
                clock.pass_(60)
                early += looking.look()
            clock.pass_(1)
            found = looking.look()
            process(tree, pid, state="S")
            over = [event.fields["recovered"] for event in looking.look()]
        said = [(event.code, event.component.name, event.fields["process"]) for event in found]
        if (
            (told(early), said, over)
            != (set(), [(codes[kind], "node/processes", "python3")], [True])
            or f"python3 ({pid}) in " not in found[0].raw
            or where not in found[0].raw
        ):
            wrong.append((stack, wchan, early, found, over))
    assert wrong == []


def test_a_process_that_ran_in_between_is_not_stuck(tree: Tree, clock: Clock) -> None:
    tree.write("proc/loadavg", BUSY)
    with Looking(polled(host(tree), *KINDS)) as looking:
        for look in range(10):
            process(tree, 4021, stack=IOCTL, switches=7 + look)
            assert told(looking.look()) == set()
            clock.pass_(60)


def test_kernel_threads_are_left_alone_until_their_number_is_anothers(
    tree: Tree, clock: Clock
) -> None:
    tree.write("proc/loadavg", BUSY)
    process(tree, 90, "kworker/u16:4", stack=IOCTL, kernel=True)
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look(2)
        (tree.root / "proc/90").rename(
            tree.root / "proc/gone"
        )  # keeps its inode from being given out again
        process(tree, 90, stack=IOCTL)
        looking.look(2)
        clock.pass_(301)
        assert told(looking.look()) == {("host/stuck_in_driver", "node/processes")}


def test_where_the_load_says_that_nobody_waits_nobody_is_looked_at(
    tree: Tree, clock: Clock
) -> None:
    process(tree, 4021, stack=IOCTL)
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        clock.pass_(60)
        looking.look()
        assert looking.readings("node/processes").values["stuck_in_nvidia_seconds"] == 0.0


def test_so_many_processes_are_read_in_turns(tree: Tree, clock: Clock) -> None:
    tree.write("proc/loadavg", BUSY)
    for pid in range(1000, 1600):
        process(tree, pid, state="S")
    process(tree, 1000, stack=IOCTL)  # the last in turn
    with Looking(polled(host(tree), *KINDS)) as looking:
        for _ in range(5):  # in the last of which it is first seen
            looking.look()
            clock.pass_(1)
        looking.look()
        assert looking.readings("node/processes").values["stuck_in_nvidia_seconds"] == 1.0


def test_what_is_first_seen_is_not_named(tree: Tree, clock: Clock) -> None:
    """It would be remembered, and so written to disk, at each look."""
    tree.write("proc/loadavg", BUSY)
    process(tree, 4021, stack=IOCTL)
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        assert "4021" not in looking.memory["known"]["node/processes"]["words"]
        clock.pass_(60)
        looking.look()
        assert (
            looking.memory["known"]["node/processes"]["words"] == "python3 (4021) in nvidia_ioctl"
        )


def test_a_name_is_made_printable(tree: Tree, clock: Clock) -> None:
    tree.write("proc/loadavg", BUSY)
    process(tree, 4021, "a) \x1b[31mb\n(c", stack=IOCTL)
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        clock.pass_(301)
        (event,) = looking.look()
        assert event.fields["process"] == "a) ?[31mb?(c"
        assert event.raw.isprintable()


def test_hidden_processes_are_said(tree: Tree) -> None:
    tree.remove("proc/1/stat")
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        assert "hidepid" in looking.readings("node/processes").missing["stuck"]


def test_processes_run_out(tree: Tree, clock: Clock) -> None:
    tree.write("proc/sys/kernel/pid_max", 4194304)
    tree.write("proc/sys/kernel/threads-max", 900)
    with Looking(polled(host(tree), *KINDS)) as looking:
        looking.look()
        clock.pass_(60)
        assert told(looking.look()) == {("host/tasks_many", "node/processes")}


# --- the clock


def test_the_clock(tree: Tree, clock: Clock) -> None:
    """By status, maximum error and offset."""
    expected: dict[tuple[int, int, int], set[str]] = {
        (0x0001, 2_000, 300): set(),
        (0x0041, 16_000_000, 0): {"clock/unsynchronised"},
        (0x0041, 1_000_000, 0): set(),  # just started
        (0x2001, 2_000, -60_000_000): {"clock/skewed"},  # nanoseconds
        (0x0001, 2_000, 60_000): {"clock/skewed"},  # microseconds
        (0x2001, 2_000, 60_000): set(),
    }
    found = {}
    for status, maxerror, offset in expected:
        subject = host(tree)
        timex = Timex(status=status, maxerror=maxerror, offset=offset)
        subject.clock.adjtimex = lambda timex=timex: timex
        with Looking(polled(subject, *KINDS)) as looking:
            looking.look()
            clock.pass_(600)
            found[status, maxerror, offset] = told(looking.look())
    assert found == {
        case: {(code, "node/clock") for code in codes} for case, codes in expected.items()
    }


def refused() -> Timex:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def unanswered() -> bool:
    raise OSError("there is no timedatectl here")


def test_a_clock_that_may_not_be_asked(tree: Tree) -> None:
    subject = host(tree)
    subject.clock.adjtimex, subject.clock.timedated = refused, unanswered
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        missing = looking.readings("node/clock").missing
        assert (
            missing["unsynchronised"]
            == "adjtimex: Operation not permitted (EPERM); there is no timedatectl here"
        )


def test_timedated_asks_for_us(tree: Tree, clock: Clock) -> None:
    """As in the service, whose unit forbids adjtimex. Not at every look: each question starts a
    service and two lines in the journal.
    """
    subject, asked, kept = host(tree), [], [False]

    def answer() -> bool:
        asked.append(kept[0])
        return kept[0]

    subject.clock.adjtimex, subject.clock.timedated = refused, answer
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        clock.pass_(600)
        assert told(looking.look()) == {("clock/unsynchronised", "node/clock")}
        assert "clock_offset_seconds" in looking.readings("node/clock").missing
        assert asked == [False, False]
        kept[0] = True
        clock.pass_(300)
        looking.look()
        assert looking.readings("node/clock").values["unsynchronised"] == 0.0
        clock.pass_(600)
        looking.look()
        assert asked == [False, False, True]


# --- services


class Systemd:
    """Answers as systemctl does."""

    def __init__(self) -> None:
        self.units: dict[str, dict[str, str]] = {}
        self.asked = 0
        self.error = ""

    def unit(
        self,
        name: str,
        active: str = "active",
        load: str = "loaded",
        restarts: str = "0",
        **more: str,
    ) -> None:
        self.units[name] = {
            "Id": name,
            "LoadState": load,
            "ActiveState": active,
            "SubState": "running",
            "NRestarts": restarts,
            **more,
        }

    def show(self, names: Sequence[str]) -> str:
        self.asked += 1
        if self.error:
            raise Unanswered(self.error)
        return (
            "\n\n".join(
                "\n".join(f"{key}={value}" for key, value in self.units[name].items())
                for name in names
            )
            + "\n"
        )


@pytest.fixture
def systemd() -> Systemd:
    systemd = Systemd()
    for name in ("kubelet.service", "slurmd.service"):
        systemd.unit(name)
    return systemd


_SERVED = HostSettings(
    mounts=("/",), units=("kubelet.service", "slurmd.service"), units_if_enabled=()
)


def served(tree: Tree, systemd: Systemd, settings: HostSettings = _SERVED) -> Host:
    subject = Host(
        tree.root / "sys", tree.root / "proc", Path("/"), settings, Fstab(tree.root / "etc/fstab")
    )
    subject.clock.adjtimex = lambda: Timex(maxerror=1000)
    subject.units.show = systemd.show
    return subject


@pytest.mark.parametrize(
    ("active", "load", "seconds", "code"),
    [
        ("failed", "loaded", 60, "unit/not_running"),
        ("inactive", "loaded", 60, "unit/not_running"),
        ("activating", "loaded", 600, "unit/not_ready"),
        ("inactive", "not-found", 60, "unit/not_loaded"),
        ("inactive", "masked", 60, "unit/not_loaded"),
    ],
)
def test_a_service_that_does_not_run(
    tree: Tree, clock: Clock, systemd: Systemd, active: str, load: str, seconds: int, code: str
) -> None:
    with Looking(polled(served(tree, systemd), *KINDS)) as looking:
        assert told(looking.look()) == set()
        clock.pass_(60)
        systemd.unit("slurmd.service", active, load)
        assert told(looking.look()) == set()
        clock.pass_(seconds)
        assert told(looking.look()) == {(code, "node/slurmd.service")}
        clock.pass_(60)
        systemd.unit("slurmd.service")
        looking.look()
        clock.pass_(seconds)
        assert [event.fields["recovered"] for event in looking.look()] == [True]


@pytest.mark.parametrize(
    ("unit", "enabled", "watched"),
    [
        ("nvidia-fabricmanager.service", "enabled", True),
        ("nvlsm.service", "enabled", True),
        ("nvidia-imex.service", "enabled", True),
        ("nvidia-fabricmanager.service", "disabled", False),
        ("nvidia-fabricmanager.service", "", False),
    ],
)
def test_a_service_that_must_run_where_it_is_enabled(
    tree: Tree, clock: Clock, systemd: Systemd, enabled: str, watched: bool, unit: str
) -> None:
    """Nobody had to say that a node with NVSwitches needs its Fabric Manager; one that was turned
    off on purpose is not missed.
    """
    others = {"load": "loaded" if enabled else "not-found", "active": "inactive"}
    for one in HostSettings().units_if_enabled:
        systemd.unit(one, **others, UnitFileState="disabled")
    systemd.unit(unit, UnitFileState=enabled)
    subject = served(tree, systemd, HostSettings(mounts=("/",)))
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        clock.pass_(60)
        systemd.unit(unit, "failed", UnitFileState=enabled)
        looking.look()
        clock.pass_(60)
        found = {("unit/not_running", f"node/{unit}")} if watched else set()
        assert told(looking.look()) == found
    systemd.error = "systemctl: Failed to connect to bus"
    clock.pass_(60)
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        assert looking.last.state is (SourceState.FAILED if watched else SourceState.OK), (
            "it was enabled when systemd last answered"
        )


def by_default(tree: Tree, systemd: Systemd) -> Host:
    """None of the units that are watched unless somebody says otherwise is there, but those that a
    test has put there.
    """
    for name in {*HostSettings().units_if_enabled} - {*systemd.units}:
        systemd.unit(name, "inactive", "not-found")
    return served(tree, systemd, HostSettings(mounts=("/",)))


def test_units_that_may_have_to_run_are_not_observable_where_systemd_cannot_be_asked(
    tree: Tree, systemd: Systemd
) -> None:
    """Nobody knows whether they are enabled. That is said, and does not make the node unknown: it
    may be a container.
    """
    systemd.error = "there is no systemctl here"
    with Looking(polled(by_default(tree, systemd), *KINDS)) as looking:
        assert told(looking.look()) == set()
        assert looking.last.state is SourceState.OK
        for unit in HostSettings().units_if_enabled:
            read = looking.readings(f"node/{unit}")
            assert (read.missing["active_state"], read.values, read.unknown_reason) == (
                "there is no systemctl here",
                {},
                "",
            )


DISABLED = {"UnitFileState": "disabled"}
MASKED = {"load": "masked", "UnitFileState": "masked"}
NOT_FOUND = {"load": "not-found"}


@pytest.mark.parametrize(
    ("failed", "seconds", "code", "afterwards", "restarted"),
    [
        ({"active": "failed"}, 60, "unit/not_running", DISABLED, False),
        ({"active": "failed"}, 60, "unit/not_running", NOT_FOUND, True),
        ({"active": "activating"}, 600, "unit/not_ready", MASKED, False),
        ({"active": "activating"}, 600, "unit/not_ready", DISABLED, True),
        ({"active": "inactive", "load": "error"}, 60, "unit/not_loaded", NOT_FOUND, False),
        ({"active": "inactive", "load": "error"}, 60, "unit/not_loaded", MASKED, True),
        ({"restarts": "9"}, 0, "unit/restarting", MASKED, False),
        ({"restarts": "9"}, 0, "unit/restarting", NOT_FOUND, True),
    ],
)
def test_what_was_said_of_a_unit_ends_when_it_need_not_run_any_more(
    tree: Tree,
    clock: Clock,
    systemd: Systemd,
    failed: dict[str, str],
    seconds: int,
    code: str,
    afterwards: dict[str, str],
    restarted: bool,
) -> None:
    unit = "nvidia-fabricmanager.service"
    systemd.unit(unit, UnitFileState="enabled")
    with Looking(polled(by_default(tree, systemd), *KINDS)) as looking:
        looking.look()
        systemd.unit(unit, **failed, UnitFileState="enabled")
        clock.pass_(60)
        looking.look()
        clock.pass_(seconds)
        looking.look()
        assert told(looking.events) == {(code, f"node/{unit}")}
        position = looking.position
        if not restarted:
            systemd.unit(unit, **{"active": "failed"} | failed | afterwards)
            ended(looking, clock, code)
    if restarted:
        systemd.unit(unit, **{"active": "failed"} | failed | afterwards)
        with Looking(polled(by_default(tree, systemd), *KINDS), position) as looking:
            ended(looking, clock, code)


def test_without_units_nobody_is_asked(tree: Tree, systemd: Systemd) -> None:
    subject = served(tree, systemd, HostSettings(mounts=("/",), units_if_enabled=()))
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look(2)
    assert systemd.asked == 0


def test_what_was_said_of_a_unit_ends_when_it_is_taken_off_the_configuration(
    tree: Tree, clock: Clock, systemd: Systemd
) -> None:
    with Looking(polled(served(tree, systemd), *KINDS)) as looking:
        systemd.unit("slurmd.service", "failed")
        looking.look()
        clock.pass_(60)
        assert told(looking.look()) == {("unit/not_running", "node/slurmd.service")}
        position = looking.position
    with Looking(polled(by_default(tree, systemd), *KINDS), position) as looking:
        ended(looking, clock, "unit/not_running")


def ended(looking: Looking, clock: Clock, code: str) -> None:
    """It is over, and after an hour nobody looks at the unit any more."""
    over = []
    for _ in range(20):
        over += looking.look()
        clock.pass_(60)
    assert [(event.code, event.fields.get("recovered")) for event in over] == [(code, True)]
    clock.pass_(3600)
    looking.look()
    looking.look()
    assert not [one for one in looking.last.readings if one.component.id.endswith(".service")]
    assert looking.memory["subject"]["units"] == []


def test_a_service_that_is_restarted_again_and_again(
    tree: Tree, clock: Clock, systemd: Systemd
) -> None:
    with Looking(polled(served(tree, systemd), *KINDS)) as looking:
        looking.look()
        clock.pass_(300)
        systemd.unit("kubelet.service", restarts="4")
        assert told(looking.look()) == {("unit/restarting", "node/kubelet.service")}


def test_one_call_serves_a_round(tree: Tree, clock: Clock, systemd: Systemd) -> None:
    with Looking(polled(served(tree, systemd), *KINDS)) as looking:
        looking.look()
        clock.pass_(60)
        looking.look()
        assert systemd.asked == 2


def test_a_systemd_that_cannot_be_asked_is_neither_well_nor_ill(
    tree: Tree, systemd: Systemd
) -> None:
    systemd.error = "systemctl: System has not been booted with systemd as init system"
    with Looking(polled(served(tree, systemd), *KINDS)) as looking:
        assert told(looking.look()) == set()
        assert looking.last.state is SourceState.FAILED, (
            "somebody wants to know how it is, and nobody does"
        )
        assert "not been booted" in looking.readings("node/kubelet.service").unknown_reason


def test_an_answer_about_other_units_is_none(tree: Tree, systemd: Systemd) -> None:
    subject = served(tree, systemd)
    subject.units.show = lambda _: "Id=kubelet.service\nActiveState=failed\n"
    with Looking(polled(subject, *KINDS)) as looking:
        looking.look()
        assert (
            "1 units, asked of 2" in looking.readings("node/slurmd.service").missing["active_state"]
        )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Failed to connect to bus' >&2; exit 1", "Failed to connect"),
        ("exit 3", "exit code 3"),
        ("exec sleep 60", "did not answer"),
    ],
)
def test_what_systemctl_itself_may_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    command = tmp_path / "systemctl"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setitem(units._ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(units, "_ANSWER_S", 0.5)
    with pytest.raises(Unanswered, match=said):
        units.show_units(["kubelet.service"])


def test_without_systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(units._ENVIRONMENT, "PATH", str(tmp_path))
    with pytest.raises(Unanswered, match="no systemctl"):
        units.show_units(["kubelet.service"])


# --- the real parts of the machine that runs the tests


def test_this_machine_is_read_without_surprise(tmp_path: Path) -> None:
    subject = Host(Path("/sys"), Path("/proc"), tmp_path, HostSettings(), Fstab(tmp_path / "fstab"))
    with Looking(polled(subject, *KINDS)) as looking:
        assert {code for code, _ in told(looking.look(2))} <= {"host/memory_corrupted"}
        assert looking.last.state is SourceState.OK, looking.last.detail
        for one in looking.last.readings:
            assert one.values or one.missing, one.component.name
            assert all(one.missing.values()), one.component.name
        assert any("read_only" in one.values for one in looking.last.readings)
        assert looking.readings("node/processes").values.keys() >= {
            "tasks",
            "stuck_in_nvidia_seconds",
            "stuck_in_other_seconds",
        }
        clock = looking.readings("node/clock")
        assert "clock_error_seconds" in clock.values or clock.missing


def test_the_kernels_clock_is_asked_and_not_set() -> None:
    try:
        timex = adjtimex()
    except OSError as error:
        pytest.skip(f"adjtimex: {error.strerror}")
    assert timex.maxerror >= 0
    assert timex.modes == 0
