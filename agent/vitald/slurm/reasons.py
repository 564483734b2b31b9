"""
A node's reason in Slurm: the one that we give it, and whether its present reason is ours.

A person may add a note to our reason, or write another one after our prefix; from then on the node
is theirs. To notice that, the last reasons that we gave are recorded in a file.

Owns     the text of a reason, and the record of the last ones.
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
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import Settings

Verdict = Mapping[str, object]  # the daemon's answer to /v1/status

_MAX_REASON = 200  # characters


def first_reason(verdict: Verdict) -> str:
    """The strongest reason of a verdict, or its status if it has none."""
    reasons = cast("list[str]", verdict["reasons"])
    return reasons[0] if reasons else str(verdict["status"])


def format_reason(settings: Settings, verdict: Verdict) -> str:
    """Our prefix and the strongest reason, as one short line of ASCII, which Slurm stores as is."""
    plain = re.sub(r"[^\x20-\x7e]+", " ", first_reason(verdict))
    reason = f"{settings.prefix}{' '.join(plain.split())}"
    return reason[:_MAX_REASON].rstrip(' "')  # scontrol takes a final quote for its own


def is_our_reason(settings: Settings, node: SlurmNode) -> bool:
    """Whether a node's reason is one that we gave it, unchanged.

    If no reason is recorded, as after the boot of a diskless node, the prefix decides.
    """
    if not node.reason.startswith(settings.prefix):
        return False
    recorded = _read_recorded(settings)
    return not recorded or node.reason in recorded


def record_reasons(settings: Settings, *reasons: str) -> None:
    """Record the reasons of ours that the node may have now, instead of those recorded before."""
    path = settings.reasons_file
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        _write_file(new, "".join(f"{reason}\n" for reason in reasons if reason))
        new.replace(path)
    except OSError as error:
        lost = "so a note that somebody adds to our reason will not be noticed"
        report(f"{path}: not kept, {lost}: {error}")


def _write_file(path: Path, text: str) -> None:
    """Write a file; a symbolic link in its place is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
        file.write(text)


def forget_reasons(settings: Settings) -> None:
    if settings.reasons_file is not None:
        with suppress(OSError):
            settings.reasons_file.unlink(missing_ok=True)


def _read_recorded(settings: Settings) -> list[str]:
    path = settings.reasons_file
    if path is None:
        return []
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        report(f"{path}: not read, going by the prefix: {error}")
        return []
