"""
One stable word for each code: `Xid79`, `NvmlGpuLost`.

Controllers match these words (`reason` of a Kubernetes condition), so the list is closed: a code
that a site added, by an entry or a check, is `CustomRule`; a number that the catalogue does not
list is `XidUnlisted`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

from vitald.model.event import SITE_CHECK


class FixedReason(Enum):
    """The words that stand for no code of the catalogue."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    SOURCE_NOT_READ = "SourceNotRead"
    SIMULATED_READINGS = "SimulatedReadings"
    DAEMON_SILENT = "DaemonSilent"
    HEARTBEAT_STALE = "HeartbeatStale"
    NOT_REQUIRED = "NotRequired"
    HELD = "Held"
    CUSTOM_RULE = "CustomRule"
    MORE_CHANGES = "MoreChanges"


UNLISTED = "Unlisted"  # the end of the word for a code that the catalogue does not list
_PART = re.compile(r"[A-Za-z0-9]+")


def make_reason(code: str) -> str:
    """The word for a code, in CamelCase: letters and digits only."""
    return "".join(part[0].upper() + part[1:] for part in _PART.findall(code))


def find_reason(code: str, listed: Collection[str], custom: Collection[str]) -> str:
    """The word for a code of a finding. `listed`: the catalogue's codes; `custom`: those of them
    that the site added.
    """
    kind = code.partition("/")[0]
    if code in custom or kind == SITE_CHECK:
        return FixedReason.CUSTOM_RULE.value
    if code in listed:
        return make_reason(code)
    return make_reason(kind) + UNLISTED
