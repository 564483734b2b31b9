"""Lines of text in a saved kernel log, and what a tool has put before each of them: a container
runtime's prefix (CRI), pdsh, `grep -n`, `cat -n`, colours, indentation.

What the lines begin with is a prefix only if most lines of the file's beginning have it: a single
program that quotes a kernel line after its own name is not a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.lines import Line, strip_prefix
from vitald.collectors.kernel_log.saved_coverage import LogCoverage

_PREFIX_SHARE = 4 / 5  # of the lines
_SAMPLE_LINES = 200
_COLOURS = re.compile(rb"\x1b(?:\[[0-9;:?]*[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_CRI = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+\-]\d\d:\d\d)) std(?:out|err) [FP] "
)
_CENTURIES = (b"20", b"19")  # the date of a CRI prefix begins with them
_PREFIXES = {
    # grep -n, cat -n
    "number": re.compile(rb"(?:[\w.+~/@-]{1,255}[:-])? {0,12}\d{1,12}(?: {0,8}[:-]\t?|\t)"),
    "host": re.compile(rb"(?P<host>[A-Za-z0-9][\w.-]{0,253})(?:: ?|\t)(?=\s*\S)"),
    "indent": re.compile(rb"[ \t]+(?=\S)"),
}
_HOST_NAME = re.compile(rb"[\w.-]*\d")


# Not frozen: one is made for every line, and freezing costs half of the time
@dataclass(slots=True)
class SavedRecord:
    """One record of the log. `line` is None if another program wrote it."""

    number: int
    raw: bytes
    line: Line | None
    time: float | None = None  # stored beside the line; seconds since the epoch
    host: str = ""  # before the line or beside it
    boot_id: str = ""  # stored beside the line
    # Indented lines that follow: of the same record, if it is the kernel's
    more: tuple[bytes, ...] = ()
    doubt: str = ""  # why it may not be a record of its own


class TextParser:
    """`latest`: when the log was last written, in seconds since the epoch; time stamps without a
    year are before it.
    """

    def __init__(self, latest: float) -> None:
        self._latest = latest
        self._prefix: re.Pattern[bytes] | None = None

    def detect_prefix(self, head: bytes, is_recognised: Callable[[bytes], bool]) -> None:
        """Finds out what most lines have before their time stamp or message.

        `head`: the beginning of the log. `is_recognised`: whether a message is a known one.
        """
        sample = [_COLOURS.sub(b"", line) for line in head.split(b"\n")[:_SAMPLE_LINES]]
        self._prefix = _find_prefix([line for line in sample if line.strip()], is_recognised)

    def parse_lines(self, lines: Iterator[bytes], coverage: LogCoverage) -> Iterator[SavedRecord]:
        """`coverage.lines` counts the lines as they are read."""
        has_prefix = self._prefix is not None
        for raw in lines:
            if has_prefix or b"\x1b" in raw or raw.startswith(_CENTURIES):
                yield self.parse_text(raw, coverage.lines)
            else:  # most lines, without a further call
                yield SavedRecord(coverage.lines, raw, strip_prefix(raw))

    def parse_text(self, raw: bytes, number: int, time: float | None = None) -> SavedRecord:
        """A line of text, without its colours and prefix."""
        text = raw.rstrip(b"\r\n")
        if b"\x1b" in text:
            text = _COLOURS.sub(b"", text)
        shown, host = text, ""
        if text.startswith(_CENTURIES) and (cri := _CRI.match(text)) is not None:
            text, time = text[cri.end() :], parse_date(cri[1], self._latest)
        elif self._prefix is not None and (prefix := self._prefix.match(text)) is not None:
            text = text[prefix.end() :]
            name = prefix.groupdict().get("host")
            host = name.decode("utf-8", "replace") if name is not None else ""
        return SavedRecord(number, shown, strip_prefix(text), time, host)


def _find_prefix(
    sample: list[bytes], is_recognised: Callable[[bytes], bool]
) -> re.Pattern[bytes] | None:
    bare = sum(_is_kernel_line(line, is_recognised) for line in sample)
    if not sample or bare > len(sample) * (1 - _PREFIX_SHARE):
        return None
    for name, prefix in _PREFIXES.items():
        found = [match for line in sample if (match := prefix.match(line)) is not None]
        if len(found) < len(sample) * _PREFIX_SHARE:
            continue
        for match in found:
            rest = match.string[match.end() :]
            is_certain = name != "host" or _HOST_NAME.match(match["host"]) is not None
            if _is_kernel_line(rest, is_recognised if is_certain else None):
                return prefix
    return None


def _is_kernel_line(text: bytes, is_recognised: Callable[[bytes], bool] | None) -> bool:
    """By its form, or by its message."""
    line = strip_prefix(text)
    if line is None:
        return False
    return line.has_kernel_prefix or (is_recognised is not None and is_recognised(line.message))
