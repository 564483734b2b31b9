"""
What the text alone of one log record reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vitald.model import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLine:
    """`number` is the Xid or SXid number; `link` the number of the NVLink printed; `fatal` what the
    line itself says, None if it says nothing about it.
    """

    kind: str
    code: str
    number: int | None = None
    pci: str | None = None
    pid: int | None = None
    process: str | None = None
    link: int | None = None
    fatal: bool | None = None
    continues: bool = False  # a follow-up record of the event before it
    context: bool = False  # no fault, but explains others
    fields: Mapping[str, Value] = field(default_factory=dict)


def format_pci(domain: str | None, bus: str, device: str, function: str | None = None) -> str:
    """`dddd:bb:dd.f` as sysfs writes it. A missing domain or function is 0: an Xid names no
    function.
    """
    slot = f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"
    return f"{slot}.{function or '0'}".lower()


def normalize_pci(text: str) -> str:
    """`dddd:bb:dd.f`, as sysfs writes it, of an address in any of the drivers' spellings."""
    head, _, function = text.partition(".")
    domain, bus, device = (["0", *head.split(":")])[-3:]
    return format_pci(domain, bus, device, function or "0")
