"""Lines as a driver writes them, told apart by their pid."""

from __future__ import annotations

import os
import secrets
from datetime import datetime

from tests.harness import Json, Node
from tests.waiting import until

FALLEN = "GPU has fallen off the bus."


def xid(pid: int, code: int = 79, pci: str = "0000:65:00", message: str = FALLEN) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, pid={pid}, name=python3, {message}"


def dated(line: str) -> str:
    """As syslog writes it now. Undated lines that are unread at a start require `inspect` at most."""
    return f"{datetime.now().astimezone().isoformat()} node kernel: {line}"


def vouched(line: str) -> str:
    """As a process writes it, on a node that takes such records for confirmed faults: [kernel_log]
    userspace, as the harness sets it.
    """
    return f"<12>{line}"


def dbe(pid: int, pci: str = "0000:65:00") -> str:
    """A double-bit error: a reset of the GPU is asked for."""
    return xid(
        pid,
        code=48,
        pci=pci,
        message=(
            "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer."
        ),
    )


def remap(pid: int, pci: str = "0000:65:00") -> str:
    """A spare row waits for the next reset; the running work may end first."""
    return xid(
        pid,
        code=63,
        pci=pci,
        message=(
            "Row Remapper: New row (0x0000000001aa5555) marked for remapping, reset gpu to"
            " activate."
        ),
    )


# What asks for a replacement at once: the catalogue wants a second occurrence first.
REPLACE_FOR_64 = """
[catalog.overrides."xid/64"]
action = "replace_node"
clears = ["replaced"]
escalation = "none"
cases = []
"""


def fallen_with_company(pid: int, pci: str = "0000:65:00", suppressed: int = 3) -> list[str]:
    """One incident: a GPU falls off the bus, its channels are cleaned up, and the driver says what it
    needs.
    """
    said = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    cleanup = [
        xid(pid, code=45, pci=pci, message=f"Ch {number:08x}") for number in range(suppressed)
    ]
    return [xid(pid, pci=pci), *cleanup, xid(pid, code=154, pci=pci, message=said)]


def ordinary(number: int) -> str:
    return (
        f"usb 1-1.4: new high-speed USB device number {number} using xhci_hcd, serial"
        f" {number * 7919:x}"
    )


def fresh_pci() -> str:
    """An address that no older line of the kernel's ring names."""
    return f"{secrets.randbelow(0xEFFF) + 0x1000:04x}:{secrets.randbelow(256):02x}:00"


def fresh_pid() -> int:
    """One that no older line of the kernel's ring names."""
    return secrets.randbelow(2**31 - 10**6) + 10**6


def pids(events: list[Json]) -> list[int]:
    """Of the Xids among the events, in order."""
    return [event["fields"].get("pid") for event in events if event["kind"] == "xid"]


def about(found: list[Json], pci: str) -> list[Json]:
    """The events or findings of one GPU that its driver's lines made; what people do to it is not
    among them.
    """
    return [one for one in found if one["component"] == f"gpu/{pci}.0" and one["kind"] != "vitald"]


def wait_for_pid(node: Node, pid: int) -> None:
    """Until the event of that line can be read."""
    until(lambda: pid in pids(node.events("&kind=xid")), f"the Xid of pid {pid}")


class Ring:
    """The kernel's ring of records, read from its oldest or from now on."""

    def __init__(self, *, oldest: bool = False) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not oldest:
            os.lseek(self.fd, 0, os.SEEK_END)

    def records(self) -> list[tuple[int, str]]:
        """Sequence number and text of what can be read now."""
        found: list[tuple[int, str]] = []
        try:
            while True:
                try:
                    data = os.read(self.fd, 16384).decode()
                except BrokenPipeError:
                    continue
                head, _, text = data.partition(";")
                found.append((int(head.split(",")[1]), text.partition("\n")[0]))
        except BlockingIOError:
            return found
        finally:
            os.close(self.fd)


def in_ring(text: str) -> bool:
    """Whether a record with exactly this text is still in the kernel's ring."""
    return any(found == text for _, found in Ring(oldest=True).records())
