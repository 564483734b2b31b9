"""
A server and a client of one test on this node, as one program with one deadline that leaves nothing
behind.

Owns     the shell script that starts the client once the server listens, and ends the server.
Refuses  what the two print: standard output is the client's, standard error the server's.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence

# Arguments: the port in hexadecimal, the server's command line, the client's. The server has 20 s
# to listen (0A is TCP_LISTEN; a test connection would take the client's place), and 5 s to end
# after its client.
_SCRIPT = """
hex=$1
eval "$2 >/dev/null &"
server=$!
tries=0
until grep -qs "^ *[0-9]*: [0-9A-F]*:$hex [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6; do
    kill -0 "$server" 2>/dev/null || {
        wait "$server"; code=$?; [ "$code" -ne 0 ] || code=75; exit "$code"
    }
    tries=$((tries + 1))
    [ "$tries" -lt 200 ] || { kill "$server"; echo "the server does not listen" >&2; exit 75; }
    sleep 0.1
done
eval "$3 2>&1"
code=$?
[ "$code" -eq 0 ] || kill "$server" 2>/dev/null
tries=0
while kill -0 "$server" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -ne 50 ] || kill "$server" 2>/dev/null
    [ "$tries" -lt 60 ] || break
    sleep 0.1
done
exit "$code"
"""


def find_free_port() -> int:
    """A TCP port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def make_argv(
    name: str, port: int, server: Sequence[str], client: Sequence[str]
) -> tuple[str, ...]:
    """The command that runs both. `port`: the one on which the server listens."""
    lines = shlex.join(server), shlex.join(client)
    return ("/bin/sh", "-c", _SCRIPT, name, f"{port:04X}", *lines)
