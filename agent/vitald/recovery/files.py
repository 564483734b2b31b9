"""
Files that root reads and writes where others may have had a hand in them.

Owns     what a file must be before a word of it counts, durable writing, and the question whether a
         file survives a reboot.
Refuses  meaning. Every function raises Untrusted, with the reason, rather than give half an answer.
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
    """A file that does not count, or cannot be read; the text says why."""


class Absent(Untrusted):
    """There is no such file, which may be as good an answer."""


def read_owned_file(path: Path, owners: Collection[int], most: int) -> bytes:
    """What an ordinary file has, that only its owner may write, and who owns it is one of
    `owners`.
    """
    try:
        # Not blocking: a pipe would hold us up for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Absent(f"{path}: there is no such file") from None
    except OSError as error:
        raise Untrusted(
            f"{path}: {'a symbolic link' if _is_link(path) else error.strerror}"
        ) from None
    try:
        _check_owned_file(path, os.fstat(fd), owners)
        data = b""
        while len(data) <= most and (part := os.read(fd, most + 1 - len(data))):
            data += part
    except OSError as error:
        raise Untrusted(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > most:
        raise Untrusted(f"{path}: larger than {most} bytes")
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
    """No folder on the way may be a link, or writable by others than `owners`: they could put
    another file there.
    """
    for one in (folder, *folder.parents):
        try:
            found = one.lstat()
        except OSError as error:
            raise Untrusted(f"{one}: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode):
            raise Untrusted(f"{one}: not a folder")
        if found.st_uid not in owners:
            raise Untrusted(f"{one}: it belongs to uid {found.st_uid}")
        if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise Untrusted(
                f"{one}: others than its owner may write it (mode"
                f" {stat.S_IMODE(found.st_mode):04o})"
            )


def read_root_file(path: Path, most: int) -> bytes:
    """A file that nobody but root can have written. A link to one is followed: what counts is where
    it leads.
    """
    try:
        real = path.resolve(strict=True)
    except FileNotFoundError:
        raise Absent(f"{path}: there is no such file") from None
    except (OSError, RuntimeError) as error:
        raise Untrusted(f"{path}: {error}") from None
    check_folders(real.parent, {0})
    return read_owned_file(real, {0}, most)


def check_program(path: Path) -> None:
    """What root runs must be root's, and the folders on the way to it. Raises Untrusted."""
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
    """For one more line at its end: the kernel log's own device, or an ordinary file. Root writes
    only what is root's, and reached by folders that nobody else can write; another user only what
    is his own. Looked at before it is opened, for to open another device may be to act. Raises
    Untrusted, OSError.
    """
    if not device and os.geteuid() == 0:
        check_folders(path.parent, {0})
    named = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_kernel_log(path, os.fstat(named), device=device)
        # The same file, by its descriptor: whatever is at the path meanwhile.
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
    """Whether something of this name is there, in words; empty where there certainly is not. Who
    cannot tell must stop.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"whether there is {path} cannot be told: {error.strerror}"
    return f"{path} is there"


def write_durably(path: Path, data: bytes, group: int) -> None:
    """All of it or nothing, and on the disk when this returns. Readable by `group`. Raises
    OSError.
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
    """The folder of what root remembers: made where it is missing, then judged. Raises
    Untrusted.
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
    """One at a time. Raises Untrusted where another one is at work."""
    with ExitStack() as stack:
        try:
            stack.enter_context(lock.hold_lock(folder))
        except BlockingIOError:
            raise Untrusted(f"{folder}: another vitald recover is at work") from None
        except OSError as error:
            raise Untrusted(f"{folder / lock.FILE}: {error.strerror}") from None
        yield


def describe_volatility(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Why what is written here is gone after a reboot; empty where nothing says so.

    A book that is forgotten would let a node be rebooted for the same fault for ever. Of an overlay
    it cannot be told.
    """
    try:
        device = folder.stat().st_dev
        for line in mounts.read_text("utf-8", "replace").splitlines():
            fields, _, kind = line.partition(" - ")
            if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                name = kind.split()[0]
                return (
                    f"{folder} is on a {name}, which does not survive a reboot"
                    if name in _VOLATILE_FILESYSTEMS
                    else ""
                )
    except (OSError, IndexError) as error:
        return f"{folder}: whether it survives a reboot cannot be told: {error}"
    return ""  # such as btrfs, whose files are on another device than it says
