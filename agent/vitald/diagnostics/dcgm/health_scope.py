"""
Which complaints of DCGM's health watches mean nothing on this node.

DCGM watches NVLink, the fabric and IMEX everywhere, and reports them on nodes that do not have
them. A complaint that is set aside stays among the tests of the run and in its reason. A link that
is down weighs less where bridges are optional: DCGM calls an empty connector down, too.

Source: pci.ids; DCGM's dcgmlib/src/DcgmImexManager.h (status -3: nvidia-imex-ctl failed) and issue
308: it fails where IMEX runs in the pods of ComputeDomains, or none of them is active, while NVLink
is sound (aicr issue 2641 measured it).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vitald.collectors.pci.inventory import NVIDIA, PciInventory
from vitald.diagnostics.dcgm.health_answer import NAME, Complaint
from vitald.model import ComponentKind

FAILED_READING = "a reading that failed says nothing"
# PCI device ids of boards that have no NVLink: T4, A2 and A16, A10, A10G, L4, L40, L40S, L20, RTX
# PRO 6000 Server (pci.ids).
_NO_NVLINK = {0x1EB8, 0x25B6, 0x2236, 0x2237, 0x27B8, 0x26B5, 0x26B9, 0x26BA, 0x2BB5}
# The same of boards whose NVLink connectors take bridges to their neighbours, without NVSwitch or
# fabric manager: A100 PCIe 40 GB and 80 GB, A800 PCIe, A100X, A30, A30X; H100 PCIe, H100 CNX, H100
# NVL, H800 PCIe, H800 NVL, H200 NVL; A40, RTX A6000, A5500, A5000, A4500 (pci.ids, where NVL is
# H100L and H800L).
_BRIDGED = {
    *(0x20B1, 0x20F1, 0x20B5, 0x20F5, 0x20F6, 0x20B8, 0x20B7, 0x20B9),
    *(0x2331, 0x2313, 0x2321, 0x2322, 0x233A, 0x233B),
    *(0x2235, 0x2230, 0x2233, 0x2231, 0x2232),
}
_LINK_DOWN = re.compile(r"nvlink.{0,40}\bdown\b", re.IGNORECASE)
_FABRIC = re.compile(r"\bfabric (?:state|manager)\b", re.IGNORECASE)
_IMEX = re.compile(r"\bimex\b", re.IGNORECASE)
_IMEX_NOT_READ = re.compile(r"\bimex daemon status is -3\b", re.IGNORECASE)
_UNREAD = re.compile(
    r"cannot (?:reliably )?(?:read|retrieve)|unable to (?:read|retrieve)|could not"
    r" (?:read|retrieve)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class BoardTraits:
    """Traits of the node that decide whether a complaint means anything."""

    has_nvlink: bool = True  # some GPU may have NVLink
    has_fabric: bool = True  # NVSwitches may join the GPUs
    shares_nvlink: bool = True  # NVLink may reach other nodes


def inspect_board(sysfs: Path, machine: str) -> BoardTraits:
    """Reads the traits from PCI. Only Grace machines (arm64) are sold with NVLink between nodes."""
    inventory = PciInventory(sysfs)
    inventory.scan_bus()
    gpus = [device for device in inventory.devices.values() if device.kind is ComponentKind.GPU]
    switches = any(device.kind is ComponentKind.NVSWITCH for device in inventory.devices.values())
    models = {device.device if device.vendor == NVIDIA else None for device in gpus}
    return BoardTraits(
        has_nvlink=switches or not models or not models <= _NO_NVLINK,
        has_fabric=switches or not models or not models <= _NO_NVLINK | _BRIDGED,
        shares_nvlink=machine == "aarch64",
    )


def may_lack_bridge(complaint: Complaint, traits: BoardTraits) -> bool:
    """Whether the complaint is a link that is down on boards that need not have bridges."""
    return not traits.has_fabric and _LINK_DOWN.search(complaint.text) is not None


def find_dismissal_reason(complaint: Complaint, traits: BoardTraits) -> str:
    """Why the complaint of one incident means nothing on this node; "" if it counts."""
    if not traits.shares_nvlink and _IMEX.search(complaint.text):
        return "this node shares no NVLink with others"
    if _IMEX_NOT_READ.search(complaint.text):
        return "nvidia-imex-ctl failed: IMEX runs in the pods of ComputeDomains, or not at all"
    if not traits.has_fabric and _FABRIC.search(complaint.text):
        return "this node has no NVSwitch"
    if not traits.has_nvlink and (
        complaint.code == f"{NAME}/nvlink" or _LINK_DOWN.search(complaint.text)
    ):
        return "these boards have no NVLink"
    if complaint.code == f"{NAME}/power" and _UNREAD.search(complaint.text):
        return FAILED_READING
    return ""
