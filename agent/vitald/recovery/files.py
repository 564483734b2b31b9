"""
Files that root reads and writes in places that other users may have changed.

Owns     the conditions under which a file is trusted, durable writing, and whether a file survives
         a reboot.
Refuses  interpreting contents. A function raises Untrusted, with the reason, rather than return a
         part.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitald import lock

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KMSG = os.makedev(1, 11)  # Linux Documentation/admin-guide/devices.txt
_VOLATILE_FILESYSTEMS = {"tmpfs", "ramfs", "rootfs", "devtmpfs"}


class Untrusted(Exception):
    """A file that is not trusted, or cannot be read; the text says why."""


class Absent(Untrusted):
    """There is no such file, which may be a valid state."""


def read_owned_file(path: Path, owners: Collection[int], max_bytes: int) -> bytes:
    """Contents of a regular file owned by one of `owners` (user ids) and not writable by others.
    Raises Untrusted.
    """
    try:
        # Not blocking: opening a pipe would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Absent(f"{path}: there is no such file") from None
    except OSError as error:
        problem = "a symbolic link" if _is_link(path) else error.strerror
        raise Untrusted(f"{path}: {problem}") from None
    try:
        _check_owned_file(path, os.fstat(fd), owners)
        data = b""
        while len(data) <= max_bytes and (part := os.read(fd, max_bytes + 1 - len(data))):
            data += part
    except OSError as error:
        raise Untrusted(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise Untrusted(f"{path}: larger than {max_bytes} bytes")
    return data


def _check_owned_file(path: Path, found: os.stat_result, owners: Collection[int]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(f"{path}: not an ordinary file")
    if found.st_uid not in owners:
        raise Untrusted(f"{path}: it belongs to uid {found.st_uid}")
    if found.st_mode & _OTHERS_WRITE:
        raise Untrusted(
            f"{path}: others than its owner may write it (mode {stat.S_IMODE(found.st_mode):04o})"
        )
    if found.st_nlink != 1:
        raise Untrusted(f"{path}: it has another name elsewhere")


def _is_link(path: Path) -> bool:
    with suppress(OSError):
        return path.is_symlink()
    return False


def check_folders(folder: Path, owners: Collection[int]) -> None:
    """No folder of the path may be a link, or writable by others than `owners` (user ids), who
    could put another file there. Raises Untrusted.
    """
    for path in (folder, *folder.parents):
        try:
            found = path.lstat()
        except OSError as error:
            raise Untrusted(f"{path}: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode):
            raise Untrusted(f"{path}: not a folder")
        if found.st_uid not in owners:
            raise Untrusted(f"{path}: it belongs to uid {found.st_uid}")
        if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise Untrusted(
                f"{path}: others than its owner may write it (mode"
                f" {stat.S_IMODE(found.st_mode):04o})"
            )


def read_root_file(path: Path, max_bytes: int) -> bytes:
    """Contents of a file that only root can have written. A link to one is followed: its target
    counts. Raises Untrusted.
    """
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        raise Absent(f"{path}: there is no such file") from None
    except (OSError, RuntimeError) as error:
        raise Untrusted(f"{path}: {error}") from None
    check_folders(real.parent, {0})
    return read_owned_file(real, {0}, max_bytes)


def check_program(path: Path) -> None:
    """A program that root runs must be owned by root, and so must the folders of its path. Raises
    Untrusted.
    """
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError) as error:
        raise Untrusted(f"{path}: {error}") from None
    check_folders(real.parent, {0})
    if found.st_uid != 0:
        raise Untrusted(f"{real}: it belongs to uid {found.st_uid}")
    if found.st_mode & _OTHERS_WRITE:
        raise Untrusted(
            f"{real}: others than its owner may write it (mode {stat.S_IMODE(found.st_mode):04o})"
        )


def open_kernel_log(path: Path, *, device: bool) -> int:
    """A file descriptor for appending: of the kernel log's device, or of a regular file.

    Root writes only to root's files in folders that only root can write to; other users only to
    their own files. The file is checked before it is opened: opening another device may have
    effects. Raises Untrusted, OSError.
    """
    if not device and os.geteuid() == 0:
        check_folders(path.parent, {0})
    named = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_kernel_log(path, os.fstat(named), device=device)
        # By its descriptor, so that it is the file that was checked.
        return os.open(
            f"/proc/self/fd/{named}", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        )
    finally:
        os.close(named)


def _check_kernel_log(path: Path, found: os.stat_result, *, device: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise Untrusted(f"{path}: a symbolic link")
    if device and not (stat.S_ISCHR(found.st_mode) and found.st_rdev == _KMSG):
        raise Untrusted(f"{path}: not the kernel log's device")
    if device:
        return
    if os.geteuid() == 0:
        _check_owned_file(path, found, {0})
    elif not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise Untrusted(f"{path}: not an ordinary file of your own")


def describe_existing(path: Path) -> str:
    """That something exists at the path, or that this is unknown, which must stop the caller, too.
    Empty if there certainly is nothing.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be checked: {error.strerror}"
    return f"{path} exists"


def write_durably(path: Path, data: bytes, group: int) -> None:
    """Replaces the file as a whole; it is on the disk on return. Readable by `group` (a group id).
    Raises OSError.
    """
    fresh = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        with suppress(PermissionError):  # without CAP_CHOWN only to a group of one's own
            os.fchown(fd, -1, group)
        os.fchmod(fd, 0o640)
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def prepare_folder(folder: Path, group: int) -> None:
    """The folder of root's records: created if it is missing, then checked. Readable by `group` (a
    group id). Raises Untrusted.
    """
    try:
        folder.mkdir(mode=0o750, parents=True)
        os.chown(folder, -1, group)
    except (FileExistsError, PermissionError):
        pass
    except OSError as error:
        raise Untrusted(f"{folder}: {error.strerror}") from None
    check_folders(folder.resolve(), {0})


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Holds the lock of the folder. Raises Untrusted if another process holds it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock.hold_lock(folder))
        except BlockingIOError:
            raise Untrusted(f"{folder}: another vitald recovery run is at work") from None
        except OSError as error:
            raise Untrusted(f"{folder / lock.FILE}: {error.strerror}") from None
        yield


def describe_volatility(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Why files of the folder do not survive a reboot; empty if nothing says so.

    Without its action log a node would be rebooted for the same fault for ever. For an overlay the
    answer is not known, and empty.
    """
    try:
        device = folder.stat().st_dev
        for line in mounts.read_text("utf-8", "replace").splitlines():
            fields, _, kind = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                name = kind.split()[0]
                if name in _VOLATILE_FILESYSTEMS:
                    return f"{folder} is on a {name}, which does not survive a reboot"
                return ""
    except (OSError, IndexError) as error:
        return f"{folder}: whether it survives a reboot cannot be told: {error}"
    return ""  # such as btrfs, whose files have another device number than its mount
