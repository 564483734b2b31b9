"""
Grammar of a hardware error that the firmware reports: several lines with the number of the report,
of which one has the severity, one the kind of part, and one the address of a PCIe device.

    {3}[Hardware Error]: event severity: recoverable
    {3}[Hardware Error]:  Error 0, type: recoverable
    {3}[Hardware Error]:   section_type: PCIe error
    {3}[Hardware Error]:   device_id: 0000:81:00.0

Source: Linux drivers/firmware/efi/cper.c (cper_estatus_print, cper_print_pcie).
"""

from __future__ import annotations

import re

from vitald.collectors.kernel_log.parsed_line import ParsedLine, normalize_pci

_LINE = re.compile(
    r"\{(?P<report>\d{1,10})\}\[Hardware Error\]: +(?:event severity: (?P<event>\w{1,16})"
    r"|Error \d{1,5}, type: (?P<type>\w{1,16})|section_type: (?P<section>[\w /,\-]{1,64})"
    r"|device_id: (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))\s*\Z"
)
_PCIE = "PCIe error"
_CODES = {
    "corrected": "mce/pcie_corrected",
    "recoverable": "mce/pcie_recoverable",
    "fatal": "mce/pcie_fatal",
}


class FirmwareReport:
    """The report whose lines are read."""

    def __init__(self) -> None:
        self._number = ""
        self._severity = ""
        self._section = ""

    def parse_line(self, text: str) -> ParsedLine | None:
        """What the line reports of a PCIe device; None for all others."""
        found = _LINE.match(text)
        if found is None:
            return None
        if found["event"] or found["report"] != self._number:
            self._number, self._severity, self._section = found["report"], "", ""
        self._severity = found["event"] or found["type"] or self._severity
        self._section = found["section"] or self._section
        code = _CODES.get(self._severity)
        if found["pci"] is None or self._section != _PCIE or code is None:
            return None
        return ParsedLine(
            kind="mce",
            code=code,
            pci=normalize_pci(found["pci"]),
            fatal=self._severity == "fatal",
            fields={"report": self._number},
        )
