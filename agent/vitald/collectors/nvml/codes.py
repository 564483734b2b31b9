"""
NVML's return codes, what a failed call means here, and the marker of the call in flight: what the
worker and the daemon share. Does not import the binding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

# NVML's codes for readings that are not observable; they mean nothing about health.
UNSUPPORTED = "not supported"
MISSING: Mapping[int, str] = {
    3: UNSUPPORTED,
    4: "no permission",
    6: "not found",
    13: "driver too old",
    25: "driver too old",
    26: "deprecated",
}

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 2, 3, 6, 10, 13
LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 15, 16, 25, 999
# Codes of our own, besides NVML's.
EXCLUDED = -2  # the driver's configuration excludes this GPU
NO_LIMIT = -3  # the call succeeds with 0, which is no limit
NO_VALUE = -4  # the call succeeds with the marker for "no value"
NARROW = -5  # a counter that may wrap unnoticed between two polls

NO_DATA_YET = 21
RETRY_LATER = {NO_DATA_YET: "no data yet", 27: "not ready"}
NO_DATA = {
    **RETRY_LATER,
    NO_LIMIT: "the driver gives no limit",
    NO_VALUE: "the driver gives no value",
    NARROW: "the counter may have only 32 bits",
}
REASONS = {**MISSING, **NO_DATA}
# Faults of the GPU itself, whichever call returns them.
FAULTS = {
    8: "insufficient_power",
    11: "irq_issue",
    14: "corrupted_inforom",
    LOST: "lost",
    RESET_REQUIRED: "reset_required",
}

MIN_FAILURES = 3  # in succession, for no known reason: then the call counts as failing

# NVML_VALUE_NOT_AVAILABLE is -1, and registers that do not exist read as ones; as a float, 64 ones
# are rounded up.
NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1, 2**64})
# When the call began (monotonic clock; 0: no call), its C name, and its GPU's address.
MARKER = struct.Struct("<d56s32s")


def describe_code(code: int) -> str:
    if code in REASONS:
        return REASONS[code]
    if code in FAULTS:
        return FAULTS[code].replace("_", " ")
    return f"fails with NVML error {code}"
