"""
Opens a verbs context on one RDMA device and queries it, as a job would: a program of its own, since
a call may hang in the driver.

Prints each call before it is made, and at the end the result: `ok`, `failed NUMBER` (of the error),
`unlisted` (libibverbs has no provider for the device) or `absent` (there is no libibverbs).
Source: ibv_open_device(3), ibv_query_device(3).
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

# struct ibv_device_attr has 232 bytes.
_ATTRIBUTES = 1024


def probe_device(library: str, name: str, emit: Callable[[str], None]) -> str:
    """The result."""
    try:
        verbs = ctypes.CDLL(library, use_errno=True)
    except OSError:
        return "absent"
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
    verbs.ibv_query_device.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    verbs.ibv_close_device.argtypes = [ctypes.c_void_p]
    count = ctypes.c_int()
    emit("ibv_get_device_list")
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    if not devices:
        return f"failed {ctypes.get_errno()}"
    wanted = name.encode()
    listed = (devices[place] for place in range(count.value))
    device = next((one for one in listed if verbs.ibv_get_device_name(one) == wanted), None)
    if device is None:
        return "unlisted"
    emit("ibv_open_device")
    ctypes.set_errno(0)
    context = verbs.ibv_open_device(device)
    if not context:
        return f"failed {ctypes.get_errno()}"
    emit("ibv_query_device")
    error = verbs.ibv_query_device(context, ctypes.create_string_buffer(_ATTRIBUTES))
    if error:
        return f"failed {abs(error)}"
    emit("ibv_close_device")
    verbs.ibv_close_device(context)
    return "ok"


def main() -> None:
    """Arguments: search path of modules, library, name of the device, and the seconds after which
    the program ends by itself, should the daemon be gone.
    """
    _, _, library, name, seconds = sys.argv
    signal.alarm(int(seconds))
    print(probe_device(library, name, lambda call: print(call, flush=True)), flush=True)
