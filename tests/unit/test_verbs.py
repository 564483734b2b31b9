"""The verbs character device of an RDMA adapter and a context opened on it, with a library of our
own in place of libibverbs.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.looking import Looking, polled, told
from tests.network_tree import MLX5, NetworkTree
from tests.pace import patient
from vitald.collectors import polling
from vitald.collectors.network.collector import KINDS, Network, _find_probe
from vitald.collectors.network.settings import NetworkSettings
from vitald.collectors.network.verbs import ProbeLimit, VerbsProbe
from vitald.collectors.small_files import RawReadings
from vitald.model import Readings, SourceState

SOURCE = Path(__file__).parent.parent / "libibverbs.c"
NAMES = ("mlx5_0", "mlx5_1")
BAD = f"nic/{MLX5[1]}"
DEADLINE_S = 1.5


class Clock:
    """The real one, and what was turned on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


class Machine:
    """Two adapters, /dev/infiniband, and what libibverbs answers."""

    def __init__(self, folder: Path) -> None:
        self.tree = NetworkTree(folder / "sys")
        for number, address in enumerate(MLX5[:2]):
            self.tree.mlx5(address, f"ib{number}")
        self.dev = folder / "dev/infiniband"
        self.dev.mkdir(parents=True)
        for number in range(2):
            (self.dev / f"uverbs{number}").touch()
        self.state, self.library = folder / "answers", folder / "libibverbs.so.1"
        self.answer()

    def compile(self) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        require(compiler, "a C compiler")
        command = [str(compiler), "-shared", "-fPIC", f'-DSTATE="{self.state}"']
        subprocess.run([*command, "-o", str(self.library), str(SOURCE)], check=True)

    def answer(self, *lines: str, devices: tuple[str, ...] = NAMES) -> None:
        """Lines that libibverbs.c explains."""
        spare = self.state.with_suffix(".new")
        text = [*(f"device {name}" for name in devices), *lines]
        spare.write_text("".join(f"{line}\n" for line in text))
        spare.replace(self.state)

    def make_probe(self) -> VerbsProbe:
        dev, library = str(self.dev.parent), str(self.library)
        return VerbsProbe(
            self.limit,
            self.every_s,
            DEADLINE_S,
            dev=dev,
            library=library,
            sees_all_devices=self.sees_all_devices,
        )

    limit = ProbeLimit()
    every_s = 300.0
    sees_all_devices = True

    def start(self) -> Looking:
        network = Network(self.tree.root, NetworkSettings(), create_probe=self.make_probe)
        return Looking(polled(network, *KINDS, look_s=600.0))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    machine.limit = ProbeLimit()
    machine.compile()
    yield machine
    machine.answer()


def poll_for(looking: Looking, clock: Clock, rounds: int) -> set[tuple[str, str]]:
    """The findings of so many rounds, half a minute apart."""
    events = []
    for _ in range(rounds):
        events += looking.look()
        settle(looking)
        clock.ahead += 30.0
    return told(events)


def settle(looking: Looking) -> None:
    """Wait for the reads that are under way, before the clock is turned on."""
    deadline = time.monotonic() + patient(10)
    while looking.source._poller.readers.under_way:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def poll_while(looking: Looking, waits: Callable[[Readings], bool]) -> Readings:
    """Poll until the second adapter no longer `waits`: until its child has ended, say."""
    deadline = time.monotonic() + patient(20)
    while True:
        looking.look()
        settle(looking)
        found = [one for one in looking.last.readings if one.component.name == BAD]
        if found and not waits(found[0]):
            return found[0]
        assert time.monotonic() < deadline, found


def poll_until(looking: Looking, reading: str, value: float) -> None:
    poll_while(looking, lambda found: found.values.get(reading) != value)


def find_reason(looking: Looking) -> str:
    """Why nothing is known of the second adapter."""
    found = poll_while(looking, lambda found: "verbs_failed" not in found.missing)
    assert "verbs_failed" not in found.values
    return found.missing["verbs_failed"]


def test_devices_that_open(machine: Machine, clock: Clock) -> None:
    with machine.start() as looking:
        poll_until(looking, "verbs_failed", 0.0)
        values = looking.readings(BAD).values
        assert poll_for(looking, clock, 15) == set()
        assert looking.last.state is SourceState.OK
    assert (values["verbs_device"], values["verbs_missing"]) == ("uverbs1", 0.0)
    assert values["verbs_hung"] == 0.0


@pytest.mark.parametrize("call", ["open", "query"])
def test_a_device_that_does_not_open(machine: Machine, clock: Clock, call: str) -> None:
    machine.answer(f"{call} mlx5_1 {errno.EIO}")
    with machine.start() as looking:
        poll_until(looking, "verbs_failed", 1.0)
        assert poll_for(looking, clock, 5) == {("network/verbs_failed", BAD)}
        (event,) = (event for event in looking.events if event.code == "network/verbs_failed")
        assert event.fields["verbs_call"] == f"ibv_{call}_device"
        assert "EIO" in str(event.fields["verbs_error"])
        machine.answer()
        poll_until(looking, "verbs_failed", 0.0)
        looking.look()
        over = [event for event in looking.events if event.code == "network/verbs_failed"]
    assert over[-1].fields["recovered"] is True


def test_one_failed_probe_is_no_fault(machine: Machine, clock: Clock) -> None:
    machine.answer(f"open mlx5_1 {errno.EIO}")
    with machine.start() as looking:
        poll_until(looking, "verbs_failed", 1.0)
        machine.answer()
        clock.ahead += 30.0
        poll_until(looking, "verbs_failed", 0.0)
        assert poll_for(looking, clock, 5) == set()
        assert not [event for event in looking.events if event.code == "network/verbs_failed"]


def test_a_call_that_hangs_is_named_and_ended(machine: Machine, clock: Clock) -> None:
    machine.answer("hang ibv_query_device mlx5_1")
    with machine.start() as looking:
        poll_until(looking, "verbs_hung", 1.0)
        (event,) = (event for event in looking.events if event.code == "network/verbs_hung")
        assert (event.component.name, event.fields["verbs_call"]) == (BAD, "ibv_query_device")
        assert looking.readings(f"nic/{MLX5[0]}").values["verbs_hung"] == 0.0
        machine.answer()
        poll_until(looking, "verbs_hung", 0.0)
        over = [event for event in looking.events if event.code == "network/verbs_hung"]
    assert over[-1].fields["recovered"] is True


def test_children_of_hung_devices_are_limited(machine: Machine) -> None:
    machine.limit = ProbeLimit(1)
    machine.answer("hang ibv_open_device mlx5_0", "hang ibv_open_device mlx5_1")
    probes = [machine.make_probe() for _ in NAMES]
    for probe, address, name in zip(probes, MLX5, NAMES):
        folder = f"{machine.tree.root}/bus/pci/devices/{address}"
        probe.read_device(RawReadings(), folder, name)
    assert [probe._child is not None for probe in probes] == [True, False]
    assert probes[0]._child is not None
    probes[0]._child.kill()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE, 0])
def test_what_this_process_may_not_do_says_nothing_of_the_device(
    machine: Machine, clock: Clock, code: int
) -> None:
    machine.answer(f"open mlx5_1 {code or 9999}")
    with machine.start() as looking:
        assert "ibv_open_device" in find_reason(looking)
        assert poll_for(looking, clock, 15) == set()
        assert looking.last.state is SourceState.OK


def test_without_libibverbs_or_a_provider_nothing_is_reported(
    machine: Machine, clock: Clock
) -> None:
    machine.answer(devices=("mlx5_0",))
    with machine.start() as looking:
        assert find_reason(looking) == "libibverbs has no provider for it"
        assert poll_for(looking, clock, 8) == set()
    machine.library.unlink()
    with machine.start() as looking:
        assert find_reason(looking) == "there is no libibverbs.so.1"
        assert poll_for(looking, clock, 8) == set()


def test_a_probe_that_crashes_says_nothing(machine: Machine, clock: Clock) -> None:
    machine.library.write_text("no library")
    broken = "int ibv_get_device_list(void) { __builtin_trap(); }"
    source = machine.library.with_suffix(".c")
    source.write_text(broken + "int ibv_get_device_name, ibv_open_device, ibv_query_device;")
    source.write_text(source.read_text() + "int ibv_close_device;")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", machine.library, source], check=True)
    with machine.start() as looking:
        assert find_reason(looking) == "the probe ended by itself in ibv_get_device_list"
        assert poll_for(looking, clock, 8) == set()


def test_a_device_without_its_file(machine: Machine, clock: Clock) -> None:
    (machine.dev / "uverbs1").unlink()
    with machine.start() as looking:
        assert poll_for(looking, clock, 4) == set()
        assert poll_for(looking, clock, 2) == {("network/verbs_missing", BAD)}


def test_a_file_that_a_container_does_not_show_is_not_missing(
    machine: Machine, clock: Clock
) -> None:
    machine.sees_all_devices = False
    (machine.dev / "uverbs1").unlink()
    with machine.start() as looking:
        assert poll_for(looking, clock, 8) == set()
        assert "verbs_missing" in looking.readings(BAD).missing
        assert looking.last.state is SourceState.OK


def test_it_can_be_turned_off(machine: Machine, clock: Clock) -> None:
    machine.every_s = 0.0
    machine.answer("hang ibv_open_device mlx5_1")
    with machine.start() as looking:
        assert poll_for(looking, clock, 4) == set()
        assert "verbs_failed" not in looking.readings(BAD).values


def test_a_tree_that_stands_for_another_machine_is_not_probed(machine: Machine) -> None:
    assert _find_probe(machine.tree.root, NetworkSettings()) is None
