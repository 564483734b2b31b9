"""
What an ordinary user does to have the kernel print a line that begins with, or holds, a name of his
choice. x86-64; tried on Linux 6.18.

Each is a function that is called in a process of his own, which has the name. Messages in
tests/named.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import socket
import struct
from collections.abc import Callable

_SETITIMER, _MREMAP, _SIGRETURN, _SHMGET, _SEMGET, _SEMCTL, _FLOCK, _CAPGET, _FUTEX, _REMAP = (
    38,
    25,
    15,
    29,
    64,
    66,
    73,
    125,
    202,
    216,
)
_NEWNS, _NEWUSER, _NEWNET = 0x20000, 0x10000000, 0x40000000
_libc = ctypes.CDLL(None)


def obsolete_socket() -> None:
    socket.socket(socket.AF_INET, 10, 0)  # SOCK_PACKET: refused, and said before that


def setitimer_without_value() -> None:
    _libc.syscall(_SETITIMER, 0, None, None)


def mremap_of_a_private_mapping() -> None:
    mapping = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _libc.syscall(
        _MREMAP,
        ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapping))),
        0,
        8192,
        1,
        0,
    )


def mandatory_lock() -> None:
    _libc.syscall(_FLOCK, os.open("/", os.O_RDONLY), 32)


def oom_adj() -> None:
    fd = os.open("/proc/self/oom_adj", os.O_WRONLY)
    os.write(fd, b"1")


def huge_segment() -> None:
    _libc.syscall(_SHMGET, 0, 2 << 20, 0o5600)


def remap_file_pages() -> None:
    _libc.syscall(_REMAP, 0, 0, 0, 0, 0)


def old_capabilities() -> None:
    for version, words in ((0x19980330, 3), (0x20071026, 6)):
        _libc.syscall(_CAPGET, (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * words)())


def netlink_leftovers() -> None:
    route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    for rest in (b"xyz", struct.pack("HH", 5, 29) + b"x\0\0\0"):
        body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + rest
        route.send(struct.pack("IHHII", 16 + len(body), 18, 1, 1, 0) + body)


def futex_shift() -> None:
    words = (ctypes.c_uint32 * 2)()
    _libc.syscall(_FUTEX, words, 5, 0, 0, ctypes.byref(words, 4), 8 << 28 | 0xFFF << 12)


def negative_timeout() -> None:
    socket.socket().setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", -5, 0))


def bad_frame() -> None:
    _libc.syscall(_SIGRETURN)


def segfault() -> None:
    ctypes.memset(8, 1, 1)


def general_protection() -> None:
    ctypes.memset(0x4141414141414141, 1, 1)


def invalid_opcode() -> None:
    _run(b"\x0f\x0b")


def store_of_a_table() -> None:
    _run(b"\x0f\x01\x45\xf8\xc3")  # SGDT, which the processor refuses or the kernel emulates


def no_arguments() -> None:
    nothing = (ctypes.c_char_p * 1)(None)
    _libc.execve(ctypes.c_char_p(b"/bin/true"), nothing, nothing)


def data_limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (1, 1))
    mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def raw_socket() -> None:
    _libc.unshare(_NEWUSER | _NEWNET)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
    _libc.sendto(raw.fileno(), b"x" * 8, 8, 0, struct.pack("HH4s8x", 10, 0, b"\x7f\0\0\1"), 16)


def mount_option() -> None:
    """A whole line, by a newline in what is no name at all."""
    _libc.unshare(_NEWUSER | _NEWNS)
    line = (
        b"EDAC MC0: 1 UE memory scrubbing error on D (channel:0 slot:1 page:0x8a1 offset:0x0"
        b" grain:32)"
    )
    _libc.mount(b"none", b"/mnt", b"tmpfs", 0, b"foo\n" + line + b"\nbar")


def _run(code: bytes) -> None:
    mapping = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    mapping.write(code)
    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(mapping)))()


# What the kernel's record then holds, beside the name.
WAYS: dict[Callable[[], None], str] = {
    obsolete_socket: "uses obsolete (PF_INET,SOCK_PACKET)",
    setitimer_without_value: "calls setitimer() with new_value NULL pointer",
    mremap_of_a_private_mapping: "attempted to duplicate a private mapping",
    mandatory_lock: "Attempt to set a LOCK_MAND lock",
    oom_adj: "/oom_adj is deprecated",
    huge_segment: "Using mlock ulimits for SHM_HUGETLB",
    remap_file_pages: "uses deprecated remap_file_pages()",
    old_capabilities: "uses 32-bit capabilities",
    netlink_leftovers: "bytes leftover after parsing attributes",
    futex_shift: "tries to shift op by",
    negative_timeout: "tries to set negative timeout",
    bad_frame: "bad frame in rt_sigreturn",
    segfault: "segfault at",
    general_protection: "general protection fault",
    invalid_opcode: "trap invalid opcode",
    store_of_a_table: "SGDT instruction",
    no_arguments: "with NULL argv",
    data_limit: "exceed data ulimit",
    raw_socket: "forgot to set AF_INET",
    mount_option: "Unknown parameter 'foo",
}
