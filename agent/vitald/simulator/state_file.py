"""
The state file that the simulated NVML answers from: `key = value` lines (README.md in this folder),
which keys there are, and how a value is written. Every change replaces the whole file, so that the
library reads either the old or the new one.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from vitald import tomlfile
from vitald.simulator import simulated_library

SETTLED_MJ = 1000  # what the energy counter shows right after a reset

_COUNT = re.compile(r"-?(?:0|[1-9]\d*)|0x[0-9a-fA-F]+")
# What a reset sets back to 0, as far as a model has it: volatile ECC counts, errors of links and
# PCIe, times of throttling, advice.
_CLEARED = re.compile(r"ecc\.\w+\.vol\.\w+|nvlink\.\d+\.err\.\d|pcie\.replay|pages\.pending")
_CLEARED_FIELDS = frozenset(
    {
        *range(32, 60),
        *range(74, 82),
        *range(94, 120),
        *range(161, 164),
        169,
        *range(173, 184),
        *range(201, 223),
    }
    | {226, 227, 230, *range(235, 251), *range(269, 272)}
)
_INJECTIONS = ("ret", "after", "delay_us", "hang", "crash")
_GLOBAL_KEY = re.compile(
    r"driver\.(?:version|nvml|cuda|epoch)|count"
    r"|abi\.(?:unrepairable|fabric_max|platform_max|any_set)"
    r"|(?:ret|after|hang|delay_us|crash)\.(?:nvml\w+|\*)"
)
_GPU_KEY = re.compile(
    r"name|uuid|serial|part|vbios|inforom|busid|module|minor|board_id|arch|brand|cc|pci_device_id"
    r"|temp_c|threshold\.\d+|margin_c|power_mw|limit_mw|limit_default_mw|energy_mj|pstate"
    r"|(?:max_)?clock\.\d+|throttle|utilization|encoder|decoder|memory|persistence|ecc_mode"
    r"|ecc\.(?:cor|unc)\.(?:vol|agg)\.(?:total|l1|l2|dram|reg|tex|shm|cbu|sram)"
    r"|sram|privileged|remap|histogram|pages\.(?:sbe|dbe|pending)|repair|unrepairable|mig_mode"
    r"|mig_max|mig\.\d+|gpm\.(?:supported|\d+(?:\.\d+)?)"
    r"|pcie\.(?:gen|gen_max|gen_gpu_max|width|width_max|replay)|fi\.\d+\.\d+"
    r"|nvlink\.\d+\.(?:state|version|remote|err\.[0-3])"
    r"|fabric|platform|procs|events_mask|lost|absent|excluded|lookup_ret|epoch"
    r"|(?:ret|after|hang|delay_us|crash)\.(?:nvml\w+|\*)"
)
_RATE = re.compile(r"\d+(?:\.\d+)?")


class StateFile:
    """The keys of a node and the file that has them. Safe to use from several threads.

    A key of one GPU is `gpu.<number>.<key>`, a key that all GPUs share is `gpu.*.<key>`.
    """

    def __init__(self, path: Path, gpus: int, values: Mapping[str, str]) -> None:
        """Writes the file. `gpus`: how many there are. `values`: the full keys."""
        self._path = path
        self._gpus = range(gpus)
        self._values = dict(values)
        self._lock = threading.RLock()
        # What rounding up has added to a counter too early (at most 0), for the next change
        self._remainders: dict[tuple[int, str], float] = {}
        self._written_ns = 0
        self._write(time.time_ns())

    def get_value(self, gpu: int | None, key: str) -> str | None:
        """What the library would read for a GPU's key, or (None) for a key without a GPU."""
        with self._lock:
            if gpu is None:
                return self._values.get(key)
            return self._values.get(f"gpu.{gpu}.{key}", self._values.get(f"gpu.*.{key}"))

    @contextmanager
    def change_file(self) -> Iterator[None]:
        """Calls of the methods below go inside: together they are one new file."""
        with self._lock:
            # Each file has a time of its own: that is how the library notices it
            now = max(time.time_ns(), self._written_ns + 1000)
            self._advance_counters((now - self._written_ns) / 1e9)
            yield
            self._write(now)

    def set_global_values(self, values: Mapping[str, str | None]) -> None:
        """Keys that belong to no GPU; None removes one."""
        for key, value in values.items():
            self._put_value(key, value)

    def set_gpu_values(self, gpu: int | None, values: Mapping[str, str | None]) -> None:
        """Keys of one GPU, or (None) of all; None removes one."""
        for key, value in values.items():
            if gpu is None:
                for number in self._gpus:
                    self._put_value(f"gpu.{number}.{key}", None)
                self._put_value(f"gpu.*.{key}", value)
                continue
            if value is None:
                self._unshare_key(key)
            self._put_value(f"gpu.{gpu}.{key}", value)

    def reset_gpu(self, gpu: int) -> None:
        """Counters since the last reset start again, and what was pending is done."""
        prefixes = ("gpu.*.", f"gpu.{gpu}.")
        keys = {
            full.removeprefix(prefix)
            for prefix in prefixes
            for full in self._values
            if full.startswith(prefix)
        }
        for key in keys:
            value = self.get_value(gpu, key) or ""
            after = _reset_value(key, value)
            if after != value:
                self._values[f"gpu.{gpu}.{key}"] = after
                self._remainders.pop((gpu, key), None)
        self._values[f"gpu.{gpu}.epoch"] = str(int(self.get_value(gpu, "epoch") or "0", 0) + 1)

    def raise_driver_epoch(self) -> None:
        """The driver was loaded again: every handle is stale."""
        epoch = int(self._values.get("driver.epoch", "0"), 0) + 1
        self._values["driver.epoch"] = str(epoch)

    def _unshare_key(self, key: str) -> None:
        """Give each GPU a copy of a shared key, so that it can be removed from one of them."""
        shared = self._values.pop(f"gpu.*.{key}", None)
        if shared is not None:
            for number in self._gpus:
                self._values.setdefault(f"gpu.{number}.{key}", shared)

    def _put_value(self, key: str, value: str | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value.strip()

    def _advance_counters(self, elapsed_s: float) -> None:
        """Rates count from the file's time: what they have added so far goes into the new file's
        numbers.

        Rounded up, and the excess is taken off the next time: a counter never falls because a file
        was written.
        """
        names = {key.partition(".rate.")[2] for key in self._values if ".rate." in key}
        for name in names:
            for gpu in self._gpus:
                rate, count = self.get_value(gpu, f"rate.{name}"), self.get_value(gpu, name)
                if rate is None or count is None or not _COUNT.fullmatch(count):
                    continue
                exact = self._remainders.get((gpu, name), 0.0) + elapsed_s * float(rate)
                whole = max(0, math.ceil(exact))
                self._remainders[gpu, name] = exact - whole
                self._values[f"gpu.{gpu}.{name}"] = str(int(count, 0) + whole)

    def _write(self, now_ns: int) -> None:
        text = "# written by vitald's simulator; the keys: agent/vitald/simulator/README.md\n"
        text += "".join(f"{key} = {value}\n" for key, value in self._values.items())
        new = self._path.with_name("state.new")
        new.write_text(text, encoding="utf-8")
        os.utime(new, ns=(now_ns, now_ns))
        new.replace(self._path)
        self._written_ns = now_ns


def _reset_value(key: str, value: str) -> str:
    """What a key has after a reset of its GPU."""
    words = value.split()
    field = int(key.split(".")[1]) if key.startswith("fi.") else None
    if _CLEARED.fullmatch(key) or field in _CLEARED_FIELDS:
        kind, colon, _ = value.rpartition(":")
        return value if kind == "ret" else f"{kind}{colon}0"
    if key == "sram":
        return " ".join([*words[:3], "0", "0", "0", *words[6:]])
    if key == "remap":
        return " ".join([*words[:2], "0", *words[3:]])
    if key == "repair":
        return "0 0"
    if key in ("ecc_mode", "mig_mode"):
        return f"{words[1]} {words[1]}"
    if key == "energy_mj":
        return str(min(SETTLED_MJ, int(value, 0)))
    return value


_README = Path(__file__).with_name("README.md")


@cache
def list_exported_calls() -> frozenset[str]:
    """Every call that the library's source names. An injection for another one would silently test
    nothing.
    """
    return frozenset(
        re.findall(r"\bnvml[A-Z]\w+", simulated_library.SOURCE.read_text(encoding="utf-8"))
    )


def check_gpu_key(key: str) -> str:
    """`key`, if it is one of a GPU. Raises ValueError."""
    if not _GPU_KEY.fullmatch(key.removeprefix("rate.")):
        raise ValueError(f"{key!r} is not a key of a GPU: see {_README}")
    _check_call(key, key.removeprefix("rate."))
    return key


def check_global_key(key: str) -> str:
    """`key`, if it is one that belongs to no GPU. Raises ValueError."""
    if not _GLOBAL_KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key without a GPU: see {_README}")
    _check_call(key, key)
    return key


def _check_call(key: str, bare: str) -> None:
    """Raises ValueError for an injection into a call that the library does not export."""
    kind, _, function = bare.partition(".")
    if kind not in _INJECTIONS or function == "*" or function in list_exported_calls():
        return
    suggestion = tomlfile.suggest_word(function, list_exported_calls())
    raise ValueError(f"{key!r}: the simulated library has no {function}{suggestion}")


def format_gpu_values(values: Mapping[str, object]) -> dict[str, str | None]:
    """Keys of a GPU with their text; None for a key that is to be removed. Raises ValueError."""
    return {check_gpu_key(key): _format_optional(key, value) for key, value in values.items()}


def format_global_values(values: Mapping[str, object]) -> dict[str, str | None]:
    """As `format_gpu_values`, for keys that belong to no GPU. Raises ValueError."""
    return {check_global_key(key): _format_optional(key, value) for key, value in values.items()}


def _format_optional(key: str, value: object) -> str | None:
    return None if value is None else format_value(key, value)


def format_value(key: str, value: object) -> str:
    """A value as the file has it, on one line. Raises ValueError."""
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if "\n" in text or "\0" in text:
        raise ValueError(f"{key}: a value is one line")
    if key.startswith("rate.") and not _RATE.fullmatch(text):
        raise ValueError(f"{key}: {text!r} is not a number per second")
    return text
