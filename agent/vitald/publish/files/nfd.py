"""
Labels for Node Feature Discovery, as a feature file of its source `local`. NFD writes them to the
node, so that vitald needs no credentials.

The file has an expiry time: when nothing renews it, NFD drops the labels with its next discovery.
It is not removed when the publisher stops.

Source: Node Feature Discovery, "Local feature source" of the customization guide, and
source/local/local.go: dot files are ignored, at most 64 KiB, `# +expiry-time=` in RFC 3339 holds
for the lines after it. docs/usage/customization-guide.md, "Node labels": a label's namespace must
not be denied by nfd-master's `-deny-label-ns`.
"""

from __future__ import annotations

import time
from pathlib import Path

from vitald.publish.files.replace_file import REWRITE_S, replace_file
from vitald.publish.kubernetes.desired import build_labels
from vitald.publish.summary import DaemonSilent, PublishedState
from vitald.timestamps import format_rfc3339

FILE = "vitald"
EXPIRY_S = 600.0


class NfdSink:
    """Writes the node's state to a feature file."""

    name = "nfd"

    def __init__(self, folder: Path, prefix: str) -> None:
        self._path = folder / FILE
        self._prefix = prefix

    def get_recheck_s(self, state: PublishedState) -> float:  # noqa: ARG002
        """How long the file stays as it is, in seconds."""
        return REWRITE_S

    async def write_state(self, state: PublishedState) -> bool:
        """Always True: the expiry time is new. Raises SinkFailed."""
        await replace_file(self._path, format_features(state, self._prefix, time.time()))
        return True


def format_features(state: PublishedState, prefix: str, now: float) -> str:
    """The feature file. While the daemon is silent, the status is unknown, and whether a repair is
    due is not said. `now`: seconds since the epoch.
    """
    labels = build_labels(state, prefix)
    if not isinstance(state, DaemonSilent):
        labels[f"{prefix}/reboot-required"] = _format_flag(state.reboot_reason)
        labels[f"{prefix}/replacement-required"] = _format_flag(state.replacement_reason)
    lines = [
        f"# Written by vitald publish, and again every {REWRITE_S:.0f} seconds.",
        f"# +expiry-time={format_rfc3339(now + EXPIRY_S, 'seconds')}",
        *(f"{key}={value}" for key, value in labels.items()),
    ]
    return "\n".join(lines) + "\n"


def _format_flag(reason: str) -> str:
    return "true" if reason else "false"
