"""
One query of NCCL RAS over TCP, as NVIDIA's client makes it (NCCL: src/ras/client.cc, and the
commands in src/ras/client_support.cc).

Owns     the exchange, its limits, and whose process listens on the port.
Refuses  when to ask, and what the answer means.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from enum import Enum
from pathlib import Path

from vitald.nccl_ras.document import MAX_ANSWER_BYTES

DEFAULT_PORT = 28028  # of NCCL, unless NCCL_RAS_ADDR says otherwise
ANSWER_S = 12.0  # for everything; the gathering alone gets GATHER_S, NCCL's default
GATHER_S = 5
_PROTOCOL = 2
_MAX_LINE = 256
_CHUNK = 1 << 16
_LISTEN = "0A"  # of /proc/net/tcp (Linux: include/net/tcp_states.h, TCP_LISTEN)


class Format(Enum):
    """Of an answer."""

    TEXT = "text"
    JSON = "json"  # NCCL 2.28.7 and later


class RasError(Exception):
    """No answer, and why."""


async def ask_for_status(
    port: int, format_: Format = Format.JSON, *, deadline_s: float = ANSWER_S
) -> bytes:
    """The status of the job. Raises RasError."""
    try:
        return await asyncio.wait_for(_ask(port, format_), deadline_s)
    except asyncio.TimeoutError:
        raise RasError(f"no answer within {deadline_s:g} s") from None
    except OSError as error:
        raise RasError(f"127.0.0.1:{port}: {error.strerror or error}") from None


async def _ask(port: int, format_: Format) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK)
    try:
        writer.write(f"CLIENT PROTOCOL {_PROTOCOL}\n".encode())
        await _expect(reader, f"SERVER PROTOCOL {_PROTOCOL}")
        writer.write(f"TIMEOUT {GATHER_S}\n".encode())
        await _expect(reader, "OK")
        if format_ is not Format.TEXT:
            writer.write(f"SET FORMAT {format_.value}\n".encode())
            await _expect(reader, "OK")
        writer.write(b"STATUS\n")
        await writer.drain()
        return await _read_all(reader)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _expect(reader: asyncio.StreamReader, expected: str) -> None:
    try:
        line = (await reader.readuntil(b"\n"))[:_MAX_LINE]
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise RasError(f"expected {expected!r}, and there was no line") from None
    found = line.decode("ascii", "replace").strip()
    if found != expected:
        raise RasError(f"expected {expected!r}, found {found!r}")


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while chunk := await reader.read(_CHUNK):
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise RasError(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(answer)


def find_listener(port: int, procfs: Path) -> int | None:
    """The user whose process listens on the port of this node's loopback address (Linux:
    Documentation/networking/proc_net_tcp.rst); None if none does, or several users do.
    """
    users = {
        uid
        for name in ("tcp", "tcp6")
        for address, listening_port, uid in _list_listeners(procfs / "self/net" / name)
        if listening_port == port and (address.is_loopback or address.is_unspecified)
    }
    return users.pop() if len(users) == 1 else None


def _list_listeners(
    table: Path,
) -> list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int, int]]:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []  # no IPv6
    found = []
    for line in lines:
        words = line.split()
        if len(words) > 7 and words[3] == _LISTEN:
            address, _, port = words[1].partition(":")
            found.append((_parse_address(address), int(port, 16), int(words[7])))
    return found


def _parse_address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Words of 32 bits in the byte order of the machine, which is little-endian on both that are
    supported.
    """
    data = bytes.fromhex(digits)
    ordered = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return ipaddress.IPv4Address(ordered) if len(ordered) == 4 else ipaddress.IPv6Address(ordered)
