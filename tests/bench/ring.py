"""
The real kernel log as a benchmark uses it: written without the rate limit, read by a bare loop for
the floor.

Every write ends in a newline: without one the kernel holds the record back until the next comes.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.bench.measure import Connection, Skipped

_LOCK = Path("/run/vitald-tests.printk_devkmsg")
_LIMIT = Path("/proc/sys/kernel/printk_devkmsg")
_END = b"vitald-bench: end of "
_ORDINARY = (
    "usb 1-1.4: new high-speed USB device number {0} using xhci_hcd",
    "eth0: renamed from veth{1:07x}",
    "docker0: port {0}(veth{1:07x}) entered forwarding state",
    (
        'audit: type=1400 audit(17000{1}.{0}:{2}): apparmor="STATUS" operation="profile_load" '
        'name="docker-default" pid={2}'
    ),
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{1:07x}: link becomes ready",
    (
        "python3[{2}]: segfault at {1:x} ip 00007f{1:08x} sp 00007ffc{1:08x} error 4 in "
        "libtorch.so[7f{0:04x}+{2:x}]"
    ),
    "EXT4-fs (nvme{0}n1p1): mounted filesystem with ordered data mode. Opts: (null)",
    "nfs: server 10.0.{0}.{0} OK",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number {0}",
    "mlx5_core 0000:{0:02x}:00.0: Port module event: module {0}, Cable plugged",
    "systemd[1]: Started Session {2} of user worker{0}.",
    "TCP: request_sock_TCP: Possible SYN flooding on port {2}. Sending cookies.",
    "nvme nvme{0}: 8/0/0 default/read/poll queues",
    "perf: interrupt took too long ({2} > 2500), lowering kernel.perf_event_max_sample_rate to {1}",
    "pcieport 0000:{0:02x}:01.0: PME: Signaling with IRQ {0}",
)


@contextmanager
def unlimited() -> Iterator[int]:
    """A descriptor to write records to, with the kernel's limit on such writers off meanwhile.

    Whoever comes first notes the limit and whoever leaves last puts it back: several may run on a
    machine.
    """
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.W_OK):
        raise Skipped("needs root and a writable /dev/kmsg")
    with _LOCK.open("a+") as lock:
        if _alone(lock):
            lock.truncate(0)
            lock.write(_LIMIT.read_text())
            lock.flush()
        fcntl.flock(lock, fcntl.LOCK_SH)
        fd = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
        try:
            lift()
            yield fd
        finally:
            os.close(fd)
            if _alone(lock):
                lock.seek(0)
                _set_limit(lock.read())


def _alone(lock: TextIO) -> bool:
    fcntl.flock(lock, fcntl.LOCK_UN)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lift() -> None:
    """Lift the limit again: a test that ran beside us may have put it back."""
    _set_limit("on\n")


def _set_limit(words: str) -> None:
    """In a container the setting may be read-only, and as wanted."""
    if _LIMIT.read_text().split() != words.split():
        _LIMIT.write_text(words)


def one_of_each() -> list[bytes]:
    """The text of one line of every shape that `ordinary` draws from."""
    return [shape.format(42, 0x1234567, 4242).encode() for shape in _ORDINARY]


def ordinary(count: int, seed: int = 1) -> list[bytes]:
    """Lines as a working node writes them, about a hundred bytes each; none means anything."""
    chance = random.Random(seed)

    def line() -> bytes:
        text = chance.choice(_ORDINARY).format(
            chance.randrange(1, 100), chance.randrange(1 << 28), chance.randrange(3000, 1 << 17)
        )
        return f"<6>{text}\n".encode()

    return [line() for _ in range(count)]


def xid(code: int, address: str, message: str, number: int = 0) -> bytes:
    """An Xid record. The number shows as its pid, so that records of one device differ."""
    process = f"pid={1000 + number}, name=python3"
    return f"<3>NVRM: Xid (PCI:{address}): {code}, {process}, {message}\n".encode()


def tail() -> int:
    """A descriptor that reads what is written from now on."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.lseek(fd, 0, os.SEEK_END)
    return fd


def write_known(out: int, line: bytes) -> int | None:
    """Write a record and find its sequence number; None where the kernel dropped it, or another
    writer hid it.
    """
    fd = tail()
    try:
        os.write(out, line)
        text = line.partition(b">")[2]
        while True:
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:
                continue
            except BlockingIOError:
                return None
            if record.partition(b";")[2].startswith(text):
                return int(record.split(b",", 2)[1])
    finally:
        os.close(fd)


def finish(out: int, name: str) -> None:
    """Tell the bare readers to end."""
    os.write(out, _END + name.encode() + b"\n")


def bare_reader(pipe: Connection, name: str, wanted: bytes) -> None:
    """The floor: epoll on /dev/kmsg and nothing else. Tells when each record with `wanted` in it
    came, how many it read and lost.
    """
    fd = tail()
    waiting = select.epoll()
    waiting.register(fd, select.EPOLLIN)
    seen: list[tuple[float, bytes]] = []
    end = _END + name.encode()
    count, lost, last = 0, 0, -1
    pipe.send("ready")
    cpu = time.process_time()
    while True:
        waiting.poll()
        try:
            while True:
                try:
                    record = os.read(fd, 8192)
                except BrokenPipeError:
                    continue
                now = time.monotonic()
                count += 1
                seq = int(record.split(b",", 2)[1])
                if last >= 0 and seq > last + 1:
                    lost += seq - last - 1
                last = seq
                if wanted in record:
                    seen.append((now, record))
                elif end in record:
                    pipe.send(
                        {
                            "seen": seen,
                            "read": count,
                            "lost": lost,
                            "cpu_s": time.process_time() - cpu,
                            "end": now,
                        }
                    )
                    return
        except BlockingIOError:
            pass
