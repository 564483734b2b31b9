"""
`vitald drill xid 79`: a drill on a live node.

Announces the exact line over the socket (root only), writes it to the real kernel log, and waits
until the daemon has read it. The event and its finding are marked `simulated` everywhere, and end
by themselves or with `vitald clear`. The kernel's rate limit for writers drops lines without an
error; the command reports that the line did not come back.

Owns     where the line is written: to the kernel log of this machine's configuration, and only if
         it is one (agent/vitald/recovery/files.py).
Refuses  a path given by the daemon. It is compared with the configured one, and a difference is an
         error before anything is written.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vitald.checking import is_line, parse_pci_address
from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, Parser, UsageError, argument_types, client, render
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.config.errors import ConfigError
from vitald.config.file import DEFAULT_PATH
from vitald.config.sections import load_config
from vitald.recovery import files, inputs
from vitald.server import endpoints

if TYPE_CHECKING:
    from vitald.server import schema

_MESSAGES = {
    "13": "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    "31": (
        "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @"
        " 0x7f2c_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
    ),
    "48": (
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at"
        " physAddr 0x1f2e40000 partition 16, subpartition 3."
    ),
    "63": "Row Remapper: New row (0x0000000012c4ea00) marked for remapping, reset gpu to activate.",
    "64": "Row Remapper Error: (0x00000001d07b2300) - All reserved rows for bank are remapped",
    "74": "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    "79": "GPU has fallen off the bus.",
    "94": "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    "95": "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
    "119": (
        "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 103"
        " (GSP_RM_ALLOC) (0x2081 0x4)."
    ),
    "154": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
}
# The device of a drill on a node that has none.
_ABSENT_DEVICE = "0000:65:00.0"
_MAX_LINE = 900
_ROOT_ONLY = "a drill writes to the kernel log, which only root may"


class _DrillKind(str):
    """`xid`; of `xid/79` the code beside it."""

    __slots__ = ("code",)
    code: str | None


def options(parser: Parser) -> None:
    client.add_connection_options(parser)
    parser.intermixed = True
    parser.add_argument(
        "kind",
        type=_parse_kind,
        choices=["xid", "sxid", "line"],
        help="what to write; `line` takes the text itself",
    )
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="the code, or for `line` the kernel line; xid/79 is the same as xid 79",
    )
    help_ = (
        "the GPU or switch: index, serial number, UUID or PCI address (default: one that this node"
        " has)"
    )
    parser.add_argument(
        "--device", type=argument_types.parse_device, metavar="DEVICE", default=None, help=help_
    )
    hold, help_ = (
        argument_types.parse_duration(1, argument_types.DAY_S, "1s to 24h"),
        "when the drill ends by itself (default: 10m)",
    )
    parser.add_argument(
        "--for", dest="hold", type=hold, metavar="DURATION", default=600.0, help=help_
    )
    help_ = (
        f"the daemon's configuration, which says where its kernel log is (default: {DEFAULT_PATH})"
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help=help_)
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _parse_kind(text: str) -> _DrillKind:
    name, slash, code = text.partition("/")
    kind = _DrillKind(name)
    kind.code = code if slash else None
    return kind


def run(arguments: argparse.Namespace) -> int:
    message = _read_message(arguments.kind, arguments.code)
    try:
        log = _find_kernel_log(arguments.config)
    except (files.Untrusted, ConfigError) as error:
        print(f"vitald: where the kernel log is cannot be told: {error}", file=sys.stderr)
        return EX_CONFIG
    try:
        line = message
        if arguments.kind != "line":
            line = _build_line(arguments.kind, int(message), _choose_device(arguments))
        drill = _announce_and_write(arguments, log, line)
    except files.Untrusted as error:
        return _report_failure(f"{error}: the drill was not written")
    except client.DaemonRefused as error:
        if error.status != 403:
            raise
        return _report_failure(f"{_ROOT_ONLY}: {error}")
    except PermissionError:
        return _report_failure(_ROOT_ONLY)
    except OSError as error:
        return _report_failure(f"{log.path}: {error.strerror}: the drill was not written")
    if arguments.json:
        render.emit_json(drill)
    if drill["state"] != "seen":
        _report_failure("the line was written but never came back from the kernel log")
        print(_explain_drop(log), file=sys.stderr)
        return EX_UNAVAILABLE
    if not arguments.json:
        _show_drill(drill, line)
    return 0


def _report_failure(text: str) -> int:
    print(f"vitald: {text}", file=sys.stderr)
    return EX_UNAVAILABLE


def _show_drill(drill: schema.Drill, line: str) -> None:
    render.print_line(f"written: {line}")
    finding = drill["finding"]
    if finding is None:
        render.print_line(
            "the catalogue requires no action here, so it is an event without a finding: see vitald"
            " events"
        )
        return
    number = render.escape_text(finding)
    render.print_line(
        f"finding #{number}, simulated, until {render.describe_time(drill['simulatedUntil'])}"
    )
    render.print_line(
        f'see it: vitald status    end it: vitald clear {number} --reason "drill over"'
    )


def _find_kernel_log(path: Path) -> KernelLogSettings:
    """The kernel log by this machine's configuration; root takes it from a file that only root can
    write. Raises Untrusted, ConfigError.
    """
    if os.geteuid() == 0:
        config = inputs.read_config(path)
    else:
        config = load_config(path if path != DEFAULT_PATH or path.exists() else None)
    return config[KernelLogSettings]


def _read_message(kind: _DrillKind, code: str | None) -> str:
    """The code, or the line itself. Raises UsageError."""
    if kind.code is not None and code is not None:
        name = f"{kind}/{kind.code}"
        raise UsageError(f"argument CODE: {name} has one already, so {code!r} is one too many")
    given = code if code is not None else kind.code
    if given is None:
        raise UsageError("argument CODE: expected one, as in vitald drill xid 79")
    if kind == "line":
        if not is_line(given, 1, _MAX_LINE, ascii_only=True):
            wanted = f"one line of at most {_MAX_LINE} printable characters of ASCII"
            raise UsageError(f"argument CODE: expected {wanted}")
        return given
    if not re.fullmatch(r"[0-9]{1,5}", given):
        raise UsageError(
            f"argument CODE: {given[:80]!r} is not a code: write e.g. vitald drill xid 79"
        )
    return given


def _choose_device(arguments: argparse.Namespace) -> str:
    """The device of the command line; else one of this node's, a healthy one first."""
    if arguments.device is not None:
        return _find_address(arguments, arguments.device)
    wanted = "gpu" if arguments.kind == "xid" else "nvswitch"
    listed = client.get(arguments, endpoints.COMPONENTS)["components"]
    # Only what is on PCI or was read: a device of another drill is neither.
    here = [
        component
        for component in listed
        if component["kind"] == wanted and (component["attributes"] or component["sources"])
    ]
    here.sort(key=lambda component: component["status"] != "healthy")
    if here:
        return _check_address(str(here[0]["name"]).partition("/")[2])
    what = "GPU" if wanted == "gpu" else "NVSwitch"
    warning = f"this node has no {what}: the drill is on {_ABSENT_DEVICE}, which is not here"
    print(f"vitald: {warning}", file=sys.stderr)
    return _ABSENT_DEVICE


def _find_address(arguments: argparse.Namespace, name: str) -> str:
    """The PCI address of a device. An address need not be of this node: it is only a drill."""
    address = parse_pci_address(name.partition("/")[2] or name)
    if address is None:
        listed = client.get(arguments, endpoints.COMPONENTS, component=name)["components"]
        address = _check_address(str(listed[0]["id"]))
    return address


def _check_address(address: str) -> str:
    """The address, which goes into the line, if the daemon's answer is one. Raises NoAnswer."""
    checked = parse_pci_address(address)
    if checked is None:
        raise client.NoAnswer(f"the daemon's answer is no PCI address: {address[:80]!r}")
    return checked


def _build_line(kind: str, code: int, pci: str) -> str:
    """A line as the driver writes it; the process name marks it as a drill in the raw log."""
    if kind == "sxid":
        return (
            f"nvidia-nvswitch0: SXid (PCI:{pci}): {code:05d}, Fatal, Link 38 vitald drill"
            f" {os.getpid()}"
        )
    message = _MESSAGES.get(str(code), "vitald drill")
    slot = pci.rpartition(".")[0]
    return f"NVRM: Xid (PCI:{slot}): {code}, pid={os.getpid()}, name=vitald-drill, {message}"


def _announce_and_write(
    arguments: argparse.Namespace, log: KernelLogSettings, line: str
) -> schema.Drill:
    """The drill, once the daemon has read the line or the time is up. Raises Untrusted, OSError."""
    fd = files.open_kernel_log(log.path, device=log.source == "kmsg")
    try:
        body: schema.AnnounceRequest = {"line": line, "holdSeconds": arguments.hold}
        drill = client.post(arguments, endpoints.ANNOUNCE, body)
        if drill["writeTo"] != str(log.path):
            mismatch = (
                f"the daemon reads {drill['writeTo']!r}, and {arguments.config} says"
                f" {str(log.path)!r}"
            )
            raise files.Untrusted(f"{mismatch}: name its configuration with --config")
        prefix = "<4>" if log.source == "kmsg" else ""
        # Without a newline the kernel keeps the record open for continuation.
        os.write(fd, f"{prefix}{line}\n".encode())
    finally:
        os.close(fd)
    return _wait_for_drill(arguments, str(drill["id"]))


def _wait_for_drill(arguments: argparse.Namespace, id_: str) -> schema.Drill:
    until = time.monotonic() + arguments.timeout
    while True:
        drill = client.get(arguments, endpoints.DRILL, id=id_)
        if drill["state"] == "seen" or time.monotonic() > until:
            return drill
        time.sleep(0.02)


def _explain_drop(log: KernelLogSettings) -> str:
    if log.source != "kmsg":
        return f"is {log.path} the file that the daemon follows?"
    try:
        setting = Path("/proc/sys/kernel/printk_devkmsg").read_text().strip()
    except OSError:
        setting = "unknown"
    if setting == "ratelimit":
        return (
            "the kernel's rate limit drops writers' lines (kernel.printk_devkmsg=ratelimit): wait 5"
            " s and try again"
        )
    hint = "see vitald status for the source"
    if setting == "off":
        hint = "writing is switched off"
    return f"kernel.printk_devkmsg is {setting}: {hint}"
