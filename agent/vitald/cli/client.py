"""
Client of the daemon: HTTP over its Unix socket, with the standard library only (importing an HTTP
client library costs more than the whole request).

Owns     which listener root accepts: only a socket that root or the daemon's user listens on. The
         limits of an answer: bytes, depth, tables and lists. Another process that listens on the
         daemon's path must not mislead a command run by root, nor fill its memory.

Commands of other users accept any listener: a false answer gives it no more than the user's rights.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vitald import __version__
from vitald.checking import is_deep
from vitald.cli import EX_CONFIG, EX_UNAVAILABLE, CommandFailed, argument_types
from vitald.model.words import Status
from vitald.server.endpoint import MAX_PAGE, Answer, Body, Endpoint, Get, Post
from vitald.server.endpoints import FINDINGS, STATUS, SUMMARY, WATCH
from vitald.text import replace_unprintable

if TYPE_CHECKING:
    from vitald.server import schema

Json = dict[str, object]
_STATUSES = {status.value for status in Status}
DAEMON_USER = "vitald"  # the daemon's, as the package makes it
# Limits of an answer. The largest real ones: 1,000 events or findings of some 2 KiB each; the
# output of a diagnostic, 2 MiB before it is JSON.
_MAX_BYTES, _MAX_DEPTH, _MAX_PARTS = 8 * 1024 * 1024, 32, 128 * 1024
_MAX_LINE_BYTES = 1024 * 1024  # of /v1/watch
_PIECE_BYTES = 64 * 1024
_SYSTEM_SOCKET = Path("/run/vitald/vitald.sock")
_SYSTEMD_FOLDER, _SYSTEMCTL, _SYSTEMCTL_TIMEOUT_S = (
    Path("/run/systemd/system"),
    "/usr/bin/systemctl",
    1.0,
)


class NoAnswer(CommandFailed):
    """The daemon did not answer; the text says what to try."""


class UntrustedListener(NoAnswer):
    """The process that listens on the socket is not the daemon."""


class DaemonRefused(CommandFailed):
    """The daemon answered with an error."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, status: int, error: str, hint: str) -> None:
        message = f"{error} ({hint})" if hint else error
        super().__init__(replace_unprintable(message))  # it goes to a terminal
        self.status = status


class AnswerTable(Json):
    """A table of an answer. A daemon of another version may not have every key."""

    def __init__(self, pairs: Json, of: str) -> None:
        super().__init__(pairs)
        self.of = of

    def __missing__(self, key: str) -> object:
        raise NoAnswer(f"the daemon says nothing of {key!r}: {self.of or 'please report it'}")


def default_socket() -> Path:
    """Where the daemon listens by default, for this user: root's daemon if the user runs none."""
    if os.geteuid() == 0:
        return _SYSTEM_SOCKET
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = (
        Path(runtime) / "vitald/vitald.sock"
        if runtime
        else Path(f"/tmp/vitald-{os.geteuid()}/vitald.sock")  # noqa: S108
    )
    return own if own.exists() or not _SYSTEM_SOCKET.exists() else _SYSTEM_SOCKET


def add_connection_options(parser: argparse.ArgumentParser, *, timeout_s: float = 2.0) -> None:
    parser.add_argument(
        "--socket",
        type=Path,
        default=None,
        metavar="PATH",
        help="the daemon's socket (default: its usual place)",
    )
    parser.add_argument(
        "--timeout",
        type=argument_types.parse_seconds(3600),
        default=timeout_s,
        metavar="SECONDS",
        help=f"give up after this long (default: {timeout_s:g})",
    )


class _Connection(http.client.HTTPConnection):
    """One deadline for the whole exchange: a server that sends single bytes cannot extend it."""

    def __init__(self, path: Path, deadline: float | None) -> None:
        super().__init__("vitald")
        self._path = path
        self._deadline = deadline

    def connect(self) -> None:
        self.sock = _DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.deadline = self._deadline
        if (left := self.sock.seconds_left()) is not None:
            # Blocking: with a timeout of Python's, connecting to a full queue fails at once
            # (EAGAIN), so that flooding the socket would keep us out.
            self.sock.setsockopt(
                socket.SOL_SOCKET,
                socket.SO_SNDTIMEO,
                struct.pack("ll", int(left), int(left % 1 * 1e6) or 1),
            )
        self.sock.connect(str(self._path))
        if os.geteuid() == 0:
            _check_listener(self.sock, self._path)
        self.sock.settimeout(self.sock.seconds_left())


class _DeadlineSocket(socket.socket):
    deadline: float | None = None

    def seconds_left(self) -> float | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def recv_into(self, *args: object, **kwargs: object) -> int:
        self.settimeout(self.seconds_left())
        return super().recv_into(*args, **kwargs)  # type: ignore[arg-type]


def find_owners() -> frozenset[int]:
    """The user ids that may listen on the daemon's socket: root's and its own user's."""
    import pwd  # most commands need not know

    try:
        return frozenset({0, pwd.getpwnam(DAEMON_USER).pw_uid})
    except KeyError:
        return frozenset({0})


def _check_listener(sock: socket.socket, place: Path) -> None:
    """Raises UntrustedListener. The kernel keeps the user that called listen(2): root, if systemd
    holds the socket.
    """
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != 0 and uid not in find_owners():
        sock.close()
        raise UntrustedListener(
            f"uid {uid} listens on {place}: root believes only a daemon of root's or of the user"
            f" {DAEMON_USER}; ask as that user"
        )


def get(arguments: argparse.Namespace, endpoint: Get[Answer], **values: object) -> Answer:
    """The answer to a GET. `values`: of the path's parameters and the query's; None is left out.

    Raises NoAnswer or DaemonRefused.
    """
    return cast("Answer", _read_answer(arguments, endpoint, None, values))


def post(
    arguments: argparse.Namespace, endpoint: Post[Body, Answer], body: Body, **values: object
) -> Answer:
    """The answer to a POST. Raises as `get`."""
    return cast("Answer", _read_answer(arguments, endpoint, body, values))


def _read_answer(
    arguments: argparse.Namespace,
    endpoint: Endpoint[Any],
    body: object,
    values: Mapping[str, object],
) -> Json:
    deadline = time.monotonic() + arguments.timeout
    with _send_request(arguments, endpoint, body, values, deadline) as response:
        return response.read_json()


def read_status(arguments: argparse.Namespace, work: str | None = None) -> schema.NodeStatus:
    """The answer of /v1/status, with at least what a verdict needs. Raises NoAnswer for anything
    else, and RequestRefused.
    """
    answer = get(arguments, STATUS, **{"for": None if work == "running" else work})
    _check_verdict(arguments, answer)
    return answer


def read_summary(arguments: argparse.Namespace) -> schema.NodeSummary:
    """The answer of /v1/summary, with at least what says which repair is due. Raises NoAnswer for
    anything else, and DaemonRefused.
    """
    answer = get(arguments, SUMMARY)
    _check_verdict(arguments, answer)
    for word in (answer["rebootDue"], answer["replacementDue"]):
        if word is not None and not (isinstance(word, str) and word.isalnum()):
            raise NoAnswer(f"the daemon names no reason for a repair: {word!r:.80}")
    return answer


def _check_verdict(arguments: argparse.Namespace, answer: Mapping[str, object]) -> None:
    """Raises NoAnswer where it has no status and reasons."""
    reasons = answer.get("reasons")
    sound = isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons)
    if answer.get("status") not in _STATUSES or not sound:
        raise NoAnswer(
            f"no verdict from {arguments.socket or default_socket()}: is that vitald's socket, and"
            " of this version?"
        )


def read_findings_by_component(
    arguments: argparse.Namespace,
) -> tuple[dict[str, list[schema.ApiFinding]], bool]:
    """The open findings, the strongest first, and whether there are more than one answer holds."""
    answer = get(arguments, FINDINGS, limit=MAX_PAGE)
    found: dict[str, list[schema.ApiFinding]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["component"], []).append(finding)
    return found, answer["more"]


def follow_changes(arguments: argparse.Namespace) -> Iterator[schema.WatchLine]:
    """The changes from /v1/watch, as they arrive."""
    with _send_request(arguments, WATCH, None, {}, None) as response:
        for line in response.read_lines():
            yield cast("schema.WatchLine", line)


class _Response:
    def __init__(
        self, place: Path, connection: _Connection, response: http.client.HTTPResponse
    ) -> None:
        self._place, self._connection, self._response = place, connection, response
        name, _, version = response.getheader("Server", "").partition("/")
        own = (name, version) == ("vitald", __version__)
        daemon = f"vitald {version}" if name == "vitald" else "of an older version"
        foreign = f"it is {daemon}, and this command is vitald {__version__}"
        self._foreign = "" if own else replace_unprintable(foreign)

    def __enter__(self) -> _Response:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read_json(self) -> Json:
        try:
            text = self._read_body()
        except (OSError, http.client.HTTPException) as error:
            raise _explain_no_answer(self._place, error) from error
        value = self._parse_json(text)
        if self._response.status >= 400:
            hints = [str(value.get("hint", ""))]
            # Another version may lack the path, the parameter or the key.
            if self._foreign and self._response.status in (400, 404, 405):
                hints.append(f"of the daemon: {self._foreign}")
            hint = "; ".join(filter(None, hints))
            raise DaemonRefused(self._response.status, str(value.get("error", "")), hint)
        return value

    def _read_body(self) -> bytearray:
        """In pieces: read at once, an answer of tiny chunks would be as many objects."""
        text = bytearray()
        while len(text) <= _MAX_BYTES and (part := self._response.read(_PIECE_BYTES)):
            text += part
        if len(text) > _MAX_BYTES:
            raise NoAnswer(
                f"more than {_MAX_BYTES} bytes from {self._place}: is that vitald's socket?"
            )
        return text

    def _parse_json(self, text: bytes | bytearray) -> Json:
        """Raises NoAnswer if it is no JSON object, or one beyond the limits."""
        if text.count(b"{") + text.count(b"[") > _MAX_PARTS:
            raise NoAnswer(
                f"an answer of more than {_MAX_PARTS} parts from {self._place}: is that vitald's"
                " socket?"
            )
        deep = NoAnswer(
            f"an answer nested deeper than {_MAX_DEPTH} from {self._place}: is that vitald's"
            " socket?"
        )
        try:
            value = json.loads(text, object_hook=lambda pairs: AnswerTable(pairs, self._foreign))
        except ValueError:
            raise NoAnswer(f"no JSON from {self._place}: is that vitald's socket?") from None
        except RecursionError:
            raise deep from None
        if is_deep(value, _MAX_DEPTH):
            raise deep
        if not isinstance(value, dict):
            raise NoAnswer(f"no JSON object from {self._place}: is that vitald's socket?")
        return value

    def read_lines(self) -> Iterator[Json]:
        if self._response.status >= 400:
            self.read_json()
        try:
            while line := self._response.readline(_MAX_LINE_BYTES + 1):
                if len(line) > _MAX_LINE_BYTES:
                    raise NoAnswer(
                        f"a line of more than {_MAX_LINE_BYTES} bytes from {self._place}: is that"
                        " vitald's socket?"
                    )
                yield self._parse_json(line)
        except (OSError, http.client.HTTPException) as error:
            raise _explain_no_answer(self._place, error) from error


def _send_request(
    arguments: argparse.Namespace,
    endpoint: Endpoint[Any],
    body: object,
    values: Mapping[str, object],
    deadline: float | None,
) -> _Response:
    place: Path = arguments.socket or default_socket()
    target = endpoint.make_target(values)
    connection = _Connection(place, deadline)
    try:
        if body is None:
            connection.request(endpoint.method, target)
        else:
            content = {"Content-Type": "application/json"}
            connection.request(endpoint.method, target, json.dumps(body), content)
        return _Response(place, connection, connection.getresponse())
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise _explain_no_answer(place, error) from error


def _explain_no_answer(place: Path, error: Exception) -> NoAnswer:
    if isinstance(error, PermissionError):
        return NoAnswer(f"not allowed to ask on {place}: {_name_allowed_group(place)}root")
    why = _explain_daemon_exit() if place == _SYSTEM_SOCKET else ""
    if isinstance(error, FileNotFoundError):
        hint = why or "is the daemon running? try: systemctl status vitald"
        return NoAnswer(f"no socket at {place}: {hint}")
    if isinstance(error, ConnectionRefusedError):
        hint = why or "the daemon has stopped; try: systemctl status vitald"
        return NoAnswer(f"nobody listens on {place}: {hint}")
    if isinstance(error, TimeoutError):
        return NoAnswer(f"no answer on {place} in time" + (f": {why}" if why else ""))
    return NoAnswer(f"no answer on {place}: {why or error}")


def _name_allowed_group(place: Path) -> str:
    """The group whose members may connect, unless it is root's."""
    import grp

    try:
        gid = place.stat().st_gid
        return f"join the group {grp.getgrgid(gid).gr_name}, or be " if gid else "be "
    except OSError:
        return "join the socket's group, or be "
    except KeyError:
        return f"join the group {gid}, or be "


def _explain_daemon_exit() -> str:
    """Why the daemon could not start and is not restarted, from systemd: its last status text,
    else what its exit code means.
    """
    if not _SYSTEMD_FOLDER.is_dir():
        return ""
    import subprocess  # only without an answer: it is a large part of the cost of `vitald check`

    command = [
        _SYSTEMCTL,
        "show",
        "vitald.service",
        "--property=ActiveState,ExecMainStatus,StatusText",
    ]
    try:
        output = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    unit = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    code = unit.get("ExecMainStatus", "")
    if unit.get("ActiveState") == "active" or code not in (str(EX_UNAVAILABLE), str(EX_CONFIG)):
        return ""
    meaning = "try: journalctl -u vitald -n 20"
    if code == str(EX_CONFIG):
        meaning = "its configuration is wrong; try: vitald config check"
    return f"the daemon could not start: {unit.get('StatusText') or meaning}"
