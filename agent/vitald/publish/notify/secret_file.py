"""
Files with secrets: addresses, signing keys, routing keys, headers with tokens.

They are read for each delivery, because a rotation replaces the file. No error says what was in
a file.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from vitald.checking import is_line
from vitald.publish.notify.settings import read_url

T = TypeVar("T")

_MAX_BYTES = 64 * 1024
_MAX_HEADERS, _MAX_VALUE = 32, 8000
_MAX_KEYS = 4
_KEY_PREFIX = "whsec_"
_MIN_KEY, _MAX_KEY = 24, 64  # bytes; Standard Webhooks 1.0.0, "Signature scheme"
# A token of RFC 9110, section 5.6.2.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
# What the sender sets itself, and what belongs to the connection.
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)


class SecretUnusable(Exception):
    """The text names the file and what is wrong with it, never what it holds."""


def read_secret(path: Path, parse: Callable[[str], T]) -> T:
    """What `parse` makes of a file that only its owner and group may read. Raises
    SecretUnusable.
    """
    try:
        content = _read_protected(path)
    except OSError as error:
        raise SecretUnusable(f"{path}: {error.strerror or error}") from None
    try:
        return parse(content.decode("ascii").strip())
    except UnicodeDecodeError:
        raise SecretUnusable(f"{path}: holds characters that are not ASCII") from None
    except ValueError as error:
        raise SecretUnusable(f"{path}: {error}") from None


def read_address(path: Path) -> str:
    """A URL as [[notify]] url may be. Raises SecretUnusable."""
    return read_secret(path, read_url)


def read_headers(path: Path | None) -> dict[str, str]:
    """None where there is no file. Raises SecretUnusable."""
    return {} if path is None else read_secret(path, parse_headers)


def read_signing_keys(path: Path | None) -> tuple[bytes, ...]:
    """None where there is no file. Raises SecretUnusable."""
    return () if path is None else read_secret(path, parse_signing_keys)


def read_routing_key(path: Path | None) -> str:
    """Empty where there is no file. Raises SecretUnusable."""
    return "" if path is None else read_secret(path, parse_routing_key)


def _read_protected(path: Path) -> bytes:
    # O_NONBLOCK: a FIFO without a writer would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise SecretUnusable(f"{path}: is no ordinary file")
        if status.st_mode & stat.S_IRWXO:
            mode = stat.S_IMODE(status.st_mode)
            raise SecretUnusable(
                f"{path}: mode {mode:04o} lets every user in: chmod o= {path}"
                " (in Kubernetes: defaultMode 0440 and a pod's fsGroup)"
            )
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise SecretUnusable(f"{path}: has more than {_MAX_BYTES} bytes")
    return content


def parse_signing_keys(text: str) -> tuple[bytes, ...]:
    """One key a line, the newest first: `whsec_` and base64, as Standard Webhooks writes them.
    Raises ValueError.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= _MAX_KEYS:
        raise ValueError(f"expected 1 to {_MAX_KEYS} lines, each with a key, found {len(lines)}")
    return tuple(_parse_key(number, line) for number, line in enumerate(lines, 1))


def _parse_key(number: int, line: str) -> bytes:
    expected = (
        f"line {number}: expected {_KEY_PREFIX} and the base64 of {_MIN_KEY} to {_MAX_KEY} random"
        " bytes: printf 'whsec_%s\\n' \"$(openssl rand -base64 32)\""
    )
    if not line.startswith(_KEY_PREFIX):
        raise ValueError(expected)
    try:
        key = base64.b64decode(line[len(_KEY_PREFIX) :], validate=True)
    except binascii.Error:
        raise ValueError(expected) from None
    if not _MIN_KEY <= len(key) <= _MAX_KEY:
        raise ValueError(expected)
    return key


def parse_routing_key(text: str) -> str:
    """An integration key of PagerDuty, which has 32 letters and digits. Raises ValueError."""
    if not re.fullmatch(r"[0-9A-Za-z]{32}", text):
        raise ValueError("expected an integration key of 32 letters and digits")
    return text


def parse_headers(text: str) -> dict[str, str]:
    """One `Name: value` a line. Lines that begin with # are comments. Raises ValueError."""
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"line {number}: expected a header such as Authorization: Bearer ...")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"line {number}: the header {name} is set by vitald")
        if not is_line(value.strip(), 1, _MAX_VALUE, ascii_only=True):
            raise ValueError(f"line {number}: the value of {name} is empty, long or unprintable")
        if name.lower() in (known.lower() for known in headers):
            raise ValueError(f"line {number}: {name} is given twice")
        headers[name] = value.strip()
    if len(headers) > _MAX_HEADERS:
        raise ValueError(f"expected at most {_MAX_HEADERS} headers")
    return headers
