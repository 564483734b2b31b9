"""Readings of required mount points."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    flag,
    gauge,
    get_id,
    get_reading,
    text_reading,
    unexported,
)
from vitald.model import ComponentKind

_MOUNT = ReadingTable(
    component=ComponentKind.DISK,
    prefix="vitald_mount",
    labels={"mountpoint": get_id, "fstype": get_reading("type")},
    readings=(
        flag("mounted", "1 if a file system is mounted there."),
        flag("answers", "1 if the file system answers statvfs without an error."),
        gauge("answer_seconds", "How long statvfs took."),
        text_reading("error", "The error that statvfs returns."),
        unexported("missing", "1 while a mount point that was here before is not.", unit=FLAG),
    ),
)

READINGS = (_MOUNT,)
