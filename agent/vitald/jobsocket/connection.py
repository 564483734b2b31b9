"""
One client of the job socket: what is known of it, and its limits.

Owns     the state of the connection.
Refuses  reading it, which the server does.
"""

from __future__ import annotations

import socket

from vitald.jobsocket.identity import Credentials
from vitald.jobsocket.page import RankPage
from vitald.jobsocket.telemetry import RankHandle
from vitald.jobsocket.token_bucket import TokenBucket
from vitald.model.job_page import MAX_PACKETS_PER_S

_BURST = 2 * MAX_PACKETS_PER_S


class Connection:
    """One client, from its accepting on."""

    __slots__ = (
        *("bucket", "connected_at", "full_reads", "handle", "is_greeted", "is_listener"),
        *("is_slowed", "page", "peer", "sock", "wrong"),
    )

    def __init__(self, sock: socket.socket, peer: Credentials, now: float) -> None:
        self.sock = sock
        self.peer = peer
        self.connected_at = now
        self.bucket = TokenBucket(MAX_PACKETS_PER_S, _BURST, now)
        self.wrong = 0
        self.is_slowed = False  # its next read comes after a pause
        self.full_reads = 0  # in a row, after a pause
        self.is_greeted = False  # its hello has come
        self.is_listener = False  # it is no rank, and gets the advice
        self.handle: RankHandle | None = None
        self.page: RankPage | None = None
