"""
The NVSwitch SXid line.

    nvidia-nvswitchN: SXid (PCI:DDDD:BB:DD.F): NNNNN, BODY

One event is one to four records with the same code: the first describes it, `Severity ...` and
`Data {...}` records continue it. Source: NVIDIA open-gpu-kernel-modules, nvswitch sources
(LR10, LS10); Fabric Manager guide.
"""

from __future__ import annotations

import re

from vitald.collectors.kernel_log.parsed_line import ParsedLine, normalize_pci
from vitald.model import Value

_SXID = re.compile(
    r"nvidia-nvswitch(?P<instance>\d{1,3}): SXid"
    r" \(PCI:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): "
    r"(?P<code>\d{1,5}), ?(?:(?P<severity>Fatal|Non-fatal|Nonfatal|Correctable|Corrected)\b,?"
    r" ?)?(?:Link (?P<link>\d{1,3})\b ?)?(?P<text>.*)\Z",
    re.S,
)
_SEVERITY = re.compile(
    r"Severity (?P<severity>\d) Engine instance (?P<instance>\d+) Sub-engine instance (?P<sub>\d+)"
)


def parse_sxid(text: str) -> ParsedLine | None:
    """The SXid of a record, or None. `text` is one whole, unescaped record."""
    found = _SXID.match(text)
    if found is None:
        return None
    code = int(found["code"])
    fields: dict[str, Value] = {"message": found["text"].strip(), "switch": int(found["instance"])}
    fatal = None if found["severity"] is None else found["severity"] == "Fatal"
    continues = False
    if found["severity"] is None and found["link"] is None:
        if (severity := _SEVERITY.match(found["text"])) is not None:
            continues, fields["severity"] = True, int(severity["severity"])
        else:
            continues = found["text"].startswith("Data {")
    link = int(found["link"]) if found["link"] is not None else None
    return ParsedLine(
        kind="sxid",
        code=f"sxid/{code}",
        number=code,
        pci=normalize_pci(found["pci"]),
        link=link,
        fatal=fatal,
        continues=continues,
        fields=fields,
    )
