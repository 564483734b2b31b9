"""
Kernels and reboots that wait, and the way in which adapters read GPU memory.

Source: Debian's reboot-notifier and Ubuntu's update-notifier-common (/run/reboot-required and
/run/reboot-required.pkgs); NVIDIA GPU Operator documentation, GPUDirect RDMA (nvidia-peermem, or
DMA-BUF with open kernel modules and Linux 5.12); open-gpu-kernel-modules, /proc/driver/nvidia.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from vitald.collectors.small_files import RawReadings, describe_error, list_names, read_text

_IMAGE = "vmlinuz-"
_RELEASE = re.compile(r"(\d{1,9}(?:[.\-+~]\d{1,9}){0,15})(.*)")
_NUMBERS_OF_FLAVOUR = re.compile(r"\d+(?:_\d+)*")
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_OPEN_DRIVER = "Open Kernel Module"
_DMA_BUF_SINCE = (5, 12)
_MAX_PACKAGES = 20


def parse_release(release: str) -> tuple[tuple[int, ...], str] | None:
    """The numbers of a kernel release, and what distinguishes kernels of one version: `-generic`,
    `.el#.x#`. None if it begins with no number.
    """
    found = _RELEASE.fullmatch(release)
    if found is None:
        return None
    numbers = tuple(int(number) for number in re.findall(r"\d+", found[1]))
    return numbers, _NUMBERS_OF_FLAVOUR.sub("#", found[2])


def find_newest(running: str, installed: Iterable[str]) -> str:
    """The newest installed kernel of the running one's flavour; empty if there is none."""
    own = parse_release(running)
    if own is None:
        return ""
    comparable = {
        release: parsed[0]
        for release in installed
        if (parsed := parse_release(release)) is not None and parsed[1] == own[1]
    }
    return max(comparable, key=lambda release: comparable[release], default="")


def read_kernels(raw: RawReadings, procfs: Path, boot: Path) -> None:
    """Whether a newer kernel is installed than the running one. Raises OSError."""
    running = read_text(procfs / "sys/kernel/osrelease")
    images = [name for name in list_names(boot) if name.startswith(_IMAGE)]
    installed = [name.removeprefix(_IMAGE) for name in images]
    newest = find_newest(running, installed)
    own, other = parse_release(running), parse_release(newest)
    if own is None or other is None:
        raw.missing["newer_kernel"] = f"{boot} has no kernel of the running one's flavour"
        return
    raw.values["newer_kernel"] = float(other[0] > own[0])
    raw.values["kernel_newest"] = newest


def read_pending_reboot(raw: RawReadings, run: Path, packages_of_debian: Path) -> None:
    """Whether packages ask for a reboot, as those of Debian and Ubuntu do."""
    if not (run / "reboot-required").exists():
        if packages_of_debian.is_dir():
            raw.values["reboot_pending"] = 0.0
        else:
            raw.missing["reboot_pending"] = "only packages of Debian and Ubuntu report it"
        return
    raw.values["reboot_pending"] = 1.0
    try:
        packages = sorted(set(read_text(run / "reboot-required.pkgs").split()))
    except OSError:
        packages = []  # a program asked for it, not a package
    raw.values["reboot_packages"] = ", ".join(packages[:_MAX_PACKAGES])


def read_gpudirect(raw: RawReadings, sysfs: Path, procfs: Path) -> None:
    """By which way adapters read GPU memory."""
    if any((sysfs / "module" / module).is_dir() for module in _PEER_MODULES):
        raw.values["gpudirect_rdma"] = "nvidia_peermem"
        return
    try:
        driver = read_text(procfs / "driver/nvidia/version")
        running = parse_release(read_text(procfs / "sys/kernel/osrelease"))
    except OSError as error:
        raw.missing["gpudirect_rdma"] = f"{error.filename}: {describe_error(error)}"
        return
    has_dma_buf = _OPEN_DRIVER in driver and running is not None and running[0] >= _DMA_BUF_SINCE
    raw.values["gpudirect_rdma"] = "dma_buf" if has_dma_buf else "none"
