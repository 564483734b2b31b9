"""What the worker writes before each call, in memory that it shares with the daemon."""

from __future__ import annotations

import struct

MARKER = struct.Struct(
    "<d56s32s"
)  # when the call in flight began (monotonic clock; 0: none), its C name, its GPU
