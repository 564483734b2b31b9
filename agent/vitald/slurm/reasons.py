"""
The reason that we give a node in Slurm, and the record of the last ones.

An administrator may add a note to our reason, or write another one after our prefix; from then on
vitald does not change the node. To notice that, the last reasons that we gave are recorded in a
file.

Owns     the text of a reason, and the file.
Refuses  changing a node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from vitald.slurm.report import report
from vitald.slurm.settings import SlurmSettings

Verdict = Mapping[str, object]  # the daemon's answer to /v1/status

_MAX_REASON = 200  # characters


def first_reason(verdict: Verdict) -> str:
    """The strongest reason of a verdict, or its status if it has none."""
    reasons = cast("list[str]", verdict["reasons"])
    return reasons[0] if reasons else str(verdict["status"])


def format_reason(settings: SlurmSettings, verdict: Verdict) -> str:
    """Our prefix and the strongest reason, as one short line of ASCII, which Slurm stores as is."""
    plain = re.sub(r"[^\x20-\x7e]+", " ", first_reason(verdict))
    reason = f"{settings.prefix}{' '.join(plain.split())}"
    return reason[:_MAX_REASON].rstrip(' "')  # scontrol takes a final quote for its own


def record_reasons(settings: SlurmSettings, *reasons: str, durable: bool = False) -> None:
    """Record the reasons of ours that the node may have now, instead of those recorded before.

    `durable`: wait until they are on the disk, so that they survive a crash of the node.
    """
    path = settings.record
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text("".join(f"{reason}\n" for reason in reasons if reason), encoding="utf-8")
        new.replace(path)
        if durable:
            _sync(path)
            _sync(path.parent)
    except OSError as error:
        lost = "so this drain will count as an administrator's"
        report(f"{path}: not written, {lost}: {error}")


def forget_reasons(settings: SlurmSettings) -> None:
    with suppress(OSError):
        settings.record.unlink(missing_ok=True)


def read_recorded_reasons(settings: SlurmSettings) -> list[str]:
    """The reasons that we gave the node last; none if there is no record that can be read."""
    try:
        return settings.record.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        report(f"{settings.record}: not read, so no reason counts as ours: {error}")
        return []


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
