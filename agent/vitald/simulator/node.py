"""
A GPU node in a folder: the state file that the simulated NVML answers from, its events and calls,
and a PCI bus in sysfs.

    node = SimulatedNode(folder, "h100")
    node.set(3, {"temp_c": 91, "throttle": "0x40"})
    node.emit(3, 0x8, 79)
    node.lose(3)

A process sees it that has `node.environment` and loads `node.library` in place of the driver's
libnvidia-ml.so.1.

Owns     the state file: it is written from here alone, a change at a time, each by replacing the
         whole file.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from vitald import tomlfile
from vitald.simulator import build

PROFILES = Path(__file__).with_name("profiles.toml")
DRIVER = "580.95.05"
SETTLED_MJ = 1000  # what the energy counter shows right after a reset

_BUSES = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xAB, 0xBB, 0xCB)
_SWITCH_BUS, _SWITCH_DEVICE = 0x85, 0x22A3
_NVIDIA, _BRIDGE_MAKER, _BRIDGE_DEVICE = 0x10DE, 0x1000, 0xC030
_GPU_CLASS, _SWITCH_CLASS, _BRIDGE_CLASS = 0x030200, 0x068000, 0x060400
_HEADER = 64  # bytes of the configuration space that everybody may read
_MOST_GPUS = 64
_INJECTIONS = ("ret", "after", "delay_us", "hang", "crash")
_HANGS = ("sleep", "fork", "spin")
_GLOBAL = re.compile(
    r"driver\.(?:version|nvml|cuda|epoch)|count|abi\.(?:unrepairable|fabric_max|platform_max|any_set)|(?:ret|after|hang|delay_us|crash)\.(?:nvml\w+|\*)"
)
_KEY = re.compile(
    r"name|uuid|serial|part|vbios|inforom|busid|module|minor|board_id|arch|brand|cc|pci_device_id"
    r"|temp_c|threshold\.\d+|margin_c|power_mw|limit_mw|limit_default_mw|energy_mj|pstate|(?:max_)?clock\.\d+|throttle"
    r"|utilization|memory|persistence|ecc_mode|ecc\.(?:cor|unc)\.(?:vol|agg)\.(?:total|l1|l2|dram|reg|tex|shm|cbu|sram)"
    r"|sram|privileged|remap|histogram|pages\.(?:sbe|dbe|pending)|repair|unrepairable|mig_mode|mig_max|mig\.\d+"
    r"|pcie\.(?:gen|gen_max|gen_gpu_max|width|width_max|replay)|fi\.\d+\.\d+|nvlink\.\d+\.(?:state|version|remote|err\.[0-3])"
    r"|fabric|platform|procs|events_mask|lost|absent|excluded|lookup_ret|epoch|(?:ret|after|hang|delay_us|crash)\.(?:nvml\w+|\*)"
)
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
_COUNT = re.compile(r"-?(?:0|[1-9]\d*)|0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """One call into the library, from the trace. `gpu` is the node's own index, whatever index NVML
    gave it meanwhile.
    """

    at_ns: int  # CLOCK_MONOTONIC, when it began
    pid: int
    tid: int
    function: str
    gpu: int | None
    ret: int
    duration_us: int


@cache
def exported() -> frozenset[str]:
    """Every call that the library's source names: an injection for another one would silently test
    nothing.
    """
    return frozenset(re.findall(r"\bnvml[A-Z]\w+", build.SOURCE.read_text(encoding="utf-8")))


def _checked(key: str, gpu: bool) -> str:
    bare = key.removeprefix("rate.") if gpu else key
    if not (_KEY if gpu else _GLOBAL).fullmatch(bare):
        raise ValueError(
            f"{key!r} is not a key {'of a GPU' if gpu else 'without a GPU'}: see"
            f" {PROFILES.with_name('README.md')}"
        )
    kind, _, function = bare.partition(".")
    if kind in _INJECTIONS and function != "*" and function not in exported():
        raise ValueError(
            f"{key!r}: the simulated library has no"
            f" {function}{tomlfile.suggest_word(function, exported())}"
        )
    return key


def _text(key: str, value: object) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if "\n" in text or "\0" in text:
        raise ValueError(f"{key}: a value is one line")
    if key.startswith("rate.") and not re.fullmatch(r"\d+(?:\.\d+)?", text):
        raise ValueError(f"{key}: {text!r} is not a number per second")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model, from profiles.toml. `keys` is what every GPU of it answers."""

    gpus: int
    switches: int
    device: int
    links: int
    keys: dict[str, str]


def profiles() -> list[str]:
    """The models there are."""
    return [name for name in tomlfile.read_toml(PROFILES)[1] if not name.startswith("_")]


def named(name: str) -> Profile:
    """A model by its name. Raises ValueError."""
    if name not in profiles():
        raise ValueError(
            f"there is no profile {name!r}{tomlfile.suggest_word(name, profiles())}:"
            f" {', '.join(profiles())}"
        )
    return _profile(_merged(tomlfile.read_toml(PROFILES)[1], name))


def _merged(tables: tomlfile.Table, name: str) -> tomlfile.Table:
    """A table with what it takes over from the one that it is `like`; its keys flat, as the state
    file has them.
    """
    own = tables[name]
    assert isinstance(own, dict)
    below = _merged(tables, str(own["like"])) if "like" in own else {}
    keys = {**_dict(below.get("gpu", {})), **_flat(_dict(own.get("gpu", {})))}
    return {**below, **own, "gpu": keys}


def _profile(table: tomlfile.Table) -> Profile:
    def number(name: str) -> int:
        return int(str(table.get(name, 0)))

    keys = {f"fi.{at}.0": "0" for at in _ids(table.get("zeros"))}
    keys |= {
        f"ecc.{kind}.{since}.{where}": "0"
        for kind in ("cor", "unc")
        for since in ("vol", "agg")
        for where in _list(table.get("ecc"))
    }
    for link in range(number("links")):
        keys |= {f"nvlink.{link}.state": "1", f"nvlink.{link}.version": str(number("link_version"))}
        keys |= {f"nvlink.{link}.remote": str(number("link_remote"))}
        keys |= {f"nvlink.{link}.err.{counter}": "0" for counter in _ids(table.get("link_errors"))}
        keys |= {f"fi.{at}.{link}": "0" for at in _ids(table.get("link_fields"))}
        keys |= {
            f"fi.{at}.{link}": str(value)
            for at, value in _dict(table.get("link_values", {})).items()
        }
    keys |= {key: _text(key, value) for key, value in _dict(table["gpu"]).items()}
    keys |= {
        "fi.91.0": f"u32:{number('links')}",
        "pci_device_id": f"0x{number('device') << 16 | _NVIDIA:08x}",
    }
    return Profile(
        gpus=number("gpus"),
        switches=number("switches"),
        device=number("device"),
        links=number("links"),
        keys={_checked(key, gpu=True): value for key, value in keys.items()},
    )


def _flat(table: tomlfile.Table, above: str = "") -> tomlfile.Table:
    """`pcie.gen = 5` is a table in a table to TOML, and one key here."""
    found: tomlfile.Table = {}
    for key, value in table.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return found


def _dict(value: object) -> tomlfile.Table:
    assert isinstance(value, dict)
    return value


def _list(value: object) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _ids(value: object) -> Iterable[int]:
    """Field ids: `[74, "32-59"]`."""
    for one in _list(value):
        first, _, last = one.partition("-")
        yield from range(int(first), int(last or first) + 1)


class SimulatedNode:
    """The node. Everything about it may be changed while programs look at it; each change is one
    new state file.
    """

    def __init__(
        self, folder: Path, profile: str = "h100", gpus: int | None = None, *, trace: bool = False
    ) -> None:
        self.folder = folder.resolve()
        self.model = model = named(profile)
        self.gpus = model.gpus if gpus is None else gpus
        if not 0 <= self.gpus <= _MOST_GPUS:
            raise ValueError(f"{self.gpus} GPUs: the simulated library knows 0 to {_MOST_GPUS}")
        self.state, self.events, self.trace = (
            self.folder / "state",
            self.folder / "state.events",
            self.folder / "calls",
        )
        self.sysfs = self.folder / "sysfs"
        self.addresses = [
            f"{gpu // len(_BUSES):04x}:{_BUSES[gpu % len(_BUSES)]:02x}:00.0"
            for gpu in range(self.gpus)
        ]
        self.switches = [f"0000:{_SWITCH_BUS + at:02x}:00.0" for at in range(model.switches)]
        self.uuids = [f"GPU-51a10000-0000-4000-8000-{gpu:012x}" for gpu in range(self.gpus)]
        self.serials = [f"SIM{gpu:010d}" for gpu in range(self.gpus)]
        self.environment = {"NVML_SIM_STATE": str(self.state)} | (
            {"NVML_SIM_TRACE": str(self.trace)} if trace else {}
        )
        self._lock = threading.RLock()
        # What a rate has shown too early (below 0: it is rounded up), until it is due
        self._grown: dict[tuple[int, str], float] = {}
        self._written_ns = 0
        self._values = {
            "driver.version": DRIVER,
            "driver.nvml": f"13.{DRIVER}",
            "driver.cuda": "13000",
            "driver.epoch": "1",
        }
        self._values |= {"count": str(self.gpus)} | {
            f"gpu.*.{key}": value for key, value in model.keys.items()
        }
        for gpu in range(self.gpus):
            self._values |= {
                f"gpu.{gpu}.{key}": value for key, value in self._identity(gpu).items()
            }
        self.folder.mkdir(parents=True, exist_ok=True)
        self.events.write_bytes(b"")
        self.trace.unlink(missing_ok=True)
        self._build_bus()
        self._write(time.time_ns())

    @cached_property
    def library(self) -> Path:
        """The simulated libnvidia-ml.so.1, compiled on first use. Raises build.CannotBuild."""
        return build.library()

    # --- what NVML answers

    def get(self, gpu: int | None, key: str) -> str | None:
        """What the library would read: of a GPU, or (None) a key without one. What rates have added
        since the last change is not in it.
        """
        with self._lock:
            if gpu is None:
                return self._values.get(key)
            return self._values.get(f"gpu.{gpu}.{key}", self._values.get(f"gpu.*.{key}"))

    def set(self, gpu: int | None, values: Mapping[str, object]) -> None:
        """Change keys of a GPU, or (None) of every GPU; None takes a key away: its call is no
        longer supported.
        """
        with self._changing():
            self._set(gpu, values)

    def set_global(self, values: Mapping[str, object]) -> None:
        """Change keys that belong to no GPU, `driver.version` or `ret.nvmlInitWithFlags`; None
        takes one away.
        """
        texts = {
            _checked(key, gpu=False): None if value is None else _text(key, value)
            for key, value in values.items()
        }
        with self._changing():
            for key, value in texts.items():
                self._put(key, value)

    def emit(self, gpu: int, kind: int, data: int = 0) -> None:
        """An event, for whoever waits for its kind: 0x8 is an Xid, with its number as data."""
        self._known(gpu)
        line = f"{gpu} {kind:x} {data}\n".encode()
        with self._lock:
            fd = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    # --- what happens to a node

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: calls on it answer 15, and so do waits for events. It stays in
        the count and on PCI.
        """
        self.set(gpu, {"lost": 1})

    def restore(self, gpu: int) -> None:
        """It was lost, and answers again."""
        self.set(gpu, {"lost": None})

    def remove(self, gpu: int) -> None:
        """The GPU is not there at all, as after a reboot with a dead board: lower count, shifted
        indices, nothing on PCI.
        """
        self.set(gpu, {"absent": 1})
        self._unplug(self.addresses[gpu])

    def put_back(self, gpu: int) -> None:
        """It was removed, and is there again."""
        self._plug(self.addresses[gpu], self.model.device, _GPU_CLASS, "nvidia")
        self.set(gpu, {"absent": None})

    def reset(self, gpu: int) -> None:
        """What a GPU reset does: counters since the last one start again, what was pending is done,
        handles are stale.
        """
        self._known(gpu)
        with self._changing():
            self._reset(gpu)

    def reload_driver(self) -> None:
        """The kernel module was unloaded and loaded again: a reset of every GPU, and every handle
        is stale.
        """
        with self._changing():
            for gpu in range(self.gpus):
                self._reset(gpu)
            self._put("driver.epoch", str(int(self._values.get("driver.epoch", "0"), 0) + 1))

    def hang(self, gpu: int | None, function: str, kind: str = "sleep") -> None:
        """From now on the call does not come back: until `release`, or (fork, spin) the end of its
        process.

        "sleep" waits, "fork" waits in state D of the kernel, "spin" runs. None: of every GPU, and
        where the call is of none.
        """
        if kind not in _HANGS:
            raise ValueError(f"{kind!r} is no way to hang: {', '.join(_HANGS)}")
        if gpu is None:
            self.set_global({f"hang.{function}": kind})
        else:
            self.set(gpu, {f"hang.{function}": kind})

    def release(self, gpu: int | None, function: str) -> None:
        """The call comes back; None: wherever it hangs."""
        key = _checked(f"hang.{function}", gpu=True)
        with self._changing():
            self._set(gpu, {key: None})
            if gpu is None:
                self._put(key, None)

    def calls(self) -> list[SimulatedCall]:
        """What the library was asked so far, by whichever process; needs `trace`. A call is written
        down when it has returned.
        """
        try:
            text = self.trace.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [
            SimulatedCall(
                int(at),
                int(pid),
                int(tid),
                function,
                None if gpu == "-1" else int(gpu),
                int(ret),
                int(us),
            )
            for at, pid, tid, function, gpu, ret, us in lines
        ]

    # --- the state file

    def _identity(self, gpu: int) -> dict[str, str]:
        found = {
            "uuid": self.uuids[gpu],
            "serial": self.serials[gpu],
            "busid": f"0000{self.addresses[gpu].upper()}",
            "minor": str(gpu),
            "board_id": str(int(self.addresses[gpu].split(":")[1], 16) << 8),
        }
        return found if "module" in self.model.keys else {**found, "module": str(gpu + 1)}

    def _known(self, gpu: int) -> None:
        if not 0 <= gpu < self.gpus:
            raise ValueError(f"there is no GPU {gpu}: {self.gpus} GPUs")

    def _set(self, gpu: int | None, values: Mapping[str, object]) -> None:
        texts = {
            _checked(key, gpu=True): None if value is None else _text(key, value)
            for key, value in values.items()
        }
        if gpu is not None:
            self._known(gpu)
        for key, value in texts.items():
            everyone = range(self.gpus)
            if gpu is None:
                for one in everyone:
                    self._put(f"gpu.{one}.{key}", None)
                self._put(f"gpu.*.{key}", value)
                continue
            if value is None and (shared := self._values.pop(f"gpu.*.{key}", None)) is not None:
                for one in everyone:  # so that this GPU alone is without it
                    self._values.setdefault(f"gpu.{one}.{key}", shared)
            self._put(f"gpu.{gpu}.{key}", value)

    def _put(self, key: str, value: str | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value.strip()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            # Each file has a time of its own: that is how the library sees it
            now = max(time.time_ns(), self._written_ns + 1000)
            self._grow((now - self._written_ns) / 1e9)
            yield
            self._write(now)

    def _grow(self, elapsed: float) -> None:
        """Rates count from the file's time: what they have added so far is put into the new file's
        numbers.

        Rounded up, and what that gave too early is taken off the next time: a counter never falls
        because a file was written.
        """
        names = {key.partition(".rate.")[2] for key in self._values if ".rate." in key}
        for name in names:
            for gpu in range(self.gpus):
                rate, count = self.get(gpu, f"rate.{name}"), self.get(gpu, name)
                if rate is None or count is None or not _COUNT.fullmatch(count):
                    continue
                exact = self._grown.get((gpu, name), 0.0) + elapsed * float(rate)
                whole = max(0, math.ceil(exact))
                self._grown[gpu, name] = exact - whole
                self._values[f"gpu.{gpu}.{name}"] = str(int(count, 0) + whole)

    def _write(self, now: int) -> None:
        text = "# written by vitald's simulator; the keys: agent/vitald/simulator/README.md\n"
        text += "".join(f"{key} = {value}\n" for key, value in self._values.items())
        new = self.folder / "state.new"
        new.write_text(text, encoding="utf-8")
        os.utime(new, ns=(now, now))
        new.replace(self.state)
        self._written_ns = now

    def _reset(self, gpu: int) -> None:
        mine = {
            key.removeprefix(start)
            for start in ("gpu.*.", f"gpu.{gpu}.")
            for key in self._values
            if key.startswith(start)
        }
        for key in mine:
            value = self.get(gpu, key) or ""
            words = value.split()
            if _CLEARED.fullmatch(key) or (
                key.startswith("fi.") and int(key.split(".")[1]) in _CLEARED_FIELDS
            ):
                kind, colon, _ = value.rpartition(":")
                after = value if kind == "ret" else f"{kind}{colon}0"
            elif key == "sram":
                after = " ".join([*words[:3], "0", "0", "0", *words[6:]])
            elif key == "remap":
                after = " ".join([*words[:2], "0", *words[3:]])
            elif key == "repair":
                after = "0 0"
            elif key in ("ecc_mode", "mig_mode"):
                after = f"{words[1]} {words[1]}"
            elif key == "energy_mj":
                after = str(min(SETTLED_MJ, int(value, 0)))
            else:
                continue
            if after != value:
                self._values[f"gpu.{gpu}.{key}"] = after
                self._grown.pop((gpu, key), None)
        self._values[f"gpu.{gpu}.epoch"] = str(int(self.get(gpu, "epoch") or "0", 0) + 1)

    # --- PCI, as sysfs shows it

    def _build_bus(self) -> None:
        shutil.rmtree(self.sysfs, ignore_errors=True)
        for number, address in enumerate(self.addresses, start=1):
            self._plug(address, self.model.device, _GPU_CLASS, "nvidia")
            slot = self.sysfs / "bus" / "pci" / "slots" / str(number)
            slot.mkdir(parents=True)
            (slot / "address").write_text(f"{address.rpartition('.')[0]}\n")
        for address in self.switches:
            self._plug(address, _SWITCH_DEVICE, _SWITCH_CLASS, "nvidia-nvswitch")

    def _plug(self, address: str, device: int, pci_class: int, driver: str) -> None:
        """A device below the port above it, which is there already when the device comes back."""
        domain, bus, _ = address.split(":")
        switch = pci_class == _SWITCH_CLASS
        root = f"{domain}:{_SWITCH_BUS - 1 if switch else int(bus, 16) - 1:02x}"
        port = f"{root}:{int(bus, 16) - _SWITCH_BUS + 1 if switch else 1:02x}.0"
        above = self.sysfs / "devices" / f"pci{root}" / port
        if not above.exists():
            self._device(above, _BRIDGE_MAKER, _BRIDGE_DEVICE, _BRIDGE_CLASS, "pcieport")
        if not (above / address).exists():
            self._device(above / address, _NVIDIA, device, pci_class, driver)

    def _device(self, path: Path, vendor: int, device: int, pci_class: int, driver: str) -> None:
        path.mkdir(parents=True)
        (path / "vendor").write_text(f"0x{vendor:04x}\n")
        (path / "device").write_text(f"0x{device:04x}\n")
        (path / "class").write_text(f"0x{pci_class:06x}\n")
        (path / "config").write_bytes(struct.pack("<HH", vendor, device).ljust(_HEADER, b"\0"))
        drivers = self.sysfs / "bus" / "pci" / "drivers" / driver
        devices = self.sysfs / "bus" / "pci" / "devices"
        drivers.mkdir(parents=True, exist_ok=True)
        devices.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(os.path.relpath(drivers, path))
        (devices / path.name).symlink_to(os.path.relpath(path, devices))

    def _unplug(self, address: str) -> None:
        link = self.sysfs / "bus" / "pci" / "devices" / address
        if link.is_symlink():
            where = link.resolve()
            link.unlink()
            shutil.rmtree(where)
