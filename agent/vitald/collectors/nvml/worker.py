"""
The process that holds NVML: executes one command at a time and answers each with one JSON line.

A call that never returns blocks this process only. Before each call its name and GPU are written to
memory shared with the daemon, which can report where it hangs. Only the end of a process releases
the driver for certain, so nothing is shut down: the process exits.

Commands on standard input:
    {"do": "attach", "gpus": [address, ...], "profiling": bool}
    {"do": "look", "fast": [...], "slow": [...], "inventory": [...]}    addresses of GPUs, by tier
    {"do": "work", "gpus": [...]}                                       the processes on each GPU
Messages on standard output:
    {"answer": {...}}                         to a command; to `attach` with the readings by tier
    {"simulated": bool}                       about the library, before the first call
    {"event": {"gpu", "type", "data"}}        an NVML event
    {"deaf": {"gpu", "code"}}                 events of a GPU cannot be received
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pynvml

from vitald.backoff import Backoff
from vitald.collectors.nvml import (
    board_calls,
    codes,
    link_calls,
    memory_calls,
    mig_calls,
    profiling_calls,
)
from vitald.collectors.nvml.codes import MARKER
from vitald.collectors.nvml.query import Call, PolledGpu, Reading
from vitald.text import replace_unprintable

SIMULATED = "vitald_simulated_nvml"  # a symbol that only the simulated library has

# In the order in which they are made: a module's, in the order of its functions. Some depend on
# what an earlier one has found: whether the GPU is in MIG mode, how many links of which generation.
CALLS = tuple(
    value
    for module in (board_calls, memory_calls, mig_calls, link_calls, profiling_calls)
    for value in vars(module).values()
    if isinstance(value, Call)
)

_NO_GPUS = 1  # nvmlInitWithFlags: succeed as long as the driver answers
_WAIT_MS = 60_000
_EVENTS = 0x1 | 0x2 | 0x8 | 0x100 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
_EVENT_MASK = "nvmlDeviceGetSupportedEventTypes"  # all bits may be set: not "no value"
_EVENT_RETRY = Backoff(1.0, 60.0)  # between attempts to wait for events
_STACK_BYTES = 256 * 1024
_PR_SET_PDEATHSIG = 1


class NvmlWorker:
    """One attachment to the driver. A process attaches only once."""

    def __init__(self, library: str, marker: mmap.mmap) -> None:
        self._library = library
        self._marker = marker
        self._lock = threading.Lock()
        self._gpus: dict[str, PolledGpu] = {}
        self._addresses: dict[int, str] = {}  # of the GPUs, by the pointer in their handle
        self._driver: tuple[int, ...] = ()
        self._excluded: set[str] = set()
        self._current_gpu = ""
        self._profiling = False

    def serve_commands(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = self._execute_command(command)
            except pynvml.NVMLError as error:
                answer = {"error": error.value}
            self._send_message({"answer": answer})

    def _execute_command(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "attach":
            self._profiling = command.get("profiling", False)
            return self._attach_gpus(command["gpus"])
        if command["do"] == "work":
            gpus = command["gpus"]
            return {"gpus": {address: self._read_processes(address) for address in gpus}}
        return self._read_tiers(command)

    def ask_driver(self, name: str, *args: Any, raw: bool = False) -> Any:
        """Makes one call, marked while it is in flight. `raw`: past the binding, if that passes
        wrong arguments.
        """
        gpu = self._current_gpu.encode()
        MARKER.pack_into(self._marker, 0, time.monotonic(), name.encode(), gpu)
        try:
            if not raw:
                answer = getattr(pynvml, name)(*args)
                return answer if name == _EVENT_MASK else _check_answer(answer)
            code = pynvml._nvmlGetFunctionPointer(name)(*args)
            if code:
                raise pynvml.NVMLError(code)
            return None
        finally:
            MARKER.pack_into(self._marker, 0, 0.0, b"", b"")

    # --- attaching

    def _attach_gpus(self, addresses: list[str]) -> dict[str, Any]:
        """Initialises NVML and gets a handle of each GPU, one after the other."""
        if self._library:
            try:
                pynvml.nvmlLib = ctypes.CDLL(self._library)
            except OSError as error:
                return {"error": 12, "detail": str(error)}
        pynvml._LoadNvmlLibrary()
        # Before any call that may hang or fail.
        self._send_message({"simulated": hasattr(pynvml.nvmlLib, SIMULATED)})
        self.ask_driver("nvmlInitWithFlags", _NO_GPUS)
        version = self.ask_driver("nvmlSystemGetDriverVersion")
        self._driver = tuple(int(part) for part in version.split(".") if part.isdigit())
        count = self.ask_driver("nvmlDeviceGetCount")
        self._excluded = self._list_excluded()
        failed: dict[str, int] = {}
        for address in addresses:
            try:
                self._add_gpu(address)
            except pynvml.NVMLError as error:
                failed[address] = error.value
        return {
            "driver": version,
            "nvml": self._ask_optional("nvmlSystemGetNVMLVersion"),
            # Requires libcuda, which a container may not have.
            "cuda": self._ask_optional("nvmlSystemGetCudaDriverVersion_v2"),
            "count": count,
            "failed": failed,
            "events": self._register_events(),
            "readings": list_readings(),
        }

    def _ask_optional(self, name: str) -> Any:
        """None if the call fails."""
        try:
            return self.ask_driver(name)
        except pynvml.NVMLError:
            return None

    def _add_gpu(self, address: str) -> None:
        """By its PCI address: a look-up by UUID fails for all GPUs once one of them is lost. Raises
        NVMLError.
        """
        self._current_gpu = address
        try:
            if address in self._excluded:
                raise pynvml.NVMLError(codes.EXCLUDED)
            handle = self.ask_driver("nvmlDeviceGetHandleByPciBusId", address.encode())
            self._gpus[address] = PolledGpu(address, handle, self._driver)
            self._addresses[_get_pointer(handle)] = address
        finally:
            self._current_gpu = ""

    def _list_excluded(self) -> set[str]:
        """GPUs that the driver's configuration excludes."""
        found = set()
        try:
            for index in range(self.ask_driver("nvmlGetExcludedDeviceCount")):
                pci = self.ask_driver("nvmlGetExcludedDeviceInfoByIndex", index).pci
                found.add(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
        except pynvml.NVMLError:
            pass  # an older driver: it does not know GPUs that are excluded
        return found

    # --- readings

    def _read_tiers(self, command: dict[str, list[str]]) -> dict[str, Any]:
        polled = {tier: command[tier] for tier in ("inventory", "fast", "slow")}
        if self._profiling:
            polled["profiling"] = command["fast"]
        return {
            "gpus": {
                address: self._read_gpu(
                    address,
                    [
                        call
                        for tier, gpus in polled.items()
                        if address in gpus
                        for call in CALLS
                        if call.tier == tier
                    ],
                    command["inventory"],
                )
                for address in sorted({gpu for gpus in polled.values() for gpu in gpus})
            }
        }

    def _read_processes(self, address: str) -> dict[str, Any]:
        """The processes on one GPU. Failures are not counted: the next round will report them."""
        gpu = self._gpus.get(address)
        if gpu is None:
            return {}
        self._current_gpu = address
        try:
            return {"values": board_calls.read_processes(self.ask_driver, gpu)}
        except pynvml.NVMLError:
            return {}
        finally:
            self._current_gpu = ""

    def _read_gpu(self, address: str, wanted: list[Call], inventory: list[str]) -> dict[str, Any]:
        """The answer about one GPU. Once it is lost, the remaining calls are not made.

        `values`: readings by name. `missing`: why, for each reading of these calls that they did
        not give. `faults`: of the GPU. `failing`: calls that fail for no known reason, with NVML's
        code. `stale`: the handle is no longer valid. `lookup`: alone, the code of a failed look-up.
        """
        values: dict[str, Reading] = {}
        missing: dict[str, str] = {}
        self._current_gpu = address
        try:
            gpu = self._gpus.get(address)
            if gpu is None:  # its look-up failed at the attachment; it may succeed now
                self._add_gpu(address)
                gpu = self._gpus[address]
            if address in inventory:
                gpu.skipped.clear()
            returned: set[int] = set()
            for call in wanted:
                lost = codes.LOST in returned
                code, got = (codes.LOST, {}) if lost else self._make_call(gpu, call)
                returned.add(code)
                values |= got
                for name in call.readings:
                    # A reading that is there in part is missing too, with the part's code.
                    if code or name not in got or name in gpu.refused:
                        refused = gpu.find_refusal(name) or code or codes.NOT_SUPPORTED
                        missing[name] = codes.describe_code(refused)
            stale = codes.INVALID_ARGUMENT in returned and not values and gpu.answered
            gpu.answered = gpu.answered or bool(values)
            if values and gpu.lacks_events:  # it was lost, which ended the wait for its events
                self._register_gpu_events(gpu)
            return {
                "values": values,
                "missing": missing,
                "faults": gpu.list_faults(),
                "failing": gpu.list_failing_calls(),
                "stale": stale,
            }
        except pynvml.NVMLError as error:
            return {"lookup": error.value}
        finally:
            self._current_gpu = ""

    def _make_call(self, gpu: PolledGpu, call: Call) -> tuple[int, dict[str, Reading]]:
        """NVML's code, 0 for success, and the readings. Counts failures in succession."""
        name = call.name
        if name in gpu.skipped:
            code, gpu.refused = gpu.skipped[name]
            return code, {}
        gpu.refused, gpu.failed = {}, 0
        got: dict[str, Reading] = {}
        try:
            got, code = call.read(self.ask_driver, gpu), 0
            failed = gpu.failed
        except pynvml.NVMLError as error:
            code = failed = error.value
        if code in codes.MISSING and set(gpu.refused.values()) <= codes.MISSING.keys():
            gpu.skipped[name] = code, gpu.refused
        if not failed or failed in codes.MISSING:
            gpu.failures.pop(name, None)
        elif failed in codes.FAULTS or (failed not in codes.NO_DATA and call.is_judged):
            gpu.failures[name] = (failed, gpu.failures.get(name, (0, 0))[1] + 1)
        return code, got

    # --- events

    def _register_events(self) -> list[str]:
        """Addresses of the GPUs whose events are received."""
        threading.stack_size(_STACK_BYTES)
        registered = []
        for gpu in self._gpus.values():
            self._current_gpu = gpu.address
            if self._register_gpu_events(gpu):
                registered.append(gpu.address)
        self._current_gpu = ""
        return registered

    def _register_gpu_events(self, gpu: PolledGpu) -> bool:
        """In an event set of its own: a lost GPU ends each wait on its set at once."""
        gpu.lacks_events = False
        events = None
        try:
            wanted = _EVENTS & self.ask_driver(_EVENT_MASK, gpu.handle)
            if not wanted:
                return False
            events = self.ask_driver("nvmlEventSetCreate")
            self.ask_driver("nvmlDeviceRegisterEvents", gpu.handle, wanted, events)
        except pynvml.NVMLError as error:
            if error.value not in codes.MISSING:
                self._send_message({"deaf": {"gpu": gpu.address, "code": error.value}})
            if events is not None:
                with suppress(pynvml.NVMLError):
                    self.ask_driver("nvmlEventSetFree", events)
            return False
        threading.Thread(
            target=self._forward_events,
            args=(gpu, events),
            name=f"events {gpu.address}",
            daemon=True,
        ).start()
        return True

    def _forward_events(self, gpu: PolledGpu, events: Any) -> None:
        """Runs in a thread until the GPU is lost. After other errors it waits, as each further wait
        would fail at once.
        """
        failures = 0
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value == codes.TIMEOUT:
                    continue
                self._send_message({"deaf": {"gpu": gpu.address, "code": error.value}})
                if error.value == codes.LOST:
                    gpu.lacks_events = True
                    # It holds a file descriptor; a GPU that comes back gets a new set.
                    with suppress(pynvml.NVMLError):
                        pynvml.nvmlEventSetFree(events)
                    return
                time.sleep(_EVENT_RETRY.delay_s(failures))
                failures += 1
                continue
            # The event names its GPU, which need not be the one of this set.
            address = self._addresses.get(_get_pointer(event.device), gpu.address)
            content = {
                "gpu": address,
                "type": int(event.eventType),
                "data": int(event.eventData),
            }
            self._send_message({"event": content})

    def _send_message(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), default=_to_json).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(1, line) :]


def list_readings() -> dict[str, list[str]]:
    """The readings that the calls of each tier can give."""
    found: dict[str, list[str]] = {}
    for call in CALLS:
        found.setdefault(call.tier, []).extend(call.readings)
    return found


def _check_answer(answer: Any) -> Any:
    """A call's result; text without unprintable characters. Raises NVMLError for NVML's
    marker for "no value".
    """
    if isinstance(answer, str):
        return replace_unprintable(answer)
    parts = answer if isinstance(answer, (list, tuple)) else (answer,)
    if any(isinstance(part, int) and part in codes.NOT_AVAILABLE for part in parts):
        raise pynvml.NVMLError(codes.NO_VALUE)
    return answer


def _get_pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _to_json(value: Any) -> Any:
    """Some of the binding's getters return ctypes objects or bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value.value


def main() -> None:
    """`argv`: the library to load ("" for the driver's own) and the file descriptor of the shared
    memory.
    """
    library, fd = sys.argv[-2], int(sys.argv[-1])
    # If the daemon is killed, release the driver.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon handles a terminal's Ctrl-C
    worker = NvmlWorker(library, mmap.mmap(fd, MARKER.size))
    worker.serve_commands()
    os._exit(0)  # not through nvmlShutdown: a thread may be waiting in the library
