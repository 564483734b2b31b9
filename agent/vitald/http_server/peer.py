"""
The peer of a connection, by SO_PEERCRED, and its rights.

The kernel vouches for uid, gid and pid; nothing that the client sends counts. Reading is for root,
the daemon's own user and the members of the socket's group (SO_PEERGROUPS gives the supplementary
groups); changing is for root and the daemon's own user; what `vitald publish` may do is in
`request`. Source: unix(7), socket(7).
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from dataclasses import dataclass

_PEERGROUPS = 59  # SO_PEERGROUPS, Linux 4.13; the socket module has no name for it


@dataclass(frozen=True, slots=True)
class Peer:
    """A connected client."""

    pid: int
    uid: int
    gids: frozenset[int]

    @property
    def may_change(self) -> bool:
        return self.uid in (0, os.geteuid())

    def may_read(self, group: int) -> bool:
        return self.may_change or group in self.gids

    @property
    def name(self) -> str:
        """`root (uid 0)`, for findings and the audit."""
        try:
            return f"{pwd.getpwuid(self.uid).pw_name} (uid {self.uid})"
        except KeyError:
            return f"uid {self.uid}"


def read_peer(sock: socket.socket) -> Peer:
    """Raises OSError when the client is gone."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        # The most that Python takes: 256 groups
        raw = sock.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 1024)
    except OSError:
        raw = b""
    groups = struct.unpack(f"{len(raw) // 4}I", raw[: len(raw) // 4 * 4])
    return Peer(pid, uid, frozenset((gid, *groups)))
