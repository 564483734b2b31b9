"""
`vitald page`: a web page about this node, served on the loopback. It runs in the foreground as the
user who starts it, and shows what that user may read.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys

from vitald.cli import EX_UNAVAILABLE, CommandFailed, argument_types, client, render
from vitald.cli.resident_memory import import_aiohttp

_ADDRESS, _PORT = "127.0.0.1", 9821


class CannotServe(CommandFailed):
    """The page cannot be served; the text says why."""

    exit_code = EX_UNAVAILABLE


def options(parser: argparse.ArgumentParser) -> None:
    client.add_connection_options(parser)
    parser.add_argument(
        "--port",
        type=argument_types.parse_number(0, 65535, "a port"),
        default=_PORT,
        help=f"port on {_ADDRESS} (default: {_PORT}; 0: any that is free)",
    )


def run(arguments: argparse.Namespace) -> int:
    listener = _open_listener(arguments.port)
    import_aiohttp()
    from vitald.cli.page.build import describe_failure, read_page
    from vitald.cli.page.server import PageServer, make_token

    render.use_utc()
    token = make_token()
    server = PageServer(token, lambda span: read_page(arguments, span), describe_failure)
    print(f"http://{_ADDRESS}:{listener.getsockname()[1]}/{token}/", flush=True)
    print("Who has this address sees what you may see. Ctrl-C ends it.", file=sys.stderr)
    asyncio.run(server.serve(listener))
    return 0


def _open_listener(port: int) -> socket.socket:
    try:
        return socket.create_server((_ADDRESS, port))
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CannotServe(
            f"cannot listen on {_ADDRESS}:{port}: {why}; choose another port with --port"
        ) from None
