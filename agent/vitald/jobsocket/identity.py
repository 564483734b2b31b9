"""
Whose rank a connection is: by the kernel's word, else by the client's claim.

SO_PEERCRED gives the process and the user; the process's control group gives the Slurm job or the
pod. A process of another PID namespace has the number 0 here: of it, only the user is known, and
its job is what it claims. The user is always a part of the key, so that no claim reaches the job
of another user. Source: unix(7), pid_namespaces(7).
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitald.collectors.small_files import read_text
from vitald.diagnostics.idle.detector import find_pod, find_slurm_job

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Of a peer; `pid` is 0 if it is in another PID namespace."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """`slurm` and `pod` are the kernel's word; `claimed` is the client's."""

    uid: int
    slurm: str = ""
    pod: str = ""
    claimed: str = ""

    @property
    def key(self) -> str:
        """`slurm:1234`, `pod:UID` or `claim:UID:1234`: different for each job of each user."""
        if self.slurm:
            return f"slurm:{self.slurm}:{self.uid}"
        if self.pod:
            return f"pod:{self.pod}:{self.uid}"
        return f"claim:{self.claimed}:{self.uid}"

    @property
    def is_claim(self) -> bool:
        return not (self.slurm or self.pod)

    def describe(self, user: str) -> str:
        """`job 1234 of alice`. `user`: its name, if the scheduler reported it."""
        owner = user or f"uid {self.uid}"
        if self.slurm:
            return f"job {self.slurm} of {owner}"
        if self.pod:
            return f"pod {self.pod} of {owner}"
        if self.claimed:
            return f"job {self.claimed} (its own claim) of {owner}"
        return f"a job of {owner}"


def read_credentials(sock: socket.socket) -> Credentials:
    """Raises OSError when the client is gone."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return Credentials(pid=pid, uid=uid)


def read_identity(procfs: Path, peer: Credentials, claimed: str) -> JobIdentity:
    """Blocks: it reads procfs. A process of another user has taken over the number of one that
    ended; root owns the files of one that may not be traced.
    """
    cgroups = ""
    with suppress(OSError):
        if peer.pid > 0 and (procfs / str(peer.pid)).stat().st_uid in (peer.uid, 0):
            cgroups = read_text(procfs / str(peer.pid) / "cgroup")
    return JobIdentity(
        uid=peer.uid, slurm=find_slurm_job(cgroups), pod=find_pod(cgroups), claimed=claimed
    )
