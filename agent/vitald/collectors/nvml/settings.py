"""Settings of the NVML collector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald.checking import read_flag
from vitald.config.errors import FileReport
from vitald.config.readers import MIN_PERIOD_S, read_count, read_path
from vitald.config.section import Section, duration, setting
from vitald.config.values import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSettings:
    """NVIDIA GPUs, asked through the driver's library."""

    enabled: bool = setting(True, read_flag, "Ask NVML where PCI shows NVIDIA GPUs.")
    expected_gpus: int = setting(
        0,
        read_count,
        "How many GPUs this node should have. 0: as its known instance type has, and as many as"
        " were here before.",
        reload=True,
    )
    fast_s: float = duration(
        "10s", "How often to read temperatures, clocks, power and the driver's advice of all GPUs."
    )
    slow_s: float = duration(
        "60s", "How often to read memory errors, links and PCIe of each GPU, in turns."
    )
    inventory_s: float = duration(
        "10m", "How often to read identity, modes and limits, and to scan PCI."
    )
    deadline_s: float = duration(
        "10s",
        "A poll that takes longer counts as hung: it opens a finding with the call and the GPU.",
    )
    give_up_s: float = duration(
        "60s",
        "After this the process that hangs is ended. The driver's own timeouts last up to 45 s.",
    )
    profiling: bool = setting(
        False,
        read_flag,
        "Also read how busy SMs, tensor cores, memory and links are (GPM), on Hopper and later.",
    )
    driver_root: Path = setting(
        Path("/run/nvidia/driver"),
        read_path,
        "Where the NVIDIA GPU Operator puts the driver. Its library is used if it is there.",
    )
    library: Path | None = setting(
        None, read_path, "Another libnvidia-ml.so.1 than the driver's own: the simulated one."
    )


def _check_periods(config: Config, report: FileReport) -> None:
    settings, wrong = config[NvmlSettings], partial(report.add_error, SECTION.name)
    for key in ("fast", "slow", "inventory", "deadline"):
        if getattr(settings, f"{key}_s") < MIN_PERIOD_S:
            wrong(key, f"at least {MIN_PERIOD_S:g} s: each poll takes the driver's locks")
    if not settings.fast_s <= settings.slow_s <= settings.inventory_s:
        wrong("slow", "fast, slow and inventory must not be shorter than the one before")


SECTION = Section(
    name="nvml",
    settings=NvmlSettings,
    order=20,
    examples={"library": '#library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"'},
    check=_check_periods,
)
