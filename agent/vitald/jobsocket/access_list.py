"""
Keeping users from connecting to a socket, by the POSIX access list of its file.

The kernel then refuses their connect(2) with EACCES, which costs the daemon nothing. The owner of a
file may change its list without any privilege. It does not keep out root, nor the owner itself.
Source: acl(5), unix(7), and the format in Linux' include/uapi/linux/posix_acl_xattr.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")  # tag, permissions, id
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_READ_WRITE, _NOTHING = 6, 0


def deny_users(path: Path, uids: Iterable[int]) -> None:
    """Everyone may connect but these. Raises OSError, as where the file system has no such
    lists.
    """
    entries = [
        (_USER_OBJ, _READ_WRITE, _NO_ID),
        *((_USER, _NOTHING, uid) for uid in sorted(uids)),
        (_GROUP_OBJ, _READ_WRITE, _NO_ID),
        (_MASK, _READ_WRITE, _NO_ID),
        (_OTHER, _READ_WRITE, _NO_ID),
    ]
    os.setxattr(path, _ATTRIBUTE, _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries))
