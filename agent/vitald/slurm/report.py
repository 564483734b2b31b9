"""
Reports of Slurm's scripts: one line on standard error and in the system's log.

slurmd keeps the output of scripts that failed only; the log has the rest.

Owns     the format of such a line, and that a system log that hangs does not delay a job.
Refuses  deciding what is reported.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress

from vitald.text import escape_unprintable

_LOG_SOCKET = "/dev/log"
_PRIORITY = 3 << 3 | 4  # facility daemon, severity warning


def report(text: str) -> None:
    """Write one line; unprintable characters are escaped."""
    line = escape_unprintable(text)
    print(f"vitald: {line}", file=sys.stderr, flush=True)
    stamp = time.strftime("%b %e %H:%M:%S")
    record = f"<{_PRIORITY}>{stamp} vitald-slurm[{os.getpid()}]: {line}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.setblocking(False)  # syslog(3) blocks: a log that hangs must not delay a job
        log.connect(_LOG_SOCKET)
        log.send(record.encode())
