"""What the daemon needs of its node before it can start: its folders, and who and what it is there.
Raises CannotStart with what is wrong.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from vitald import lock
from vitald.paths import Paths, is_root
from vitald.server.listeners import CannotStart


@asynccontextmanager
async def hold_folders(paths: Paths) -> AsyncIterator[None]:
    """Hold the lock files: two daemons must not share a socket or a ledger. Raises CannotStart."""
    runtime, state = paths.runtime, paths.state
    with ExitStack() as held:
        try:
            runtime.mkdir(mode=0o755 if is_root() else 0o700, parents=True, exist_ok=True)
            if runtime.stat().st_uid not in (0, os.geteuid()):
                raise CannotStart(
                    f"{runtime}: belongs to uid {runtime.stat().st_uid}, not to this user"
                )
            _lock_folder(runtime, held)
        except OSError as error:
            raise CannotStart(
                f"{error.filename or runtime}: {error.strerror}: vitald needs a runtime folder"
                " it can write ([paths] runtime)"
            ) from error
        # The ledger reports a state folder that cannot be written.
        with suppress(OSError):
            state.mkdir(mode=0o750, parents=True, exist_ok=True)
            _lock_folder(state, held)
        yield


def _lock_folder(folder: Path, held: ExitStack) -> None:
    """Raises CannotStart where another daemon holds it, OSError if that cannot be determined."""
    try:
        held.enter_context(lock.hold_lock(folder))
    except BlockingIOError:
        raise CannotStart(f"another vitald is running with the folder {folder}") from None


def find_group_id(name: str | None) -> int:
    if name is None:
        return os.getegid()
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotStart(f"[socket] group: there is no group {name!r} on this node") from None


def find_user_id(name: str) -> int | None:
    """None where there is no such user on this node: no other user gets its rights then."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def read_machine_id() -> str:
    """An identifier of this machine that never changes. Images may share a host name."""
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def read_boot_id(procfs: Path) -> str:
    path = procfs / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CannotStart(
            f"{path}: {error.strerror}: without the boot id no record can be told from another"
            " boot's"
        ) from error
