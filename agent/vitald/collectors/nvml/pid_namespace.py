"""Whether the processes of the whole node are visible from here."""

from __future__ import annotations

from pathlib import Path

# The number of the initial PID namespace: Linux include/linux/proc_ns.h (PROC_PID_INIT_INO).
_INITIAL = "pid:[4026531836]"


def is_initial_pid_namespace(path: Path = Path("/proc/self/ns/pid")) -> bool:
    """False in a container with processes of its own, as NVML lists no others there, and if
    unknown.
    """
    try:
        return str(path.readlink()) == _INITIAL
    except OSError:
        return False
