"""The Unix socket that the health service listens on: systemd's, or one of its own."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitald.systemd import take_passed_sockets

BACKLOG = 512  # a client that finds no place in the queue is refused
_MAX_PATH = 107  # bytes of a Unix socket's path
_CONNECT_S = 1.0


class CannotListen(Exception):
    """The text says where, and why."""


@contextmanager
def open_listeners(path: Path) -> Iterator[list[socket.socket]]:
    """The sockets that systemd passed; else one at `path`, for every user, removed at the end.
    Raises CannotListen.
    """
    if passed := take_passed_sockets():
        yield passed
        return
    try:
        listener = _open_socket(path)
    except OSError as error:
        raise CannotListen(f"{path}: cannot listen there: {error.strerror or error}") from error
    try:
        yield [listener]
    finally:
        with suppress(OSError):
            path.unlink()


def _open_socket(path: Path) -> socket.socket:
    """Raises OSError, CannotListen."""
    if len(os.fsencode(path)) > _MAX_PATH:
        raise CannotListen(f"{path}: longer than the {_MAX_PATH} bytes of a Unix socket's path")
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o111)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale_socket(path: Path) -> None:
    """Left by a process that was killed. Raises OSError; CannotListen for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path}: it exists, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_S)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its queue is full
    raise CannotListen(f"{path}: another process listens there")
