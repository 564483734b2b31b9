"""How much of a saved kernel log was understood, and what makes another form readable."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vitald.text import count_noun

_FORMS = "dmesg, dmesg -T, journalctl -k (short, short-iso or json) or syslog, in English"
# Forms that are not read, by the beginning of the file, and the command that converts them
_CONVERSIONS = tuple(
    (re.compile(head), command)
    for head, command in (
        (rb"\xfd7zXZ\x00", "xzcat FILE | vitald scan -"),
        (rb"BZh\d", "bzcat FILE | vitald scan -"),
        # Of a regular file the program zstd unpacks it
        (rb"\x28\xb5\x2f\xfd", "zstdcat FILE | vitald scan - (apt-get install zstd)"),
        (rb"\xff\xfe|\xfe\xff", "iconv -f UTF-16 -t UTF-8 FILE | vitald scan -"),
        (rb"(?:[^\x00]\x00){8}", "iconv -f UTF-16LE -t UTF-8 FILE | vitald scan -"),
        (rb"(?:\x00[^\x00]){8}", "iconv -f UTF-16BE -t UTF-8 FILE | vitald scan -"),
        (rb"__CURSOR=|__REALTIME_TIMESTAMP=", "journalctl -k -o json | vitald scan -"),
        (rb'\s*\{\s*"dmesg"', "dmesg -T | vitald scan -"),
        (rb'\{"log":', "jq -rj .log FILE | vitald scan -"),
        (rb"\d{4}-\S{15,40} std(?:out|err) [FP] ", "cut -d ' ' -f 4- FILE | vitald scan -"),
        (rb"\x1b\[", "dmesg --color=never | vitald scan -"),
        (rb"\s{1,16}\d{1,12}\t", "cut -f 2- FILE | vitald scan -"),
        (rb"\d{1,12}[:-]\D", "cut -d : -f 2- FILE | vitald scan -"),
        (rb"(?=[A-Za-z.-]*\d)[\w.-]{1,253}: ", "sed -n 's/^HOST: //p' FILE | vitald scan -"),
    )
)


def find_conversion(head: bytes) -> str:
    """The command that makes a file readable that begins like this; "" if none is known."""
    found = (command for pattern, command in _CONVERSIONS if pattern.match(head) is not None)
    return next(found, "")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where a line is in the log, and when it was written, as precisely as the log has it."""

    number: int
    time: float | None  # seconds since the epoch
    usec: int | None  # on the kernel's own clock


@dataclass(slots=True)
class LogCoverage:
    """What was read, and what could not be."""

    lines: int = 0
    kernel: int = 0  # lines with the form of a kernel log's, or that were recognised
    unread: int = 0  # unrecognised lines that contain a text of fault lines
    shown: list[tuple[int, str]] = field(default_factory=list)  # the first of those
    hosts: dict[str, None] = field(default_factory=dict)
    losses: int = 0  # places where records are missing
    lost: int = 0  # records missing there, as far as the log says how many
    first_loss: int = 0  # its line
    latest: Stamp | None = None  # of the line written last, if it is a kernel log's
    trouble: str = ""  # why it was not read to its end
    mixture: str = ""  # why its lines cannot be judged together
    conversion: str = ""  # the command that makes this form readable

    @property
    def loss(self) -> str:
        """What the log shows of records that it lost; empty if nothing."""
        if not self.losses:
            return ""
        number = f"{self.lost} or more records" if self.lost else "records"
        where = f"at {self.losses} lines, first" if self.losses > 1 else "at"
        return f"{number} are missing from this log ({where} line {self.first_loss})"

    @property
    def problem(self) -> str:
        """Why the absence of findings does not mean that the node is healthy; empty if it does."""
        if self.trouble:
            return self.trouble
        if not self.lines:
            return "the log is empty"
        hint = self.conversion or f"save it with {_FORMS}"
        if not self.kernel:
            return f"none of {count_noun(self.lines, 'line')} has the shape of a kernel log: {hint}"
        if self.mixture:
            return self.mixture
        if self.unread:
            unread = count_noun(self.unread, "line")
            return f"{unread} could not be read, but may tell of a fault: {hint}"
        return ""
