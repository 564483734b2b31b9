"""
A GPU node in a folder: the state file that the simulated NVML answers from, its events and calls,
and a PCI bus in sysfs.

    node = SimulatedNode(folder, "h100")
    node.set_values(3, {"temp_c": 91, "throttle": "0x40"})
    node.emit_event(3, 0x8, 79)
    node.lose(3)

A process sees the node if it has `node.environment` and loads `node.library` in place of the
driver's libnvidia-ml.so.1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vitald.simulator import simulated_library, state_file
from vitald.simulator.pci_tree import PciTree, list_gpu_addresses, list_switch_addresses
from vitald.simulator.profiles import read_profile
from vitald.simulator.state_file import StateFile

DRIVER = "580.95.05"

_MAX_GPUS = 64
_HANGS = ("sleep", "fork", "spin")


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """One call into the library, from the trace. `gpu`: the node's own index, whatever index NVML
    gave it meanwhile.
    """

    at_ns: int  # CLOCK_MONOTONIC, when it began
    pid: int
    tid: int
    function: str
    gpu: int | None
    ret: int
    duration_us: int


class SimulatedNode:
    """Everything about the node may be changed while programs read it; each change is one new state
    file.
    """

    def __init__(
        self, folder: Path, profile: str = "h100", gpus: int | None = None, *, trace: bool = False
    ) -> None:
        """`gpus`: how many, instead of the profile's number. `trace`: record the calls.

        Raises ValueError for an unknown profile or more GPUs than the library supports.
        """
        self.folder = folder.resolve()
        self.model = read_profile(profile)
        self.gpus = self.model.gpus if gpus is None else gpus
        if not 0 <= self.gpus <= _MAX_GPUS:
            raise ValueError(f"{self.gpus} GPUs: the simulated library knows 0 to {_MAX_GPUS}")
        self.state = self.folder / "state"
        self.events = self.folder / "state.events"
        self.trace = self.folder / "calls"
        self.sysfs = self.folder / "sysfs"
        self.addresses = list_gpu_addresses(self.gpus)
        self.switches = list_switch_addresses(self.model.switches)
        self.uuids = [f"GPU-51a10000-0000-4000-8000-{gpu:012x}" for gpu in range(self.gpus)]
        self.serials = [f"SIM{gpu:010d}" for gpu in range(self.gpus)]
        self.environment = {"NVML_SIM_STATE": str(self.state)}
        if trace:
            self.environment["NVML_SIM_TRACE"] = str(self.trace)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.events.write_bytes(b"")
        self.trace.unlink(missing_ok=True)
        self._pci = self._build_pci_tree()
        self._state_file = StateFile(self.state, self.gpus, self._build_values())

    @cached_property
    def library(self) -> Path:
        """The simulated libnvidia-ml.so.1, compiled on first use. Raises build.CannotBuild."""
        return simulated_library.build_library()

    # --- what NVML answers

    def get_value(self, gpu: int | None, key: str) -> str | None:
        """What the library would read for a GPU's key, or (None) for a key without a GPU. What
        rates have added since the last change is not in it.
        """
        return self._state_file.get_value(gpu, key)

    def set_values(self, gpu: int | None, values: Mapping[str, object]) -> None:
        """Change keys of a GPU, or (None) of every GPU; the value None removes a key: its call is
        no longer supported.
        """
        texts = state_file.format_gpu_values(values)
        if gpu is not None:
            self._require_gpu(gpu)
        with self._state_file.change_file():
            self._state_file.set_gpu_values(gpu, texts)

    def set_global_values(self, values: Mapping[str, object]) -> None:
        """Change keys that belong to no GPU, such as `driver.version` or `ret.nvmlInitWithFlags`;
        None removes one.
        """
        texts = state_file.format_global_values(values)
        with self._state_file.change_file():
            self._state_file.set_global_values(texts)

    def emit_event(self, gpu: int, kind: int, data: int = 0) -> None:
        """An event, for every process that waits for its kind: 0x8 is an Xid, with its number as
        data.
        """
        self._require_gpu(gpu)
        # One write at the end of the file: lines of several threads do not mix.
        fd = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{gpu} {kind:x} {data}\n".encode())
        finally:
            os.close(fd)

    def read_calls(self) -> list[SimulatedCall]:
        """The calls of all processes so far; needs `trace`. A call is recorded when it returns."""
        try:
            text = self.trace.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [_parse_call(line) for line in lines]

    # --- what happens to a node

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: calls on it answer 15, and so do waits for events. It stays in
        the count and on PCI.
        """
        self.set_values(gpu, {"lost": 1})

    def restore(self, gpu: int) -> None:
        """A GPU that was lost answers again."""
        self.set_values(gpu, {"lost": None})

    def remove(self, gpu: int) -> None:
        """The GPU is missing, as after a reboot with a dead board: lower count, shifted indices,
        nothing on PCI.
        """
        self.set_values(gpu, {"absent": 1})
        self._pci.remove_device(self.addresses[gpu])

    def put_back(self, gpu: int) -> None:
        """A GPU that was removed is there again."""
        self._pci.add_gpu(self.addresses[gpu], self.model.device)
        self.set_values(gpu, {"absent": None})

    def reset(self, gpu: int) -> None:
        """A GPU reset: counters since the last one start again, pending repairs are done, handles
        are stale.
        """
        self._require_gpu(gpu)
        with self._state_file.change_file():
            self._state_file.reset_gpu(gpu)

    def reload_driver(self) -> None:
        """The kernel module was unloaded and loaded again: a reset of every GPU, and every handle
        is stale.
        """
        with self._state_file.change_file():
            for gpu in range(self.gpus):
                self._state_file.reset_gpu(gpu)
            self._state_file.raise_driver_epoch()

    def hang_call(self, gpu: int | None, function: str, kind: str = "sleep") -> None:
        """From now on the call does not return: until `release_call`, or (fork, spin) until its
        process ends.

        "sleep" waits, "fork" waits in state D of the kernel, "spin" runs. `gpu` None: calls for
        every GPU, and calls for none.
        """
        if kind not in _HANGS:
            raise ValueError(f"{kind!r} is no way to hang: {', '.join(_HANGS)}")
        if gpu is None:
            self.set_global_values({f"hang.{function}": kind})
        else:
            self.set_values(gpu, {f"hang.{function}": kind})

    def release_call(self, gpu: int | None, function: str) -> None:
        """The call returns; None: wherever it hangs."""
        key = state_file.check_gpu_key(f"hang.{function}")
        if gpu is not None:
            self._require_gpu(gpu)
        with self._state_file.change_file():
            self._state_file.set_gpu_values(gpu, {key: None})
            if gpu is None:
                self._state_file.set_global_values({key: None})

    # --- how it is built

    def _build_values(self) -> dict[str, str]:
        values = {
            "driver.version": DRIVER,
            "driver.nvml": f"13.{DRIVER}",
            "driver.cuda": "13000",
            "driver.epoch": "1",
            "count": str(self.gpus),
        }
        values |= {f"gpu.*.{key}": value for key, value in self.model.keys.items()}
        for gpu in range(self.gpus):
            identity = self._build_identity(gpu)
            values |= {f"gpu.{gpu}.{key}": value for key, value in identity.items()}
        return values

    def _build_identity(self, gpu: int) -> dict[str, str]:
        address = self.addresses[gpu]
        identity = {
            "uuid": self.uuids[gpu],
            "serial": self.serials[gpu],
            "busid": f"0000{address.upper()}",
            "minor": str(gpu),
            "board_id": str(int(address.split(":")[1], 16) << 8),
        }
        if "module" not in self.model.keys:
            identity["module"] = str(gpu + 1)
        return identity

    def _build_pci_tree(self) -> PciTree:
        tree = PciTree(self.sysfs)
        for number, address in enumerate(self.addresses, start=1):
            tree.add_gpu(address, self.model.device)
            tree.add_slot(number, address)
        for address in self.switches:
            tree.add_switch(address)
        return tree

    def _require_gpu(self, gpu: int) -> None:
        if not 0 <= gpu < self.gpus:
            raise ValueError(f"there is no GPU {gpu}: {self.gpus} GPUs")


def _parse_call(line: str) -> SimulatedCall:
    """A line of the trace."""
    at_ns, pid, tid, function, gpu, ret, duration_us = line.split()
    return SimulatedCall(
        at_ns=int(at_ns),
        pid=int(pid),
        tid=int(tid),
        function=function,
        gpu=None if gpu == "-1" else int(gpu),
        ret=int(ret),
        duration_us=int(duration_us),
    )
