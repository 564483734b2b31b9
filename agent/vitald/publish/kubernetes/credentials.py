"""
How the API server is reached: its address, its certificate authority, and who we are.

In a pod, everything is in the folder of the service account; elsewhere the configuration names
files or a program (client.authentication.k8s.io/v1), as a kubeconfig does. A token file is read
again when it has changed, because the kubelet and cloud agents rotate it.

Source: Kubernetes documentation, "Accessing the API from a Pod" and "client-go credential plugins".
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from vitald.checking import is_line, read_text
from vitald.publish.http import build_tls_context, parse_json
from vitald.text import replace_unprintable
from vitald.timestamps import parse_rfc3339

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN_BYTES = 64 * 1024
_EXEC_S = 15.0
_EARLY_S = 60.0  # a token is replaced so long before it expires


class NoCredentials(Exception):
    """The text names the file or the program, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """The API server and the credentials for it. An empty `token_file` and `program`: the client
    certificate only. `socket`: of a local proxy that has the credentials.
    """

    server: str
    ca_file: Path | None = None
    token_file: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    program: tuple[str, ...] = ()
    socket: Path | None = None

    def build_tls_context(self) -> ssl.SSLContext:
        """Raises NoCredentials."""
        try:
            context = build_tls_context(self.ca_file)
        except OSError as error:
            raise NoCredentials(f"certificate authority {self.ca_file}: {error}") from error
        if self.client_certificate is not None:
            try:
                context.load_cert_chain(self.client_certificate, self.client_key)
            except OSError as error:
                named = f"client certificate {self.client_certificate}"
                raise NoCredentials(f"{named}, key {self.client_key}: {error}") from error
        return context


def find_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """The cluster that this pod runs in. Raises NoCredentials."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host:
        raise NoCredentials(
            "not in a pod (KUBERNETES_SERVICE_HOST is not set): set [kubernetes] server"
        )
    address = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        server=f"https://{address}:{port or '443'}",
        ca_file=folder / "ca.crt",
        token_file=folder / "token",
    )


@dataclass(slots=True)
class TokenSource:
    """The bearer token of an access, "" if there is none."""

    access: ClusterAccess
    _token: str = field(default="", init=False)
    _stamp: tuple[int, int, int] = field(default=(0, 0, 0), init=False)
    _expires: float | None = field(default=None, init=False)

    async def read_token(self, now: float) -> str:
        """`now`: seconds since the epoch. Raises NoCredentials."""
        if self.access.program:
            if not self._token or (self._expires is not None and now > self._expires - _EARLY_S):
                self._token, self._expires = await _run_plugin(self.access.program)
        elif self.access.token_file is not None:
            self._read_file(self.access.token_file)
        return self._token

    def discard_token(self) -> None:
        """The API server refused it (401)."""
        self._token, self._stamp, self._expires = "", (0, 0, 0), None

    def _read_file(self, path: Path) -> None:
        try:
            # The kubelet replaces a link to a folder: the file's own data tell whether it changed.
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            with path.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise NoCredentials(f"token file {path}: {error}") from error
        if not _is_token(token):
            raise NoCredentials(f"token file {path}: holds no token")
        self._token, self._stamp = token, stamp


def _is_token(value: object) -> TypeGuard[str]:
    """Whether a header can carry it."""
    return is_line(value, 1, _MAX_TOKEN_BYTES, ascii_only=True) and " " not in value


async def _run_plugin(program: Sequence[str]) -> tuple[str, float | None]:
    """The token that a credential plugin prints, and when it expires. Raises NoCredentials."""
    name = program[0]
    info = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        )
    except OSError as error:
        raise NoCredentials(f"{name}: {error}") from error
    try:
        out, said = await asyncio.wait_for(process.communicate(), _EXEC_S)
    except asyncio.TimeoutError:
        raise NoCredentials(f"{name}: no answer within {_EXEC_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = replace_unprintable(said.decode(errors="replace").strip()[-200:], " ")
        raise NoCredentials(f"{name}: exit {process.returncode}: {reason}")
    try:
        token, expires = _parse_credential(parse_json(out))
    except ValueError as error:
        # Not the cause itself: what it found may be the token.
        raise NoCredentials(f"{name}: printed no ExecCredential with a token: {error}") from None
    return token, expires


def _parse_credential(document: object) -> tuple[str, float | None]:
    """Token and expiry, None if it has none. Raises ValueError that names the key."""
    status = document.get("status") if isinstance(document, dict) else None
    if not isinstance(status, dict):
        raise ValueError("status: expected a table")
    token, expires = status.get("token"), status.get("expirationTimestamp")
    if not _is_token(token):
        raise ValueError("status.token: expected a bearer token")
    if expires is None:
        return token, None
    try:
        return token, parse_rfc3339(read_text(expires)).timestamp()
    except ValueError:
        raise ValueError("status.expirationTimestamp: expected a time of RFC 3339") from None
