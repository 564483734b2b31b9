"""
The process that holds NVML. It asks what it is told to, one command at a time, and answers with one
JSON line each.

A call that never returns blocks this process and nothing else. Before each call its name and GPU
are written to memory shared with the daemon, so that the daemon can say where it hangs. Only a
process that ends lets go of the driver for certain, so nothing is shut down here: it exits.

Commands on standard input:   {"do": "attach", "gpus": [address, ...]}
                              {"do": "look", "fast": [...], "slow": [...], "inventory": [...]}
Answers on standard output:   {"answer": {...}}; unasked {"simulated": ...} about the library,
{"event": {"gpu", "type", "data"}},
                              and {"deaf": {"gpu", "code"}} where events of a GPU are not heard
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
from vitald.collectors.nvml import calls, tiers
from vitald.collectors.nvml.calls import Call, Gpu
from vitald.collectors.nvml.marker import MARKER
from vitald.text import replace_unprintable

SIMULATED = "vitald_simulated_nvml"  # the symbol by which the simulated library says that it is one

_NO_GPUS = 1  # nvmlInitWithFlags: succeed as long as the driver answers
_WAIT_MS = 60_000
_EVENTS = 0x1 | 0x2 | 0x8 | 0x100 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
_MASK = "nvmlDeviceGetSupportedEventTypes"  # of which all may be set
_DEAF = Backoff(1.0, 60.0)  # between attempts to wait for events
_STACK_BYTES = 256 * 1024
_PR_SET_PDEATHSIG = 1


class Worker:
    """One attachment to the driver. It is never attached twice: a new one is a new process."""

    def __init__(self, library: str, marker: mmap.mmap) -> None:
        self._library = library
        self._marker = marker
        self._lock = threading.Lock()
        self._gpus: dict[str, Gpu] = {}
        self._addresses: dict[int, str] = {}  # of the GPUs, by the pointer that is their handle
        self._driver: tuple[int, ...] = ()
        self._excluded: set[str] = set()
        self._now = ""  # the GPU that is asked about

    def serve(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = self._do(command)
            except pynvml.NVMLError as error:
                answer = {"error": error.value}
            self._say({"answer": answer})

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "attach":
            return self._attach(command["gpus"])
        if command["do"] == "work":
            return {"gpus": {address: self._work(address) for address in command["gpus"]}}
        return self._look(command)

    def ask(self, name: str, *args: Any, raw: bool = False) -> Any:
        """One call, marked while it is in flight. `raw`: past the binding, where that gets it
        wrong.
        """
        MARKER.pack_into(self._marker, 0, time.monotonic(), name.encode(), self._now.encode())
        try:
            if not raw:
                answer = getattr(pynvml, name)(*args)
                return answer if name == _MASK else _available(answer)
            code = pynvml._nvmlGetFunctionPointer(name)(*args)
            if code:
                raise pynvml.NVMLError(code)
            return None
        finally:
            MARKER.pack_into(self._marker, 0, 0.0, b"", b"")

    # --- attaching

    def _attach(self, addresses: list[str]) -> dict[str, Any]:
        """Take hold of the driver and of each GPU, one after the other."""
        if self._library:
            try:
                pynvml.nvmlLib = ctypes.CDLL(self._library)
            except OSError as error:
                return {"error": 12, "detail": str(error)}
        pynvml._LoadNvmlLibrary()
        self._say(
            {"simulated": hasattr(pynvml.nvmlLib, SIMULATED)}
        )  # before anything that may hang or fail
        self.ask("nvmlInitWithFlags", _NO_GPUS)
        version = self.ask("nvmlSystemGetDriverVersion")
        self._driver = tuple(int(part) for part in version.split(".") if part.isdigit())
        count = self.ask("nvmlDeviceGetCount")
        self._excluded = self._excluded_gpus()
        failed: dict[str, int] = {}
        for address in addresses:
            try:
                self._take(address)
            except pynvml.NVMLError as error:
                failed[address] = error.value
        return {
            "driver": version,
            "nvml": self._if_known("nvmlSystemGetNVMLVersion"),
            "cuda": self._if_known(
                "nvmlSystemGetCudaDriverVersion_v2"
            ),  # needs libcuda, which a container may not have
            "count": count,
            "failed": failed,
            "events": self._listen(),
        }

    def _if_known(self, name: str) -> Any:
        """What it is good to know, and no reason to look at nothing."""
        try:
            return self.ask(name)
        except pynvml.NVMLError:
            return None

    def _take(self, address: str) -> None:
        """By its PCI address: a look-up by UUID would fail for all once one of them is lost."""
        self._now = address
        try:
            if address in self._excluded:
                raise pynvml.NVMLError(calls.EXCLUDED)
            handle = self.ask("nvmlDeviceGetHandleByPciBusId", address.encode())
            self._gpus[address] = Gpu(address, handle, self._driver)
            self._addresses[_pointer(handle)] = address
        finally:
            self._now = ""

    def _excluded_gpus(self) -> set[str]:
        """GPUs that the driver's own configuration keeps it from using."""
        found = set()
        try:
            for index in range(self.ask("nvmlGetExcludedDeviceCount")):
                pci = self.ask("nvmlGetExcludedDeviceInfoByIndex", index).pci
                found.add(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
        except pynvml.NVMLError:
            # An older driver; then a GPU that is left out is one that the driver does not know
            pass
        return found

    # --- looking

    def _look(self, command: dict[str, list[str]]) -> dict[str, Any]:
        tiers: tuple[tuple[str, tuple[Call, ...]], ...] = (
            ("inventory", calls.INVENTORY),
            ("fast", calls.FAST),
            ("slow", calls.SLOW),
        )
        return {
            "gpus": {
                address: self._read(
                    address,
                    [call for tier, own in tiers if address in command[tier] for call in own],
                    command["inventory"],
                )
                for address in sorted({address for tier, _ in tiers for address in command[tier]})
            }
        }

    def _work(self, address: str) -> dict[str, Any]:
        """Who is at work on one GPU, and nothing else: what fails here is told by the next look."""
        gpu = self._gpus.get(address)
        if gpu is None:
            return {}
        self._now = address
        try:
            return {"values": calls.processes(self.ask, gpu)}
        except pynvml.NVMLError:
            return {}
        finally:
            self._now = ""

    def _read(self, address: str, wanted: list[Call], inventory: list[str]) -> dict[str, Any]:
        """What one GPU says. Once it is lost, nothing more is asked of it.

        `missing`: for each reading that these calls should have given and did not, why.
        """
        values: dict[str, calls.Reading] = {}
        missing: dict[str, str] = {}
        self._now = address
        try:
            gpu = self._gpus.get(address)
            if gpu is None:  # it was not there when we attached; it may be now
                self._take(address)
                gpu = self._gpus[address]
            if address in inventory:
                gpu.skipped.clear()
            codes: set[int] = set()
            for call in wanted:
                code, got = (calls.LOST, {}) if calls.LOST in codes else self._call(gpu, call)
                codes.add(code)
                values |= got
                for name in tiers.OF[call.__name__]:
                    # The code of the reading, which may be there in part; else that of the call as
                    # a whole.
                    if code or name not in got or name in gpu.refused:
                        missing[name] = _reason(_refused(gpu, name) or code or calls.NOT_SUPPORTED)
            stale = calls.INVALID_ARGUMENT in codes and not values and gpu.answered
            gpu.answered = gpu.answered or bool(values)
            if values and gpu.unheard:  # it was lost, and with it the wait for its events
                self._listen_to(gpu)
            return {
                "values": values,
                "missing": missing,
                "faults": sorted(
                    {
                        calls.FAULTS[code]
                        for code, _ in gpu.troubles.values()
                        if code in calls.FAULTS
                    }
                ),
                "failing": {
                    name: code
                    for name, (code, times) in gpu.troubles.items()
                    if code not in calls.FAULTS and times >= calls.OFTEN
                },
                "stale": stale,
            }
        except pynvml.NVMLError as error:
            return {"lookup": error.value}
        finally:
            self._now = ""

    def _call(self, gpu: Gpu, call: Call) -> tuple[int, dict[str, calls.Reading]]:
        """NVML's code, 0 where the call succeeded, and what it gave. Counts how often it failed in
        succession.
        """
        name = call.__name__
        if name in gpu.skipped:
            code, gpu.refused = gpu.skipped[name]
            return code, {}
        gpu.refused, gpu.failed = {}, 0
        got: dict[str, calls.Reading] = {}
        try:
            got, code = call(self.ask, gpu), 0
            failed = gpu.failed
        except pynvml.NVMLError as error:
            code = failed = error.value
        if code in calls.MISSING and set(gpu.refused.values()) <= calls.MISSING.keys():
            gpu.skipped[name] = code, gpu.refused
        if not failed or failed in calls.MISSING:
            gpu.troubles.pop(name, None)
        elif failed in calls.FAULTS or (failed not in calls.UNSAID and name not in calls.UNJUDGED):
            gpu.troubles[name] = (failed, gpu.troubles.get(name, (0, 0))[1] + 1)
        return code, got

    # --- events

    def _listen(self) -> list[str]:
        threading.stack_size(_STACK_BYTES)
        heard = []
        for gpu in self._gpus.values():
            self._now = gpu.address
            if self._listen_to(gpu):
                heard.append(gpu.address)
        self._now = ""
        return heard

    def _listen_to(self, gpu: Gpu) -> bool:
        """One set for each GPU: a lost one ends its own wait at once, again and again, and would
        starve the others'.
        """
        gpu.unheard = False
        events = None
        try:
            wanted = _EVENTS & self.ask("nvmlDeviceGetSupportedEventTypes", gpu.handle)
            if not wanted:
                return False
            events = self.ask("nvmlEventSetCreate")
            self.ask("nvmlDeviceRegisterEvents", gpu.handle, wanted, events)
        except pynvml.NVMLError as error:
            if error.value not in calls.MISSING:
                self._say({"deaf": {"gpu": gpu.address, "code": error.value}})
            if events is not None:
                with suppress(pynvml.NVMLError):
                    self.ask("nvmlEventSetFree", events)
            return False
        threading.Thread(
            target=self._wait, args=(gpu, events), name=f"events {gpu.address}", daemon=True
        ).start()
        return True

    def _wait(self, gpu: Gpu, events: Any) -> None:
        """Until the GPU is lost. Other errors are waited out: they come at once, every time."""
        failures = 0
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value == calls.TIMEOUT:
                    continue
                self._say({"deaf": {"gpu": gpu.address, "code": error.value}})
                if error.value == calls.LOST:
                    gpu.unheard = True
                    with suppress(
                        pynvml.NVMLError
                    ):  # it holds a descriptor, and for a GPU that comes back there is another
                        pynvml.nvmlEventSetFree(events)
                    return
                time.sleep(_DEAF.delay_s(failures))
                failures += 1
                continue
            # An event is about the GPU that it names, whichever set it came through.
            address = self._addresses.get(_pointer(event.device), gpu.address)
            self._say(
                {
                    "event": {
                        "gpu": address,
                        "type": int(event.eventType),
                        "data": int(event.eventData),
                    }
                }
            )

    def _say(self, told: dict[str, Any]) -> None:
        line = json.dumps(told, separators=(",", ":"), default=_plain).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(1, line) :]


def _available(answer: Any) -> Any:
    """What a call gave, unless that stands for no value: then it failed. Text is for one line of a
    terminal or a page.
    """
    if isinstance(answer, str):
        return replace_unprintable(answer)
    parts = answer if isinstance(answer, (list, tuple)) else (answer,)
    if any(isinstance(part, int) and part in calls.NOT_AVAILABLE for part in parts):
        raise pynvml.NVMLError(calls.NO_VALUE)
    return answer


def _refused(gpu: Gpu, name: str) -> int:
    """Why the call in progress did not give this reading; one that has a value for each link, by
    the first link.
    """
    return gpu.refused.get(name) or gpu.refused.get(f"{name}/0", 0)


def _reason(code: int) -> str:
    if code in calls.REASONS:
        return calls.REASONS[code]
    return (
        calls.FAULTS[code].replace("_", " ")
        if code in calls.FAULTS
        else f"fails with NVML error {code}"
    )


def _pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _plain(value: Any) -> Any:
    """Some of the binding's getters return ctypes objects or bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value.value


def main() -> None:
    """`argv`: the library to load ("" for the driver's own) and the descriptor of the shared
    memory.
    """
    library, fd = sys.argv[-2], int(sys.argv[-1])
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, signal.SIGKILL
    )  # the daemon was killed: do not hold on to the driver
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the daemon's to answer
    worker = Worker(library, mmap.mmap(fd, MARKER.size))
    worker.serve()
    os._exit(0)  # not through nvmlShutdown: a thread may be waiting in the library
