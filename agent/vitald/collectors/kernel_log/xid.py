"""
Grammar of the Xid line and of its messages.

    NVRM: Xid (PCI:DDDD:BB:DD[.F][ GPU-I:GG[ GPU-CI:CC]]): CODE, [pid=PID, name=NAME, ]MESSAGE

Source: NVIDIA open-gpu-kernel-modules 595.45.04 (nverror.c, error containment, GPU recovery action)
and its later src/nvidia/interface/events/gpu (ras_events.c, nvlink_events.c, gsp_events.c), and the
forms of older drivers as published. A process name may hold any byte, so a message is recognised
from its end, and nothing that requires an action is read from text that could still be the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vitald.collectors.kernel_log.record import ParsedLine, format_pci
from vitald.model.event import Value

_HEADER = re.compile(
    r"NVRM: Xid"
    r" \((?:PCI:)?(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}|00[0-9a-fA-F]{2})"
    r":(?P<device>[0-9a-fA-F]{2})(?:\.(?P<function>[0-7]))?"
    r"(?: GPU-I:(?P<gi>\d{1,4}))?(?: GPU-CI:(?P<ci>\d{1,4}))?\):"
    r" (?P<code>\d{1,4})(?:,\s*(?P<rest>.*))?\s*\Z",
    re.S,
)
_OWNER = re.compile(
    r"(?:pid='?(?P<pid>\d{1,10}|<(?:unknown|n/a)>)'?(?:, ?|\s*\Z))?(?:name=(?P<named>.*))?", re.S
)
_UNKNOWN_NAME = re.compile(r"'?<(?:unknown|n/a)>'?(?:, ?(?P<message>.*))?\Z", re.S)

_UNIT = r"(?:MSE degraded|[A-Z][A-Z0-9_]*(?:/[A-Z][A-Z0-9_]*)?)"
_NVLINK5 = re.compile(
    rf"(?P<unit>{_UNIT})(?:\s+(?P<severity>Fatal|Nonfatal|Non-fatal)"
    r"\s+XC(?P<xc>[01])\s+i(?P<injected>[01])"
    r"|, (?P<severity_word>fatal|nonfatal), cross-contain=(?P<xc_word>[01]),"
    r" injected=(?P<injected_word>[01]),)"
    r"\s+Link\s+(?P<link>-?\d{1,3})"
    r"(?:\s+\((?P<words>0x[0-9a-fA-F]{1,8}(?:,?\s+0x[0-9a-fA-F]{1,8}){1,7})\)"
    r"|\s+\([0-9a-fA-Fx, ]{0,96}|\s*: [A-Z][\w ]{0,48}\.)?\s*\Z"
)
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x(?P<old>[0-9a-fA-F]{1,4}) \((?P<old_text>[A-Za-z0-9 ]+)\)"
    r" to 0x(?P<new>[0-9a-fA-F]{1,4}) \((?P<new_text>[A-Za-z0-9 ]+)\)\s*\Z"
)
_CONTAINMENT = re.compile(
    r"(?P<kind>Contained|Uncontained): (?P<unit>[A-Za-z0-9 ]+?)(?: \((?P<location>[0-9a-fx,"
    r" ]+)\))?\. "
    r"(?:physAddr: (?P<address>0x[0-9a-f]+)[. ]+)?RST: (?P<rst>Yes|No), D-RST:"
    r" (?P<drst>Yes|No)\s*\Z"
)
# Xid 94 of Blackwell's GSP prints no RST, but the driver marks the GPU for a reset here too
# (kernel_gsp_gb100.c).
_FIRMWARE_FATAL = re.compile(
    r"GSP-RISCV instance \d{1,2} \w[\w /\-]{0,48} ?fatal error(?: \(mask: 0x[0-9a-f]+\))?\s*\Z"
)
_NO_SPARE = re.compile(
    r"Row Remapper Error: \(0x[0-9a-f]+\) - (?:All reserved rows for bank are remapped|Row"
    r" Remapping table is full)\s*\Z"
    r"|DRAM Retirement failed due to (?:no spare for retirement|full inforom object|HW limit"
    r" reached) at 0x[0-9a-f]+\s*\Z"
)
# A second request for a repair that is already pending and takes effect at the next reset.
_ALREADY_PENDING = re.compile(
    r"Row Remapper(?: Error)?: \(0x[0-9a-f]+\) - Attempting to remap a row that is already pending"
    r" remapping\."
    r"(?: Remapping will occur when the GPU is reset)?\.?\s*\Z"
    r"|DRAM Retirement failed due to pending (?:row remap|bank remap|LTS swap) at 0x[0-9a-f]+\s*\Z"
)
_CAUSE = re.compile(r" caused by previous Xid (\d{1,4})\s*\Z")
_ENGINE = re.compile(r"\(GPC (?P<gpc>\d{1,3}), TPC (?P<tpc>\d{1,3})(?:, SM (?P<sm>\d{1,3}))?\)")
_LINK = re.compile(
    r"\blink (?P<link>\d{1,3})\b(?:\s?\((?P<regs>0x[0-9a-fA-F]+(?:, ?0x[0-9a-fA-F]+){0,15})\))?",
    re.I,
)
_LINK_CODES = {74, 108, 136, 137, 155, 166, 170}
_FATALITY = re.compile(r"(?P<milder>\bnon-?fatal\b)|\bfatal(?: error)?\b", re.I)

# Beginnings of messages, to tell a name that holds ", " from the message after it.
_MESSAGE = re.compile(
    r"(?:"
    r"(?:Ch|channel|Channel(?: ID)?|ChID|ChId)\b[ :]*(?:0x)?[0-9a-fA-F]{4,8}\b"
    r"|Graphics (?:SM |Exception)|MMU Fault|Class Error:|CMDre |PE[0-9a-fA-F]{4}\b|BAD_TSG"
    r" |SEC_(?:2_)?FAULT:"
    r"|GPU has fallen off the bus|Timeout (?:after|waiting) |GPU recovery action changed from"
    r" 0x|GSP[ -]|(?:Unc|C)ontained: "
    r"|NVLink: |NVLink remote |Row Remapper|Dynamic Page Retirement|An uncorrectable |Error status"
    r" 0x|FSP |L1 -> L0"
    r"|DRAM Retirement failed|Bank Remapper: |Disabling ECC |SM SBE |Marking (?:LTS|Channel)"
    r" \d|Repairing (?:LTS|Channel) failed|"
    r"(?:Retiring|Unable to retire) TPC \d|Poison error in GSP|MSE degraded +(?:Fatal|Nonfatal)"
    r"|(?:[0-9a-fA-F]{4}|[0-9a-fA-F]{8})(?:\([0-9a-fA-F]{4}\))? [0-9a-fA-F]{8}\b"
    r"|[A-Z][A-Z0-9_]*(?:/[A-Z][A-Z0-9_]*)?(?:\s+(?:Fatal|Nonfatal|Non-fatal)\s+XC[01]|,"
    r" (?:fatal|nonfatal), cross-contain=)"
    r")"
)

_PROMOTE_V1, _PROMOTE_V2, _RXPIPE = 1 << 10, 1 << 7, 6
_NVLINK5_CODES = range(144, 151)


def parse_xid(text: str) -> ParsedLine | None:
    """The Xid of a record, or None. `text` is one whole, unescaped record."""
    header = _HEADER.match(text)
    if header is None:
        return None
    code = int(header["code"])
    pid, process, message = _split_owner(header["rest"] or "")
    fields: dict[str, Value] = {"message": message.strip()}
    if header["gi"] is not None:
        fields["gpu_instance"] = int(header["gi"])
    if header["ci"] is not None:
        fields["compute_instance"] = int(header["ci"])
    link, fatal = _decode_message(code, message, fields)
    return ParsedLine(
        kind="xid",
        code=f"xid/{code}",
        number=code,
        pci=format_pci(header["domain"], header["bus"][-2:], header["device"], header["function"]),
        pid=pid,
        process=process,
        link=link,
        fatal=fatal,
        fields=fields,
    )


def _split_owner(rest: str) -> tuple[int | None, str | None, str]:
    """pid, process name and message. The name ends at the last ", " that a known message follows,
    else at the first.
    """
    owner = _OWNER.match(rest)
    if owner is None or not owner.end():
        return None, None, rest
    pid = int(owner["pid"]) if owner["pid"] and owner["pid"].isdigit() else None
    named = owner["named"]
    if named is None:
        return pid, None, rest[owner.end() :]
    unknown = _UNKNOWN_NAME.match(named)
    if unknown is not None:
        return pid, None, unknown["message"] or ""
    ends = [found.start() for found in re.finditer(", ", named)]
    for end in reversed(ends):
        if _MESSAGE.match(named, end + 2):
            return pid, named[:end], named[end + 2 :]
    if ends:
        return pid, named[: ends[0]], named[ends[0] + 2 :]
    return pid, named.rstrip(",") or None, ""


def _decode_message(
    code: int, message: str, fields: dict[str, Value]
) -> tuple[int | None, bool | None]:
    """Add what the message states to `fields`; returns the number of the NVLink and the fatality
    that it prints.
    """
    if code in _NVLINK5_CODES and (found := _NVLINK5.match(message)) is not None:
        return _decode_nvlink5(found, fields)
    if code == 154 and (found := _RECOVERY.match(message)) is not None:
        fields["recovery_from"], fields["recovery"] = int(found["old"], 16), int(found["new"], 16)
        return None, None
    if (decode := _DECODERS.get(code)) is not None:
        decode(message, fields)
    link = _decode_link(code, message, fields) if code in _LINK_CODES else None
    # A tenth of the cost of the pattern
    return link, _find_fatality(message) if "fatal" in message.lower() else None


def _decode_engine(message: str, fields: dict[str, Value]) -> None:
    """Xid 13: the GPC, TPC and SM that raised the exception."""
    if (found := _ENGINE.search(message)) is not None:
        fields.update(
            {name: int(value) for name, value in found.groupdict().items() if value is not None}
        )


def _decode_cause(message: str, fields: dict[str, Value]) -> None:
    """Xid 45: the Xid that preempted the channel."""
    if (found := _CAUSE.search(message)) is not None:
        fields["caused_by"] = int(found[1])


def _decode_remap(message: str, fields: dict[str, Value]) -> None:
    """Xid 63 and 64: the way of the repair, and whether it failed."""
    fields["row_remap"] = message.startswith("Row Remapper")
    fields["page_retirement"] = message.startswith("Dynamic Page Retirement")
    fields["exhausted"] = _NO_SPARE.match(message) is not None
    fields["already_pending"] = _ALREADY_PENDING.match(message) is not None


def _decode_containment(message: str, fields: dict[str, Value]) -> bool:
    """Xid 94 and 95; false if the message has another form."""
    found = _CONTAINMENT.match(message)
    if found is None:
        return False
    fields.update(
        contained=found["kind"] == "Contained",
        unit=found["unit"],
        rst=found["rst"] == "Yes",
        drst=found["drst"] == "Yes",
    )
    return True


def _decode_contained(message: str, fields: dict[str, Value]) -> None:
    """Xid 94, which Blackwell's GSP prints in a form of its own."""
    if not _decode_containment(message, fields) and _FIRMWARE_FATAL.match(message) is not None:
        fields["firmware_fatal"] = True


_DECODERS: dict[int, Callable[[str, dict[str, Value]], object]] = {
    13: _decode_engine,
    45: _decode_cause,
    63: _decode_remap,
    64: _decode_remap,
    94: _decode_contained,
    95: _decode_containment,
}


def _decode_link(code: int, message: str, fields: dict[str, Value]) -> int | None:
    """The number of the NVLink; the registers that Xid 74 prints go to `fields`."""
    found = _LINK.search(message)
    if found is None:
        return None
    if code == 74 and found["regs"]:
        words = re.findall(r"0x[0-9a-fA-F]+", found["regs"])
        _read_registers([int(word, 16) for word in words], fields)
    return int(found["link"])


def _find_fatality(message: str) -> bool | None:
    """Whether the message says fatal; None if it says neither that nor non-fatal."""
    found = _FATALITY.search(message)
    return None if found is None else found["milder"] is None


def _decode_nvlink5(found: re.Match[str], fields: dict[str, Value]) -> tuple[int, bool]:
    """Xid 144-150 on Blackwell: unit, severity, link, and the status words after them."""
    link, fatal = (
        int(found["link"]),
        (found["severity"] or found["severity_word"]).lower() == "fatal",
    )
    fields.update(
        unit=found["unit"].split("/")[0],
        cross_containment="1" in (found["xc"], found["xc_word"]),
        injected="1" in (found["injected"], found["injected_word"]),
    )
    if found["words"] is None:  # the line was cut short
        return link, fatal
    words = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", found["words"])]
    info, status = words[0], words[1]
    # The layout of the first word changed at R575. Bits 4:0 of the old one are the index of the
    # code (145 is 2), the new one has the unit there; RLW_RXPIPE, the only unit whose promote bit
    # matters, is 6 in both, in different bits.
    promote = _PROMOTE_V2 if info & 0x7F == _RXPIPE else _PROMOTE_V1
    fields.update(
        subcode=info >> 20 & 0x3F,
        status=status,
        status_bits=_single_bits(status),
        promote=bool(info & promote),
        words=words,
    )
    return link, fatal


def _read_registers(words: list[int], fields: dict[str, Value]) -> None:
    """Xid 74 on NVLink 2 to 4: seven status registers, of which r1, r3, r4 and r5 carry meaning."""
    fields["regs"] = words
    for name, word in zip(("r1", "r2", "r3", "r4", "r5"), words):
        if name != "r2":
            fields[f"{name}_bits"] = [bit for bit in range(32) if word >> bit & 1]


def _single_bits(word: int) -> list[int]:
    return [1 << bit for bit in range(32) if word >> bit & 1]
