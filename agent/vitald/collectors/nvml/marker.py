"""The call that the worker is in, in memory that it shares with the daemon."""

from __future__ import annotations

import struct

# When the call began (monotonic clock; 0: no call), its C name, and its GPU's address.
MARKER = struct.Struct("<d56s32s")
