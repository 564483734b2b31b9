"""Structures of the firmware's tables."""

from __future__ import annotations


def memory_device(
    locator: str, configured: int, size: int = 32_768, type_: int = 0x22, extended: int = 0
) -> bytes:
    """A structure of type 17, as DSP0134 3.3 lays it out, 0x5C bytes long."""
    fixed = bytearray(0x5C)
    fixed[0:2] = 17, len(fixed)
    fixed[0x0C:0x0E] = size.to_bytes(2, "little")
    fixed[0x10], fixed[0x12] = 1, type_
    fixed[0x20:0x22] = configured.to_bytes(2, "little")
    fixed[0x58:0x5C] = extended.to_bytes(4, "little")
    return bytes(fixed) + locator.encode() + b"\0\0"
