"""`vitald release --for 10m --reason TEXT`: release the GPUs, so that they can be reset. vitald
takes them back after that time.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitald.cli import UsageError, argument_types, client, render
from vitald.server import endpoints
from vitald.text import count_noun

if TYPE_CHECKING:
    from vitald.server import schema

_TIMEOUT_S = 15.0


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--for",
        dest="seconds",
        type=argument_types.parse_duration(1, argument_types.DAY_S, "1s to 24h"),
        default=600.0,
        metavar="TIME",
        help='for how long, e.g. "10m" (default)',
    )
    parser.add_argument(
        "--device",
        action="append",
        type=argument_types.parse_device,
        default=[],
        metavar="GPU",
        help="only this one: index, serial number, UUID or PCI address; repeatable",
    )
    parser.add_argument(
        "--reason",
        type=argument_types.parse_reason,
        default=None,
        metavar="TEXT",
        help="reason, recorded with the caller; needed to release",
    )
    parser.add_argument("--end", action="store_true", help="take everything back now")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(arguments: argparse.Namespace) -> int:
    """0: no process is known to have the devices open. 10: some process has."""
    arguments.timeout = max(arguments.timeout, _TIMEOUT_S)
    if arguments.end:
        every: schema.EndReleaseRequest = {}
        over = client.post(arguments, endpoints.END_RELEASE, every)
        if arguments.json:
            render.emit_json(over)
        else:
            print(
                "taken back: the GPUs are polled again" if over["ended"] else "nothing was released"
            )
        return 0
    if not arguments.reason:
        raise UsageError("a release needs a reason: --reason TEXT")
    body: schema.ReleaseRequest = {
        "seconds": arguments.seconds,
        "gpus": arguments.device,
        "reason": arguments.reason,
    }
    answer = client.post(arguments, endpoints.RELEASE, body)
    if arguments.json:
        render.emit_json(answer)
    else:
        _show_release(answer)
    return 0 if answer["free"] else 10


def _show_release(answer: schema.Released) -> None:
    gpus = render.escape_text(", ".join(answer["gpus"]) or "all GPUs")
    until = render.describe_time(answer["until"])
    print(f"released {gpus} until {until}; vitald release --end takes them back earlier")
    for pid in answer["stuck"]:
        print(
            f"  vitald's own process {pid} hangs in the driver and cannot be ended: only a reboot"
            " frees the device"
        )
    for holder in answer["deviceUsers"]:
        print(f"  still open in {render.escape_text(holder['process'])} (pid {holder['pid']})")
    hidden = answer["notInspected"]
    if hidden:
        counted = "processes" if hidden < 0 else count_noun(hidden, "process")
        print(
            f"  {counted} of other users could not be checked: fuser -v /dev/nvidia*, as root,"
            " shows which have them open"
        )
    if answer["free"]:
        print("  no process is known to have them open")
