"""
The network interfaces that `[expect] interfaces` names: present, turned on, and with a link.

They may be of any kind: a port, a bond, a VLAN. Each is a component of its own, by name, since an
interface that is absent belongs to no adapter. Source: Linux Documentation/ABI/testing/
sysfs-class-net (carrier, flags, operstate), Documentation/networking/operstates.rst.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import partial

from vitald.collectors import small_files
from vitald.collectors.collector import PolledDevice
from vitald.collectors.small_files import RawReadings, describe_error
from vitald.model import Component, ComponentKind

_IFF_UP = 0x1
# Drivers that do not set the state leave it unknown; their carrier counts.
_RUNNING = ("up", "unknown")
_OFF = (errno.EINVAL,)  # the answer of `carrier` while the interface is turned off
_ABSENT = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)


def list_expected(root: str, names: Sequence[str]) -> Iterator[PolledDevice]:
    """`root`: of sysfs."""
    for name in dict.fromkeys(names):
        read = partial(_read_interface, f"{root}/class/net/{name}", name)
        yield PolledDevice(Component(ComponentKind.NODE, name), read)


def _read_interface(folder: str, name: str) -> RawReadings:
    raw = RawReadings(display_name=f"interface {name}")
    try:
        state = _find_state(folder)
    except OSError as error:
        raw.missing["interface_up"] = describe_error(error)
        return raw
    raw.values |= {"interface_up": float(state == "up"), "interface_state": state}
    return raw


def _find_state(folder: str) -> str:
    """`up`, else what it lacks. Raises OSError."""
    try:
        flags = int(small_files.read_attribute(f"{folder}/flags"), 0)
        if not flags & _IFF_UP:
            return "turned off"
        if small_files.read_attribute(f"{folder}/carrier") != "1":
            return "no link"
        operstate = small_files.read_attribute(f"{folder}/operstate")
    except ValueError as error:
        raise OSError(errno.EBADMSG, "flags is no number", folder) from error
    except OSError as error:
        if error.errno in _ABSENT:
            return "absent"
        if error.errno in _OFF:
            return "turned off"
        raise
    return "up" if operstate in _RUNNING else operstate
