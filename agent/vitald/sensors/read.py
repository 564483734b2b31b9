"""
Reads what the kernel shows to root only, and what the BMC and transceivers report.

As little as possible runs with root's rights: what programs print is passed on as it is.

Source: ipmitool(1); ethtool(8); Linux drivers/pci/pci-sysfs.c (configuration space beyond 64 bytes)
and drivers/firmware/dmi_scan.c (/sys/firmware/dmi/tables/DMI); DMTF DSP0134, structures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vitald.collectors.root_file import INTERFACE, VERSION, read_clock
from vitald.collectors.small_files import list_names, read_attribute
from vitald.collectors.tuning.pci_paths import NotShown, find_acs_control, read_config
from vitald.recovery.programs import run_program

Output = dict[str, str]

_BMC_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")  # those that ipmitool tries
_BMC_DEADLINE_S = 240.0  # hundreds of sensors over a slow bus
_MAX_BMC_OUTPUT = 256 * 1024
_MAX_LOG_ENTRIES = 256
_TRANSCEIVER_DEADLINE_S = 10.0
_MAX_TRANSCEIVER_OUTPUT = 32 * 1024
_MAX_INTERFACES = 64
_BRIDGE = "0x0604"  # class of a PCI bridge
_MAX_PORTS = 512
_MEMORY_DEVICE, _END_OF_TABLE = 17, 127
_MAX_MODULES = 512
_MAX_STRUCTURE = 4096  # bytes with its texts
_HEADER = 4  # bytes
# Times in the log are printed in local time, and would change with daylight saving.
_VARIABLES = {"TZ": "UTC", "LC_ALL": "C"}


def read_sensors(root: Path = Path("/")) -> dict[str, object]:
    """The content of the file. `root` has /sys and /dev."""
    sysfs = root / "sys"
    return {
        "version": VERSION,
        "uptime": read_clock(),
        "bmc_log": _ask_bmc(root, "sel", "elist", "last", str(_MAX_LOG_ENTRIES)),
        "bmc_sensors": _ask_bmc(root, "sdr", "elist"),
        "transceivers": {name: _read_transceiver(name) for name in _list_interfaces(sysfs)},
        "acs": dict(_read_acs(sysfs)),
        "memory_modules": [module.hex() for module in read_memory_modules(sysfs)],
    }


def _ask_bmc(root: Path, *arguments: str) -> Output:
    if not any((root / device).exists() for device in _BMC_DEVICES):
        return {"absent": "there is no BMC here: no /dev/ipmi0"}
    return _run(("ipmitool", *arguments), _BMC_DEADLINE_S, _MAX_BMC_OUTPUT)


def _run(command: Sequence[str], timeout_s: float, max_output: int) -> Output:
    result = run_program(command, timeout_s, _VARIABLES, max_output)
    text = result.output.decode("ascii", "ignore")
    output = "".join(char for char in text if char.isprintable() or char in "\t\n")
    return {"output": output, "trouble": result.trouble}


def _list_interfaces(sysfs: Path) -> list[str]:
    """Interfaces of PCI functions; not virtual functions, which share the port of another, and none
    with a name that the daemon refuses: it would refuse the whole file.
    """
    net = sysfs / "class/net"
    interfaces = [
        name
        for name in list_names(net)
        if INTERFACE.fullmatch(name)
        and (net / name / "device/vendor").exists()
        and not (net / name / "device/physfn").exists()
    ]
    return interfaces[:_MAX_INTERFACES]


def _read_transceiver(interface: str) -> Output:
    command = ("ethtool", "-m", interface)
    return _run(command, _TRANSCEIVER_DEADLINE_S, _MAX_TRANSCEIVER_OUTPUT)


def _read_acs(sysfs: Path) -> Iterator[tuple[str, int]]:
    """The ACS control register of each PCI bridge that can be read."""
    devices = sysfs / "bus/pci/devices"
    bridges = (name for name in list_names(devices) if _is_bridge(devices / name))
    for _, address in zip(range(_MAX_PORTS), bridges):
        try:
            yield address, find_acs_control(read_config(devices / address / "config"))
        except (OSError, NotShown):
            continue  # the daemon reports a port that is not listed


def _is_bridge(device: Path) -> bool:
    try:
        return read_attribute(device / "class").startswith(_BRIDGE)
    except OSError:
        return False


def read_memory_modules(sysfs: Path) -> list[bytes]:
    """The structures of memory devices in the firmware's tables, with their texts."""
    try:
        table = (sysfs / "firmware/dmi/tables/DMI").read_bytes()
    except OSError:
        return []
    found = (structure for kind, structure in _list_structures(table) if kind == _MEMORY_DEVICE)
    return [structure for _, structure in zip(range(_MAX_MODULES), found)]


def _list_structures(table: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of each structure. Its texts follow it, up to two zero bytes."""
    place = 0
    while place + _HEADER <= len(table):
        kind, length = table[place], table[place + 1]
        if length < _HEADER or kind == _END_OF_TABLE:
            return
        end = table.find(b"\0\0", place + length)
        if end < 0:
            return
        if end - place <= _MAX_STRUCTURE:
            yield kind, table[place : end + 2]
        place = end + 2
