"""How much of a saved kernel log was understood."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitald.text import count_noun


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
    trouble: str = ""

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
        if not self.lines:
            return self.trouble or "the log is empty"
        if self.trouble:
            return self.trouble
        if not self.kernel:
            return f"none of {count_noun(self.lines, 'line')} has the shape of a kernel log"
        if self.unread:
            return f"{count_noun(self.unread, 'line')} could not be read, but may tell of a fault"
        return ""
