"""
Paths of the Neuron driver's files, relative to the device's folder, by driver version.

Paths change between versions, so a file that is missing is not searched for by name: its meaning
would be unknown. The paths are those of drivers 2.14 to 2.30. Driver 2.31 moved several files
incompatibly (AWS Neuron sysfs user guide, v2.33.0); which ones is not documented, so with it a
missing file is a limit of what can be observed, and files at known paths are read.

Source: aws-neuron-driver 2.24 and 2.30, AWS Neuron sysfs user guide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitald import small_files

REORGANISED = (2, 31)  # from this driver on, a file may be in another place
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*")


@dataclass(frozen=True, slots=True)
class Attribute:
    """One file. `since` is the driver that brought it, `families` the devices that have it (empty:
    all), `without` those that never have it.
    """

    reading: str
    path: str
    since: tuple[int, int] = (0, 0)
    families: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def is_expected(self, version: tuple[int, ...], family: str) -> bool:
        """Whether this driver should have it. Unknown versions and families should have all."""
        known_to_have = not self.families or not family or family in self.families
        return (
            (not version or version >= self.since) and known_to_have and family not in self.without
        )


_HEALTH = "stats/hardware/health_status"
_NO_ECC = ("Inf1",)  # v1/neuron_dhal_v1.c: nsysfsmetric_add_ecc_nodes_v1() adds none
RESET = "reset"  # 0 resetting, 1 ready, 2 invalid; readable by root only
FIRMWARE = "fw_api_version"  # a number, or `busy` while the device is being reset
SERIAL = "info/serial_number"
FAMILY = "info/architecture/instance_type"
NAME = "info/architecture/device_name"

# While one of these cannot be read, the device's state is unknown.
ESSENTIAL = (
    Attribute("sram_ecc_uncorrected", "stats/hardware/sram_ecc_uncorrected", without=_NO_ECC),
    Attribute("hbm_ecc_uncorrected", "stats/hardware/mem_ecc_uncorrected", without=_NO_ECC),
)
ECC = (
    *ESSENTIAL,
    Attribute(
        "hbm_ecc_repairable",
        "stats/hardware/mem_ecc_repairable_uncorrected",
        since=(2, 24),
        without=_NO_ECC,
    ),
    Attribute(
        "sram_ecc_corrected", "stats/hardware/sram_ecc_corrected", since=(2, 30), without=_NO_ECC
    ),
    Attribute(
        "hbm_ecc_corrected", "stats/hardware/mem_ecc_corrected", since=(2, 30), without=_NO_ECC
    ),
)
UNHEALTHY = Attribute(
    "unhealthy_components", f"{_HEALTH}/unhealthy_components", (2, 30), ("Trn2", "Trn3")
)
HEARTBEAT = Attribute("heartbeat", f"{_HEALTH}/healthcheck_heartbeat", (2, 30), ("Trn2", "Trn3"))
ERROR_EVENTS = Attribute("hw_error_events", f"{_HEALTH}/hw_error_event", (2, 30), ("Trn2", "Trn3"))
POWER = Attribute("power_utilization_ratio", "stats/power/utilization", since=(2, 21))
HOST_MEMORY = "stats/memory_usage/host_mem"  # a folder for each category

# Hardware counters of each core; counters of program errors are not read.
CORE = "neuron_core"
CORE_COUNTERS = (
    *(
        Attribute(name, f"stats/status/{name}/total")
        for name in (
            "hw_error",
            "hw_hbm_ue_error",
            "hw_nc_ue_error",
            "hw_dma_abort_error",
            "hw_collectives_error",
            "timeout",
        )
    ),
    Attribute(
        "hw_repairable_hbm_ue_error", "stats/status/hw_repairable_hbm_ue_error/total", since=(2, 24)
    ),
    Attribute("reset_requests", "stats/other_info/reset_req_count/total"),
    Attribute("reset_failures", "stats/other_info/reset_fail_count/total"),
)
CORE_MEMORY = "stats/memory_usage/device_mem/present"


def parse_version(text: str) -> tuple[int, ...]:
    """`2.30.2.0` as numbers, whatever follows them; empty for anything else."""
    found = _VERSION.match(text)
    return tuple(map(int, found[0].split("."))) if found is not None else ()


def find_moved(folder: str, name: str) -> str:
    """The path of a file of that name, for operators only: its meaning may differ. Empty if there
    is none.
    """
    waiting = [("", 0)]
    while waiting:
        inside, depth = waiting.pop()
        for entry in small_files.list_names(f"{folder}/{inside}"):
            if entry == name:
                return f"{inside}{entry}"
            if depth < _DEPTH and not entry.startswith((CORE, "power", "subsystem")):
                waiting.append((f"{inside}{entry}/", depth + 1))
    return ""


_DEPTH = 3
