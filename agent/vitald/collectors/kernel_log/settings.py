"""Settings of the kernel log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitald.config.errors import FileReport
from vitald.config.readers import one_of, read_path
from vitald.config.section import Section, setting
from vitald.config.values import Config

# Ways to treat records that a process wrote
USERSPACE = ("unconfirmed", "confirmed", "ignore")


def read_journal(value: object) -> str:
    return str(value) if value in ("system", "off") else str(read_path(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLogSettings:
    """The kernel log."""

    source: str = setting(
        "kmsg",
        one_of("kmsg", "file"),
        '"kmsg" reads /dev/kmsg; "file" follows a text file that holds the kernel log.',
    )
    path: Path = setting(
        Path("/dev/kmsg"), read_path, 'What to read: /dev/kmsg, or with source = "file" the file.'
    )
    journal: str = setting(
        "system",
        read_journal,
        'Where to read at a start what the ring no longer holds: "system", a folder of journal'
        ' files, or "off".',
    )
    userspace: str = setting(
        "unconfirmed",
        one_of(*USERSPACE),
        'Records that a process wrote to /dev/kmsg, which takes root: "unconfirmed" judges them,'
        ' and they start no repair; "confirmed" takes them for confirmed faults, to'
        ' test the whole chain; "ignore" only shows them.',
        reload=True,
    )


def _check_path(config: Config, report: FileReport) -> None:
    settings = config[KernelLogSettings]
    if settings.source == "file" and settings.path == KernelLogSettings().path:
        report.add_error(SECTION.name, "path", 'source = "file" needs the path of the file')


SECTION = Section(name="kernel_log", settings=KernelLogSettings, order=10, check=_check_path)
