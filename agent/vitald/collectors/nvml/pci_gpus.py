"""The NVIDIA GPUs that PCI shows, and which of them NVML can be asked about."""

from __future__ import annotations

import math
import time

import structlog

from vitald.collectors.pci.inventory import PciInventory
from vitald.model import ComponentKind
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("nvml")

_DRIVER = "nvidia"


class PciGpus:
    """Scans PCI in a thread. If the bus cannot be read, the last scan stays valid: the failure is
    no reason to report a GPU missing.
    """

    def __init__(self, inventory: PciInventory, thread: WorkerThread) -> None:
        self._inventory = inventory
        self._thread = thread
        self._scanned = -math.inf
        self._changed = False

    @property
    def error(self) -> str:
        """Why the last scan failed; empty if it did not."""
        return self._inventory.error

    def find_slot(self, address: str) -> str:
        return self._inventory.find_slot(address)

    def note_change(self) -> None:
        """The kernel announced that a device came or went."""
        self._changed = True

    def is_scan_due(self, every_s: float) -> bool:
        failed = bool(self._inventory.error)
        return self._changed or failed or time.monotonic() - self._scanned >= every_s

    async def scan_bus(self) -> None:
        self._scanned, self._changed = time.monotonic(), False
        try:
            await self._thread.call(self._inventory.scan_bus)
        except ThreadStuck as error:
            self._inventory.error = str(error)
        if self._inventory.error:
            log.error(
                "pci_not_read",
                error=self._inventory.error,
                effect="GPUs that come or go are not noticed",
            )

    def list_all(self) -> set[str]:
        """Addresses of all NVIDIA GPUs, whatever their driver: one that was passed to a virtual
        machine is not missing.
        """
        devices = self._inventory.devices.values()
        return {device.address for device in devices if device.kind is ComponentKind.GPU}

    def list_usable(self) -> set[str]:
        """Addresses of the GPUs that NVML's driver has, or none. Others belong to virtual machines,
        or drive a display.
        """
        return {
            device.address
            for device in self._inventory.devices.values()
            if device.kind is ComponentKind.GPU and device.driver in (None, _DRIVER)
        }

    def has_nvswitches(self) -> bool:
        devices = self._inventory.devices.values()
        return any(device.kind is ComponentKind.NVSWITCH for device in devices)

    def describe_error(self) -> str:
        return f"PCI cannot be read, so nobody knows which GPUs there are: {self._inventory.error}"

    def describe_absence(self) -> str:
        """Why no GPU is usable."""
        devices = self._inventory.devices.values()
        drivers = {device.driver or "" for device in devices if device.kind is ComponentKind.GPU}
        if not drivers:
            return "no NVIDIA GPU on PCI"
        names = ", ".join(sorted(drivers))
        return f"the NVIDIA GPUs on PCI belong to another driver ({names})"
