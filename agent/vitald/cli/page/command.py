"""
`vitald page`: a web page that shows this node, for those who have its address. It runs in the
foreground as the user who starts it, and reads what that user may read.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import socket
import sys

from vitald.checking import Unexpected
from vitald.cli import EX_UNAVAILABLE, CommandFailed, UsageError, client, words
from vitald.cli.memory import import_aiohttp
from vitald.config_sections import Listen, read_listen

_DEFAULT = Listen("127.0.0.1", 9821)
_WARNING = (
    "vitald: --public: whoever can reach {listen} and learns the printed address reads what you may"
    " read: lines of the kernel log, names of processes, users and jobs, serial numbers. It is sent"
    " unencrypted."
)


class CannotServe(CommandFailed):
    """The page cannot be served; the text says why."""

    exit_code = EX_UNAVAILABLE


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--listen",
        type=_parse_listen,
        default=_DEFAULT,
        metavar="ADDRESS:PORT",
        help=f"where to serve the page (default: {_DEFAULT}; port 0: any that is free)",
    )
    parser.add_argument(
        "--public",
        action="store_true",
        help="allow an address that other machines can reach; nothing is encrypted",
    )


def _parse_listen(text: str) -> Listen:
    try:
        listen = read_listen(text)
    except Unexpected:
        listen = None
    if listen is None:
        raise words.InvalidArgument("an address and port such as 127.0.0.1:9821", text)
    return listen


def run(arguments: argparse.Namespace) -> int:
    listen: Listen = arguments.listen
    is_public = not ipaddress.ip_address(listen.host).is_loopback
    if is_public and not arguments.public:
        raise UsageError(
            f"--listen {listen} can be reached from other machines: use a tunnel"
            " (ssh -L 9821:127.0.0.1:9821 NODE), or say --public if you mean it"
        )
    listener = _open_listener(listen)
    import_aiohttp()
    from vitald.cli.page.reading import describe_failure, read_page, use_utc
    from vitald.cli.page.server import PageServer, make_token

    use_utc()
    token = make_token()
    hosts = ("*", socket.gethostname(), socket.getfqdn()) if is_public else ()
    server = PageServer(token, hosts, lambda: read_page(arguments), describe_failure)
    host, port = listener.getsockname()[:2]
    address = Listen(str(host), int(port))
    if ipaddress.ip_address(address.host).is_unspecified:  # no browser can open that
        address = Listen(socket.getfqdn(), address.port)
    if is_public:
        print(_WARNING.format(listen=address), file=sys.stderr)
    print(f"http://{address}/{token}/", flush=True)
    print("Keep the address to yourself. Ctrl-C ends it.", file=sys.stderr)
    asyncio.run(server.serve([listener]))
    return 0


def _open_listener(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CannotServe(
            f"cannot listen on {listen}: {why}; choose another with --listen"
        ) from None
