"""
From a record's text to what it reports: the grammars that are code (Xid, SXid, the errors that the
firmware reports) and the shapes that are data.

An ordinary line must cost almost nothing: its first letters, or a text that must be in it, exclude
all shapes but a few before any regular expression is tried.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from vitald.catalog.rules import Rule
from vitald.catalog.shape import HEAD, begins_with_driver, first_letters
from vitald.collectors.kernel_log import xid
from vitald.collectors.kernel_log.record import ParsedLine, normalize_pci, unescape
from vitald.model.event import Value

_NUMBER_FIELDS = {"pid", "link", "cpu", "seconds", "errors", "core", "slot_number"}
_PROBED = re.compile(
    r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?: \(PCI"
    r" ID: [0-9a-f:]{9}\))?\s*\Z"
)
_DEVICE_LINE = re.compile(
    rb"[A-Za-z0-9_][A-Za-z0-9_\-]{0,31} [0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
)
# Records that begin with a process name, which a user chose: "XFS (a): [29118]: segfault at 0 ip
# ... in Shutting down filesystem[...]" is a forgery; the file name at its end is the user's too.
# No fault line has these shapes. A name has 15 bytes, each of which may be escaped as \xNN, or by
# rsyslog as #NNN; a rendered log may hold a backslash unescaped. The name of a network device is
# also free, except for blanks and colons, to a user with a namespace: it has room for one letter of
# a Neuron error's. Such a list is never complete: shapes that require an action do not rely on it
# (docs/catalogue.md); it keeps forgeries out of the milder ones. Source: tests/named.py, message by
# message.
_NAME_FIRST = re.compile(
    rb"(?:\\x[0-9a-f]{2}|#[0-7]{3}|\\(?!x[0-9a-f]{2})|#(?![0-7]{3})|[^\\#]){0,15}(?:"
    rb"\[\d{1,10}\](?:: | bad frame in | vsyscall | control protection ip:)| \(\d{1,10}\)(?:: |"
    rb" used greatest stack depth: | uses deprecated )"
    rb"|\(\d{1,10}\): Attempt to set a LOCK_MAND |/\d{1,10}: reached RLIMIT_SIGPENDING"
    rb"|: (?:page allocation (?:failure|stalls)|vmalloc error|potentially unexpected fatal"
    rb" signal|attempt to access beyond end of device)\b"
    rb"|: (?:\d{1,10} output lines suppressed due to ratelimiting|sending ioctl |calling"
    rb" unsupported SCSI_IOCTL)"
    rb"| (?:invoked oom-killer: |uses obsolete \(PF_INET,SOCK_PACKET\)|calls setitimer\(\) with"
    rb" |wrote to \S+ when file position )"
    rb"| using unsupported default IPA limit)"
    rb"|NEURON_HW_ERR=\w(?!\w)"
)
# Records that begin with a longer text chosen by a user: a packet that a firewall rule logs (its
# prefix has up to 127 bytes, and a namespace has rules of its own), and a fatal signal, which
# begins with the file name. Both are longer than a name in a driver's line. Source: Linux
# net/netfilter/nf_log_syslog.c, kernel/signal.c.
_PREFIXED = re.compile(
    rb"IN=[^ ]{0,15} OUT=[^ ]{0,15} (?:[A-Z]{3,8}=[^ ]{0,64} ){0,8}?"
    rb"(?:SRC=[0-9a-f.:]{2,39} DST=[0-9a-f.:]{2,39} |ARP HTYPE=\d{1,5}"
    rb" PTYPE=0x|MACSRC=[0-9a-f:]{17} )"
    rb"|: potentially unexpected fatal signal \d{1,3}\.\s*\Z"
)
_NAME_FIRST_CODES = {"oom/invoked", "crash/segfault"}  # rules for such records
# A frame of a stack in a module; one after a `?` may be left over from an earlier call. Source:
# Linux arch/x86/kernel/dumpstack.c, kernel/kallsyms.c; the build id after the module since 5.15.
_FRAME = re.compile(
    rb" {0,8}(?:\[<[0-9a-f]{8,16}>\] )?[\w.]{1,128}\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8}"
    rb" \[\w{1,64}[ \]]"
)
_MAX_STACK_RECORDS = 64
_MAX_PROBE_RECORDS = 2  # records between the probe's address and its complaint
_PROBE_CODES = {"gpu_lost/not_responding", "gpu_init_failed/unsupported"}
_SXID = re.compile(
    r"nvidia-nvswitch(?P<instance>\d{1,3}): SXid"
    r" \(PCI:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\): "
    r"(?P<code>\d{1,5}), ?(?:(?P<severity>Fatal|Non-fatal|Nonfatal|Correctable|Corrected)\b,?"
    r" ?)?(?:Link (?P<link>\d{1,3})\b ?)?(?P<text>.*)\Z",
    re.S,
)
_SXID_SEVERITY = re.compile(
    r"Severity (?P<severity>\d) Engine instance (?P<instance>\d+) Sub-engine instance (?P<sub>\d+)"
)
_FIRMWARE_LINE = re.compile(
    r"\{(?P<report>\d{1,10})\}\[Hardware Error\]: +(?:event severity: (?P<event>\w{1,16})"
    r"|Error \d{1,5}, type: (?P<type>\w{1,16})|section_type: (?P<section>[\w /,\-]{1,64})"
    r"|device_id: (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))\s*\Z"
)
_PCIE_SECTION = "PCIe error"
_FIRMWARE_CODES = {
    "corrected": "mce/pcie_corrected",
    "recoverable": "mce/pcie_recoverable",
    "fatal": "mce/pcie_fatal",
}


def begins_with_name(text: bytes) -> bool:
    """Whether the record begins with a process name, so that a user chose its first characters."""
    return _NAME_FIRST.match(text) is not None


class _Shape:
    """One regular expression of one rule."""

    __slots__ = ("pattern", "rule")

    def __init__(self, rule: Rule, pattern: str) -> None:
        self.rule = rule
        self.pattern = re.compile(pattern, re.S)

    def parse_line(self, text: str) -> ParsedLine | None:
        found = self.pattern.match(text)
        if found is None:
            return None
        fields: dict[str, Value] = {}
        for name, value in found.groupdict().items():
            if value is not None:
                fields[name] = int(value) if name in _NUMBER_FIELDS else value
        pci = fields.pop("pci", None)
        pid, process = fields.pop("pid", None), fields.pop("process", None)
        if isinstance(blamed := fields.get("blamed"), str):
            fields["blamed"] = normalize_pci(blamed)
        return ParsedLine(
            kind=self.rule.kind,
            code=self.rule.code,
            pci=normalize_pci(pci) if isinstance(pci, str) else None,
            pid=pid if isinstance(pid, int) else None,
            process=process if isinstance(process, str) else None,
            fatal=self.rule.fatal,
            context=self.rule.context,
            fields=fields,
        )


# A text that must be in the line -> shapes; those without such a text are under b""
Groups = dict[bytes, list[_Shape]]


class Recogniser:
    """Matches records with the shapes of all rules and the grammars of Xid and SXid. The state
    between records is a PCI address that the next record refers to, whose stack is printed, and the
    firmware's report.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_head: dict[bytes, Groups] = {}
        self._device: Groups = {}  # lines that begin with a driver name and a PCI address
        self._anywhere: Groups = {}
        self._of_stacks: dict[str, list[_Shape]] = {}  # by the code of the line before the stack
        for rule in rules:
            for pattern in rule.match:
                if rule.in_stack_after:
                    for code in rule.in_stack_after:
                        self._of_stacks.setdefault(code, []).append(_Shape(rule, pattern))
                    continue
                heads = first_letters(rule.starts, pattern)
                if begins_with_driver(pattern):
                    groups = [self._device]
                elif heads:
                    groups = [self._by_head.setdefault(head, {}) for head in heads]
                else:
                    groups = [self._anywhere]
                for group in groups:
                    for contained in rule.contains or ("",):
                        group.setdefault(contained.encode(), []).append(_Shape(rule, pattern))
        self._report = FirmwareReport()
        self._probed: tuple[str, int] | None = None
        # The line before a stack, and how many records it may still have
        self._stack: tuple[ParsedLine, int] | None = None

    def parse_record(self, text: bytes) -> ParsedLine | None:
        """What the record reports, or None. `text` is one whole record, still escaped as /dev/kmsg
        gives it.
        """
        parsed = self._match_shapes(text)
        if self._stack is not None:
            parsed = parsed or self._match_stack(*self._stack, text)
        if parsed is not None and parsed.kind == "mce":
            parsed = self._report.parse_line(unescape(text)) or parsed
        if parsed is None or _PREFIXED.search(text) is not None:
            return None
        if parsed.code in _NAME_FIRST_CODES or not _NAME_FIRST.match(text):
            if parsed.code in self._of_stacks:
                self._stack = parsed, _MAX_STACK_RECORDS
            return parsed
        return _parse_first_match(self._anywhere, text, only=_NAME_FIRST_CODES)

    def _match_stack(self, owner: ParsedLine, left: int, text: bytes) -> ParsedLine | None:
        """What the first frame in a module says of the task whose stack is printed."""
        if _FRAME.match(text) is None:
            self._stack = (owner, left - 1) if left > 1 else None
            return None
        self._stack = None
        frame = unescape(text).strip()
        for shape in self._of_stacks[owner.code]:
            if (parsed := shape.parse_line(frame)) is not None:
                fields = {**owner.fields, **parsed.fields}
                return replace(parsed, pid=owner.pid, process=owner.process, fields=fields)
        return None

    def _match_shapes(self, text: bytes) -> ParsedLine | None:
        head = text[:HEAD]
        if head == b"NVR" or head == b"nvi":
            return self._parse_nvidia(text)
        groups = self._by_head.get(head)
        if groups is not None and (parsed := _parse_first_match(groups, text)) is not None:
            return parsed
        if (
            _DEVICE_LINE.match(text)
            and (parsed := _parse_first_match(self._device, text)) is not None
        ):
            return parsed
        for contained in self._anywhere:  # inline: every ordinary line gets here
            if contained in text:
                return _parse_first_match(self._anywhere, text)
        return None

    def _parse_nvidia(self, text: bytes) -> ParsedLine | None:
        whole = unescape(text)
        parsed = (xid.parse_xid(whole) or parse_sxid(whole)) if b"Xid (" in text else None
        parsed = (
            parsed
            or _parse_first_match(self._by_head.get(text[:HEAD], {}), text)
            or _parse_first_match(self._device, text)
        )
        if parsed is None:
            if (probed := _PROBED.match(whole)) is not None:
                self._probed = normalize_pci(probed["pci"]), _MAX_PROBE_RECORDS
            elif self._probed is not None:
                pci, left = self._probed
                self._probed = (pci, left - 1) if left > 1 else None
        elif parsed.code in _PROBE_CODES and parsed.pci is None and self._probed is not None:
            parsed = _with_pci(parsed, self._probed[0])
            self._probed = None
        return parsed


def _parse_first_match(
    groups: Groups, text: bytes, only: Collection[str] = ()
) -> ParsedLine | None:
    for contained, shapes in groups.items():
        if contained in text:
            whole = unescape(text)
            for shape in shapes:
                if (not only or shape.rule.code in only) and (
                    parsed := shape.parse_line(whole)
                ) is not None:
                    return parsed
    return None


def _with_pci(parsed: ParsedLine, pci: str) -> ParsedLine:
    return ParsedLine(kind=parsed.kind, code=parsed.code, pci=pci, fields=parsed.fields)


def parse_sxid(text: str) -> ParsedLine | None:
    """The SXid of a record, or None. `text` is one whole, unescaped record of NVSwitch's driver.

        nvidia-nvswitchN: SXid (PCI:DDDD:BB:DD.F): NNNNN, BODY

    One event is one to four records with the same code: the first describes it, `Severity ...` and
    `Data {...}` records continue it. Source: NVIDIA open-gpu-kernel-modules, nvswitch sources
    (LR10, LS10); Fabric Manager guide.
    """
    found = _SXID.match(text)
    if found is None:
        return None
    code = int(found["code"])
    fields: dict[str, Value] = {"message": found["text"].strip(), "switch": int(found["instance"])}
    fatal = None if found["severity"] is None else found["severity"] == "Fatal"
    continues = False
    if found["severity"] is None and found["link"] is None:
        if (severity := _SXID_SEVERITY.match(found["text"])) is not None:
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


class FirmwareReport:
    """The report of a hardware error whose lines are read: several with the number of the report,
    of which one has the severity, one the kind of part, and one the address of a PCIe device.

        {3}[Hardware Error]: event severity: recoverable
        {3}[Hardware Error]:  Error 0, type: recoverable
        {3}[Hardware Error]:   section_type: PCIe error
        {3}[Hardware Error]:   device_id: 0000:81:00.0

    Source: Linux drivers/firmware/efi/cper.c (cper_estatus_print, cper_print_pcie).
    """

    def __init__(self) -> None:
        self._number = ""
        self._severity = ""
        self._section = ""

    def parse_line(self, text: str) -> ParsedLine | None:
        """What the line reports of a PCIe device; None for all others."""
        found = _FIRMWARE_LINE.match(text)
        if found is None:
            return None
        if found["event"] or found["report"] != self._number:
            self._number, self._severity, self._section = found["report"], "", ""
        self._severity = found["event"] or found["type"] or self._severity
        self._section = found["section"] or self._section
        code = _FIRMWARE_CODES.get(self._severity)
        if found["pci"] is None or self._section != _PCIE_SECTION or code is None:
            return None
        return ParsedLine(
            kind="mce",
            code=code,
            pci=normalize_pci(found["pci"]),
            fatal=self._severity == "fatal",
            fields={"report": self._number},
        )
