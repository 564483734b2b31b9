"""
`vitald inject xid 79`: a drill on a live node.

Announces the exact line over the socket (root only), writes it to the real kernel log, and waits until the daemon has
seen it. The event and its finding are marked `simulated` wherever they show, and end by themselves or with
`vitald clear`. The kernel's rate limit for writers drops lines silently, so silence is told as such.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from agent.cli import EX_UNAVAILABLE, EX_USAGE, client, render

_MESSAGES = {
    "13": "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Out Of Range Address",
    "31": "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2c_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    "48": "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr 0x1f2e40000 partition 16, subpartition 3.",
    "63": "Row Remapper: New row (0x0000000012c4ea00) marked for remapping, reset gpu to activate.",
    "64": "Row Remapper Error: (0x00000001d07b2300) - All reserved rows for bank are remapped",
    "74": "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    "79": "GPU has fallen off the bus.",
    "94": "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    "95": "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
    "119": "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
    "154": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
}
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


def options(parser: argparse.ArgumentParser) -> None:
    client.options(parser)
    parser.add_argument("kind", choices=["xid", "sxid", "line"], help="what to write; `line` takes the text itself")
    parser.add_argument("code", help="the code, or for `line` the kernel line")
    parser.add_argument("--device", metavar="PCI", default="0000:65:00.0", help="PCI address of the GPU or switch (default: 0000:65:00.0)")
    parser.add_argument("--for", dest="hold", metavar="DURATION", default="10m", help="when the drill ends by itself (default: 10m)")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> int:
    from agent import toml

    try:
        line = _line(arguments)
        hold = toml.duration(arguments.hold)
    except ValueError as error:
        print(f"vitald: {error}", file=sys.stderr)
        return EX_USAGE
    try:
        drill = client.ask(arguments, "/v1/injections", {"line": line, "holdSeconds": hold})
        _write(Path(str(drill["writeTo"])), line)
        seen = _wait(arguments, str(drill["id"]))
    except client.Refused as error:
        if error.status != 403:
            raise
        print(f"vitald: a drill writes to the kernel log, which only root may: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    except PermissionError:
        print("vitald: a drill writes to the kernel log, which only root may", file=sys.stderr)
        return EX_UNAVAILABLE
    except OSError as error:
        print(f"vitald: {error.filename}: {error.strerror}: the drill was not written", file=sys.stderr)
        return EX_UNAVAILABLE
    if arguments.json:
        render.emit_json(seen)
    if seen["state"] != "seen":
        print("vitald: the line was written but never came back from the kernel log", file=sys.stderr)
        print(_why_dropped(str(drill["writeTo"])), file=sys.stderr)
        return EX_UNAVAILABLE
    if not arguments.json:
        finding = seen["finding"]
        print(f"injected: {line}")
        if finding is None:
            print("the catalogue asks for nothing here, so it is an event without a finding: see vitald events")
        else:
            print(f"finding #{finding}, simulated, until {render.clock(seen['simulatedUntil'])}")
            print(f'see it: vitald status    end it: vitald clear {finding} --reason "drill over"')
    return 0


def _line(arguments: argparse.Namespace) -> str:
    """A line as the driver writes it; the process name marks it as a drill for whoever reads the raw log."""
    if arguments.kind == "line":
        return str(arguments.code)
    if not re.fullmatch(r"\d{1,5}", arguments.code):
        raise ValueError(f"{arguments.code!r} is not a code: write e.g. vitald inject xid 79")
    pci = _PCI.fullmatch(arguments.device)
    if pci is None:
        raise ValueError(f"--device {arguments.device!r}: expected a PCI address such as 0000:65:00.0")
    domain, bus, device, function = (pci[1] or "0000").lower(), pci[2].lower(), pci[3].lower(), pci[4] or "0"
    if arguments.kind == "sxid":
        return f"nvidia-nvswitch0: SXid (PCI:{domain}:{bus}:{device}.{function}): {int(arguments.code):05d}, Fatal, Link 38 vitald drill {os.getpid()}"
    message = _MESSAGES.get(str(int(arguments.code)), "vitald drill")
    return f"NVRM: Xid (PCI:{domain}:{bus}:{device}): {int(arguments.code)}, pid={os.getpid()}, name=vitald-drill, {message}"


def _write(path: Path, line: str) -> None:
    """A record needs its newline: without one the kernel keeps it open for continuation."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        prefix = "<4>" if path == Path("/dev/kmsg") else ""
        os.write(fd, f"{prefix}{line}\n".encode())
    finally:
        os.close(fd)


def _wait(arguments: argparse.Namespace, id_: str) -> client.Json:
    until = time.monotonic() + arguments.timeout
    while True:
        drill = client.ask(arguments, f"/v1/injections/{id_}")
        if drill["state"] == "seen" or time.monotonic() > until:
            return drill
        time.sleep(0.02)


def _why_dropped(path: str) -> str:
    if path != "/dev/kmsg":
        return f"is {path} the file that the daemon follows?"
    try:
        setting = Path("/proc/sys/kernel/printk_devkmsg").read_text().strip()
    except OSError:
        setting = "unknown"
    if setting == "ratelimit":
        return "the kernel's rate limit drops writers' lines (kernel.printk_devkmsg=ratelimit): wait 5 s and try again"
    return f"kernel.printk_devkmsg is {setting}: {'writing is switched off' if setting == 'off' else 'see vitald status for the source'}"
